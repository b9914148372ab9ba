"""The rules on the digits, with the settings the program has for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from digits import cross_validate, table


def test_every_rule_is_accurate_and_its_nll_below_that_of_sgd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stratified 5-fold with a fixed seed, all rules with the same number of epochs."""
    results: dict[str, dict[str, Any]] = {
        rule: cross_validate(rule, tmp_path) for rule in ("sgd", "additive", "affine", "multiplicative")
    }
    assert len({found["epochs"] for found in results.values()}) == 1
    for rule, found in results.items():
        assert found["mean_accuracy"] >= 0.965, f"{rule}\n{table(results)}"
        if rule != "sgd":
            assert found["marginal"]["nll"] < results["sgd"]["marginal"]["nll"], f"{rule}\n{table(results)}"
