"""What one step does to the elements of a bucket: their first state, the covector of a sample, the update.

`LieGroupRule` is the rule of the paper (Alg. 1–3); every formula in it is one of `rule/`. The baselines bring rules of their
own and share everything else. A rule reads tensors and returns tensors; a store fetches and writes them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..groups import LieGroup, map_blocks
from ..posterior.prior import Gaussian
from ..rule import Adaptive, Form, SecondMoment, State, differential, update
from ..rule.curvature import Level, ratio
from .layout import Bucket, Layout, layout_for, working_dtype

Settings = dict[str, Any]
Numbers = TypeVar("Numbers", float, Tensor)
ParameterState = dict[str, Any]
"""Tensors in the layout of the parameter, by name, and its number of `steps`."""


class Elements(NamedTuple):
    """The elements of a bucket's parameters, as one."""

    layout: Layout
    point: Tensor
    element: Any
    state: dict[str, Tensor]
    steps: int
    """How many steps these parameters have taken."""
    numbers: ParameterState
    """The state of the first parameter, of which the numbers are meant."""
    level: Any = None
    """What `Rule.levels` says of the first parameter."""
    prior: Gaussian | None = None
    """Of a rule that has the prior in its own place: that of the first parameter, if it is a posterior."""


class Moved(NamedTuple):
    """What an update leaves."""

    element: Any
    memory: dict[str, Tensor]
    """The new values of states beside the element: momenta, second moments."""
    bounded: int | Tensor
    """How many coordinates `max_step` has bounded."""


class Rule(ABC):
    """The formulas of a learning rule."""

    in_kernel: ClassVar[bool] = False
    """Whether the native kernel has these formulas."""

    whole_tensors: ClassVar[bool] = False
    """Whether a bucket must be one parameter in its own shape, also under an elementwise group."""

    prior_in_covector: ClassVar[bool] = True
    """Whether the gradient that `covector` gets has δθ/N of a prior's precision in it; it always has ∇R/N of a function."""

    def observing(self, parameters: list[Tensor], *, again: bool) -> AbstractContextManager[None]:
        """A block around forward passes, for rules that need more of them than the gradient; `again`: with the last sample."""
        return nullcontext()

    def require_observations(self, parameters: list[Tensor]) -> None:  # noqa: B027
        """Refuses gradients that came without what the rule needs beside them, before anything is changed."""

    def forget_observations(self) -> None:  # noqa: B027
        """Called by zero_grad."""

    def levels(self, traces: Tensor, steps: list[int], samples: int) -> Tensor:
        """For rules with `traces` in their states: a number for every parameter that depends on the traces of all."""
        raise NotImplementedError

    @abstractmethod
    def start(self, p: Tensor, settings: Settings) -> ParameterState:
        """The state of a parameter before its first step."""

    @abstractmethod
    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> Any:
        """The covector at a sample θ, from the gradient of the mean loss there."""

    @abstractmethod
    def advance(self, elements: Elements, covector: Any, settings: Settings) -> Moved:
        """One step along a covector."""


