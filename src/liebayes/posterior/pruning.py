"""Pruning by signal-to-noise: weights whose mean is small beside their width say little (Graves 2011; Blundell 2015)."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..rule import Family


def keep_by_signal(families: Mapping[str, Family[Any]], kept: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Which weights of matrices are left without the `share` of them that has the least |mean|/width."""
    if not (isinstance(share, numbers.Real) and not isinstance(share, bool) and 0 <= share < 1):
        raise ValueError(f"pruned takes the share of weights to set to zero, at least 0 and below 1, but got {share!r}.")
    matrices = {name: family for name, family in families.items() if len(family.event_shape) > 1}
    if not matrices:
        raise ValueError("pruned is for matrices of weights, and none of the trained parameters is one.")
    signals: dict[str, Tensor] = {}
    for name, family in matrices.items():
        if family.group.positive:
            raise ValueError(
                f"{name} has the same ratio of mean and width everywhere: {family.group} ties them together. Prune the "
                "posterior of an affine rule, or the weights of module() by their magnitude."
            )
        signal = family.mean.abs() / family.stddev
        signals[name] = torch.where(kept[name], signal, -1.0) if name in kept else signal  # what is zero stays so
    together = torch.cat([signal.flatten().float() for signal in signals.values()])
    count = round(share * together.numel())
    gone = torch.zeros_like(together, dtype=torch.bool)
    gone[together.argsort(stable=True)[:count]] = True
    parts = gone.split([signal.numel() for signal in signals.values()])
    pairs = zip(signals.items(), parts, strict=True)
    left = {name: ~part.reshape(signal.shape) & (signal >= 0) for (name, signal), part in pairs}
    return {name: keep for name, keep in left.items() if name in kept or not bool(keep.all())}
