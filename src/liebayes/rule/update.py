"""The update (Sec. 3.5, Alg. 1–3): M ← (1 − β)·covector + βM, then g ← g·exp(−αM♯).

The paper averages vectors of the algebra, after the sharp; we average covectors and take the sharp when the step is taken.
For a constant metric the two are the same, and an adaptive one needs this order.

The step size α here is that of Alg. 3, where covectors are divided by the Fisher constants. The equations of Sec. 4.3 absorb
them: their α is this one divided by c_X.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..groups import LieGroup, blocks_of, map_blocks, with_blocks
from .metric import Form

E = TypeVar("E")


class State(NamedTuple):
    """Everything the rule remembers."""

    element: Any
    momentum: Any
    metric: Any


class Update(NamedTuple):
    """One step of the rule."""

    state: State
    direction: Any
    """M♯: the step was −α times this, within `max_step`."""
    bounded: int | Tensor
    """How many coordinates (for matrix groups: blocks) `max_step` has bounded."""
    largest: float | None
    """The largest coordinate of the step before it was bounded, where that is known: on a CPU, with a bound."""


def initial_state(group: LieGroup[E], form: Form[E], g: E) -> State:
    """M = 0 at g."""
    return State(g, group.zero(g), form.start(g))


def update(
    group: LieGroup[E],
    form: Form[E],
    state: State,
    covector: E,
    *,
    lr: float | E,
    momentum: float | E = 0.0,
    max_step: float | E | None = None,
) -> Update:
    """One step. `lr`, `momentum` and `max_step` are one number, or one for each block in the fields of the element."""
    metric = form.observe(state.metric, covector)
    M = accumulate(state.momentum, covector, momentum)
    direction = form.sharp(M, metric)
    if max_step is None and isinstance(lr, (int, float)):
        return Update(State(group.move(state.element, direction, -lr), M, metric), direction, 0, None)
    step = descend(direction, lr)
    largest = _largest_coordinates(blocks_of(step))
    # Checking is cheaper than bounding, and enough where coordinates are bounded one by one.
    if group.elementwise and largest is not None and _all_within(largest, max_step):
        bounded = 0
    else:
        step, bounded = bound(group, step, max_step)
    g = group.move(state.element, step, 1.0)
    return Update(State(g, M, metric), direction, bounded, None if largest is None else _largest(largest))


def accumulate(momentum: E, covector: E, beta: float | E) -> E:
    """M ← (1 − β)·covector + βM."""
    if isinstance(beta, (int, float)):
        return covector if beta == 0 else map_blocks(lambda M, c: torch.lerp(M, c, 1 - beta), momentum, covector)
    return map_blocks(lambda M, c, b: torch.lerp(M, c, 1 - b), momentum, covector, beta)


def descend(direction: E, lr: float | E) -> E:
    """−αX, with one α or one for each block."""
    if isinstance(lr, (int, float)):
        return map_blocks(lambda x: x * -lr, direction)
    return map_blocks(lambda x, rate: x * -rate, direction, lr)


def bound(group: LieGroup[E], step: E, max_step: float | E | None) -> tuple[E, Tensor]:
    """Limits a step: each coordinate for elementwise groups, the norm of each block for the others.

    Far from the optimum and with few samples a single covector can be many orders of magnitude too large. In the algebra all
    steps are measured in the units of the posterior (logarithms of scales, shifts in widths), so one bound suits all.
    """
    if max_step is None:
        return step, torch.zeros((), dtype=torch.int64)
    blocks = blocks_of(step)
    limits = [max_step] * len(blocks) if isinstance(max_step, (int, float)) else blocks_of(max_step)
    counts: list[Tensor] = []
    limited: list[Tensor] = []
    for block, limit in zip(blocks, limits, strict=True):
        if limit is None:
            limited.append(block)
        elif group.elementwise:
            clamped = block.clamp(-limit, limit)
            counts.append((clamped != block).sum())
            limited.append(clamped)
        else:
            norm = torch.linalg.vector_norm(block, dtype=torch.float32 if block.dtype.itemsize < 4 else None)
            counts.append((norm > limit).sum())
            limited.append(block * (limit / norm.clamp_min(limit)).to(block.dtype))
    total = functools.reduce(torch.add, counts) if counts else torch.zeros((), dtype=torch.int64)
    return with_blocks(step, limited), total


def _largest_coordinates(blocks: list[Tensor]) -> list[float] | None:
    """The largest coordinate of each block; None on a GPU, which would have to synchronise."""
    if blocks[0].device.type != "cpu" or torch.compiler.is_compiling():
        return None
    sizes = []
    for block in blocks:
        if block.numel():
            low, high = torch.aminmax(block)  # both NaN if one number is
            sizes.append(max(-low.item(), high.item()))
        else:
            sizes.append(0.0)
    return sizes


def _largest(sizes: list[float]) -> float:
    """The maximum; NaN if one of them is, which max() may miss."""
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=0.0)


def _all_within(sizes: list[float], max_step: Any) -> bool:
    limits = blocks_of(max_step) if hasattr(max_step, "_fields") else [max_step] * len(sizes)
    return all(limit is None or size <= limit for size, limit in zip(sizes, limits, strict=True))
