"""The optimizers with their defaults on real data, through a plain loop."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from optimizers import cross_validate


def test_every_rule_is_accurate_and_its_nll_below_that_of_sgd() -> None:
    """Stratified 5-fold cross-validation with a fixed seed, the same budget for all."""
    reference = cross_validate("sgd")["nll"]
    for rule in ("additive", "affine", "multiplicative"):
        found = cross_validate(rule)
        assert found["mean_accuracy"] >= 0.965, rule
        assert found["nll"] < reference, rule
