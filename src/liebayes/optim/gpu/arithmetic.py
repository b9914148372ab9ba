"""Elementary functions for the kernels, in float32, to about an ulp.

The GPU's own e^x loses an ulp for every unit of x, and e^x − 1 and log(1 + x) are not in Triton's language. These are plain
series after an exact reduction of the argument, the same on a GPU and in Triton's interpreter.
"""

# pyright: reportMissingImports=false, reportArgumentType=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ...groups.exponential import scale_range

LOW, HIGH = (tl.constexpr(math.log(scale)) for scale in scale_range(torch.float32))


@triton.jit
def exponentials(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """e^x and e^x − 1: with x = n·log 2 + r and |r| ≤ ½·log 2, a series in r and a shift of the exponent."""
    bounded = tl.where(x > 170.0, 170.0, tl.where(x < -170.0, -170.0, x))  # beyond, results are infinite or 0 anyway
    n = tl.floor(bounded * 1.4426950408889634 + 0.5)
    # log 2 in two parts, the first so short that its multiples are exact.
    r = (bounded - n * 0.693145751953125) - n * 1.428606820309417e-06
    p = r * (1 / 5040 + r * (1 / 40320))
    p = r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + p)))
    p = r + r * r * (1 / 2 + r * (1 / 6 + p))
    n = n.to(tl.int32)
    half = n >> 1  # two factors: 2ⁿ alone may be out of range where the result is not
    e = (1.0 + p) * _power_of_two(half) * _power_of_two(n - half)
    return e, tl.where(n == 0, p, e - 1.0)


@triton.jit
def _power_of_two(n: tl.tensor) -> tl.tensor:
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(log_scale: tl.tensor) -> tl.tensor:
    """e^x within the range of `groups.exponential.scale_of`."""
    e, _ = exponentials(clamp(log_scale, LOW, HIGH))
    return e


@triton.jit
def expm1_ratio(x: tl.tensor) -> tl.tensor:
    """(e^x − 1)/x."""
    away = tl.where(x == 0, 1e-38, x)
    _, m = exponentials(away)
    return tl.div_rn(m, away)


@triton.jit
def log1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x): what rounding 1 + x has lost comes back as a factor (Kahan)."""
    u = 1.0 + x
    kept = u - 1.0
    return tl.where(kept == 0, x, tl.log(u) * tl.div_rn(x, tl.where(kept == 0, 1.0, kept)))


@triton.jit
def cos_sin(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """cos x and sin x for |x| ≤ π/4."""
    s = x * x
    c = 1.0 - s * (1 / 2 - s * (1 / 24 - s * (1 / 720 - s * (1 / 40320 - s * (1 / 3628800)))))
    return c, x - x * s * (1 / 6 - s * (1 / 120 - s * (1 / 5040 - s * (1 / 362880))))


@triton.jit
def clamp(x: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """x within [low, high]; NaN stays NaN, as in torch."""
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def lerp(start: tl.tensor, end: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """start + weight·(end − start), from the nearer end, as torch has it."""
    difference = end - start
    return tl.where(weight < 0.5, start + weight * difference, end - (1.0 - weight) * difference)
