"""Jobs for the native kernel: which parameters it takes, and what it is told about them.

`reference` does the same in torch; `engine` chooses between the two.
"""

from __future__ import annotations

import ctypes
import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import bases, native
from ..bases import Base
from ..groups import Additive, DiagonalAffine, Multiplicative
from ..rule import Absorbed, Adaptive, Fisher, Form
from .buckets import is_dense
from .layout import layout_for
from .noise import Noise

Settings = dict[str, Any]
Tensors = Mapping[Tensor, Tensor]
Numbers = Mapping[Tensor, int]

_GROUPS: dict[type, int] = {Additive: 0, Multiplicative: 1, DiagonalAffine: 2}
_BASES: dict[type, int] = {
    kind: number
    for number, kind in enumerate(
        (bases.Normal, bases.Laplace, bases.Uniform, bases.Cauchy, bases.StudentT, bases.Gumbel, bases.Rayleigh,
         bases.Exponential, bases.LogNormal, bases.Dirac)
    )
}  # fmt: skip
_PLAIN = (Tensor, torch.nn.Parameter)
_SOURCES = {"philox": 0, "xoshiro": 1}
_BLOCKS = {
    Additive: [("shift", "shift")],
    Multiplicative: [("scale", "log_scale")],
    DiagonalAffine: [("scale", "log_scale"), ("shift", "shift")],
}
"""The blocks of a group's elements, in their order, as the kernel and the states call them."""
_SCALE_STATES = {
    Additive: {},
    Multiplicative: {"remainder": "log_scale"},
    DiagonalAffine: {"log_scale": "log_scale"},
}
"""What of a scale is not the parameter itself: its name among the states, and the kernel's."""
_PLACES = {name: place for place, name in enumerate(native.TENSOR_FIELDS)}


def takes(settings: Settings) -> bool:
    """Whether the kernel knows the rule of a parameter group."""
    return (
        native.available()
        and type(settings["group"]) in _GROUPS
        and type(settings["metric"]) in (Absorbed, Fisher, Adaptive)
        and not callable(settings["prior"])
    )


def reads(t: Tensor) -> bool:
    """Whether a tensor's numbers are float32 in the CPU's plain memory."""
    return (
        t.dtype is torch.float32 and t.is_cpu and (t.is_contiguous() or is_dense(t)) and type(t) in _PLAIN and t.numel() != 0
    )


