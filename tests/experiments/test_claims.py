"""Verdicts on the paper's claims."""

from __future__ import annotations

import random
from typing import Any

import pytest
import scipy.stats
from stored_results import planned, result, results_of

from liebayes.experiments.reproduce import RECIPES, TABLE1, TABLE2, Selection, plan
from liebayes.experiments.reproduce.claims import CLAIMS, judge, together, verdicts, welch_margin
from liebayes.experiments.reproduce.result import identity
from liebayes.experiments.reproduce.rows import mean_and_error, rows
from liebayes.experiments.reproduce.table import blocks, markdown

GOOD, BAD_FIGURES = [(0.986, 0.058, 0.006)] * 3, [(0.984, 0.083, 0.012)] * 3


def verdict_words(found: list[dict[str, Any]], recipe: str = "table1") -> dict[str, str]:
    table = rows(RECIPES[recipe], RECIPES[recipe].experiments[0], "desktop", found)
    return {f"{v.claim}: {v.pair}": v.word for v in verdicts(CLAIMS[recipe], table)}


def first(words: dict[str, str]) -> str:
    return next(word for name, word in words.items() if "at least as accurate" in name and "multiplicative against" in name)


def noisy(values: list[tuple[float, float, float]], by: float) -> list[tuple[float, float, float]]:
    return [(a + by * (k - 1), b + by * (k - 1), c + by * (k - 1)) for k, (a, b, c) in enumerate(values)]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (GOOD, BAD_FIGURES, "holds"),
        (BAD_FIGURES, GOOD, "does not hold"),
        (GOOD[:2], BAD_FIGURES, "not decided"),
        (GOOD, BAD_FIGURES[:2], "not decided"),
        (noisy(GOOD, 0.05), noisy(BAD_FIGURES, 0.05), "not decided"),
        ([(0.98, 0.058, 0.006)] * 3, BAD_FIGURES, "does not hold"),
    ],
)
def test_a_verdict_needs_three_seeds_and_two_errors(ours: Any, theirs: Any, word: str) -> None:
    found = results_of("table1", "multiplicative", ours) if ours else []
    found += results_of("table1", "additive", theirs) if theirs else []
    assert first(verdict_words(found)) == word


def test_features_are_judged_from_results() -> None:
    sparse = {"feature_gini": 0.9, "localisation": 0.4, "feature_share": 0.1}
    dense = {"feature_gini": 0.4, "localisation": 0.1, "feature_share": 0.6}
    for ours, theirs, word in ((sparse, dense, "holds"), (dense, sparse, "does not hold"), ({}, {}, "not decided")):
        found = results_of("table1", "multiplicative", GOOD, **ours) + results_of("table1", "additive", GOOD, **theirs)
        words = verdict_words(found)
        assert next(w for name, w in words.items() if "sparser" in name and "multiplicative against" in name) == word


def test_claims_of_table_2() -> None:
    found = results_of("table2", "affine Laplace", GOOD) + results_of("table2", "affine Gaussian", BAD_FIGURES)
    found += results_of("table2", "SGD", noisy(BAD_FIGURES, 0.0001))
    words = verdict_words(found, "table2")
    assert (
        words["The affine rule has lower NLL and ECE than SGD: affine Laplace against SGD (paper, 8 epochs, K = 1)"] == "holds"
    )
    heavier = "A base with heavier tails is better calibrated: affine Laplace against affine Gaussian"
    assert words[f"{heavier} (paper, 8 epochs, K = 1)"] == "holds"
    assert not [name for name in words if "affine Laplace against affine Gaussian (published" in name], "nothing of it was run"
    assert sum(word != "not decided" for word in words.values()) == 2


def test_no_verdict_over_different_data_or_settings() -> None:
    ours, theirs = results_of("table1", "multiplicative", GOOD), results_of("table1", "additive", BAD_FIGURES)
    assert first(verdict_words(ours + theirs)) == "holds"
    other = [{**one, "data": "other"} for one in theirs]
    assert set(verdict_words(ours + other).values()) == {"not decided"}
    ours[1] = {**ours[1], "settings": {"lr": 99.0}}
    assert set(verdict_words(ours + theirs).values()) == {"not decided"}


def test_no_verdict_where_a_seed_diverged() -> None:
    found = results_of("table1", "additive", BAD_FIGURES) + results_of("table1", "multiplicative", GOOD)
    assert "holds" in verdict_words(found).values()
    lost = planned("table1", "multiplicative", "desktop", seeds=(3,))
    found.append({**identity(lost, lost.settings), "failed": "the loss is not finite"})
    assert set(verdict_words(found).values()) == {"not decided"}


def test_published_affine_is_compared_with_the_one_sgd() -> None:
    run = plan(TABLE2, Selection("desktop", ("published",), ("affine Gaussian",), datasets=("cifar10",), seeds=(0, 1, 2)))
    found = [result(one, *figures) for one, figures in zip(run, GOOD, strict=True)] + results_of("table2", "SGD", BAD_FIGURES)
    assert "holds" in {w for name, w in verdict_words(found, "table2").items() if "published" in name}


def test_the_smoke_scale_has_no_verdict() -> None:
    runs = plan(TABLE1, Selection("smoke", ("paper",), experiments=("mnist-mlp",), seeds=(0, 1, 2)))
    text = markdown(TABLE1, blocks(TABLE1, [result(run, 0.9, 0.1, 0.1) for run in runs]))
    assert "claims" not in text
    assert "The paper's claims" not in text


def test_the_margin_is_that_of_welch_s_test() -> None:
    a, b = [1.0, 2.0, 4.0], [3.0, 3.1, 3.3, 3.2]
    interval = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    errors = [mean_and_error(values)[1] or 0.0 for values in (a, b)]
    assert welch_margin(errors[0], 3, errors[1], 4) == pytest.approx((interval.high - interval.low) / 2, rel=1e-6)


def test_equal_methods_seldom_differ() -> None:
    draws = random.Random(0)
    verdict = [judge(*[[draws.gauss(0, 1) for _ in range(3)] for _ in range(2)], "lower") for _ in range(4000)]
    assert sum(word != "not decided" for word in verdict) / 4000 < 0.055


def test_judging() -> None:
    assert judge([0.98] * 3, [0.98] * 5, "not lower") == "holds", "means that differ by rounding"
    assert judge([1, 1, 1], [2, 2, 2], "higher") == "does not hold"
    assert judge([1, 1, 1], [1, 1, 1], "lower") == "not decided"
    assert judge([1, 1, 1], [1, 1, 1], "not lower") == "holds"
    assert judge([1, 2, 3], [1.5, 2.5, 3.5], "not lower") == "holds"
    assert judge([1, 1, 1], [1.1, 1.1, 1.1], "not lower") == "does not hold"
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "not decided"]) == "not decided"
    assert together(["not decided", "does not hold"]) == "does not hold"
    assert together([]) == "not decided"
