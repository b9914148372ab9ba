"""The rule on many parameters by the native kernel: `TorchStore` in one pass over memory.

It takes float32 parameters in the CPU's memory under the elementwise groups. The kernel works on addresses, which are asked
for before every job and never remembered: `share_memory_()`, for one, moves what a tensor holds.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..bases.philox import supports
from ..groups import Additive, DiagonalAffine, Multiplicative
from ..native.bounds import Covector, Memory, Sizes, after_gauss_newton, after_step, after_widths, all_numbers, covector_at
from ..rule import Absorbed, Adaptive, Fisher
from .layout import is_dense, layout_for
from .noise import Noise, describe_noise
from .rule import GaussNewtonRule, Rule, Settings
from .store import Store, all_finite

_GROUPS: dict[type, int] = {Additive: 0, Multiplicative: 1, DiagonalAffine: 2}
_NAMES = ("additive", "multiplicative", "affine")
_BLOCKS = {
    Additive: {"shift": "shift"},
    Multiplicative: {"log_scale": "scale"},
    DiagonalAffine: {"log_scale": "scale", "shift": "shift"},
}
"""The blocks of a group's elements, in their order, and what the kernel calls them."""
_SCALE_STATES = {Additive: {}, Multiplicative: {"remainder": "log_scale"}, DiagonalAffine: {"log_scale": "log_scale"}}
"""The part of a scale that is not the parameter itself: its name among the states, and the kernel's."""
_PLAIN = (Tensor, torch.nn.Parameter)
_WIDTH = len(native.TENSOR_FIELDS)


def kernel_has(settings: Settings, rule: Rule, source: str) -> bool:
    """Whether the kernel can do the work of a parameter group: draw its noise, and step by its rule."""
    return (
        native.available()
        and rule.in_kernel
        and source != "torch"
        and supports(settings["base"])
        and type(settings["group"]) in _GROUPS
        and type(settings["metric"]) in (Absorbed, Fisher, Adaptive)
        and not callable(settings["prior"])
        and (not isinstance(rule, GaussNewtonRule) or _kernel_has_gauss_newton(settings))
    )


def _kernel_has_gauss_newton(settings: Settings) -> bool:
    return type(settings["group"]) is DiagonalAffine and settings["base"].mean == 0


def in_plain_memory(t: Tensor) -> bool:
    """Whether the kernel can read a tensor: float32 numbers that fill their memory on the CPU."""
    return (
        t.dtype is torch.float32 and t.is_cpu and (t.is_contiguous() or is_dense(t)) and type(t) in _PLAIN and t.numel() != 0
    )


