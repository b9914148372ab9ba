"""Newton steps for mean-field and low-rank families, whose natural gradient does not know all correlations.

In the coordinates of the noise, at widths that are right, a mean-field family sees the curvature H = A·E[∇²ℓ]·A/τ, with ones
on its diagonal and the posterior's correlations beside them. Its metric is the identity: along a direction in which H is 10⁻⁶
the rule takes millions of steps. The gradients of the samples have H in them: they are linear in ε up to what the loss has
beyond second order,

    ∇ℓ(g·ε) ≈ c + Hε,    so that the mean stands at an optimum after the step −H⁻¹c, in widths of the family.

c is the mean of the gradients and H their regression on ε: exact for a quadratic loss, whatever its condition. Where the base
is Normal the regression has E[∇²ℓ] in expectation for every loss (Stein), and the best scales have H_ii·Var ε = 1. A low-rank
family, L = (unit lower triangular)·D with k columns below the diagonal, minimises ½ tr(LᵀHL)·Var ε − log det L column by
column: l_j = (1, −H₂₂⁻¹h) for h = H_ij and H₂₂ the rows and columns i > j, and D_jj²·(l_jᵀHl_j)·Var ε = 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..bases import Normal
from ..groups import LowRankAffine, with_blocks
from .factors import Factor

LARGEST = 256
"""Up to so many dimensions: the regression needs some multiple of that in samples."""


def wants_newton(factor: Factor) -> bool:
    """Whether the family lacks correlations and has a mean that moves, in dimensions few enough for a regression."""
    shifts = "shift" in getattr(factor.start, "_fields", ())
    lacking = factor.group.elementwise or rank_of(factor) is not None
    return lacking and factor.group.affine_action and shifts and 1 < dimensions(factor) <= LARGEST


def rank_of(factor: Factor) -> int | None:
    """The rank of a low-rank family of vectors that is not of full rank."""
    if not isinstance(factor.group, LowRankAffine) or len(factor.group.event_shape(factor.start)) != 1:
        return None
    return factor.group.rank if factor.group.rank < dimensions(factor) - 1 else None


def dimensions(factor: Factor) -> int:
    """How many coordinates a factor has."""
    return factor.group.event_shape(factor.start).numel()


def sure_part(step: Tensor, error: Tensor) -> Tensor:
    """What of a step is beyond chance; among many coordinates some are far out by chance."""
    margin = (3 + math.sqrt(2 * math.log(max(step.numel(), 1)))) * error
    return (step.sign() * (step.abs() - margin).clamp_min(0)).nan_to_num(0.0)


Step = tuple[list[Tensor], list[Tensor]]
"""The blocks of a full step, and those of its standard error."""


def needs_refining(factor: Factor, step: Step | None) -> bool:
    """Whether a mean-field family is sure to be more than a fiftieth of a width, or of its logarithm, from its optimum."""
    if step is None or not wants_newton(factor):
        return False
    names = factor.start._fields
    sizes = {name: float(sure_part(*blocks).abs().max()) for name, *blocks in zip(names, *step, strict=True)}
    return any(size > (factor.width if name == "shift" else 1.0) / 50 for name, size in sizes.items())


def use_newton(factor: Factor, mean: list[Tensor], error: list[Tensor], found: Newton | None) -> None:
    """Puts Newton's step where the natural gradient is; for the scales if the base is Normal and the curvature positive.

    The signs are those of gradients: the rule goes the other way.
    """
    if found is None:
        return
    linear = isinstance(factor.base, Normal) and bool(torch.isfinite(found.log_scale).all())
    for place, name in enumerate(factor.start._fields):
        steps = {"shift": found[:2], "log_scale": found[2:4], "log_diagonal": found[2:4], "columns": found[4:]}.get(name)
        if steps is not None and (name == "shift" or linear):
            like = mean[place]
            mean[place], error[place] = -steps[0].to(like).view_as(like), steps[1].to(like).view_as(like)


def full_step(factor: Factor, step: Step, part: float) -> Any:
    """The element that takes a part of the step, half a unit of log-scale at most; of a natural gradient what is sure."""
    blocks: dict[str, Tensor] = {}
    for name, mean, error in zip(factor.start._fields, *step, strict=True):
        if name == "shift":
            blocks[name] = -part * mean
        else:
            linear = -part * (mean if isinstance(factor.base, Normal) else sure_part(mean, error)).nan_to_num(0.0)
            blocks[name] = linear if name == "columns" else linear.clamp(-0.5 * part, 0.5 * part)
    if "columns" in blocks:  # those of L = (unit lower triangular)·D
        rank = blocks["columns"].shape[-1]
        blocks["columns"] = blocks["columns"] * blocks["log_diagonal"][:rank].exp()
    return with_blocks(factor.start, list(blocks.values()))


class Newton(NamedTuple):
    """Steps to the optimum, with their standard errors, number by number."""

    shift: Tensor
    shift_error: Tensor
    log_scale: Tensor
    log_scale_error: Tensor
    columns: Tensor
    """Below the diagonal of a unit triangular matrix, (P, rank)."""
    columns_error: Tensor


def newton_step(
    epsilon: Tensor, gradient: Tensor, in_pairs: bool, centre: float, variance: float, rank: int = 0
) -> Newton | None:
    """−H⁻¹c for the shift, and the best linear part for H; None where H is not determined.

    Args:
        epsilon: the noise of all samples (rounds, samples, P); pairs are the halves of the second dimension.
        gradient: those of the loss in ε, of the same shape.
        in_pairs: whether samples come in pairs ε, −ε. Their sums have no first order in them, and their differences no zeroth.
        centre: E[ε].
        variance: Var ε.
        rank: how many columns the linear part has below its diagonal.
    """
    x, w = epsilon.double() - centre, gradient.double()
    if in_pairs and x.shape[1] % 2 == 0:
        half = x.shape[1] // 2
        x, level, slope = x[:, :half], (w[:, :half] + w[:, half:]) / 2, (w[:, :half] - w[:, half:]) / 2
        x, level, slope = (part.reshape(-1, part.shape[-1]) for part in (x, level, slope))
        found = _regression(x, slope)
    else:
        x, w = x.reshape(-1, x.shape[-1]), w.reshape(-1, w.shape[-1])
        level, found = None, _regression(x - x.mean(0), w - w.mean(0))
    if found is None:
        return None
    H, residuals, influence = found
    level = w - x @ H.mT if level is None else level
    solved, singular = torch.linalg.solve_ex(H, level.mT)
    steps = -solved.mT  # one for every row: their mean is the step
    unit, columns_error = _columns(H, residuals, influence, rank)
    if int(singular) or not all(bool(torch.isfinite(part).all()) for part in (steps, unit, columns_error)):
        return None
    curvature = (unit * (H @ unit)).sum(0)
    error = ((residuals @ unit) * (influence @ unit)).square().sum(0).sqrt()
    return Newton(
        steps.mean(0),
        steps.std(0) / math.sqrt(len(steps)),
        -0.5 * (curvature * variance).log(),
        0.5 * error / curvature,
        unit[:, :rank].tril(-1),
        columns_error,
    )


def _regression(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """H of slope ≈ Hx, the residuals r and z with δH = Σ rᵀz, from twice as many rows as columns at least."""
    rows, columns = x.shape
    if rows < 2 * columns or not bool(torch.isfinite(slope).all()):
        return None
    factor, failed = torch.linalg.cholesky_ex(x.mT @ x)
    if int(failed):
        return None
    H = torch.cholesky_solve(x.mT @ slope, factor).mT
    # The residuals of a loss beyond second order are large where ε is: each counts with its own square.
    return H, (slope - x @ H.mT) * math.sqrt(rows / (rows - columns)), x @ torch.cholesky_inverse(factor)


def _columns(H: Tensor, residuals: Tensor, influence: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The unit triangular matrix with the best columns, and the standard errors of these: δl = −H₂₂⁻¹(δH·l)₂."""
    unit = torch.eye(len(H), dtype=H.dtype, device=H.device)
    error = torch.zeros(len(H), rank, dtype=H.dtype, device=H.device)
    for j in range(min(rank, len(H) - 1)):
        below = slice(j + 1, None)
        unit[below, j] = -torch.linalg.solve_ex(H[below, below], H[below, j]).result
        moved = residuals[:, below] * (influence @ unit[:, j]).unsqueeze(-1)
        error[below, j] = torch.linalg.solve_ex(H[below, below], moved.mT).result.square().sum(1).sqrt()
    return unit, error
