"""Jobs for the native kernel: which parameters it takes, and what it is told about them.

`reference` does the same in torch; `engine` chooses between the two.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Mapping, Sequence
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
_SCALES = {Additive: None, Multiplicative: "remainder", DiagonalAffine: "log_scale"}


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
        t.dtype is torch.float32
        and t.is_cpu
        and (t.is_contiguous() or is_dense(t))
        and type(t) in _PLAIN
        and t.numel() != 0
    )


def draw(
    parameters: Sequence[Tensor], state: Mapping[Tensor, Any], settings: Settings, noise: Noise, targets: Tensors
) -> None:
    """θ = g·ε into `targets`."""
    job = _job(settings, native.SAMPLE)
    _tell_noise(job, settings, noise)
    columns = {
        **_elements(parameters, state, settings),
        "sample": _places(parameters, targets),
        "number": [noise.numbers[p] for p in parameters],
    }
    _run(job, parameters, columns)


def fold(
    parameters: Sequence[Tensor],
    state: Mapping[Tensor, Any],
    settings: Settings,
    samples: Tensors,
    gradients: Tensors,
    sums: Mapping[Tensor, Sequence[Tensor]],
    first: bool,
) -> None:
    """Adds the covector at the samples to the sums, or begins them."""
    job = _job(settings, native.FOLD | (native.FIRST if first else 0))
    _tell_loss(job, settings)
    kept: list[Tensor] = []
    columns = {
        **_elements(parameters, state, settings),
        **_sums(parameters, settings, sums),
        "sample": _places(parameters, samples),
        "gradient": _gradients(parameters, gradients, kept),
    }
    _run(job, parameters, columns)


def advance(
    parameters: Sequence[Tensor],
    state: Mapping[Tensor, Any],
    settings: Settings,
    form: Form[Any],
    samples: Tensors,
    gradients: Tensors,
    sums: Mapping[Tensor, Sequence[Tensor]] | None,
    share: float,
) -> int:
    """g ← g·exp(−αM♯), with the covector at the samples, or a share of the sums; returns how many were bounded."""
    job = _job(settings, native.STEP)
    _tell_step(job, settings, form)
    columns = _elements(parameters, state, settings)
    states = [state[p] for p in parameters]
    blocks = _blocks(settings)
    for name, block in blocks:
        columns[f"momentum_{name}"] = [s[f"momentum_{block}"].data_ptr() for s in states]
        if job.adaptive:
            columns[f"second_{name}"] = [s[f"second_moment_{block}"].data_ptr() for s in states]
    kept: list[Tensor] = []
    if sums is None:
        _tell_loss(job, settings)
        columns["sample"] = _places(parameters, samples)
        columns["gradient"] = _gradients(parameters, gradients, kept)
    else:
        job.from_sums, job.share = 1, share
        columns |= _sums(parameters, settings, sums)
    if job.adaptive:
        beta = settings["metric"].beta
        gathered = {n: 1 - beta ** (n + 1) for n in {s["steps"] for s in states}}
        columns["gathered"] = array("Q", array("d", [gathered[s["steps"]] for s in states]).tobytes()).tolist()
    _run(job, parameters, columns)
    return job.bounded


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no number is infinite or NaN, in dense float32 tensors of the CPU."""
    job = native.Job(what=native.FINITE, threads=native.threads())
    _run(job, gradients, {"gradient": [g.data_ptr() for g in gradients]})
    return bool(job.finite)


def noise_of(base: Base, count: int, noise: Noise, number: int, start: int = 0) -> Tensor:
    """ε itself: the numbers [start, start + count) of parameter `number`, where start is a multiple of 2,048."""
    target = torch.empty(count)
    job = native.Job(what=native.NOISE, threads=native.threads())
    _tell_noise(job, {"base": base}, noise)
    _run(job, [target], {"sample": [target.data_ptr()], "number": [number], "offset": [start]})
    return target


# Columns of the table of tensors.


def _run(job: native.Job, parameters: Sequence[Tensor], columns: dict[str, Any]) -> None:
    count, width = len(parameters), len(native.TENSOR_FIELDS)
    columns["count"] = [p.numel() for p in parameters]
    table = array("Q", bytes(8 * count * width))
    for place, name in enumerate(native.TENSOR_FIELDS):
        if name in columns:
            table[place::width] = array("Q", columns[name])
    job.tensors, job.tensor_count = table.buffer_info()[0], count
    native.run(job)


def _elements(parameters: Sequence[Tensor], state: Mapping[Tensor, Any], settings: Settings) -> dict[str, Any]:
    columns: dict[str, Any] = {"point": [p.data_ptr() for p in parameters]}
    name = _SCALES[type(settings["group"])]
    if name is not None:
        columns["log_scale"] = [state[p][name].data_ptr() for p in parameters]
    return columns


def _blocks(settings: Settings) -> list[tuple[str, str]]:
    """The blocks of the group as the kernel and the states call them, in the order of the element."""
    names = {Additive: ("shift",), Multiplicative: ("log_scale",), DiagonalAffine: ("log_scale", "shift")}
    return [("scale" if block == "log_scale" else "shift", block) for block in names[type(settings["group"])]]


def _sums(parameters: Sequence[Tensor], settings: Settings, sums: Mapping[Tensor, Sequence[Tensor]]) -> dict[str, Any]:
    blocks = enumerate(_blocks(settings))
    return {f"sum_{name}": [sums[p][i].data_ptr() for p in parameters] for i, (name, _) in blocks}


def _places(parameters: Sequence[Tensor], tensors: Tensors) -> list[int]:
    return [tensors[p].data_ptr() for p in parameters]


def _gradients(parameters: Sequence[Tensor], gradients: Tensors, kept: list[Tensor]) -> list[int]:
    """Gradients in the layout of their parameters; those that are not, or not there, are copied, and kept for the job."""
    places = []
    for p in parameters:
        gradient = gradients.get(p)
        if gradient is None:
            gradient = torch.zeros_like(p)
            kept.append(gradient)
        elif gradient.dtype is not torch.float32 or (
            not (gradient.is_contiguous() and p.is_contiguous()) and gradient.stride() != p.stride()
        ):
            gradient = torch.empty_like(p).copy_(gradient)
            kept.append(gradient)
        places.append(gradient.data_ptr())
    return places


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
