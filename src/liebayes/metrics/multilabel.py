"""Metrics of several yes-or-no labels for each input: probabilities (inputs, labels), labels of 0 and 1 of the same shape."""

from __future__ import annotations

import torch
from torch import Tensor

from .bootstrap import Statistic
from .checks import real_tensor
from .classification import BINS, calibration_statistic, smallest_probability


def multilabel_statistics(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, Statistic]:
    """See `multilabel_metrics`; ready for `replicates`."""
    p, y = _checked(probabilities, labels)
    likely = (p > 0.5).double()
    smallest = smallest_probability(probabilities)
    log_losses = -torch.where(y > 0, p, 1 - p).clamp_min(smallest).log()
    entropy = torch.special.entr(p) + torch.special.entr(1 - p)
    right = (likely == y).double()
    return {
        "accuracy": Statistic(right.mean(1, keepdim=True), low=0.0, high=1.0),
        "exact": Statistic(right.amin(1, keepdim=True), low=0.0, high=1.0),
        "nll": Statistic(log_losses.sum(1, keepdim=True), low=0.0),
        "ece": calibration_statistic(torch.maximum(p, 1 - p), right, bins),
        "brier": Statistic((p - y).square().mean(1, keepdim=True), low=0.0, high=1.0),
        "entropy": Statistic(entropy.sum(1, keepdim=True), low=0.0),
    }


def multilabel_metrics(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, float]:
    """The share of right labels and of inputs with all labels right, and NLL, ECE, Brier score and entropy.

    NLL and entropy are sums over the labels of an input; the ECE is over all labels, with the confidence max(p, 1 − p).

    >>> found = multilabel_metrics(torch.tensor([[0.5, 1.0], [0.0, 1.0]]), torch.tensor([[0, 1], [1, 1]]))
    >>> {name: round(found[name], 3) for name in ("accuracy", "exact", "ece", "brier")}
    {'accuracy': 0.75, 'exact': 0.5, 'ece': 0.375, 'brier': 0.312}
    """
    return {name: statistic.value for name, statistic in multilabel_statistics(probabilities, labels, bins).items()}


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    p, y = real_tensor("probabilities", probabilities).detach().double(), real_tensor("labels", labels).double()
    if p.ndim != 2 or p.shape != y.shape or not p.numel():
        raise ValueError(
            f"probabilities and labels must have one shape (inputs, labels), but got {tuple(p.shape)} and {tuple(y.shape)}."
        )
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError("probabilities must lie between 0 and 1. Turn logits into them with sigmoid().")
    if not bool(((y == 0) | (y == 1)).all()):
        raise ValueError("labels must be 0 or 1.")
    return p, y