class NativeStore(Store):
    """Parameters whose numbers the kernel can read, under a group it has."""

    def __init__(self, *arguments: Any, numbers: list[int]) -> None:
        super().__init__(*arguments)
        self._group = type(self.settings["group"])
        self._contiguous = all(p.is_contiguous() for p in self.parameters)
        self._columns = {field: self._states_named(name) for name, field in self._state_names().items()}
        self._tensors: list[Tensor] = [*self.parameters, *self.samples, *itertools.chain.from_iterable(self._columns.values())]
        self._addresses: list[int] = []
        counts = [p.numel() for p in self.parameters]
        self._table = native.table({"count": counts, "number": numbers})
        self._sharp = None if isinstance(self.settings["metric"], Adaptive) else _sharp_matrix(self.settings)
        # Bounds of magnitudes, where they are known.
        self._sample = Sizes()
        self._gradient = self._sum_scale = self._sum_shift = math.nan
        self._memory: Memory | None = None
        self._planned: tuple[native.Job, Sequence[bool], Memory | None] | None = None

    def _state_names(self) -> dict[str, str]:
        """The states that a step reads and writes, and what the kernel calls them."""
        names = dict(_SCALE_STATES[self._group])
        for block, field in _BLOCKS[self._group].items():
            names[f"momentum_{block}"] = f"momentum_{field}"
            if isinstance(self.settings["metric"], Adaptive):
                names[f"second_moment_{block}"] = f"second_{field}"
        return names

    def _states_named(self, name: str) -> list[Tensor]:
        tensors = [state.get(name) for state in self.states]
        for tensor, p in zip(tensors, self.parameters, strict=True):
            if not (
                isinstance(tensor, Tensor)
                and tensor.dtype is torch.float32
                and tensor.shape == p.shape
                and tensor.stride() == p.stride()
            ):
                raise ValueError(
                    f"A parameter has no state {name} of its shape and dtype. A group or metric that is changed in "
                    "mid-training, or a state, needs a new optimizer."
                )
        return tensors  # pyright: ignore[reportReturnType]

    # Jobs.

    def draw(self, noise: Noise) -> None:
        self._draw(self._job(native.SAMPLE | native.ALL_SIZES), noise)

    def _draw(self, job: native.Job, noise: Noise) -> None:
        describe_noise(job, self.settings["base"], noise)
        self._put_addresses()
        native.run(job, self._table)
        self._sample = Sizes() if job.count else Sizes(*job.sizes)  # of points that are not positive nothing is sure

    def gather(self) -> None:
        """The gradients in the layout of their parameters."""
        super().gather()
        gradients = self.gradients
        found = [g for g in gradients if g is not None]
        plain = self._contiguous and all(map(Tensor.is_contiguous, found)) and not any(map(Tensor.is_neg, found))
        if not (plain and all([g.dtype is torch.float32 for g in found])):  # noqa: C419  # a list is quicker
            for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
                if g is not None and (g.dtype is not torch.float32 or g.stride() != p.stride() or g.is_neg()):
                    gradients[i] = torch.empty_like(p, requires_grad=False).copy_(g)
        if len(found) == len(gradients):
            self._put("gradient", [g.data_ptr() for g in gradients if g is not None])
        else:
            self._put("gradient", [0 if g is None else g.data_ptr() for g in gradients])

    def all_finite(self) -> bool:
        self._gradient = self._size([g is not None for g in self.gradients])
        return math.isfinite(self._gradient) or all_finite([g for g in self.gradients if g is not None])

    def _size(self, use: Sequence[bool]) -> float:
        """A bound of the magnitudes of what the table has as gradients, infinite or NaN where one of them is, or is huge."""
        job = self._job(native.SIZE)
        native.run(job, self._rows(use))
        return job.sizes[0]

    def _size_of(self, tensors: Sequence[Tensor]) -> float:
        table = self._table
        self._table = native.table({"count": [t.numel() for t in tensors], "gradient": list(map(Tensor.data_ptr, tensors))})
        try:
            return self._size([True])
        finally:
            self._table = table

    def fold(self, *, first: bool) -> bool:
        for p in self.parameters:
            if p not in self.sums or (first and self.sums[p][0].stride() != p.stride()):
                self.sums[p] = [torch.zeros_like(p, requires_grad=False) for _ in _BLOCKS[self._group]]
        job = self._job(native.FOLD | (native.FIRST if first else 0))
        self._describe_loss(job)
        self._put_addresses()
        self._put_sums()
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, self.gradients, strict=True)]
        self._put("gradient", list(map(Tensor.data_ptr, filled)))
        native.run(job, self._table)
        self._sum_scale, self._sum_shift, _ = job.sizes
        self.sums_changed = False
        return all_numbers(job.sizes) or all_finite(filled)

    def plan(self) -> bool:
        job = self._job(native.STEP)
        self._describe_loss(job)
        return self._plan(job, [gradient is not None for gradient in self.gradients], self._covector_at(job))

    def _covector_at(self, job: native.Job) -> Covector:
        return covector_at(self._sample, self._gradient, job.prior, job.temperature)

    def plan_by_sums(self, use: Sequence[bool], count: int) -> bool:
        job = self._job(native.STEP)
        job.from_sums, job.share = 1, 1 / count
        self._put_sums()
        if self.sums_changed:
            blocks = range(len(_BLOCKS[self._group]))
            sizes = [self._size_of([self.sums[p][number] for p in self.parameters]) for number in blocks]
            self._sum_scale, self._sum_shift = sizes[0], sizes[-1]  # of a single block twice the same
        return self._plan(job, use, Covector(self._sum_scale / count, self._sum_shift / count))

    def _plan(self, job: native.Job, use: Sequence[bool], covector: Covector) -> bool:
        self._describe_step(job)
        self._put_addresses()
        if job.adaptive:
            beta, steps = self.settings["metric"].beta, [state["steps"] for state in self.states]
            gathered = {n: 1 - beta ** (n + 1) for n in set(steps)}
            self._put("gathered", array("d", [gathered[n] for n in steps]).tobytes())
        memory = None if self._memory is None else self._after(job, covector, self._memory)
        if memory is None:
            memory = self._after(job, covector, self._measured_memory())
        self._planned = job, use, memory
        return memory is not None or self._try(job, use)

    def _after(self, job: native.Job, covector: Covector, memory: Memory) -> Memory | None:
        return after_step(job, _NAMES[job.group], self._sample, covector, memory)

    def _measured_memory(self) -> Memory:
        """The bounds that were carried along may be far too large, and after a step that was tried there are none."""
        fields = [field for field in self._columns if field != "log_scale"]
        return Memory(**{field: self._size_of(self._columns[field]) for field in fields})

    def _try(self, job: native.Job, use: Sequence[bool]) -> bool:
        job.what |= native.TRY
        native.run(job, self._rows(use))
        job.what &= ~native.TRY
        return job.count == 0

    def advance(self) -> int:
        if self._planned is None:
            raise RuntimeError("A step is taken that was not planned.")
        job, use, self._memory = self._planned
        native.run(job, self._rows(use))
        moved = self.parameters if all(use) else [p for p, yes in zip(self.parameters, use, strict=True) if yes]
        torch.autograd.graph.increment_version(moved)  # torch has not seen them written
        for state, yes in zip(self.states, use, strict=True):
            state["steps"] += yes
        return job.count

    def release(self) -> None:
        super().release()
        self._planned = None

    def _rows(self, use: Sequence[bool]) -> array[int]:
        """The records of some parameters."""
        if all(use):
            return self._table
        rows = [self._table[i * _WIDTH : (i + 1) * _WIDTH].tobytes() for i, yes in enumerate(use) if yes]
        return array("Q", b"".join(rows))

    # Addresses.

    def _put(self, field: str, values: Any) -> None:
        self._table[native.FIELD_NUMBERS[field] :: _WIDTH] = array("Q", values)

    def _put_addresses(self) -> None:
        addresses = list(map(Tensor.data_ptr, self._tensors))
        if addresses != self._addresses:
            self._addresses, count = addresses, len(self.parameters)
            for number, field in enumerate(("point", "sample", *self._columns)):
                self._put(field, addresses[number * count : (number + 1) * count])

    def _put_sums(self) -> None:
        for number, field in enumerate(_BLOCKS[self._group].values()):
            self._put(f"sum_{field}", [self.sums[p][number].data_ptr() for p in self.parameters])

    # Settings.

    def _job(self, what: int) -> native.Job:
        group, base = self.settings["group"], self.settings["base"]
        job = native.Job(what=what, group=_GROUPS[self._group], threads=native.threads(), over_mean=1.0)
        if isinstance(group, Multiplicative):
            job.over_mean = 1 / layout_for(group, base, torch.float32).mean  # pyright: ignore[reportAttributeAccessIssue]
        return job

    def _describe_loss(self, job: native.Job) -> None:
        settings, N = self.settings, self.settings["data_size"]
        job.ascend = settings["maximize"]
        job.prior, job.temperature = (settings["prior"] or 0.0) / N, settings["temperature"] / N

    def _describe_step(self, job: native.Job) -> None:
        settings, metric = self.settings, self.settings["metric"]
        lr, beta, scale_beta = settings["lr"], settings["momentum"], settings["scale_momentum"]
        scale_lr = lr * settings["scale_lr_ratio"]
        if self._group is Multiplicative:  # a group of one block, which has the first of each pair
            scale_lr, scale_beta = lr, beta
        job.lr_shift, job.lr_scale = lr, scale_lr
        job.beta_shift, job.rest_shift = beta, 1 - beta
        job.beta_scale, job.rest_scale = scale_beta, 1 - scale_beta
        job.max_step = math.inf if settings["max_step"] is None else settings["max_step"]
        if isinstance(metric, Adaptive):
            job.adaptive, job.epsilon = 1, metric.epsilon
            job.beta_second, job.rest_second = metric.beta, 1 - metric.beta
        else:
            job.sharp = self._sharp


