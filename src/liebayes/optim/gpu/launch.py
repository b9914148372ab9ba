"""The kernels on lists of tensors, with the states and settings of `reference`: what it does by torch, in one launch.

Everything is written in place, in the memory order of the parameters. Nothing waits for the GPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ...bases import LogNormal, StudentT, Uniform
from ...groups import Additive, DiagonalAffine, Multiplicative
from ...rule import Absorbed, Adaptive, Fisher
from .. import philox
from ..buckets import is_dense
from ..layout import ScaleLayout, layout_for
from ..sharding import is_sharded

Settings = dict[str, Any]
State = dict[str, Any]

_BLOCKS = {Additive: ("shift",), DiagonalAffine: ("log_scale", "shift"), Multiplicative: ("log_scale",)}


def supports(p: Tensor, settings: Settings) -> bool:
    """Whether the kernels can train a parameter: float32 on a GPU, one of the three groups, a named base.

    With TRITON_INTERPRET=1 the kernels run on the CPU, slowly, for those who debug or test them.
    """
    return (
        (p.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
        and p.dtype == torch.float32
        and not is_sharded(p)
        and is_dense(p)
        and p.numel() <= philox.LARGEST
        and type(settings["group"]) in _BLOCKS
        and philox.supports(settings["base"])
        and type(settings["metric"]) in (Absorbed, Fisher, Adaptive)
        and not callable(settings["prior"])
        and has_triton()
    )


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def sample(
    parameters: Sequence[Tensor],
    states: Sequence[State],
    settings: Settings,
    into: Sequence[Tensor],
    *,
    numbers: Sequence[int],
    seed: int,
    step: int,
    stream: int,
) -> None:
    """θ = g·ε into the tensors `into`, with the noise of `philox.draw` for the parameters of these numbers."""
    from .kernels import sample_kernel

    base, group = settings["base"], settings["group"]
    scale, shape = _shape_of(base)
    layout = layout_for(group, base, torch.float32)
    work = _Work(parameters, numbers)
    work.read("point", parameters)
    work.read_states(states, [name for name in ("log_scale", "remainder") if name in states[0]])
    work.write("theta", into)
    work.launch(
        sample_kernel,
        seed=seed & 0xFFFFFFFFFFFFFFFF,
        step=step & 0xFFFFFFFF,
        stream=stream & 0xFFFFFFFF,
        scale=scale,
        shape=shape,
        mean=layout.mean if isinstance(layout, ScaleLayout) else 1.0,
        GROUP=type(group).__name__,
        BASE=type(base).__name__,
    )


def fold(
    parameters: Sequence[Tensor],
    states: Sequence[State],
    settings: Settings,
    samples: Sequence[Tensor],
    sums: Sequence[Sequence[Tensor]],
) -> None:
    """Adds the covectors at the samples, from the gradients in `.grad`, to each parameter's sums, a tensor for each block."""
    from .kernels import fold_kernel

    work = _Work(parameters)
    work.read("point", parameters)
    if type(settings["group"]) is DiagonalAffine:
        work.read_states(states, ["log_scale"])
    work.read("theta", samples)
    work.read("gradient", _gradients(parameters))
    for k, block in enumerate(_BLOCKS[type(settings["group"])]):
        work.write(f"sum_{block}", [blocks[k] for blocks in sums])
    work.launch(fold_kernel, **_covector_options(settings))


def step(
    parameters: Sequence[Tensor],
    states: Sequence[State],
    settings: Settings,
    *,
    samples: Sequence[Tensor] | None = None,
    sums: Sequence[Sequence[Tensor]] | None = None,
    folds: int = 1,
) -> Tensor:
    """g ← g·exp(−αM♯), from the gradients in `.grad` at the samples, or from the sums of `folds` covectors.

    Returns how many coordinates were bounded. As in `reference.advance`, the states' `steps` are the caller's to count; they
    must be the same for all.
    """
    from .kernels import step_kernel

    blocks = _BLOCKS[type(settings["group"])]
    metric, max_step = settings["metric"], settings["max_step"]
    work = _Work(parameters)
    work.write("point", parameters)
    names = [name for name in ("log_scale", "remainder") if name in states[0]] + [f"momentum_{block}" for block in blocks]
    if isinstance(metric, Adaptive):
        names += [f"second_moment_{block}" for block in blocks]
    work.read_states(states, names, write=True)
    if sums is not None:
        for k, block in enumerate(blocks):
            work.read(f"sum_{block}", [each[k] for each in sums])
    elif samples is not None:
        work.read("theta", samples)
        work.read("gradient", _gradients(parameters))
    else:
        raise ValueError("A step needs the samples the gradients were taken at, or sums of covectors.")
    bounded = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    several = len(blocks) > 1  # one step size for the shift, another for everything else
    work.launch(
        step_kernel,
        bounded=bounded,
        folds=float(folds),
        lr_shift=float(settings["lr"]),
        lr_log_scale=float(settings["lr"] * settings["scale_lr_ratio"] if several else settings["lr"]),
        rest_shift=1 - float(settings["momentum"]),
        rest_log_scale=1 - float(settings["scale_momentum"] if several else settings["momentum"]),
        max_step=0.0 if max_step is None else float(max_step),
        METRIC=type(metric).__name__,
        SUMMED=sums is not None,
        BOUNDED=max_step is not None,
        **_metric_options(settings, states[0]["steps"]),
        **_covector_options(settings),
    )
    return bounded


