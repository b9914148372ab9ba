"""Results of planned runs, made up."""

from __future__ import annotations

from typing import Any

from liebayes.experiments.reproduce import RECIPES, Planned, Selection, plan
from liebayes.experiments.reproduce.result import identity


def planned(recipe: str, method: str, scale: Any = "paper", **more: Any) -> Planned:
    return plan(RECIPES[recipe], Selection(scale, **{"sources": ("paper",), "only": (method,), "seeds": (0,), **more}))[0]


def result(run: Planned, accuracy: float, nll: float, ece: float, **more: Any) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "nll": nll, "ece": ece, "largest_weight": 1.0}
    numbers = {"train_images": run.experiment.images, "settings": {}, "date": "today"}
    return {**identity(run, run.settings), **figures, **numbers, **more}


def results_of(recipe: str, method: str, values: list[tuple[float, float, float]], **more: Any) -> list[dict[str, Any]]:
    runs = plan(
        RECIPES[recipe],
        Selection("desktop", ("paper",), (method,), (RECIPES[recipe].experiments[0].name,), seeds=range(len(values))),
    )
    return [result(run, *figures, **more) for run, figures in zip(runs, values, strict=True)]
