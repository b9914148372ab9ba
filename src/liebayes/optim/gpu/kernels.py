"""Alg. 1–3 as kernels: one launch for any number of float32 tensors; every formula is `reference`'s.

`table` says where everything is: a row of int64 for each of ROWS, a column for each tensor. Each program works on BLOCK
consecutive elements of the tensor that `owners` names for it. The multiplicative group's log_scale is its remainder.
"""

# pyright: reportMissingImports=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import clamp, expm1_ratio, lerp, log1p, scale_of
from .draws import noise

ELEMENTS = 1024

ROWS = (
    *("count", "number", "first"),  # of elements; of the parameter within its optimizer; the first program that works on it
    *("point", "log_scale", "momentum_log_scale", "momentum_shift", "second_moment_log_scale", "second_moment_shift"),
    *("theta", "gradient", "sum_log_scale", "sum_shift"),
)
"""What the table holds: three numbers of each tensor, then addresses, 0 where a group or metric has no such tensor."""

COUNT, NUMBER, FIRST, *_addresses = (tl.constexpr(row) for row in range(len(ROWS)))
POINT, LOG_SCALE, MOMENTUM_LOG_SCALE, MOMENTUM_SHIFT, SECOND_MOMENT_LOG_SCALE, SECOND_MOMENT_SHIFT = _addresses[:6]
THETA, GRADIENT, SUM_LOG_SCALE, SUM_SHIFT = _addresses[6:]

TINY, LARGEST = tl.constexpr(2.0**-126), tl.constexpr((2 - 2.0**-23) * 2.0**127)


@triton.jit
def _entry(table: tl.tensor, row: tl.constexpr, tensors: tl.tensor, owner: tl.tensor) -> tl.tensor:
    return tl.load(table + row * tensors + owner)


@triton.jit
def _pointer(table: tl.tensor, row: tl.constexpr, tensors: tl.tensor, owner: tl.tensor) -> tl.tensor:
    return _entry(table, row, tensors, owner).to(tl.pointer_type(tl.float32))


# Samples: θ = g·ε.


