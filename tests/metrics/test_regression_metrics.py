"""Metrics of Gaussian predictions against scipy, numerical integrals, and loops over Python numbers."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from liebayes import metrics


def drawn(n: int = 300, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and targets, whose noise is not quite what the variances say."""
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    variance = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return mean, variance, mean + 0.3 + 1.3 * variance.sqrt() * noise


def test_each_figure_against_scipy() -> None:
    mean, variance, targets = drawn()
    laws = stats.norm(mean.numpy(), variance.sqrt().numpy())
    y = targets.numpy()
    assert metrics.rmse(mean, targets) == pytest.approx(math.sqrt(np.mean((mean.numpy() - y) ** 2)), rel=1e-12)
    assert metrics.gaussian_nll(mean, variance, targets) == pytest.approx(-laws.logpdf(y).mean(), rel=1e-12)
    for level in (0.1, 0.5, 0.9, 0.99):
        low, high = laws.interval(level)
        assert metrics.coverage(mean, variance, targets, level) == np.mean((low <= y) & (y <= high))
    assert metrics.sharpness(variance) == pytest.approx(laws.std().mean(), rel=1e-12)
    found = metrics.quantile_calibration(mean, variance, targets)
    observed = [float(np.mean(y <= laws.ppf(level))) for level in metrics.LEVELS]
    assert found.observed.tolist() == pytest.approx(observed, abs=1e-12)
    assert found.error == pytest.approx(np.mean(np.abs(np.subtract(observed, metrics.LEVELS))), abs=1e-12)


@pytest.mark.parametrize(("mean", "variance", "target"), [(0.0, 1.0, 0.0), (1.0, 4.0, -2.5), (-3.0, 0.09, -2.0)])
def test_crps_is_the_integral_of_its_definition(mean: float, variance: float, target: float) -> None:
    law = stats.norm(mean, math.sqrt(variance))
    left, _ = integrate.quad(lambda x: law.cdf(x) ** 2, -math.inf, target)
    right, _ = integrate.quad(lambda x: law.sf(x) ** 2, target, math.inf)
    found = metrics.crps(*(torch.tensor([number]) for number in (mean, variance, target)))
    assert found == pytest.approx(left + right, rel=1e-6)  # the precision of quad, and of float32 inputs


def test_crps_without_variance_is_the_absolute_error() -> None:
    mean, _, targets = drawn()
    tiny = torch.full_like(mean, 1e-18)
    assert metrics.crps(mean, tiny, targets) == pytest.approx(float((mean - targets).abs().mean()), rel=1e-8)


def test_true_predictions_are_calibrated() -> None:
    """The observed shares of n targets are binomial; 5 of their standard errors."""
    n = 20_000
    generator = torch.Generator().manual_seed(1)
    mean, variance = torch.randn(n, generator=generator), torch.rand(n, generator=generator) + 0.1
    targets = mean + variance.sqrt() * torch.randn(n, generator=generator)
    found = metrics.quantile_calibration(mean, variance, targets)
    slack = 5 * (found.levels * (1 - found.levels) / n).sqrt()
    assert bool(((found.observed - found.levels).abs() < slack).all())
    assert metrics.coverage(mean, variance, targets) == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / n))
    wrong = metrics.quantile_calibration(mean, 4 * variance, targets)
    assert wrong.error > 5 * found.error


def test_several_targets() -> None:
    """Averages over the targets, but for the NLL, which is their sum."""
    columns = [drawn(seed=seed) for seed in (0, 1)]
    stacked = [torch.stack([column[k] for column in columns], 1) for k in range(3)]
    found = metrics.regression_metrics(*stacked)
    alone = [metrics.regression_metrics(*column) for column in columns]
    for name in ("crps", "coverage", "sharpness"):
        assert found[name] == pytest.approx(sum(one[name] for one in alone) / 2, rel=1e-12)
    assert found["nll"] == pytest.approx(sum(one["nll"] for one in alone), rel=1e-12)
    assert found["rmse"] == pytest.approx(math.sqrt(sum(one["rmse"] ** 2 for one in alone) / 2), rel=1e-12)


def test_arrays_are_taken() -> None:
    mean, variance, targets = drawn()
    arrays = [tensor.numpy() for tensor in (mean, variance, targets)]
    assert metrics.regression_metrics(*arrays) == metrics.regression_metrics(mean, variance, targets)
    p, y = torch.rand(9, 3).softmax(1), torch.arange(9) % 3
    assert metrics.classification_metrics(p.numpy(), y.numpy()) == metrics.classification_metrics(p, y)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m, v, y: (m, v, y[:-1]), "must have one shape"),
        (lambda m, v, y: (m[:, None], v, y), r"take its squeeze\(-1\)"),
        (lambda m, v, y: (m, 0 * v, y), r"wrap it in liebayes\.nn\.GaussianOutput"),
        (lambda m, v, y: (m / 0, v, y), "mean has values that are not finite"),
        (lambda m, v, y: (m.tolist(), v, y), "mean must be a tensor"),
    ],
)
def test_bad_predictions_are_refused(change: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        metrics.regression_metrics(*change(*drawn()))  # type: ignore[operator]


def test_multilabel_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (40, 3), generator=generator)
    found = metrics.multilabel_metrics(p, y, bins=4)
    right, exact, loss, squares = [], [], [], []
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(4)]
    for row, labels in zip(p.tolist(), y.tolist(), strict=True):
        hits = [(q > 0.5) == bool(label) for q, label in zip(row, labels, strict=True)]
        right += hits
        exact.append(all(hits))
        loss.append(-sum(math.log(q if label else 1 - q) for q, label in zip(row, labels, strict=True)))
        squares += [(q - label) ** 2 for q, label in zip(row, labels, strict=True)]
        for q, hit in zip(row, hits, strict=True):
            confidence = max(q, 1 - q)
            bins[min(math.ceil(confidence * 4) - 1, 3)].append((confidence, hit))
    error = sum(abs(sum(hit - c for c, hit in members)) for members in bins) / p.numel()
    expected = {"accuracy": np.mean(right), "exact": np.mean(exact), "nll": np.mean(loss), "ece": error}
    for name, value in {**expected, "brier": np.mean(squares)}.items():
        assert found[name] == pytest.approx(float(value), rel=1e-12), name
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        metrics.multilabel_metrics(p, y + 1)
