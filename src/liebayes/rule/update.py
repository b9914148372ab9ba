"""The update (Sec. 3.5, Alg. 1–3): M ← (1 − β)·covector + βM, then g ← g·exp(−αM♯).

The paper keeps M in the algebra, after the sharp; ours is the covector's average, sharpened when the step is taken. For a
constant metric the two are the same, and an adaptive one needs it so.

The step size α here is that of Alg. 3, where the Fisher constants divide the covectors. In the equations of Sec. 4.3 they
are absorbed: their α is this one divided by c_X.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..groups import LieGroup
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
    step: Any
    """The vector −αM♯ of the algebra that was taken, after `max_step`."""
    bounded: Tensor
    """How many coordinates (for matrix groups: blocks) were bounded."""


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
    momentum: float = 0.0,
    max_step: float | None = None,
) -> Update:
    """One step. `lr` is one step size, or one for each block in the fields of the element."""
    metric = form.observe(state.metric, covector)
    M = accumulate(state.momentum, covector, momentum)
    vector = form.sharp(M, metric)
    step = descend(vector, lr)
    step, bounded = bound(group, step, max_step)
    g = group.compose(state.element, group.exp(step))
    return Update(State(g, M, metric), step, bounded)


def accumulate(momentum: E, covector: E, beta: float) -> E:
    """M ← (1 − β)·covector + βM."""
    if beta == 0:
        return covector
    return pytree.tree_map(lambda M, c: torch.lerp(c, M, beta), momentum, covector)


def descend(vector: E, lr: float | E) -> E:
    """−αX, with one α or one for each block."""
    if isinstance(lr, (int, float)):
        return pytree.tree_map(lambda x: x * -lr, vector)
    return pytree.tree_map(lambda x, rate: x * -rate, vector, lr)


def bound(group: LieGroup[E], step: E, max_step: float | None) -> tuple[E, Tensor]:
    """Limits a step: coordinate by coordinate for elementwise groups, in norm, block by block, for the others.

    Far from the optimum and with few samples a single covector can be many orders too large. In the algebra all steps are
    measured in the units of the posterior (logarithms of scales, shifts in widths), so one bound serves all.
    """
    blocks, spec = pytree.tree_flatten(step)
    if max_step is None:
        return step, torch.zeros((), dtype=torch.int64)
    counts, limited = [], []
    for block in blocks:
        if group.elementwise:
            clamped = block.clamp(-max_step, max_step)
            counts.append((clamped != block).sum())
            limited.append(clamped)
        else:
            norm = torch.linalg.vector_norm(block, dtype=torch.float32 if block.dtype.itemsize < 4 else None)
            counts.append(norm > max_step)
            limited.append(block * (max_step / norm.clamp_min(max_step)).to(block.dtype))
    total = counts[0] if len(counts) == 1 else torch.stack(counts).sum()
    return pytree.tree_unflatten(limited, spec), total
