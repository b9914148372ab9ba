"""The parameters of a group with their states, samples and covectors, and what a step does to them.

A store draws a sample into its buffers, folds the covectors of samples into sums, and advances the elements. There are two:
`TorchStore`, here, is the one to read, and serves every device, dtype, group and rule; `native_store.NativeStore` is the fast
one. They agree to rounding, given the same noise.
"""

from __future__ import annotations

import functools
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import draw_like, full, is_sharded, local
from ..posterior.prior import PosteriorPrior
from ..rule import Family
from .layout import SIZE, Bucket, buckets, in_memory_order, layout_for, working_dtype
from .noise import Noise
from .rule import Elements, ParameterState, Rule, Settings

Sums = dict[Tensor, list[Tensor]]
"""Covectors of several samples, added up: one tensor for each block of a parameter's element."""


class Store(ABC):
    """Some parameters of one parameter group.

    Args:
        parameters: those that are trained now.
        states: the optimizer's state of each.
        settings: the parameter group.
        rule: the formulas.
        samples: for each parameter the buffer that `draw` writes θ into.
        sums: where `fold` adds covectors up; it outlives the store.
    """

    def __init__(
        self,
        parameters: list[Tensor],
        states: list[ParameterState],
        settings: Settings,
        rule: Rule,
        samples: list[Tensor],
        sums: Sums,
    ) -> None:
        self.parameters: list[Tensor] = parameters
        self.states: list[ParameterState] = states
        self.settings: Settings = settings
        self.rule: Rule = rule
        self.samples: list[Tensor] = samples
        self.sums: Sums = sums
        self.gradients: list[Tensor | None] = []
        """Of each parameter, from `gather` on until a fold or an advance has used them."""
        self.levels: Tensor | None = None
        """What `Rule.levels` has said of each parameter for this step."""
        self.sums_changed: bool = True
        """Whether something else than a fold has written into the sums."""
        names = [name for name, value in states[0].items() if isinstance(value, Tensor)]
        self._state_of = operator.itemgetter(*names, names[0])  # twice the first, so that it is a tuple always
        self._state_tensors = self._states_now()
        self._objects = [settings[name] for name in ("group", "base", "metric")]
        self._layouts = _layouts(parameters)
        self._places = _places(parameters)

    def _states_now(self) -> list[Any]:
        return list(itertools.chain.from_iterable(map(self._state_of, self.states)))

    def is_current(self) -> bool:
        """Whether parameters, states and settings are still those the store was built for, and as it knows them."""
        settings = self.settings
        try:
            states = self._states_now()
        except KeyError:
            return False
        current = (
            all(map(operator.is_, self._objects, (settings["group"], settings["base"], settings["metric"])))
            and _layouts(self.parameters) == self._layouts
            and all(map(operator.is_, states, self._state_tensors))
        )
        self._places = _places(self.parameters)
        return current

    def has_moved(self) -> bool:
        """Whether a parameter has other memory than at the last `is_current`: a quick look between a sample and its step."""
        return _places(self.parameters) != self._places

    def gather(self) -> None:
        """Takes the gradients as they are now."""
        self.gradients = [p.grad for p in self.parameters]

    @property
    def has_traces(self) -> bool:
        """Whether the rule keeps `traces` of its parameters."""
        return "traces" in self.states[0]

    def traces(self) -> Tensor:
        """The traces of all parameters, (parameters, 3)."""
        return torch.stack([state["traces"].to("cpu", torch.float64) for state in self.states])

    @property
    def steps(self) -> list[int]:
        """How many steps each parameter has taken."""
        return [state["steps"] for state in self.states]

    @abstractmethod
    def draw(self, noise: Noise) -> None:
        """θ = g·ε into the samples."""

    @abstractmethod
    def all_finite(self) -> bool:
        """Whether no gradient has an infinite or NaN value."""

    @abstractmethod
    def fold(self, *, first: bool) -> bool:
        """Adds the covector at the samples to the sums, or begins them with it. A missing gradient is 0.

        Returns whether all gradients were finite: if not, the sums are unusable.
        """

    @abstractmethod
    def plan(self) -> bool:
        """Prepares g ← g·exp(−αM♯) with the covector at the samples, for parameters with a gradient; `advance` takes it.

        Returns whether all that it would write is finite. Nothing has changed yet.
        """

    @abstractmethod
    def plan_by_sums(self, use: Sequence[bool], count: int) -> bool:
        """The same with the mean of the `count` covectors in the sums, for the parameters to use."""

    @abstractmethod
    def advance(self) -> int | Tensor:
        """Takes the step that was planned. Returns how many coordinates were bounded."""

    def release(self) -> None:
        """Keeps no gradient and no plan alive."""
        self.gradients = []


