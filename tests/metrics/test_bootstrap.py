"""Intervals of figures: against scipy's bootstrap, and their coverage of figures that are known."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from liebayes import metrics
from liebayes.metrics import Statistic, auroc, auroc_replicates, difference, interval, replicates


def test_figures_are_those_of_the_plain_metrics() -> None:
    generator = torch.Generator().manual_seed(0)
    p, y = torch.randn(100, 4, generator=generator).softmax(1), torch.randint(4, (100,), generator=generator)
    found = metrics.classification_statistics(p, y)
    assert {name: statistic.value for name, statistic in found.items()} == metrics.classification_metrics(p, y)


def test_against_scipy() -> None:
    """Two bootstraps with 4,000 resamples: their ends agree to a tenth of the interval's width."""
    losses = -torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    statistic = Statistic(losses[:, None])
    found = interval(statistic, replicates({"x": statistic}, number=4000)["x"])
    theirs = stats.bootstrap((losses.numpy(),), np.mean, n_resamples=4000, method="percentile", random_state=0)
    width = found.high - found.low
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=width / 10)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=width / 10)


def test_intervals_cover_what_is_known() -> None:
    """RMSE of unit noise is 1, a mean of Exponential(1) is 1; 95 % of intervals should hold it, here within 4 binomial sd."""
    generator, trials, n = torch.Generator().manual_seed(0), 200, 150
    hits = {"rmse": 0, "mean": 0}
    for trial in range(trials):
        noise = torch.randn(n, generator=generator, dtype=torch.float64)
        exponential = -torch.rand(n, generator=generator, dtype=torch.float64).log()
        found = {
            "rmse": Statistic(noise.square()[:, None], lambda means: means[..., 0].sqrt()),
            "mean": Statistic(exponential[:, None]),
        }
        drawn = replicates(found, number=300, seed=trial)
        for name, statistic in found.items():
            _, low, high = interval(statistic, drawn[name])
            hits[name] += low <= 1 <= high
    slack = 4 * math.sqrt(0.95 * 0.05 / trials)
    for name, count in hits.items():
        assert count / trials == pytest.approx(0.94, abs=slack), name  # a percent less than promised, for a finite sample


def test_the_calibration_error_of_a_calibrated_model_is_zero_within_chance() -> None:
    """Its plain value is far above 0, and that of resamples further still."""
    generator, holds = torch.Generator().manual_seed(0), 0
    for trial in range(40):
        p = (2 * torch.randn(300, 3, generator=generator, dtype=torch.float64)).softmax(1)
        y = torch.multinomial(p, 1, generator=generator).squeeze(1)
        statistic = metrics.classification_statistics(p, y)["ece"]
        found = interval(statistic, replicates({"ece": statistic}, 200, trial)["ece"])
        assert found.value > 0.02
        holds += found.low < 0.02
    assert holds >= 32


def test_differences_are_paired() -> None:
    """Two models, one of which loses 0.05 on every input: the losses vary far more than that."""
    generator = torch.Generator().manual_seed(0)
    losses = -torch.rand(400, generator=generator, dtype=torch.float64).log()
    worse = losses + 0.05 + 0.01 * torch.randn(400, generator=generator)
    one, other = Statistic(losses[:, None]), Statistic(worse[:, None])
    drawn = replicates({"one": one, "other": other})
    found = difference(one, other, drawn["one"], drawn["other"])
    assert found.decided
    assert found.value == pytest.approx(-0.05, abs=5 * 0.01 / 20)
    width = interval(one, drawn["one"]).high - interval(one, drawn["one"]).low
    assert found.high - found.low < width / 20
    again = replicates({"other": other})["other"]
    torch.testing.assert_close(again, drawn["other"], msg="the same inputs in every call")


def test_auroc_of_resamples() -> None:
    """Resamples by hand: the same indices as weights."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(0, 6, (30,), generator=generator).double()  # with ties
    outside = torch.randint(2, 9, (20,), generator=generator).double()
    found = auroc_replicates(inside, outside, number=50, seed=3)
    rows = torch.randint(30, (50, 30), generator=torch.Generator().manual_seed(3))
    columns = torch.randint(20, (50, 20), generator=torch.Generator().manual_seed(4))
    by_hand = [auroc(inside[i], outside[j]) for i, j in zip(rows, columns, strict=True)]
    torch.testing.assert_close(found.tolist(), by_hand)


@pytest.mark.parametrize("wrong", [{"number": []}, {"number": 0}, {"seed": 0.5}])
def test_numbers_of_resamples_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="number must be at least 1 and seed a whole number"):
        auroc_replicates(torch.rand(5), torch.rand(5), **wrong)