class LieGroupRule(Rule):
    """g ← g·exp(−αM♯) for any group, base and metric (Alg. 1–3)."""

    in_kernel = True

    def __init__(self) -> None:
        self._forms: dict[Any, Form[Any]] = {}

    def start(self, p: Tensor, settings: Settings) -> ParameterState:
        point = p.detach().to(working_dtype(p))
        layout = layout_for(settings["group"], settings["base"], p.dtype)
        state: ParameterState = dict(layout.start(point))
        element = layout.element(point, state)
        for name, block in zip(element._fields, element, strict=True):
            state[f"momentum_{name}"] = torch.zeros_like(block)
            if isinstance(settings["metric"], Adaptive):
                state[f"second_moment_{name}"] = torch.zeros_like(block)
        state["steps"] = 0
        return state

    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> Any:
        """① + τ/N·② (line 6 of Alg. 1–3)."""
        temperature = settings["temperature"] / settings["data_size"]
        return differential(settings["group"], elements.element, theta, gradient, temperature)

    def advance(self, elements: Elements, covector: Any, settings: Settings) -> Moved:
        group, metric, element, state = settings["group"], settings["metric"], elements.element, elements.state
        names, kind = element._fields, type(element)

        def remembered(what: str) -> Any:
            return kind(*(state[f"{what}_{name}"] for name in names))

        memory: Any = ()
        if isinstance(metric, Adaptive):
            memory = SecondMoment(remembered("second_moment"), 1 - metric.beta**elements.steps)
        taken = update(
            group,
            self.form(settings, element),
            State(element, remembered("momentum"), memory),
            covector,
            lr=per_block(group, element, settings["lr"], settings["lr"] * settings["scale_lr_ratio"]),
            momentum=per_block(group, element, settings["momentum"], settings["scale_momentum"]),
            max_step=settings["max_step"],
        )
        results = {f"momentum_{name}": block for name, block in zip(names, taken.state.momentum, strict=True)}
        if isinstance(metric, Adaptive):
            results |= {f"second_moment_{name}": block for name, block in zip(names, taken.state.metric.mean, strict=True)}
        return Moved(taken.state.element, results, taken.bounded)

    def form(self, settings: Settings, element: Any) -> Form[Any]:
        """The metric's form, computed once for a group and base; for matrix groups once for each shape."""
        group, base, metric = settings["group"], settings["base"], settings["metric"]
        shape = None if group.elementwise else group.event_shape(element)
        key = (group, id(base), metric, shape)
        if key not in self._forms:
            self._forms[key] = metric.on(group, base, element)
        return self._forms[key]


