"""Tolerances that say where they come from: roundings of a dtype, or standard errors of draws."""

import math

import torch


def roundings(count: float, dtype: torch.dtype = torch.float32, size: float = 1.0) -> dict[str, float]:
    """rtol and atol of results that are `count` roundings apart, made on numbers of up to `size`."""
    eps = torch.finfo(dtype).eps
    return {"rtol": count * eps, "atol": count * eps * size}


def deviation_of(draws: int, standard_errors: float = 6.0) -> float:
    """The relative error of a standard deviation estimated from draws: σ̂/σ has the variance 1/(2n) on a Normal base."""
    return standard_errors / math.sqrt(2 * draws)
