"""Curves around Table 1: the multiplicative rule on MNIST with one setting changed at a time.

They show which of K, epochs, temperature and regulariser limits the figures at a budget far below the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .recipe import Budget, Experiment, Method, Recipe
from .table1 import PUBLISHED_MLP, TABLE1

CENTRE: dict[str, Any] = {**PUBLISHED_MLP[1].settings, "epochs": 3, "mc_samples": 2}


@dataclass(frozen=True)
class Axis:
    """A setting that varies while all others keep the values of the centre."""

    name: str
    setting: str
    values: Sequence[float]
    label: str

    @property
    def others(self) -> list[float]:
        """The values other than the centre's."""
        return [value for value in self.values if value != CENTRE[self.setting]]

    def method(self, value: float) -> str:
        """The method with this value."""
        return "centre" if value == CENTRE[self.setting] else f"{self.name} {value:g}"


AXES = (
    Axis("epochs", "epochs", (1, 3, 9), "epochs"),
    Axis("samples", "mc_samples", (1, 2, 4, 8), "samples K"),
    Axis("temperature", "temperature", (0.0, 0.006, 0.06, 0.6), "temperature τ"),
    Axis("regulariser", "prior_precision", (0.0, 2.5, 25.0, 250.0), "regulariser δ"),
)

_MNIST = TABLE1.experiments[0]
_WHERE = "the authors' published command for MNIST, shortened, with this one setting changed"

CURVES = Recipe(
    "curves",
    "Curves: the multiplicative rule on MNIST, one setting changed at a time",
    (
        Experiment(
            "mnist-mlp",
            _MNIST.title,
            _MNIST.settings,
            _MNIST.where,
            [
                Method("centre", "ours", CENTRE, "the authors' published command for MNIST, 3 epochs and 2 samples"),
                *(
                    Method(axis.method(value), "ours", {**CENTRE, axis.setting: value}, _WHERE)
                    for axis in AXES
                    for value in axis.others
                ),
            ],
            {},
            {
                "paper": Budget(seeds=3),
                "desktop": Budget(seeds=1),
                "smoke": Budget(seeds=1, epochs=1, mc_samples=1, images=100, settings={"predictive_samples": 2}),
            },
            _MNIST.images,
        ),
    ),
    (
        "The centre has the settings of the authors' published command (τ = 0.006, no regulariser, 25 epochs, 32 samples) "
        "with 3 epochs and 2 samples. A row changes what it names and nothing else. R = ½δ‖θ‖²; the paper's is δ = 250.",
        "max_step is ours: the logarithm of a magnitude moves by at most 0.2 in a step.",
    ),
)