def _layouts(parameters: list[Tensor]) -> list[Any]:
    return [*[p.shape for p in parameters], *map(Tensor.stride, parameters), *[p.dtype for p in parameters]]


def _places(parameters: list[Tensor]) -> list[int]:
    return [*map(Tensor.data_ptr, parameters), *map(Tensor.numel, parameters)]


class TorchStore(Store):
    """The rule on buckets of parameters, in torch."""

    def __init__(self, *arguments: Any, together: bool) -> None:
        super().__init__(*arguments)
        self.together = together  # small parameters share a bucket
        self._planned: list[_Planned] = []
        self._used: Sequence[int] = ()

    def draw(self, noise: Noise) -> None:
        for bucket, places in self._buckets(range(len(self.parameters))):
            bucket.write(self._sample(bucket, places, noise), [self.samples[i] for i in places])

    def _sample(self, bucket: Bucket, places: list[int], noise: Noise) -> Tensor:
        # Noise is drawn parameter by parameter, so that it does not depend on what shares a bucket.
        elements, base = self._elements(bucket, places), self.settings["base"]

        def sample(p: Tensor, size: tuple[int, ...], start: int) -> Tensor:
            if bucket.flat or not self.settings["group"].elementwise:
                return noise.sample(p, base, size, start, working_dtype(p))
            return in_memory_order(noise.sample(p, base, (p.numel(),), 0, working_dtype(p)), p)  # as in flat buckets

        epsilon = [
            draw_like(p, partial(sample, p), SIZE) if is_sharded(p) else sample(p, size, bucket.start)
            for p, size in zip(bucket.parameters, bucket.sizes, strict=True)
        ]
        together = epsilon[0] if len(epsilon) == 1 else torch.cat(epsilon)
        return elements.layout.sample(self.settings["group"], elements.point, elements.element, together)

    def all_finite(self) -> bool:
        return all_finite([gradient for gradient in self.gradients if gradient is not None])

    def fold(self, *, first: bool) -> bool:
        for bucket, places in self._buckets(range(len(self.parameters))):
            covector = self._covector(bucket, places, self._elements(bucket, places))
            for i, block in enumerate(covector):
                sums = [self._sum(p, i, block, bucket.flat) for p in bucket.parameters]
                bucket.write(block if first else block + bucket.read(sums, block.dtype), sums)
        return self.all_finite()

    def _sum(self, p: Tensor, number: int, block: Tensor, flat: bool) -> Tensor:
        blocks = self.sums.setdefault(p, [])
        if len(blocks) == number:
            blocks.append(torch.zeros_like(p, dtype=block.dtype, requires_grad=False) if flat else torch.zeros_like(block))
        return blocks[number]

    def plan(self) -> bool:
        used = [i for i, gradient in enumerate(self.gradients) if gradient is not None]
        return self._plan(used, self._covector)

    def plan_by_sums(self, use: Sequence[bool], count: int) -> bool:
        def mean(bucket: Bucket, places: list[int], elements: Elements) -> Any:
            dtype = working_dtype(bucket.parameters[0])
            blocks = zip(*(self.sums[p] for p in bucket.parameters), strict=True)
            means = [bucket.read(list(block), dtype) / count for block in blocks]
            return means if self.rule.whole_tensors else type(elements.element)(*means)

        return self._plan([i for i, yes in enumerate(use) if yes], mean)

    def _plan(self, used: Sequence[int], covector: Callable[[Bucket, list[int], Elements], Any]) -> bool:
        self._planned, self._used = [], used
        for bucket, places in self._buckets(used):
            elements = self._elements(bucket, places)
            step = compiled_step() if COMPILES and bucket.parameters[0].is_cuda else bucket_step
            xi = covector(bucket, places, elements)
            new = step(self.rule, self.settings, elements, xi, bucket.parameters[0].dtype)
            self._planned.append(_Planned(bucket, places, new))
        news = [planned.new for planned in self._planned]
        values = [value for new in news for value in (new.point, *new.states.values())]
        return all_finite([new.total for new in news]) or all_finite(values)

    def advance(self) -> int | Tensor:
        bounded: int | Tensor = 0
        for bucket, places, new in self._planned:
            states = [self.states[i] for i in places]
            for name, values in new.states.items():
                bucket.write(values, [each[name] for each in states])
            bucket.write(new.point, [p.detach() for p in bucket.parameters])
            bounded = bounded + new.bounded
        for i in self._used:
            self.states[i]["steps"] += 1
        return bounded

    def release(self) -> None:
        super().release()
        self._planned = []

    def _buckets(self, used: Sequence[int]) -> Iterator[tuple[Bucket, list[int]]]:
        """Parameters that can be worked on together, of one dtype, device and age, with their places in the store."""
        runs: list[list[int]] = []
        kind: Any = None
        for i in used:
            p = self.parameters[i]
            this = (p.dtype, p.device, self.states[i]["steps"])
            if this != kind:
                runs.append([])
            kind = this
            runs[-1].append(i)
        for run in runs:
            place = {id(self.parameters[i]): i for i in run}
            group = [self.parameters[i] for i in run]
            flat = self.settings["group"].elementwise and not self.rule.whole_tensors
            for bucket in list(buckets(group, flat=flat, together=self.together)):
                yield bucket, [place[id(p)] for p in bucket.parameters]

    def _elements(self, bucket: Bucket, places: list[int]) -> Elements:
        states, settings, first = [self.states[i] for i in places], self.settings, bucket.parameters[0]
        dtype = working_dtype(first)
        names = [name for name, value in states[0].items() if isinstance(value, Tensor)]
        state = {name: bucket.read([each[name] for each in states], dtype) for name in names}
        point = bucket.read([p.detach() for p in bucket.parameters], dtype)
        layout = layout_for(settings["group"], settings["base"], first.dtype)
        level = None if self.levels is None else self.levels[places[0]].to(dtype)
        prior = settings["prior"]
        known = prior.gaussian(first) if isinstance(prior, PosteriorPrior) and not self.rule.prior_in_covector else None
        element = layout.element(point, state)
        return Elements(layout, point, element, state, states[0]["steps"], states[0], level, known)

    def _covector(self, bucket: Bucket, places: list[int], elements: Elements) -> Any:
        dtype, settings = working_dtype(bucket.parameters[0]), self.settings
        samples, found = [self.samples[i] for i in places], [self.gradients[i] for i in places]
        theta = bucket.read(samples, dtype)
        pairs = zip(bucket.parameters, found, strict=True)
        gradient = bucket.read([torch.zeros_like(p) if g is None else g for p, g in pairs], dtype)
        if settings["maximize"]:
            gradient = -gradient
        prior, N = settings["prior"], settings["data_size"]
        if isinstance(prior, PosteriorPrior):
            if self.rule.prior_in_covector:
                pairs = zip(bucket.parameters, samples, strict=True)
                gradient = gradient.add(bucket.read([prior.gradient(p, s) for p, s in pairs], dtype), alpha=1 / N)
        elif callable(prior):
            gradient = gradient.add(bucket.read([prior_gradient(prior, sample) for sample in samples], dtype), alpha=1 / N)
        elif prior and self.rule.prior_in_covector:
            gradient = gradient.add(theta, alpha=prior / N)
        return self.rule.covector(elements, bucket, theta, gradient, settings)