class Records:
    """The kernel's table of some parameters: where each one's numbers are.

    Most of it is the same in every step, and asking for it would take longer than the work on a small network.
    """

    def __init__(
        self, parameters: Sequence[Tensor], state: Mapping[Tensor, Any], settings: Settings, samples: Tensors, numbers: Numbers
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.states: list[Any] = [state[p] for p in parameters]
        self._samples = [samples[p] for p in parameters]
        self.group: Any = settings["group"]
        self._metric: Any = settings["metric"]
        self.element: Any = self.group.at(torch.ones(1))  # of the group's kind, to ask metrics for their form
        self.blocks: list[tuple[str, str]] = _BLOCKS[type(self.group)]
        self.table: array[int] = array("Q", bytes(8 * len(parameters) * len(native.TENSOR_FIELDS)))
        self._points = _addresses(parameters)
        self._sample_points = _addresses(self._samples)
        self._contiguous = all(p.is_contiguous() for p in parameters)
        self._kept: list[tuple[str, list[Tensor], list[int]]] = []
        self._gradients: Tensors | None = None
        self._copies: list[Tensor] = []
        self.put("point", self._points)
        self.put("sample", self._sample_points)
        self.put("count", [p.numel() for p in parameters])
        self.put("number", [numbers[p] for p in parameters])
        places = dict(_SCALE_STATES[type(self.group)])
        for field, block in self.blocks:
            places[f"momentum_{block}"] = f"momentum_{field}"
            if isinstance(self._metric, Adaptive):
                places[f"second_moment_{block}"] = f"second_{field}"
        self._missing: list[str] = []
        for name, place in places.items():
            tensors = [s.get(name) for s in self.states]  # kept alive, so that their addresses are no one else's
            if not all(map(_fits, tensors, self.parameters)):
                self._missing.append(name)
                continue
            self._kept.append((name, tensors, _addresses(tensors)))
            self.put(place, self._kept[-1][2])
        self.require(_SCALE_STATES[type(self.group)])  # other rules that draw here have no momentum

    def require(self, names: Iterable[str] | None = None) -> None:
        """Refuses states that are not there, or not like their parameter: of those named, or of all that a step needs."""
        for name in self._missing if names is None else [name for name in names if name in self._missing]:
            raise ValueError(
                f"A parameter has no state {name} of its shape and dtype. A group or metric that is changed in mid-training, "
                "or a state, needs a new optimizer."
            )

    def put(self, field: str, values: Any) -> None:
        """A column of the table."""
        self.table[_PLACES[field] :: len(native.TENSOR_FIELDS)] = array("Q", values)

    def put_sums(self, sums: Mapping[Tensor, Sequence[Tensor]]) -> None:
        """Where covectors are added up."""
        for i, (field, _) in enumerate(self.blocks):
            self.put(f"sum_{field}", [sums[p][i].data_ptr() for p in self.parameters])

    def put_gradients(self, gradients: Tensors) -> None:
        """Where gradients are, unless it has them already. Copies, where there are none or in another layout, are kept."""
        if gradients is self._gradients:
            return
        self._gradients, self._copies = gradients, []
        found = list(map(gradients.get, self.parameters))
        if not (self._contiguous and all(g is not None and g.dtype is torch.float32 and g.is_contiguous() for g in found)):
            found = list(map(self._in_layout, self.parameters, found))
        self.put("gradient", [g.data_ptr() for g in found if g is not None])

    def _in_layout(self, p: Tensor, gradient: Tensor | None) -> Tensor:
        if gradient is not None and gradient.dtype is torch.float32 and gradient.stride() == p.stride():
            return gradient
        self._copies.append(torch.zeros_like(p) if gradient is None else torch.empty_like(p).copy_(gradient))
        return self._copies[-1]

    def drop_gradients(self) -> None:
        """Keeps none alive."""
        self._gradients, self._copies = None, []

    def serve(
        self, parameters: Sequence[Tensor], settings: Settings, gradients: Tensors | None = None, drawing: bool = False
    ) -> bool:
        """Whether the table is still that of these parameters, their states and samples; for a draw, of what is read there.

        The same tensors are not enough: share_memory_() moves what they hold. Asking for addresses takes time, though.
        """
        if gradients is not None and gradients is self._gradients:
            return True  # has_finite has asked; it puts gradients of all parameters of the group, or none
        return (
            settings["group"] is self.group
            and settings["metric"] == self._metric
            and len(parameters) == len(self.parameters)
            and all(map(operator.is_, parameters, self.parameters))
            and (drawing or _addresses(parameters) == self._points)  # before a draw their buffers were looked after
            and _addresses(self._samples) == self._sample_points
            and all(
                [s[name].data_ptr() for s in self.states] == addresses
                for name, _, addresses in self._kept
                if not drawing or name in _SCALE_STATES[type(self.group)]
            )
        )


def _fits(state: Tensor | None, p: Tensor) -> bool:
    return (
        state is not None and state.dtype is torch.float32 and state.stride() == p.stride() and state.shape == p.shape
    )


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]


def draw(records: Records, settings: Settings, noise: Noise) -> None:
    """θ = g·ε into the samples."""
    job = _job(settings, native.SAMPLE)
    _tell_noise(job, settings, noise)
    _run(job, records.table)


def fold(
    records: Records, settings: Settings, gradients: Tensors, sums: Mapping[Tensor, Sequence[Tensor]], first: bool
) -> bool:
    """Adds the covector at the samples to the sums, or begins them; returns whether all gradients were finite."""
    job = _job(settings, native.FOLD | (native.FIRST if first else 0))
    _tell_loss(job, settings)
    records.put_gradients(gradients)
    records.put_sums(sums)
    _run(job, records.table)
    records.drop_gradients()
    return bool(job.finite)


def advance(
    records: Records,
    settings: Settings,
    form: Form[Any],
    gradients: Tensors,
    sums: Mapping[Tensor, Sequence[Tensor]] | None,
    share: float,
) -> int:
    """g ← g·exp(−αM♯), with the covector at the samples, or a share of the sums; returns how many were bounded."""
    records.require()
    job = _job(settings, native.STEP)
    _tell_step(job, settings, form)
    if sums is None:
        _tell_loss(job, settings)
        records.put_gradients(gradients)
    else:
        job.from_sums, job.share = 1, share
        records.put_sums(sums)
    if job.adaptive:
        beta, steps = settings["metric"].beta, [s["steps"] for s in records.states]
        gathered = {n: 1 - beta ** (n + 1) for n in set(steps)}
        records.put("gathered", array("d", [gathered[n] for n in steps]).tobytes())
    _run(job, records.table)
    records.drop_gradients()
    return job.bounded


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no number is infinite or NaN, in dense float32 tensors of the CPU."""
    return _finite(_table({"gradient": [g.data_ptr() for g in gradients], "count": [g.numel() for g in gradients]}))


def has_finite(records: Records, gradients: Tensors) -> bool:
    """Whether no number of the parameters' gradients is infinite or NaN."""
    records.put_gradients(gradients)
    finite = _finite(records.table)
    if not finite:
        records.drop_gradients()
    return finite