class GaussNewtonRule(Rule):
    """Scales learned from squares of gradients, at the level of the exact covector (docs/curvature.md), for affine actions.

    With w = Aᵀ(∇ℓ + δ/N·E[θ]), the gradient in the coordinates of ε, and c the level of `rule.curvature`, the precision in
    these coordinates, in units of the entropy, is S = (N/τ)·c·Var(ε)·wwᵀ + (δ/τ)·Var(ε)·AᵀA, of which a group takes its own
    part, and g moves to (1 − ρ)·1 + ρS (`LieGroup.average_precision`). Fixed points are those of Alg. 3. (At the mean the
    prior's part of w does not depend on the sample, so it does not disturb the level; and near the optimum it is what
    makes w vanish in the mean.)

    The shift moves by `lr` times the `step_unit` of its tensor, whatever A, N, the base and the loss are: with M the momentum
    of the gradient, matrix groups along AAᵀM, a natural gradient; elementwise groups along AM, as Adam does, since A is an
    inverse root of squared gradients.

    With `prior=None` weights have a weak prior, and widths a limit, the size that their tensor started with: that prior alone
    would leave weights that the data do not determine so wide that training suffers. Steps of elementwise groups then leave
    out of A⁻² what is left of the start and the limit (`floor`, `free`), which would make steps of all weights alike; those
    of matrix groups keep it, as damping.
    """

    in_kernel = True  # on the diagonal affine group, with an even base
    whole_tensors = True
    prior_in_covector = False

    FADING = 0.02
    """The share of a new step in the running means of the traces."""
    FASTEST, WARM_UP = 0.15, 5.0
    """Widths are learned faster at first: by a rate of min(FASTEST, WARM_UP/(10 + steps)) at least."""
    STEPS_UP = 20
    """Steps on the shift reach their length after so many."""
    PRIOR, WIDEST = 0.7, 1.0
    """Without a prior of the user's: δ = PRIOR, and widths of WIDEST·size at most."""
    LONGEST = 10.0
    """No weight moves by more than this times the length of a step, under elementwise groups: lengths are in units of the
    gradients before, which may have been next to nothing."""
    SEEN = 0.001
    """The share of the floor that steps on the shift see."""
    FASTEST_LEVEL = 10.0
    """The data's part of A⁻² follows the level by this factor a step at most."""
    TOGETHER = 0.02
    """Factors of matrix groups move when so much of their curvature is new; until then it is added up."""

    def __init__(self) -> None:
        self._left_of_start: dict[float, list[float]] = {}
        self._waiting: dict[float, list[tuple[float, int]]] = {}

    def start(self, p: Tensor, settings: Settings) -> ParameterState:
        point = p.detach().to(working_dtype(p))
        size = starting_size(point, settings)
        width = 1.0 if settings["start_width"] is None else settings["start_width"] * size
        layout = layout_for(settings["group"], settings["base"], p.dtype)
        return {
            **layout.start(point, width),
            "momentum_shift": torch.zeros_like(point),
            **self._nothing_pending(point, settings),
            "traces": torch.zeros(3, dtype=torch.float64, device=p.device),  # running means
            "level": torch.zeros((), dtype=torch.float64, device=p.device),  # of the last step on the scales
            "unit": step_unit(point, settings),
            "size": size,
            "steps": 0,
        }

    def _nothing_pending(self, point: Tensor, settings: Settings) -> ParameterState:
        """Room for the curvature that the factors of a matrix group have not moved along yet."""
        group = settings["group"]
        if group.elementwise:
            return {}
        zero = group.zero(group.at(point))
        return {f"pending_{name}": block for name, block in zip(zero._fields, zero, strict=True) if name != group.shift_block}

    def levels(self, traces: Tensor, steps: list[int], samples: int) -> Tensor:
        """c for every tensor, from the traces of all up to the step before, (tensors, 3); 0 for those that have none yet."""
        known = torch.tensor([count > 0 for count in steps], device=traces.device)
        exact, squares, _ = (traces * known.unsqueeze(-1)).unbind(-1)
        draws = samples * min(max(steps), 2 / self.FADING) if steps else 0
        return ratio(Level(exact, squares, 1.0, 1 / max(draws, 1))) * known

    def width_rate(self, steps: int, settings: Settings) -> float:
        """ρ after so many steps. The first one tells the level, and leaves widths as they are."""
        return max(settings["width_rate"], min(self.FASTEST, self.WARM_UP / (steps + 10))) if steps else 0.0

    def length(self, steps: int, settings: Settings) -> float:
        """lr; where steps are not natural, growing over the first of them, in which the scales are still being learned."""
        return settings["lr"] * (min(1.0, (steps + 1) / self.STEPS_UP) if settings["group"].elementwise else 1.0)

    def pull(self, settings: Settings) -> float:
        """The precision δ of the prior. One that is a function is seen through its gradient."""
        prior = settings["prior"]
        if prior is None:
            return self.PRIOR
        return 0.0 if callable(prior) else prior

    def stiffness(self, size: Numbers, settings: Settings) -> Numbers | float:
        """The prior's precision as widths see it, in units of the entropy: δ/τ, or that of the limit by default."""
        if settings["prior"] is None:
            return (self.WIDEST * size) ** -2
        return self.pull(settings) / settings["temperature"]

    def floor(self, size: Numbers, steps: int, settings: Settings) -> Numbers | float:
        """What A⁻² holds beside the data's part: what is left of the start, and the limit's precision. 0 with a prior."""
        if settings["prior"] is not None:
            return 0.0
        left = self.left_of_start(steps, settings["width_rate"])
        start = 1.0 if settings["start_width"] is None else settings["start_width"] * size
        return left * start**-2 + (1 - left) * (settings["base"].variance * self.stiffness(size, settings))

    def _floor_of(self, elements: Elements, settings: Settings) -> float:
        return self.floor(elements.numbers["size"], elements.steps, settings)

    def left_of_start(self, steps: int, width_rate: float) -> float:
        """Π(1 − ρ): A⁻² is a running mean of precisions, in which this is the weight of the first."""
        shares = self._left_of_start.setdefault(width_rate, [1.0])
        while len(shares) <= steps:
            shares.append(shares[-1] * (1 - self.width_rate(len(shares) - 1, {"width_rate": width_rate})))
        return shares[steps]

    def level_ratio(self, before: Tensor, level: Tensor, settings: Settings) -> Tensor:
        """By how much the data's part of A⁻² changes with the level, so that it is c times a mean of squares, not one of c·w²:
        directions along A would otherwise remember how c has changed, whatever the gradients.

        With a prior it stays a mean of c·w², because widths are then wanted for themselves and c alone is noisy. The running
        mean of squares of free·w is divided by the ratio, or steps would jump with the level.
        """
        level = level.to(before.device)
        if settings["prior"] is not None:
            return torch.ones_like(level)
        known = (before > 0) & (level > 0)
        ratio = torch.where(known, level / torch.where(known, before, 1.0), 1.0)
        return ratio.clamp(1 / self.FASTEST_LEVEL, self.FASTEST_LEVEL)

    def waiting(self, steps: int, width_rate: float) -> tuple[float, int]:
        """The share of new curvature that factors of matrix groups have not moved along after so many steps, and its steps."""
        known = self._waiting.setdefault(width_rate, [(0.0, 0)])
        while len(known) <= steps:
            share, count = known[-1] if known[-1][0] < self.TOGETHER else (0.0, 0)
            rate = self.width_rate(len(known), {"width_rate": width_rate})
            known.append((share + (1 - share) * rate, count + 1))
        return known[steps]

    def free(self, elements: Elements, settings: Settings) -> Tensor:
        """What makes of a scale A that of the data alone, as Adam has it; SEEN of the rest is its ε."""
        share = settings["group"].variance(elements.element, 1.0) * self._floor_of(elements, settings)
        return (1 - (1 - self.SEEN) * share).clamp_min(self.SEEN).rsqrt()

    def fading(self, steps: int) -> float:
        """The share of a new step in the running means."""
        return max(self.FADING, 1 / (steps + 1))

    def covector(
        self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings
    ) -> list[Tensor]:
        """The scales' covector without its level and Var(ε), the gradient, and traces: Σ(θ − E[θ])·∇ℓ, Σw², Σ(free·w)²."""
        group, g = settings["group"], elements.element
        mean = self._mean(g, settings)
        if elements.prior is not None:
            pull = elements.prior.curvature * (mean - elements.prior.mean)
            gradient = gradient.add(pull, alpha=1 / settings["data_size"])
        else:
            gradient = gradient.add(mean, alpha=self.pull(settings) / settings["data_size"])
        whitened = group.linear(g)[1](gradient)
        exact = torch.linalg.vecdot((theta - mean).flatten(), gradient.flatten())
        squares = torch.linalg.vecdot(whitened.flatten(), whitened.flatten())
        blocks = group.pullback_at_identity(g, whitened, whitened)._replace(**{group.shift_block: gradient})
        steps = squares
        if group.elementwise:
            free = (whitened * self.free(elements, settings)).flatten()
            steps = torch.linalg.vecdot(free, free)
        return [*blocks, torch.stack([exact, squares, steps])]

    def advance(self, elements: Elements, covector: list[Tensor], settings: Settings) -> Moved:
        group, base, g, state = settings["group"], settings["base"], elements.element, elements.state
        *blocks, traces = covector
        xi = type(g)(*blocks)
        shift = getattr(g, group.shift_block)
        momentum = torch.lerp(getattr(xi, group.shift_block), state["momentum_shift"], settings["momentum"])
        traces = traces * traces.new_tensor([1.0, base.variance, 1.0])  # so that ε has variance 1 in the first two
        running = torch.lerp(state["traces"], traces, self.fading(elements.steps))
        times, transpose_times = group.linear(g)
        direction = transpose_times(momentum)
        if group.elementwise:  # in units of a running mean, that of the step before
            direction = direction * self.free(elements, settings)
            squares = (state["traces"] if elements.steps else traces)[2]
        else:
            direction = times(direction)
            squares = direction.square().sum()
        size = (squares / direction.numel()).sqrt().clamp_min(torch.finfo(direction.dtype).tiny)
        moved, pending = self._with_widths(g, xi, elements, settings)
        if group.elementwise:
            running[2] = running[2] / self.level_ratio(state["level"], elements.level, settings)
        if base.mean:  # widths change about the mean
            shift = shift + self._mean(g, settings) - self._mean(moved, settings)
        length = self.length(elements.steps, settings) * elements.numbers["unit"]
        if group.elementwise:
            shift = shift.sub((direction / size).clamp(-self.LONGEST, self.LONGEST), alpha=length)
        else:
            shift = shift.addcmul(direction, (-length / size).to(direction.dtype))
        memory = {"momentum_shift": momentum, "traces": running, **pending}
        return Moved(moved._replace(**{group.shift_block: shift}), memory, 0)

    def _mean(self, g: Any, settings: Settings) -> Tensor:
        """E[θ]."""
        group, mean = settings["group"], settings["base"].mean
        shift = getattr(g, group.shift_block)
        return group.act(g, torch.full_like(shift, mean)) if mean else shift

    def _with_widths(self, g: Any, xi: Any, elements: Elements, settings: Settings) -> tuple[Any, dict[str, Tensor]]:
        """The element with new scales, and the curvature that waits for a later step. The first step only tells the level."""
        group, steps, state = settings["group"], elements.steps, elements.state
        if steps == 0:
            return g, {}
        scales = {name: getattr(xi, name) * elements.level for name in g._fields if name != group.shift_block}
        if group.elementwise:
            rate = self.width_rate(steps, settings)
            S = self._precision(g, xi._replace(**scales), elements, settings)
            change = (1 / rate - 1) * (self.level_ratio(state["level"], elements.level, settings) - 1)
            data = (1 - group.variance(g, 1.0) * self._floor_of(elements, settings)).clamp_min(0.0)
            S = S._replace(**{name: getattr(S, name) + change * data for name in scales})
            return group.average_precision(g, S, rate), {"level": elements.level}
        share, count = self.waiting(steps, settings["width_rate"])
        sums = {name: x + state[f"pending_{name}"] if count > 1 else x for name, x in scales.items()}
        if share >= self.TOGETHER:
            mean = xi._replace(**{name: total / count for name, total in sums.items()})
            g = group.average_precision(g, self._precision(g, mean, elements, settings), share)
        return g, {f"pending_{name}": total for name, total in sums.items()}

    def _precision(self, g: Any, scales: Any, elements: Elements, settings: Settings) -> Any:
        """S, from the covectors of the scales at their level and from the prior."""
        group, variance = settings["group"], settings["base"].variance
        curvature = variance * settings["data_size"] / settings["temperature"]
        stiffness: Any = self.stiffness(elements.numbers["size"], settings)
        if elements.prior is not None:
            stiffness = elements.prior.curvature / settings["temperature"]
        return map_blocks(lambda s, x: s * stiffness + x * curvature, group.spread(g, variance), scales)


