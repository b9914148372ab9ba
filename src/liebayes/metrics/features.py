"""Sparsity and localisation of weights (Sec. 5.1)."""

from __future__ import annotations

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import real_tensor


class Sparsity(NamedTuple):
    """How unequal the magnitudes of weights are."""

    below: float
    """The share of weights smaller than `threshold` times the largest."""
    mass_count: int
    """How many of the largest weights carry `mass` of Σ|w|."""
    mass_share: float
    """The same as a share of all weights."""
    hoyer: float
    """(√n − ‖w‖₁/‖w‖₂)/(√n − 1): 0 for equal magnitudes, 1 for a single one (Hoyer, 2004)."""
    gini: float
    """The Gini index: 0 for equal magnitudes, 1 − 1/n for a single one."""


def sparsity(weights: Tensor, threshold: float = 0.01, mass: float = 0.9) -> Sparsity:
    """Measures of sparsity of a tensor of weights.

    Args:
        weights: of any shape and sign.
        threshold: weights below this share of the largest magnitude count as small.
        mass: the share of Σ|w| that the largest weights must carry.

    >>> sparsity(torch.tensor([0.0, 0.0, -1.0, 0.0]))
    Sparsity(below=0.75, mass_count=1, mass_share=0.25, hoyer=1.0, gini=0.75)
    """
    weights = real_tensor("weights", weights)
    if weights.numel() == 0 or not bool(torch.isfinite(weights).all()):
        raise ValueError(f"weights must be finite numbers, at least one, but got a tensor of shape {tuple(weights.shape)}.")
    for name, value in (("threshold", threshold), ("mass", mass)):
        if not (isinstance(value, numbers.Real) and 0 < value <= 1):
            raise ValueError(f"{name} must be a share in (0, 1], but got {value!r}.")
    sizes = weights.detach().double().abs().flatten().sort(descending=True)[0]
    n, largest = len(sizes), float(sizes[0])
    if largest == 0:
        raise ValueError("All weights are zero: there is nothing to compare.")
    sizes = sizes / largest
    carried = sizes.cumsum(0)
    total = float(carried[-1])
    # The sum is rounded; that must not raise the count by one.
    count = int(torch.searchsorted(carried, mass * total * (1 - 1e-12))) + 1
    ratio = total / float(sizes.square().sum().sqrt())
    hoyer = (n**0.5 - ratio) / (n**0.5 - 1) if n > 1 else 0.0
    ranks = torch.arange(1, n + 1, dtype=torch.float64, device=sizes.device)  # the largest first
    gini = 1 - 2 * float(((ranks - 0.5) * sizes).sum()) / (n * total)
    return Sparsity(float((sizes < threshold).double().mean()), count, count / n, hoyer, gini)


def localisation(maps: Tensor, window: int) -> Tensor:
    """For each map, the largest share of its sum in any square of `window`×`window` positions; NaN for a map of zeros.

    Args:
        maps: numbers that are not negative, such as magnitudes of weights: (maps, height, width).
        window: the side of the square.

    >>> maps = torch.tensor([[[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]], [[1.0] * 3] * 3])
    >>> localisation(maps, 2)
    tensor([1.0000, 0.4444], dtype=torch.float64)
    """
    maps = real_tensor("maps", maps)
    if maps.ndim != 3 or not bool((maps >= 0).all()):
        raise ValueError(f"maps must be non-negative numbers of shape (maps, height, width), but got {tuple(maps.shape)}.")
    if not (isinstance(window, numbers.Integral) and 1 <= window <= min(maps.shape[1:])):
        raise ValueError(f"window must be from 1 to {min(maps.shape[1:])}, the smaller side of the maps, but is {window!r}.")
    values = maps.detach().double().unsqueeze(1)
    sums = torch.nn.functional.avg_pool2d(values, int(window), stride=1).flatten(1).amax(1) * window**2
    return sums / values.flatten(1).sum(1)
