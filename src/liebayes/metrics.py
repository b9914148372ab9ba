"""Metrics of predicted probabilities, and of the sparsity and localisation of weights.

Probabilities are a tensor (inputs, classes) whose rows add up to 1, labels a tensor with one integer for each input.
Everything is computed in float64 and returned as Python numbers, or as tensors of one value for each input or bin.
"""

from __future__ import annotations

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

BINS = 20
"""The number of calibration bins in the authors' published experiments."""


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of inputs whose most probable class is the label; a tie goes to the first class.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    p, y = _checked(probabilities, labels)
    return float((p.argmax(1) == y).double().mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats.

    A probability of zero counts as the smallest normal number of float32, 1.2e-38 or 87 nats (of float64, 708 nats, if the
    probabilities are that precise), so that the mean stays finite.

    >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0])), 4)
    0.3466
    """
    p, y = _checked(probabilities, labels)
    smallest = torch.finfo(torch.float64 if probabilities.dtype == torch.float64 else torch.float32).tiny
    return float(-p.gather(1, y.unsqueeze(1)).clamp_min(smallest).log().mean())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The mean squared distance of probabilities from the one-hot label, Σ_c (p_c − 1[c = label])²: between 0 and 2.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    p, y = _checked(probabilities, labels)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


class Reliability(NamedTuple):
    """A reliability diagram: bins of equal width over the confidence, the largest probability."""

    edges: Tensor  # (bins + 1,)
    counts: Tensor  # (bins,)
    confidence: Tensor  # (bins,)
    """The mean confidence of each bin, NaN where it is empty."""
    accuracy: Tensor  # (bins,)
    """The accuracy of each bin, NaN where it is empty."""


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Counts, confidence and accuracy in bins. Bin k holds confidences in (k/bins, (k + 1)/bins]: every input is in one bin.

    >>> diagram = reliability(torch.tensor([[1.0, 0.0], [0.4, 0.6]]), torch.tensor([0, 0]), bins=2)
    >>> diagram.counts, diagram.confidence
    (tensor([0, 2]), tensor([   nan, 0.8000], dtype=torch.float64))
    """
    p, y = _checked(probabilities, labels)
    if isinstance(bins, bool) or not isinstance(bins, numbers.Integral) or bins < 1:
        raise ValueError(f"bins must be a whole number of at least 1, but got {bins!r}.")
    edges = torch.arange(bins + 1, dtype=torch.float64, device=p.device) / bins
    confidence, guess = p.max(1)
    index = torch.bucketize(confidence, edges[1:-1])  # the right edge belongs to a bin, so 1.0 is in the last
    counts = torch.bincount(index, minlength=bins)

    def mean_of(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64, device=p.device).index_add_(0, index, values) / counts

    return Reliability(edges, counts, mean_of(confidence), mean_of((guess == y).double()))


def ece(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The expected calibration error: |accuracy − confidence| of bins of equal width, weighted by their counts.

    >>> round(ece(torch.tensor([[1.0, 0.0], [0.4, 0.6]]), torch.tensor([0, 0])), 4)
    0.3
    """
    diagram = reliability(probabilities, labels, bins)
    gaps = (diagram.accuracy - diagram.confidence).abs().nan_to_num(0.0)
    return float((gaps * diagram.counts).sum() / diagram.counts.sum())


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """The entropy −Σ p log p of each input's probabilities, in nats: how unsure the prediction is.

    >>> predictive_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    p = _checked_probabilities(probabilities)
    return torch.special.entr(p).sum(1)


def auroc(scores_inside: Tensor, scores_outside: Tensor) -> float:
    """How well a score separates inputs outside the distribution from those inside: P(outside is higher), ties half.

    Scores are high where the model is unsure: the entropy or the mutual information of a prediction.

    >>> auroc(torch.tensor([0.1, 0.3]), torch.tensor([0.3, 0.9]))
    0.875
    """
    named = {"scores_inside": scores_inside, "scores_outside": scores_outside}
    for name, scores in named.items():
        _require_real(name, scores)
        if scores.ndim != 1 or len(scores) == 0:
            raise ValueError(f"{name} must be one score for each input, but its shape is {tuple(scores.shape)}.")
        if bool(torch.isnan(scores).any()):
            raise ValueError(f"{name} has values that are not numbers (NaN).")
    inside, order = scores_inside.double().sort()[0], scores_outside.double()
    # Twice the number of pairs won is a whole number, so ties cost no precision.
    won = torch.searchsorted(inside, order, right=False) + torch.searchsorted(inside, order, right=True)
    return int(won.sum()) / (2 * len(inside) * len(order))


def classification_metrics(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, float]:
    """Accuracy, NLL, ECE, Brier score and mean predictive entropy in one dictionary.

    >>> metrics = classification_metrics(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    >>> {name: round(value, 3) for name, value in metrics.items()}
    {'accuracy': 1.0, 'nll': 0.347, 'ece': 0.25, 'brier': 0.25, 'entropy': 0.347}
    """
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels, bins),
        "brier": brier(probabilities, labels),
        "entropy": float(predictive_entropy(probabilities).mean()),
    }


