"""Bounds that prove a step of the kernel finite before it is taken: of all it writes, from bounds of all it reads.

A step is taken whole or not at all, and the kernel writes as it goes. The passes before it have seen every number that it
reads but the momenta, second moments and, most of the time, points and scales, whose bounds follow from step to step; so the
triangle inequality, applied to the formulas of rule.h, gives bounds of the result at no cost. In training they are many
orders of magnitude below the largest float32. Where they are not, the kernel tries the step first, and writes nothing (`TRY`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from . import CHUNK, Job

LIMIT = 1e37
"""What is surely a finite float32, also after the rounding of some operations."""


class Sizes(NamedTuple):
    """Bounds of the magnitudes in a sample and in the element it was drawn from; NaN where they are not known."""

    theta: float = math.nan
    point: float = math.nan
    scale: float = math.nan


class Covector(NamedTuple):
    """Bounds of the magnitudes of a covector's blocks. Of the Gauss–Newton rule: of w² and of the gradient."""

    scale: float
    shift: float


class Memory(NamedTuple):
    """Bounds of the magnitudes of momenta and second moments; 0 for those a rule does not have."""

    momentum_scale: float = 0.0
    momentum_shift: float = 0.0
    second_scale: float = 0.0
    second_shift: float = 0.0


def within(*bounds: float) -> bool:
    """Whether all are numbers below the limit."""
    return all(bound <= LIMIT for bound in bounds)


def covector_at(sample: Sizes, gradient: float, prior: float, temperature: float) -> Covector:
    """① + τ/N·② of the elementwise groups: U = (θ − b)·∇ℓ − τ/N, V = A∇ℓ, with the prior in ∇ℓ."""
    whole = gradient + prior * sample.theta
    return Covector((sample.theta + sample.point) * whole + temperature, max(sample.scale, 1.0) * whole)


def after_step(job: Job, group: str, sample: Sizes, covector: Covector, memory: Memory) -> Memory | None:
    """The memory after a step, if the step is sure to be finite. `group`: "additive", "multiplicative" or "affine"."""
    U, V = covector
    M_scale = (job.beta_scale * memory.momentum_scale + job.rest_scale * U) * 1.00001  # rounded up
    M_shift = (job.beta_shift * memory.momentum_shift + job.rest_shift * V) * 1.00001
    after = Memory(M_scale, M_shift)
    if job.adaptive:
        second_scale = (job.beta_second * memory.second_scale + job.rest_second * U * U) * 1.00001
        second_shift = (job.beta_second * memory.second_shift + job.rest_second * V * V) * 1.00001
        smallest_root = max(job.epsilon, 1e-300)
        X, y = M_scale / smallest_root, M_shift / smallest_root
        after = Memory(M_scale, M_shift, second_scale, second_shift)
        if not within(U * U, V * V, *(second / job.rest_second for second in (second_scale, second_shift))):
            return None
    else:
        sharp = [abs(entry) for entry in job.sharp]
        X, y = sharp[0] * M_scale + sharp[1] * M_shift, sharp[2] * M_scale + sharp[3] * M_shift
    X, y = abs(job.lr_scale) * X, abs(job.lr_shift) * y
    if not within(X, y, *after):
        return None
    X, y = min(X, job.max_step), min(y, job.max_step)
    if group == "affine":
        y *= sample.scale * math.exp(min(X, 100.0))
    return after if within(sample.point + (0.0 if group == "multiplicative" else y)) else None


def after_gauss_newton(
    job: Job, sample: Sizes, covector: Covector, memory: Memory, limit: float, curvature: float, spread: float
) -> Memory | None:
    """The same for the Gauss–Newton rule; the `limit` of steps, `curvature` and `spread` are the largest of all tensors."""
    square, gradient = covector
    M = (job.beta_shift * memory.momentum_shift + job.rest_shift * gradient) * 1.00001
    traces = CHUNK * square / job.seen, CHUNK * (sample.theta + sample.point) * gradient
    widths = curvature * square + spread * sample.scale**2
    fine = within(M, curvature, *traces, widths, sample.point + limit)
    return Memory(momentum_shift=M) if fine else None


def after_widths(sizes: Sizes, limit: float, least_growth: float) -> Sizes:
    """Points and scales after a step of that rule. A⁻² grows by (1 − ρ)·min(1, c/c before) at least."""
    return Sizes(point=(sizes.point + limit) * 1.00001, scale=sizes.scale * least_growth**-0.5 * 1.00001)


def all_numbers(values: Iterable[float]) -> bool:
    """Whether all are finite."""
    return all(map(math.isfinite, values))