def starting_size(p: Tensor, settings: Settings) -> float:
    """The root mean square of a matrix; for vectors, and for matrices of zeros, that of all matrices of the group."""
    typical = settings["typical_size"]
    size = root_mean_square(p)
    return size if p.ndim > 1 and size > 1e-3 * typical else typical


def step_unit(p: Tensor, settings: Settings) -> float:
    """What a step of 1 is: for matrix groups 1/inputs, for elementwise groups at most that, size/√inputs; for vectors a mean.

    A step of 1/inputs that all inputs of a unit share changes its output by 1 if they are 1; one of size/√inputs changes it by
    what its starting weights give. In networks of torch's own initial sizes the second is 1/√3 of the first. Embeddings start
    with a size of 1, whatever their number of columns: for them it would be many times the first.
    """
    if p.ndim < 2:
        return settings["typical_unit"]
    return unit_of(starting_size(p, settings), inputs_of(p), settings)


def unit_of(size: float, inputs: float, settings: Settings) -> float:
    """The unit of a matrix."""
    return min(size / math.sqrt(inputs), 1 / inputs) if settings["group"].elementwise else 1 / inputs


def root_mean_square(*tensors: Tensor) -> float:
    """√mean(p²) over all numbers."""
    squares = sum(float(p.detach().double().square().sum()) for p in tensors)
    return math.sqrt(squares / max(sum(p.numel() for p in tensors), 1))


def matrix_sides(p: Tensor) -> tuple[int, int]:
    """The rows and columns of a weight as a matrix of outputs by inputs."""
    return p.shape[0], inputs_of(p)


def inputs_of(p: Tensor) -> int:
    """The number of inputs of a unit: all dimensions of a weight but its first."""
    return max(p.shape[1:].numel(), 1)


def per_block(group: LieGroup[Any], element: Any, of_shift: float, of_others: float) -> Any:
    """One number for the shift and another for every other block. A group with a single block has the shift's."""
    if len(element) == 1 or of_shift == of_others:
        return of_shift
    return type(element)(*(of_shift if name == group.shift_block else of_others for name in element._fields))