# Sparsity (Sec. 5.1).


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
    _require_real("weights", weights)
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
    _require_real("maps", maps)
    if maps.ndim != 3 or not bool((maps >= 0).all()):
        raise ValueError(f"maps must be numbers that are not negative, (maps, height, width), but got {tuple(maps.shape)}.")
    if not (isinstance(window, numbers.Integral) and 1 <= window <= min(maps.shape[1:])):
        raise ValueError(f"window must be from 1 to {min(maps.shape[1:])}, the smaller side of the maps, but is {window!r}.")
    values = maps.detach().double().unsqueeze(1)
    sums = torch.nn.functional.avg_pool2d(values, int(window), stride=1).flatten(1).amax(1) * window**2
    return sums / values.flatten(1).sum(1)


def _require_real(name: str, value: object) -> None:
    if not isinstance(value, Tensor) or value.dtype.is_complex or value.is_quantized:
        came = str(value.dtype) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{name} must be a tensor of real numbers, but got {came}. Make one: torch.as_tensor(...).")


def _checked_probabilities(probabilities: Tensor) -> Tensor:
    if not isinstance(probabilities, Tensor):
        way = "Pass its .probabilities." if hasattr(probabilities, "probabilities") else "Use torch.as_tensor."
        raise ValueError(f"probabilities must be a tensor, but got a {type(probabilities).__name__}. {way}")
    if probabilities.ndim != 2 or probabilities.shape[0] == 0 or probabilities.shape[1] < 2:
        raise ValueError(
            "probabilities must have the shape (inputs, classes), with at least one input and two classes, "
            f"but got {tuple(probabilities.shape)}."
        )
    if not probabilities.dtype.is_floating_point:
        raise ValueError(f"probabilities must be floating-point numbers, but got {probabilities.dtype}.")
    p = probabilities.detach().double()
    if bool(p.isnan().any()):
        raise ValueError("Some probabilities are NaN. Has training diverged?")
    if not bool(((p >= 0) & (p <= 1 + 1e-4)).all()):
        raise ValueError("probabilities must lie between 0 and 1. Turn logits into them with softmax(-1).")
    # Rounding of n classes in the dtype given; float16 sums of softmax err by about 1e-3.
    slack = max(1e-4, 4 * torch.finfo(probabilities.dtype).eps * p.shape[1] ** 0.5)
    off = float((p.sum(1) - 1).abs().max())
    if not off <= slack:
        raise ValueError(f"The probabilities of an input must add up to 1, but one row is off by {off:.2g}.")
    return p.clamp_max(1.0)


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    p = _checked_probabilities(probabilities)
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor, but got a {type(labels).__name__}. Use torch.as_tensor.")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, the numbers of classes, but got {labels.dtype}.")
    if labels.shape != p.shape[:1]:
        raise ValueError(
            f"labels must be one class for each of {p.shape[0]} inputs, but their shape is {tuple(labels.shape)}."
        )
    y = labels.long()
    if not bool(((y >= 0) & (y < p.shape[1])).all()):
        raise ValueError(f"labels must be classes 0 to {p.shape[1] - 1}, but reach from {int(y.min())} to {int(y.max())}.")
    return p, y.to(p.device)
