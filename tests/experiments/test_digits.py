"""The rules on the digits, with the settings the program has for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.registry import WHOLE_GRID

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from digits import RESULTS, cross_validate, table

RULES = ("sgd", "additive", "affine", "multiplicative")


def assert_better_than_sgd(results: dict[str, dict[str, Any]]) -> None:
    assert len({found["epochs"] for found in results.values()}) == 1
    for rule, found in results.items():
        assert found["mean_accuracy"] >= 0.965, f"{rule}\n{table(results)}"
        if rule != "sgd":
            assert found["marginal"]["nll"] < results["sgd"]["marginal"]["nll"], f"{rule}\n{table(results)}"


def test_every_rule_is_accurate_and_its_nll_below_that_of_sgd() -> None:
    """In what is stored; tests/optim/test_optimizers_on_digits.py trains on two of the folds."""
    stored = json.loads(RESULTS.read_text())["seed 0"]
    assert_better_than_sgd({rule: stored[rule] for rule in RULES})


@pytest.mark.skipif(not WHOLE_GRID, reason="twenty runs: in the cell `grid` of make test-matrix")
def test_the_stored_figures_are_those_of_today(tmp_path: Path) -> None:
    """Stratified 5-fold with a fixed seed, all rules with the same number of epochs."""
    assert_better_than_sgd({rule: cross_validate(rule, tmp_path) for rule in RULES})