def _finite(table: array[int]) -> bool:
    job = native.Job(what=native.FINITE, threads=native.threads())
    _run(job, table)
    return bool(job.finite)


def noise_of(base: Base, count: int, noise: Noise, number: int, start: int = 0) -> Tensor:
    """ε itself: the numbers [start, start + count) of parameter `number`, where start is a multiple of 2,048."""
    target = torch.empty(count, dtype=torch.float32, device="cpu")
    job = native.Job(what=native.NOISE, threads=native.threads())
    _tell_noise(job, {"base": base}, noise)
    _run(job, _table({"sample": [target.data_ptr()], "count": [count], "number": [number], "offset": [start]}))
    return target


def _table(columns: dict[str, list[int]]) -> array[int]:
    width = len(native.TENSOR_FIELDS)
    table = array("Q", bytes(8 * width * len(columns["count"])))
    for field, values in columns.items():
        table[_PLACES[field] :: width] = array("Q", values)
    return table


def _run(job: native.Job, table: array[int]) -> None:
    job.tensors, job.tensor_count = table.buffer_info()[0], len(table) // len(native.TENSOR_FIELDS)
    native.run(job)


# Settings.


def _job(settings: Settings, what: int) -> native.Job:
    group, base = settings["group"], settings["base"]
    job = native.Job(what=what, group=_GROUPS[type(group)], threads=native.threads(), over_mean=1.0)
    if isinstance(group, Multiplicative):
        job.over_mean = 1 / layout_for(group, base, torch.float32).mean  # pyright: ignore[reportAttributeAccessIssue]
    return job


def _tell_noise(job: native.Job, settings: Settings, noise: Noise) -> None:
    base = settings["base"]
    job.seed, job.step, job.stream = noise.seed & (1 << 64) - 1, noise.step & 0xFFFFFFFF, noise.stream & 0xFFFFFFFF
    job.base, job.stream_kind = _BASES[type(base)], _SOURCES[noise.source]
    job.base_scale = getattr(base, "scale", getattr(base, "half_width", getattr(base, "sigma", 0.0)))
    job.base_shape = getattr(base, "df", getattr(base, "mu", 0.0))


def _tell_loss(job: native.Job, settings: Settings) -> None:
    data_size = settings["data_size"]
    job.ascend = settings["maximize"]
    job.prior, job.temperature = settings["prior"] / data_size, settings["temperature"] / data_size


def _tell_step(job: native.Job, settings: Settings, form: Form[Any]) -> None:
    lr, beta = settings["lr"], settings["momentum"]
    affine = isinstance(settings["group"], DiagonalAffine)
    scale_beta = settings["scale_momentum"] if affine else beta
    job.lr_shift, job.lr_scale = lr, lr * settings["scale_lr_ratio"] if affine else lr
    job.beta_shift, job.rest_shift = beta, 1 - beta
    job.beta_scale, job.rest_scale = scale_beta, 1 - scale_beta
    job.max_step = math.inf if settings["max_step"] is None else settings["max_step"]
    metric = settings["metric"]
    if isinstance(metric, Adaptive):
        job.adaptive, job.epsilon = 1, metric.epsilon
        job.beta_second, job.rest_second = metric.beta, 1 - metric.beta
    else:
        job.sharp = _sharp(form, settings)


def _sharp(form: Form[Any], settings: Settings) -> Any:
    """The matrix of a constant metric's ♯, by its action on unit covectors."""
    if isinstance(settings["metric"], Absorbed):
        return (ctypes.c_float * 4)(1.0, 0.0, 0.0, 1.0)
    kind = type(settings["group"].at(torch.ones(1)))
    rows = {"log_scale": 0, "shift": 1}
    matrix = [0.0] * 4
    for column in kind._fields:
        unit = kind(*(torch.tensor(float(name == column), dtype=torch.float64) for name in kind._fields))
        for row, value in zip(kind._fields, form.sharp(unit), strict=True):
            matrix[2 * rows[row] + rows[column]] = float(value)
    return (ctypes.c_float * 4)(*matrix)