# What the kernels are told of the settings.


def _shape_of(base: Any) -> tuple[float, float]:
    """The scale of a base, and what else gives it its shape."""
    match base:
        case LogNormal(sigma, mu):
            return float(sigma), float(mu)
        case StudentT(df, scale):
            return float(scale), float(df)
        case Uniform(half_width):
            return float(half_width), 0.0
        case _:
            return float(getattr(base, "scale", 1.0)), 0.0


def _covector_options(settings: Settings) -> dict[str, Any]:
    data_size, prior = settings["data_size"], settings["prior"]
    return {
        "precision": prior / data_size,
        "temperature": settings["temperature"] / data_size,
        "GROUP": type(settings["group"]).__name__,
        "PRIOR": prior != 0,
        "MAXIMIZE": bool(settings["maximize"]),
    }


def _metric_options(settings: Settings, steps: int) -> dict[str, float]:
    """The inverse of the metric's matrix over (log_scale, shift), or the numbers of an adaptive one."""
    group, base, metric = type(settings["group"]), settings["base"], settings["metric"]
    xx, xy, yy = 1.0, 0.0, 1.0
    forget, weight, epsilon = 0.0, 1.0, 0.0
    if isinstance(metric, Adaptive):
        forget, weight, epsilon = 1 - metric.beta, max(1 - metric.beta ** (steps + 1), 1e-30), metric.epsilon
    elif isinstance(metric, Fisher) and group is DiagonalAffine:
        c_X, B, c_y = base.fisher_scale, base.fisher_cross, base.fisher_shift
        determinant = c_X * c_y - B * B
        xx, xy, yy = c_y / determinant, -B / determinant, c_X / determinant
    elif isinstance(metric, Fisher):
        xx, yy = (1.0, 1 / base.fisher_shift) if group is Additive else (1 / base.fisher_scale, 1.0)
    return {
        "sharp_log_scale": xx,
        "sharp_cross": xy,
        "sharp_shift": yy,
        "forget": forget,
        "weight": weight,
        "epsilon": epsilon,
    }


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(p, requires_grad=False) if p.grad is None else p.grad for p in parameters]


class _Work:
    """One launch on a list of parameters: its rows of addresses, and what has to be put in order before and after it."""

    def __init__(self, parameters: Sequence[Tensor], numbers: Sequence[int] | None = None) -> None:
        self.parameters = parameters
        self.rows: dict[str, list[int]] = {}
        self.kept: list[Tensor] = []  # an address keeps nothing alive until the launch
        self.written: list[Tensor] = []
        self.to_copy_back: list[tuple[Tensor, Tensor]] = []
        self.sizes = tuple(p.numel() for p in parameters)
        self.rows["count"] = list(self.sizes)
        self.rows["number"] = list(numbers or [0] * len(parameters))

    def read(self, row: str, tensors: Sequence[Tensor], write: bool = False) -> None:
        """Tensors of the parameters' shapes; those in another memory order, or dtype, go through a copy."""
        addresses = []
        for p, t in zip(self.parameters, tensors, strict=True):
            used = t
            if t.dtype != p.dtype or t.stride() != p.stride():
                used = torch.empty_like(p, requires_grad=False).copy_(t)
                if write:
                    self.to_copy_back.append((t, used))
            elif write:
                self.written.append(t)
            self.kept.append(used)
            addresses.append(used.data_ptr())
        self.rows[row] = addresses

    def write(self, row: str, tensors: Sequence[Tensor]) -> None:
        self.read(row, tensors, write=True)

    def read_states(self, states: Sequence[State], names: Sequence[str], write: bool = False) -> None:
        for name in names:
            self.read("log_scale" if name == "remainder" else name, [state[name] for state in states], write)

    def launch(self, kernel: Any, **arguments: Any) -> None:
        from .kernels import ELEMENTS, ROWS

        device = self.parameters[0].device
        first, owners = _programs(self.sizes, ELEMENTS, device)
        if not owners.numel():
            return
        nothing = [0] * len(self.sizes)
        rows = tuple(tuple(first if row == "first" else self.rows.get(row, nothing)) for row in ROWS)
        with torch.cuda.device_of(owners):
            table, tensors = _table(rows, device), len(self.sizes)
            # Fused or not, results are the same to rounding; Triton asks to be told.
            kernel[owners.shape](table, owners, tensors=tensors, BLOCK=ELEMENTS, enable_fp_fusion=True, **arguments)
        # Autograd may have saved what was written: it must know.
        torch.autograd.graph.increment_version(self.written)
        for target, values in self.to_copy_back:
            target.copy_(values)


@lru_cache(maxsize=64)
def _programs(sizes: tuple[int, ...], elements: int, device: torch.device) -> tuple[tuple[int, ...], Tensor]:
    """The first program of each tensor, and the tensor of each program."""
    counts = torch.tensor([math.ceil(size / elements) for size in sizes])
    first = (counts.cumsum(0) - counts).tolist()
    return tuple(first), torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32), counts).to(device)


@lru_cache(maxsize=64)
def _table(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """The rows on the device. Addresses repeat from step to step, so this is mostly a look into the cache."""
    table = torch.tensor(rows, dtype=torch.int64)
    return table.to(device) if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True)
