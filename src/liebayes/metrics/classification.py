"""Metrics of predicted class probabilities."""

from __future__ import annotations

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

from .bootstrap import Statistic
from .checks import as_tensor, real_tensor

BINS = 20
"""The number of calibration bins in the authors' published experiments."""


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of inputs whose most probable class is the label; a tie goes to the first class.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float(_correct(*_checked(probabilities, labels)).mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The mean of −log p(label), in nats.

    A probability of zero counts as the smallest normal number of float32, 1.2e-38 or 87 nats (of float64, 708 nats, if the
    probabilities are that precise), so that the mean stays finite.

    >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0])), 4)
    0.3466
    """
    return float(_log_losses(*_checked(probabilities, labels), smallest_probability(probabilities)).mean())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The mean squared distance of probabilities from the one-hot label, Σ_c (p_c − 1[c = label])²: between 0 and 2.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    return float(_squares(*_checked(probabilities, labels)).mean())


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
    edges = _edges(bins, p.device)
    confidence, guess = p.max(1)
    index = _bin_of(confidence, edges)
    counts = torch.bincount(index, minlength=bins)

    def mean_of(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64, device=p.device).index_add_(0, index, values) / counts

    return Reliability(edges, counts, mean_of(confidence), mean_of((guess == y).double()))


def ece(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The expected calibration error: |accuracy − confidence| of bins of equal width, weighted by their counts.

    >>> round(ece(torch.tensor([[1.0, 0.0], [0.4, 0.6]]), torch.tensor([0, 0])), 4)
    0.3
    """
    return classification_statistics(probabilities, labels, bins)["ece"].value


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
        scores = named[name] = real_tensor(name, scores)
        if scores.ndim != 1 or len(scores) == 0:
            raise ValueError(f"{name} must be one score for each input, but its shape is {tuple(scores.shape)}.")
        if bool(torch.isnan(scores).any()):
            raise ValueError(f"{name} has values that are not numbers (NaN).")
    inside, order = named["scores_inside"].double().sort()[0], named["scores_outside"].double()
    # Twice the number of pairs won is a whole number, so ties cost no precision.
    won = torch.searchsorted(inside, order, right=False) + torch.searchsorted(inside, order, right=True)
    return int(won.sum()) / (2 * len(inside) * len(order))


def classification_statistics(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, Statistic]:
    """Accuracy, NLL, ECE, Brier score and mean predictive entropy, ready for `replicates`.

    The ECE is Σ |mean of (right − confidence) in a bin| over the bins, the means being over all inputs.
    """
    p, y = _checked(probabilities, labels)
    confidence = p.amax(1)
    entropy = torch.special.entr(p).sum(1)
    return {
        "accuracy": Statistic(_correct(p, y)[:, None], low=0.0, high=1.0),
        "nll": Statistic(_log_losses(p, y, smallest_probability(probabilities))[:, None], low=0.0),
        "ece": calibration_statistic(confidence[:, None], _correct(p, y)[:, None], bins),
        "brier": Statistic(_squares(p, y)[:, None], low=0.0, high=2.0),
        "entropy": Statistic(entropy[:, None], low=0.0),
    }


def classification_metrics(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> dict[str, float]:
    """Accuracy, NLL, ECE, Brier score and mean predictive entropy in one dictionary.

    >>> metrics = classification_metrics(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    >>> {name: round(value, 3) for name, value in metrics.items()}
    {'accuracy': 1.0, 'nll': 0.347, 'ece': 0.25, 'brier': 0.25, 'entropy': 0.347}
    """
    return {name: statistic.value for name, statistic in classification_statistics(probabilities, labels, bins).items()}


def calibration_statistic(confidence: Tensor, correct: Tensor, bins: int) -> Statistic:
    """The ECE of predictions (inputs, predictions of an input), averaged over both."""
    index = _bin_of(confidence, _edges(bins, confidence.device))
    gaps = (correct - confidence) / confidence.shape[1]
    terms = torch.zeros(len(confidence), bins, dtype=torch.float64, device=confidence.device).scatter_add_(1, index, gaps)
    return Statistic(terms, lambda means: means.abs().sum(-1), low=0.0, high=1.0, biased=True)


def smallest_probability(probabilities: Tensor) -> float:
    """The value that a probability of zero counts as: see `nll`."""
    double = as_tensor(probabilities).dtype == torch.float64
    return torch.finfo(torch.float64 if double else torch.float32).tiny


def _correct(p: Tensor, y: Tensor) -> Tensor:
    return (p.argmax(1) == y).double()


def _log_losses(p: Tensor, y: Tensor, smallest: float) -> Tensor:
    return -p.gather(1, y.unsqueeze(1)).squeeze(1).clamp_min(smallest).log()


def _squares(p: Tensor, y: Tensor) -> Tensor:
    return (p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1)


def _edges(bins: int, device: torch.device) -> Tensor:
    if isinstance(bins, bool) or not isinstance(bins, numbers.Integral) or bins < 1:
        raise ValueError(f"bins must be a whole number of at least 1, but got {bins!r}.")
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def _bin_of(confidence: Tensor, edges: Tensor) -> Tensor:
    return torch.bucketize(confidence, edges[1:-1])  # the right edge belongs to a bin, so 1.0 is in the last


def _checked_probabilities(probabilities: Tensor) -> Tensor:
    probabilities = as_tensor(probabilities)
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
    p, labels = _checked_probabilities(probabilities), as_tensor(labels)
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