@triton.jit(do_not_specialize=["tensors", "seed", "step", "stream"])
def sample_kernel(
    table: tl.tensor,
    owners: tl.tensor,
    tensors: tl.tensor,
    seed: tl.tensor,
    step: tl.tensor,
    stream: tl.tensor,
    scale: tl.tensor,
    shape: tl.tensor,
    mean: tl.tensor,
    GROUP: tl.constexpr,
    BASE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Writes θ. A program has BLOCK/4 counters, whose elements are 8 apart (`optim.philox`)."""
    owner = tl.load(owners + tl.program_id(0))
    count = _entry(table, COUNT, tensors, owner)
    chunk = tl.program_id(0) - _entry(table, FIRST, tensors, owner)
    counter = chunk * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    i = (counter // 8) * 32 + counter % 8
    if BASE == "Dirac":
        e0 = tl.zeros([BLOCK // 4], tl.float32)
        e1, e2, e3 = e0, e0, e0
    else:
        number = _entry(table, NUMBER, tensors, owner).to(tl.uint32)
        e0, e1, e2, e3 = noise(
            seed, counter.to(tl.uint32), number, step.to(tl.uint32), stream.to(tl.uint32), scale, shape, BASE
        )
    point = _pointer(table, POINT, tensors, owner)
    theta = _pointer(table, THETA, tensors, owner)
    log_scale = point if GROUP == "Additive" else _pointer(table, LOG_SCALE, tensors, owner)
    _act(theta, point, log_scale, i, count, e0, mean, GROUP)
    _act(theta, point, log_scale, i + 8, count, e1, mean, GROUP)
    _act(theta, point, log_scale, i + 16, count, e2, mean, GROUP)
    _act(theta, point, log_scale, i + 24, count, e3, mean, GROUP)


@triton.jit
def _act(
    theta: tl.tensor,
    point: tl.tensor,
    log_scale: tl.tensor,
    i: tl.tensor,
    count: tl.tensor,
    epsilon: tl.tensor,
    mean: tl.tensor,
    GROUP: tl.constexpr,
) -> None:
    inside = i < count
    p = tl.load(point + i, inside, 1.0)
    if GROUP == "Additive":
        moved = epsilon + p
    else:
        A = scale_of(tl.load(log_scale + i, inside, 0.0))
        moved = tl.fma(A, epsilon, p) if GROUP == "DiagonalAffine" else A * (epsilon * tl.div_rn(p, mean))
    tl.store(theta + i, moved, inside)


# Covectors: ① + τ/N·②, with the prior's ∇R/N (line 6 of Alg. 1–3).


@triton.jit
def _covector(
    point: tl.tensor,
    log_scale: tl.tensor,
    theta: tl.tensor,
    gradient: tl.tensor,
    precision: tl.tensor,
    temperature: tl.tensor,
    GROUP: tl.constexpr,
    PRIOR: tl.constexpr,
    MAXIMIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The blocks (log_scale, shift); what a group has not is not used, and so not computed."""
    if MAXIMIZE:
        gradient = -gradient
    if PRIOR:
        gradient = tl.fma(theta, precision, gradient)
    if GROUP == "Additive":
        return gradient, gradient
    elif GROUP == "DiagonalAffine":
        return (theta - point) * gradient - temperature, scale_of(log_scale) * gradient
    else:
        return theta * gradient - temperature, gradient


@triton.jit(do_not_specialize=["tensors"])
def fold_kernel(
    table: tl.tensor,
    owners: tl.tensor,
    tensors: tl.tensor,
    precision: tl.tensor,
    temperature: tl.tensor,
    GROUP: tl.constexpr,
    PRIOR: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Adds a sample's covector to the sums."""
    owner = tl.load(owners + tl.program_id(0))
    chunk = tl.program_id(0) - _entry(table, FIRST, tensors, owner)
    i = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = i < _entry(table, COUNT, tensors, owner)
    theta = tl.load(_pointer(table, THETA, tensors, owner) + i, inside, 0.0)
    gradient = tl.load(_pointer(table, GRADIENT, tensors, owner) + i, inside, 0.0)
    point, log_scale = theta, theta
    if GROUP == "DiagonalAffine":
        point = tl.load(_pointer(table, POINT, tensors, owner) + i, inside, 0.0)
        log_scale = tl.load(_pointer(table, LOG_SCALE, tensors, owner) + i, inside, 0.0)
    U, V = _covector(point, log_scale, theta, gradient, precision, temperature, GROUP, PRIOR, MAXIMIZE)
    if GROUP != "Additive":
        at = _pointer(table, SUM_LOG_SCALE, tensors, owner) + i
        tl.store(at, U + tl.load(at, inside, 0.0), inside)
    if GROUP != "Multiplicative":
        at = _pointer(table, SUM_SHIFT, tensors, owner) + i
        tl.store(at, V + tl.load(at, inside, 0.0), inside)


# Steps: M ← (1 − β)·covector + βM, then g ← g·exp(−αM♯).


@triton.jit(do_not_specialize=["tensors"])
def step_kernel(
    table: tl.tensor,
    owners: tl.tensor,
    bounded: tl.tensor,
    tensors: tl.tensor,
    folds: tl.tensor,
    precision: tl.tensor,
    temperature: tl.tensor,
    rest_log_scale: tl.tensor,
    rest_shift: tl.tensor,
    lr_log_scale: tl.tensor,
    lr_shift: tl.tensor,
    sharp_log_scale: tl.tensor,
    sharp_cross: tl.tensor,
    sharp_shift: tl.tensor,
    forget: tl.tensor,
    weight: tl.tensor,
    epsilon: tl.tensor,
    max_step: tl.tensor,
    GROUP: tl.constexpr,
    METRIC: tl.constexpr,
    SUMMED: tl.constexpr,
    PRIOR: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BOUNDED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One step of the rule, with the covector of one sample or, if SUMMED, the mean of `folds` of them."""
    SCALE: tl.constexpr = GROUP != "Additive"
    SHIFT: tl.constexpr = GROUP != "Multiplicative"
    owner = tl.load(owners + tl.program_id(0))
    chunk = tl.program_id(0) - _entry(table, FIRST, tensors, owner)
    i = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = i < _entry(table, COUNT, tensors, owner)
    point_at = _pointer(table, POINT, tensors, owner) + i
    point = tl.load(point_at, inside, 1.0)
    log_scale, log_scale_at = point, point_at
    if SCALE:
        log_scale_at = _pointer(table, LOG_SCALE, tensors, owner) + i
        log_scale = tl.load(log_scale_at, inside, 0.0)

    U, V = point, point
    if SUMMED:
        if SCALE:
            U = tl.div_rn(tl.load(_pointer(table, SUM_LOG_SCALE, tensors, owner) + i, inside, 0.0), folds)
        if SHIFT:
            V = tl.div_rn(tl.load(_pointer(table, SUM_SHIFT, tensors, owner) + i, inside, 0.0), folds)
    else:
        theta = point
        if SCALE or PRIOR:
            theta = tl.load(_pointer(table, THETA, tensors, owner) + i, inside, 0.0)
        gradient = tl.load(_pointer(table, GRADIENT, tensors, owner) + i, inside, 0.0)
        U, V = _covector(point, log_scale, theta, gradient, precision, temperature, GROUP, PRIOR, MAXIMIZE)

    X, y = U, V
    if SCALE:
        X = _average(_pointer(table, MOMENTUM_LOG_SCALE, tensors, owner) + i, inside, U, rest_log_scale)
    if SHIFT:
        y = _average(_pointer(table, MOMENTUM_SHIFT, tensors, owner) + i, inside, V, rest_shift)
    if METRIC == "Adaptive":
        if SCALE:
            X = _adapt(_pointer(table, SECOND_MOMENT_LOG_SCALE, tensors, owner) + i, inside, X, U, forget, weight, epsilon)
        if SHIFT:
            y = _adapt(_pointer(table, SECOND_MOMENT_SHIFT, tensors, owner) + i, inside, y, V, forget, weight, epsilon)
    elif METRIC == "Fisher":
        if GROUP == "DiagonalAffine":
            X, y = sharp_log_scale * X + sharp_cross * y, sharp_cross * X + sharp_shift * y
        else:
            X, y = X * sharp_log_scale, y * sharp_shift

    if BOUNDED:
        X, y = X * -lr_log_scale, y * -lr_shift
        many = tl.zeros([BLOCK], tl.int32)
        if SCALE:
            free, X = X, clamp(X, -max_step, max_step)
            many += (inside & (free != X)).to(tl.int32)
        if SHIFT:
            free, y = y, clamp(y, -max_step, max_step)
            many += (inside & (free != y)).to(tl.int32)
        total = tl.sum(many, 0).to(tl.int64)
        tl.atomic_add(bounded, total, mask=total > 0)

    if GROUP == "Additive":
        # One rounding, as gradient descent has it.
        tl.store(point_at, point + y if BOUNDED else tl.fma(y, -lr_shift, point), inside)
    else:
        if not BOUNDED:
            X, y = X * -lr_log_scale, y * -lr_shift
        moved = log_scale + X
        if GROUP == "DiagonalAffine":
            tl.store(log_scale_at, moved, inside)
            tl.store(point_at, tl.fma(scale_of(log_scale), expm1_ratio(X) * y, point), inside)
        else:
            # The point takes the step; the logarithm keeps what rounding the point has lost.
            rounded = clamp(scale_of(moved) * point, TINY, LARGEST)
            tl.store(point_at, rounded, inside)
            change = tl.div_rn(rounded - point, point)
            # log1p is exact where a step is small; far below −½ it has no digits left.
            taken = tl.where(tl.abs(change) > 0.5, tl.log(rounded) - tl.log(point), log1p(change))
            tl.store(log_scale_at, moved - taken, inside)


@triton.jit
def _average(at: tl.tensor, inside: tl.tensor, covector: tl.tensor, rest: tl.tensor) -> tl.tensor:
    M = lerp(tl.load(at, inside, 0.0), covector, rest)  # rest is 1 − β
    tl.store(at, M, inside)
    return M


@triton.jit
def _adapt(
    at: tl.tensor,
    inside: tl.tensor,
    M: tl.tensor,
    covector: tl.tensor,
    forget: tl.tensor,
    weight: tl.tensor,
    epsilon: tl.tensor,
) -> tl.tensor:
    """M/√v with v ← v + forget·(covector² − v), freed of the bias of its start by the weight it has gathered."""
    v = lerp(tl.load(at, inside, 0.0), covector * covector, forget)
    tl.store(at, v, inside)
    return tl.div_rn(M, tl.sqrt_rn(tl.div_rn(v, weight)) + epsilon)