def _sharp_matrix(settings: Settings) -> Any:
    """The matrix of a constant metric's ♯, by its action on unit covectors."""
    if isinstance(settings["metric"], Absorbed):
        return (ctypes.c_float * 4)(1.0, 0.0, 0.0, 1.0)
    element = settings["group"].at(torch.ones(1))
    form = settings["metric"].on(settings["group"], settings["base"], element)
    kind, rows = type(element), {"log_scale": 0, "shift": 1}
    matrix = [0.0] * 4
    for column in kind._fields:
        unit = kind(*(torch.tensor(float(name == column), dtype=torch.float64) for name in kind._fields))
        for row, value in zip(kind._fields, form.sharp(unit), strict=True):
            matrix[2 * rows[row] + rows[column]] = float(value)
    return (ctypes.c_float * 4)(*matrix)


class NativeGaussNewtonStore(NativeStore):
    """`GaussNewtonRule` on the diagonal affine group: one pass a step, which also adds up the traces."""

    rule: GaussNewtonRule  # pyright: ignore[reportIncompatibleVariableOverride]
    MEASURED = 16
    """After so many steps the bounds of points and scales are measured again."""

    def __init__(self, *arguments: Any, numbers: list[int]) -> None:
        super().__init__(*arguments, numbers=numbers)
        counts = [p.numel() for p in self.parameters]
        chunks = [-(-count // native.CHUNK) for count in counts]
        self._counts = torch.tensor(counts, dtype=torch.float64)
        self._units, self._sizes = torch.tensor([(s["unit"], s["size"]) for s in self.states], dtype=torch.float64).unbind(1)
        self._partials = array("d", bytes(24 * sum(chunks)))
        self._found = torch.zeros(len(counts), 3, dtype=torch.float64)  # the traces of the last job
        for row, p in zip(self._found, self.parameters, strict=True):  # built anew between two samples of a step
            for sums in self.sums.get(p, [])[2:]:
                row.copy_(sums)
        self._variance: float = self.settings["base"].variance
        self._units_of_traces = torch.tensor([1.0, self._variance, 1.0], dtype=torch.float64)  # ε of variance 1 in both
        self._put("traces", [row.data_ptr() for row in self._found])
        self._put("first_chunk", [0, *itertools.accumulate(chunks[:-1])])
        self._numbers = torch.frombuffer(self._table, dtype=torch.float64).view(-1, _WIDTH)
        # All running traces are one tensor, of which states have views: what follows is a few operations for all of them.
        self._traces = super().traces()
        for state, row in zip(self.states, self._traces, strict=True):
            state["traces"] = row
        self._levels_before = torch.stack([state["level"].to("cpu", torch.float64) for state in self.states])
        for state, level in zip(self.states, self._levels_before, strict=True):
            state["level"] = level
        self._state_tensors = self._states_now()
        self._means: Tensor | None = None  # of the traces in the sums
        self._largest = (math.nan, math.nan, math.nan)  # of the limits of steps, curvatures and the prior's
        self._least_growth = math.nan  # of a precision, in a step
        self._reached, self._follows, self._versions = Sizes(), 0, []  # bounds of point and scale, for how many steps

    def _state_names(self) -> dict[str, str]:
        return {"log_scale": "log_scale", "momentum_shift": "momentum_shift"}

    def traces(self) -> Tensor:
        return self._traces

    def draw(self, noise: Noise) -> None:
        if self._follows < self.MEASURED and self._versions == self._versions_now():
            self._draw(self._job(native.SAMPLE), noise)
            self._sample = self._sample._replace(point=self._reached.point, scale=self._reached.scale)
        else:
            super().draw(noise)
            self._reached, self._follows, self._versions = self._sample, 0, self._versions_now()

    def _versions_now(self) -> list[int]:
        return [t._version for t in itertools.chain(self.parameters, self._columns["log_scale"])]

    def fold(self, *, first: bool) -> bool:
        self._put_pull_and_floor()
        finite = super().fold(first=first)
        for p, row in zip(self.parameters, self._found, strict=True):
            self.sums[p][2:] = [row]
        return finite

    def _put_numbers(self, **columns: Tensor | float) -> None:
        for field, values in columns.items():
            self._numbers[:, native.FIELD_NUMBERS[field]] = values

    def _put_pull_and_floor(self) -> None:
        floor = self._by_age(lambda age: self.rule.floor(self._sizes, age, self.settings))
        self._put_numbers(pull=self.rule.pull(self.settings) / self.settings["data_size"], floor=floor)

    def _by_age(self, value: Callable[[int], Tensor | float]) -> Tensor | float:
        """What depends on the number of steps, for every parameter; nearly always they are of one age."""
        ages = self.steps
        known = {age: value(age) for age in set(ages)}
        if len(known) == 1:
            return known[ages[0]]
        rows = {age: torch.as_tensor(found, dtype=torch.float64).expand(len(ages)) for age, found in known.items()}
        return torch.stack([rows[age][i] for i, age in enumerate(ages)])

    def plan(self) -> bool:
        self._put_pull_and_floor()
        fresh = [count == 0 for count in self.steps]
        if any(fresh):  # the size of a first step is its own
            measure = self._job(native.MEASURE)
            self._describe_loss(measure)
            self._put_addresses()
            native.run(measure, self._rows([g is not None for g in self.gradients]))
            own = self._found * self._units_of_traces
            self._describe_tensors(torch.where(torch.tensor(fresh).unsqueeze(-1), own, self._traces))
        else:
            self._describe_tensors(self._traces)
        self._means = None
        return super().plan()

    def _covector_at(self, job: native.Job) -> Covector:
        gradient = self._gradient + self.rule.pull(self.settings) / self.settings["data_size"] * self._sample.point
        return Covector((self._sample.scale * gradient) ** 2, gradient)

    def plan_by_sums(self, use: Sequence[bool], count: int) -> bool:
        self._put_pull_and_floor()
        found = torch.stack([self.sums[p][2] for p in self.parameters]).to(torch.float64) * self._units_of_traces / count
        fresh = torch.tensor([steps == 0 for steps in self.steps])
        self._describe_tensors(torch.where(fresh.unsqueeze(-1), found, self._traces))
        self._means = found
        return super().plan_by_sums(use, count) and all_finite([found])

    def _after(self, job: native.Job, covector: Covector, memory: Memory) -> Memory | None:
        return after_gauss_newton(job, self._sample, covector, memory, *self._largest)

    def _try(self, job: native.Job, use: Sequence[bool]) -> bool:
        return super()._try(job, use) and all_finite([self._found])

    def advance(self) -> int:
        use = [] if self._planned is None else self._planned[1]
        bounded = super().advance()
        self._reached = after_widths(self._reached, self._largest[0], self._least_growth)
        self._follows, self._versions = self._follows + 1, self._versions_now()
        self._observe(self._found * self._units_of_traces if self._means is None else self._means, use)
        if self.levels is not None and use:
            used = torch.tensor(use)
            units = self.rule.level_ratio(self._levels_before, self.levels, self.settings)
            self._traces[:, 2] = torch.where(used, self._traces[:, 2] / units, self._traces[:, 2])
            self._levels_before.copy_(torch.where(used, self.levels, self._levels_before))
        return bounded

    def _observe(self, found: Tensor, use: Sequence[bool]) -> None:
        share = self._by_age(lambda age: self.rule.fading(age - 1))
        weights = (torch.as_tensor(share, dtype=torch.float64) * torch.tensor(use)).unsqueeze(-1)
        self._traces.copy_(torch.where(weights > 0, torch.lerp(self._traces, found, weights), self._traces))

    def _describe_tensors(self, running: Tensor) -> None:
        """What the step needs of each parameter: the length of the shift's step, the level of squares, the rate of widths."""
        rule, settings = self.rule, self.settings
        size = (running[:, 2] / self._counts).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
        levels = torch.zeros_like(size) if self.levels is None else self.levels
        change = rule.level_ratio(self._levels_before, levels, settings) - 1
        curvature = levels.double() * (self._variance * settings["data_size"] / settings["temperature"])
        rate = self._by_age(lambda age: rule.width_rate(age, settings))
        length = self._units * self._by_age(lambda age: rule.length(age, settings))
        spread = rule.stiffness(self._sizes, settings) * self._variance
        limit = length * rule.LONGEST
        self._largest = float(limit.max()), float(curvature.abs().max()), float(torch.as_tensor(spread).max())
        self._put_numbers(step=length / size, limit=limit, curvature=curvature, rate=rate, spread=spread)
        self._put_numbers(level_change=(1 - rate) * change)
        self._least_growth = float((torch.clamp(change, max=0.0) + 1).mul(1 - rate).min())

    def _job(self, what: int) -> native.Job:
        job = super()._job(what)
        job.gauss_newton, job.seen, job.partials = 1, self.rule.SEEN, self._partials.buffer_info()[0]
        return job

    def _describe_step(self, job: native.Job) -> None:
        super()._describe_step(job)
        job.adaptive = 0
