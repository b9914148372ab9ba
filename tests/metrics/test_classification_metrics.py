"""Metrics against loops over Python numbers, and against scikit-learn."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from torch import Tensor

from liebayes import metrics
from liebayes.prediction import ClassPrediction


def drawn(n: int = 200, classes: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(n, classes, generator=generator, dtype=dtype)).softmax(1)
    return p, torch.randint(0, classes, (n,), generator=generator)


def loop_calibration(p: Tensor, y: Tensor, bins: int) -> tuple[list[int], list[float], list[float], float]:
    """Bin by bin, input by input: (k/bins, (k + 1)/bins], and nothing outside."""
    counts, confidences, accuracies, error = [], [], [], 0.0
    for k in range(bins):
        members = []
        for row, label in zip(p.tolist(), y.tolist(), strict=True):
            top = max(row)
            if k / bins < top <= (k + 1) / bins:
                members.append((top, row.index(top) == label))
        counts.append(len(members))
        if members:
            confidences.append(sum(m[0] for m in members) / len(members))
            accuracies.append(sum(m[1] for m in members) / len(members))
            error += len(members) / len(p) * abs(accuracies[-1] - confidences[-1])
        else:
            confidences.append(math.nan)
            accuracies.append(math.nan)
    return counts, confidences, accuracies, error


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 20, 64])
@pytest.mark.parametrize("classes", [2, 5])
def test_calibration_against_loops(bins: int, classes: int) -> None:
    p, y = drawn(classes=classes)
    counts, confidences, accuracies, error = loop_calibration(p, y, bins)
    diagram = metrics.reliability(p, y, bins)
    assert diagram.counts.tolist() == counts
    assert sum(counts) == len(p)
    torch.testing.assert_close(diagram.confidence.tolist(), confidences, equal_nan=True)
    torch.testing.assert_close(diagram.accuracy.tolist(), accuracies, equal_nan=True)
    torch.testing.assert_close(diagram.edges.tolist(), [k / bins for k in range(bins + 1)])
    assert metrics.ece(p, y, bins) == pytest.approx(error, abs=1e-12)


def test_ece_has_twenty_bins() -> None:
    p, y = drawn()
    assert metrics.ece(p, y) == metrics.ece(p, y, 20) != metrics.ece(p, y, 15)


def test_confidence_one_is_in_the_last_bin() -> None:
    """All wrong and all sure: the error is 1, not 0."""
    p = torch.tensor([[1.0, 0.0]] * 4)
    y = torch.ones(4, dtype=torch.long)
    assert metrics.ece(p, y) == 1.0
    assert metrics.reliability(p, y).counts.tolist() == [0] * 19 + [4]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 40))
def test_every_point_is_in_exactly_one_bin(fortieths: list[int], bins: int) -> None:
    """Also those on edges, where rounding decides."""
    first = torch.tensor(fortieths, dtype=torch.float64) / 40
    p = torch.stack([first, 1 - first], 1)
    counts = metrics.reliability(p, torch.zeros(len(p), dtype=torch.long), bins).counts
    assert counts.shape == (bins,)
    assert int(counts.sum()) == len(p)


def test_against_scikit_learn() -> None:
    p, y = drawn()
    labels = list(range(5))
    assert metrics.accuracy(p, y) == accuracy_score(y.numpy(), p.argmax(1).numpy())
    assert metrics.nll(p, y) == pytest.approx(log_loss(y.numpy(), p.numpy(), labels=labels), rel=1e-12)
    two, z = drawn(classes=2, seed=1)
    # scikit-learn's score of two classes counts one of the two equal terms.
    assert metrics.brier(two, z) == pytest.approx(2 * brier_score_loss(z.numpy(), two[:, 1].numpy()), rel=1e-12)


def test_brier_and_entropy_against_loops() -> None:
    p, y = drawn()
    rows = p.tolist()
    brier = sum(sum((v - (c == label)) ** 2 for c, v in enumerate(row)) for row, label in zip(rows, y.tolist(), strict=True))
    assert metrics.brier(p, y) == pytest.approx(brier / len(p), rel=1e-12)
    entropy = [-sum(v * math.log(v) for v in row) for row in rows]
    torch.testing.assert_close(metrics.predictive_entropy(p), torch.tensor(entropy, dtype=torch.float64))


def test_rounding_above_one_gives_no_negative_uncertainty() -> None:
    p, y = torch.tensor([[1 + 1e-6, 0.0]]), torch.tensor([0])
    assert metrics.nll(p, y) == 0.0
    assert float(metrics.predictive_entropy(p)) == 0.0
    assert metrics.ece(p, y) == 0.0


def test_entropy_limits() -> None:
    p = torch.cat([torch.eye(4), torch.full((1, 4), 0.25)])
    torch.testing.assert_close(metrics.predictive_entropy(p), torch.tensor([0.0] * 4 + [math.log(4)], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_nll_of_a_zero_probability_is_finite(dtype: torch.dtype) -> None:
    p = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert metrics.nll(p, torch.tensor([1])) == pytest.approx(708.4 if dtype == torch.float64 else 87.34, rel=1e-4)
    assert metrics.nll(p, torch.tensor([0])) == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_softmax_is_accepted(dtype: torch.dtype) -> None:
    p, y = drawn(500, 100, dtype=torch.float32)
    exact = metrics.classification_metrics(p, y)
    rounded = metrics.classification_metrics(p.to(dtype), y)
    assert rounded["nll"] == pytest.approx(exact["nll"], rel=0.02)


@pytest.mark.parametrize("bins", [3, 7, 10, 20, 25])
def test_right_edges_belong_to_their_bin(bins: int) -> None:
    first = torch.arange(1, bins + 1, dtype=torch.float64) / bins
    p = torch.stack([first, 1 - first], 1)[first >= 0.5]
    counts = metrics.reliability(p, torch.zeros(len(p), dtype=torch.long), bins).counts
    assert counts.tolist() == [0] * (bins - len(p)) + [1] * len(p)


def test_the_first_of_equal_classes_counts() -> None:
    p = torch.full((2, 2), 0.5)
    assert metrics.accuracy(p, torch.tensor([0, 1])) == 0.5
    assert metrics.accuracy(p, torch.tensor([0, 0])) == 1.0


def test_classification_metrics() -> None:
    p, y = drawn()
    got = metrics.classification_metrics(p, y, bins=7)
    assert got == {
        "accuracy": metrics.accuracy(p, y),
        "nll": metrics.nll(p, y),
        "ece": metrics.ece(p, y, 7),
        "brier": metrics.brier(p, y),
        "entropy": float(metrics.predictive_entropy(p).mean()),
    }
    assert all(type(value) is float for value in got.values())


# Telling inputs apart.


@given(st.lists(st.integers(0, 6), min_size=1, max_size=25), st.lists(st.integers(0, 6), min_size=1, max_size=25))
def test_auroc_against_scikit_learn_and_pairs(inside: list[int], outside: list[int]) -> None:
    """With many ties."""
    got = metrics.auroc(torch.tensor(inside) / 7, torch.tensor(outside) / 7)
    pairs = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert got == pytest.approx(sum(pairs) / len(pairs), abs=1e-15)
    truth = [0] * len(inside) + [1] * len(outside)
    assert got == pytest.approx(roc_auc_score(truth, inside + outside), abs=1e-12)


def test_auroc_of_many_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(3000, generator=generator), torch.randn(2000, generator=generator) + 0.7
    expected = roc_auc_score([0] * 3000 + [1] * 2000, torch.cat([inside, outside]).numpy())
    assert metrics.auroc(inside, outside) == pytest.approx(expected, abs=1e-12)
    assert metrics.auroc(outside, inside) == pytest.approx(1 - expected, abs=1e-12)


# Sparsity.


def loop_sparsity(weights: list[float], threshold: float, mass: float) -> tuple[float, int, float, float]:
    sizes = sorted(abs(w) for w in weights)
    n, total = len(sizes), sum(sizes)
    below = sum(s < threshold * sizes[-1] for s in sizes) / n
    count, carried = 0, 0.0
    while carried < mass * total * (1 - 1e-9):
        count += 1
        carried += sizes[-count]
    hoyer = (math.sqrt(n) - total / math.sqrt(sum(s * s for s in sizes))) / (math.sqrt(n) - 1)
    gini = sum(abs(a - b) for a in sizes for b in sizes) / (2 * n * total)  # half the relative mean difference
    return below, count, hoyer, gini


@pytest.mark.parametrize("power", [1, 3, 9])
def test_sparsity_against_loops(power: int) -> None:
    weights = torch.randn(8, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** power
    got = metrics.sparsity(weights, threshold=0.05, mass=0.8)
    below, count, hoyer, gini = loop_sparsity(weights.flatten().tolist(), 0.05, 0.8)
    assert (got.below, got.mass_count, got.mass_share) == (below, count, count / 72)
    assert got.hoyer == pytest.approx(hoyer)
    assert got.gini == pytest.approx(gini)


def test_sparsity_limits_and_scale() -> None:
    equal = metrics.sparsity(torch.full((10,), -0.3))
    assert (equal.below, equal.mass_count) == (0.0, 9)
    assert equal.hoyer == pytest.approx(0, abs=1e-12)
    assert equal.gini == pytest.approx(0, abs=1e-12)
    one = metrics.sparsity(torch.eye(10)[0] * 1e-30)
    assert one == (0.9, 1, 0.1, 1.0, 0.9)
    assert metrics.sparsity(torch.ones(100), mass=0.55).mass_count == 55  # though 0.55·100 rounds up
    weights = torch.rand(50, dtype=torch.float64)
    torch.testing.assert_close(tuple(metrics.sparsity(weights)), tuple(metrics.sparsity(weights * 1e200)))


# Bad input.


def bad(p: Any = None, y: Any = None) -> dict[str, Any]:
    good_p, good_y = drawn(6, 3)
    return {"probabilities": good_p if p is None else p, "labels": good_y if y is None else y}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (bad(p=torch.rand(6)), "inputs, classes"),
        (bad(p=ClassPrediction(*torch.rand(3, 6))), r"a ClassPrediction\. Pass its \.probabilities"),
        (bad(p=[[0.5, 0.5]]), r"a list\. Use torch\.as_tensor"),
        (bad(y=[0] * 6), r"labels must be a tensor, but got a list"),
        (bad(p=torch.ones(6, 1)), "two classes"),
        (bad(p=torch.ones(0, 3), y=torch.ones(0, dtype=torch.long)), "at least one input"),
        (bad(p=torch.randn(6, 3)), "softmax"),
        (bad(p=torch.full((6, 3), 0.3)), "add up to 1"),
        (bad(p=torch.full((6, 3), math.nan)), "NaN"),
        (bad(p=torch.ones(6, 3, dtype=torch.long)), "floating-point"),
        (bad(y=torch.zeros(5, dtype=torch.long)), "each of 6 inputs"),
        (bad(y=torch.zeros(6)), "integers"),
        (bad(y=torch.full((6,), 3)), "classes 0 to 2"),
        (bad(y=torch.full((6,), -1)), "classes 0 to 2"),
    ],
)
@pytest.mark.parametrize("metric", ["accuracy", "nll", "ece", "brier", "reliability", "classification_metrics"])
def test_bad_input_is_refused(metric: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(metrics, metric)(**arguments)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bad_bins(bins: Any) -> None:
    with pytest.raises(ValueError, match="bins"):
        metrics.ece(*drawn(6, 3), bins=bins)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.predictive_entropy(torch.rand(3)), "inputs, classes"),
        (lambda: metrics.auroc(torch.ones(0), torch.ones(2)), "scores_inside"),
        (lambda: metrics.auroc(torch.ones(2), torch.ones(2, 2)), "scores_outside"),
        (lambda: metrics.auroc(torch.ones(2), torch.full((2,), math.nan)), "NaN"),
        (lambda: metrics.sparsity(torch.zeros(3)), "zero"),
        (lambda: metrics.sparsity(torch.ones(0)), "at least one"),
        (lambda: metrics.sparsity(torch.tensor([1.0, math.inf])), "finite"),
        (lambda: metrics.sparsity(torch.ones(3), threshold=0.0), "threshold"),
        (lambda: metrics.sparsity(torch.ones(3), mass=1.5), "mass"),
    ],
)
def test_bad_scores_and_weights(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("wrong", [None, 3.0, [0.1, 0.9], "0.5", torch.ones(3, dtype=torch.complex64)], ids=repr)
def test_what_is_no_tensor_of_real_numbers_is_refused(wrong: Any) -> None:
    good = torch.rand(3)
    for call in (
        lambda: metrics.auroc(wrong, good),
        lambda: metrics.auroc(good, wrong),
        lambda: metrics.sparsity(wrong),
        lambda: metrics.localisation(wrong, 1),
    ):
        with pytest.raises(ValueError, match=r"must be a tensor of real numbers, but got .*torch\.as_tensor"):
            call()
    for options in ({"threshold": "0.1"}, {"mass": None}, {"mass": math.nan}):
        with pytest.raises(ValueError, match=r"must be a share in \(0, 1\]"):
            metrics.sparsity(good, **options)
    with pytest.raises(ValueError, match="window must be from 1 to 3"):
        metrics.localisation(torch.ones(1, 3, 3), 1.5)  # type: ignore[arg-type]
