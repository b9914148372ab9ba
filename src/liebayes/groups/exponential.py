"""The two scalar functions behind every exponential map, safe in floating point."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


def scale_of(log_scale: Tensor) -> Tensor:
    """e^x, positive and finite for every finite x.

    Nine tenths of the float's exponent range are used; the rest is left for the noise that multiplies a scale.
    """
    low, high = _log_range(log_scale.dtype)
    return log_scale.clamp(low, high).exp()


@cache
def _log_range(dtype: torch.dtype) -> tuple[float, float]:
    limits = torch.finfo(dtype)
    return 0.9 * math.log(limits.tiny), 0.9 * math.log(limits.max)


def scale_range(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest scale."""
    low, high = _log_range(dtype)
    return math.exp(low), math.exp(high)


def expm1_ratio(x: Tensor, differentiable: bool = True) -> Tensor:
    """(e^x − 1)/x, with its series where x is small: 1 + x/2 + x²/6 + x³/24.

    The series is for the derivative. Without it the value is exact, in a fifth of the time; a NaN has 1, like 0.
    """
    if torch.compiler.is_compiling():
        # Compiled code may take e^x − 1 for expm1(x). Rounding y = e^x harms (y − 1)/log y as little as possible (Kahan).
        y = x.exp()
        near = torch.where(y == 1, 1.0, (y - 1) / torch.where(y == 1, 1.0, y.log()))
        return torch.where(x.abs() < 1, near, (y - 1) / torch.where(x == 0, 1.0, x))
    if not differentiable:
        return torch.expm1(x).div_(x).nan_to_num_(1.0, math.inf, -math.inf)  # 0/0
    small = x.abs() < 1e-4
    away = torch.where(small, 1.0, x)  # keeps 0/0 out of the derivative too
    series = 1 + x * (1 / 2 + x * (1 / 6 + x / 24))
    return torch.where(small, series, torch.expm1(away) / away)