class _New(NamedTuple):
    """What a step leaves of a bucket."""

    point: Tensor
    states: dict[str, Tensor]
    bounded: int | Tensor
    """How many coordinates `max_step` has bounded."""
    total: Tensor
    """The sum of all numbers: finite only if they are."""


class _Planned(NamedTuple):
    """A step that is not taken yet."""

    bucket: Bucket
    places: list[int]
    new: _New


def bucket_step(rule: Rule, settings: Settings, elements: Elements, covector: Any, dtype: torch.dtype) -> _New:
    """One step of a bucket: tensors in, tensors out."""
    moved = rule.advance(elements, covector, settings)
    point, state = elements.layout.store(elements.point, moved.element, dtype)
    states = {**state, **moved.memory}
    total = point.sum(dtype=elements.point.dtype)
    for values in states.values():
        total = total + values.sum()
    return _New(point, states, moved.bounded, total)


COMPILES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether torch.compile takes `bucket_step` as one graph: that of 2.13 does, those of 2.6 and 2.9 do not."""


@functools.cache
def compiled_step() -> Callable[..., Any]:
    """`bucket_step` as one fused kernel: on a GPU torch.compile writes what the native kernel is on a CPU."""
    return torch.compile(bucket_step, fullgraph=True)


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no gradient has an infinite or NaN value. Shards: those of this rank."""
    # A sum is quickest, and finite only if all its numbers are; that of large numbers may overflow.
    for gradient in [local(g) for g in gradients]:
        total = gradient.sum(dtype=torch.float64 if gradient.dtype == torch.float64 else torch.float32)
        if not (bool(total.isfinite()) or bool(gradient.isfinite().all())):
            return False
    return True


def prior_gradient(prior: Callable[..., Any], theta: Tensor) -> Tensor:
    """∇R(θ) of a prior that is a function."""
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = prior(leaf)
        if not (isinstance(value, Tensor) and value.requires_grad):
            came = "a tensor without a gradient" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ValueError(
                f"A prior that is a function must return a tensor that depends on its argument, but returned {came}. Compute "
                "it with torch operations, without item() or detach()."
            )
        return torch.autograd.grad(value.sum(), leaf)[0]


# States that fit their parameter.


def starting_state(p: Tensor, settings: Settings, rule: Rule) -> ParameterState:
    """The state of a parameter before its first step.

    With a posterior as prior, training starts with its widths; where `start_width` is narrower, with that: weights that
    earlier data have left open start as without a prior, not with the noise of all they may be.
    """
    state, prior = rule.start(p, settings), settings["prior"]
    if isinstance(prior, PosteriorPrior) and "log_scale" in state:
        width = prior.log_width(p, settings["base"].stddev)
        if width is not None and width.shape == state["log_scale"].shape:
            width = width.to(state["log_scale"].dtype)
            if settings["start_width"] is not None and not rule.prior_in_covector:
                width = torch.minimum(width, state["log_scale"])
            state["log_scale"] = in_layout_of(p, width)
    return state


def fit_state(name: str, p: Tensor, state: ParameterState, settings: Settings, rule: Rule) -> None:
    """Gives a parameter's state the blocks, precision and layout that the parameter needs now. Another shape is refused."""
    elementwise = settings["group"].elementwise and not rule.whole_tensors
    needed = rule.start(torch.ones(1, dtype=p.dtype) if elementwise else p, settings)
    if "remainder" not in needed:  # of a narrower dtype that the parameter had: the point is what the module shows
        state.pop("remainder", None)
    for key, like in needed.items():
        value = state.get(key)
        if not isinstance(like, Tensor):
            if not isinstance(value, (int, float)):
                raise ValueError(f"The parameter {name} needs a number as its state {key}, but has {value!r}.")
            continue
        shape = p.shape if elementwise else like.shape
        if value is None and key == "remainder":  # the parameter had a wider dtype, which rounded nothing away
            value = torch.zeros_like(p, dtype=like.dtype, requires_grad=False)
        if not isinstance(value, Tensor) or value.shape != shape:
            found = (
                f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else "nothing" if value is None else repr(value)
            )
            raise ValueError(
                f"The parameter {name} of shape {tuple(p.shape)} needs a state {key} of shape {tuple(shape)}, but has "
                f"{found}. Load a checkpoint of the same model; after a change of shape, build a new optimizer."
            )
        state[key] = in_layout_of(p, value.to(like.dtype))


def in_layout_of(p: Tensor, value: Tensor) -> Tensor:
    """A state, a sample or a block of a covector in the memory layout and on the device that the parameter has now."""
    if value.shape != p.shape or value.stride() == p.stride() or is_sharded(p):
        return value.to(p.device)
    return torch.empty_like(p, dtype=value.dtype, requires_grad=False).copy_(value)


def family_of(p: Tensor, state: ParameterState, settings: Settings) -> Family[Any]:
    """The member of its family that a parameter has reached, as a copy; shards are gathered."""
    layout = layout_for(settings["group"], settings["base"], p.dtype)
    point = full(p.detach()).to(working_dtype(p), copy=True)
    copies = {name: full(value).clone() for name, value in state.items() if isinstance(value, Tensor)}
    return Family(settings["group"], settings["base"], layout.family_element(point, copies))
