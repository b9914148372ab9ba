"""Stored results as rows of a table: one for each method and budget, with all its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .recipe import Experiment, Planned, Printed, Recipe, Scale
from .result import Result, settings_of


@dataclass(frozen=True)
class Row:
    """A method with a budget, and the results of its seeds."""

    method: str
    source: str
    epochs: int
    mc_samples: int
    planned: int
    """The number of seeds in the recipe."""
    results: Sequence[Result]
    """The measured ones, by seed; `failures` are those that diverged."""
    failures: Sequence[Result]
    printed: Printed | None
    note: str = ""

    def values(self, kind: str) -> list[float]:
        """One figure, for every seed that has it."""
        return [result[kind] for result in self.results if result.get(kind) is not None]


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and its standard error s/√n; a single value has none.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    >>> mean_and_error([1.0])
    (1.0, None)
    """
    if len(values) < 2:
        return statistics.fmean(values), None
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def rows(recipe: Recipe, experiment: Experiment, scale: Scale, results: Sequence[Result]) -> list[Row]:
    """All rows of an experiment: those of the recipe, whether run or not, and other budgets that were run."""
    here = [r for r in results if r["experiment"] == experiment.name and r["scale"] == scale]
    found: list[Row] = []
    for method in experiment.methods:
        own = [r for r in here if (r["method"], r["settings_from"]) == (method.name, method.source)]
        given = Planned(recipe.name, experiment, method, scale, 0).given
        budget = experiment.budgets[scale]
        asked = (given["epochs"], given["mc_samples"])
        kinds = {(r["epochs"], r["mc_samples"]) for r in own}
        for epochs, samples in sorted(kinds | {asked}):
            these = sorted((r for r in own if (r["epochs"], r["mc_samples"]) == (epochs, samples)), key=lambda r: r["seed"])
            found.append(
                Row(
                    method.name,
                    method.source,
                    epochs,
                    samples,
                    budget.seeds_of.get(method.name, budget.seeds) if (epochs, samples) == asked else len(these),
                    [r for r in these if "failed" not in r],
                    [r for r in these if "failed" in r],
                    experiment.printed.get(method.name),
                    _note(these, experiment) if scale != "smoke" else "",
                )
            )
    return found


def mixed(results: Sequence[Result]) -> bool:
    """Whether runs were trained with different settings, apart from those of a single run or machine."""
    of_a_run = ("seed", "threads", "compile", "evaluate_every")
    settings = [{k: v for k, v in settings_of(r).items() if k not in of_a_run} for r in results]
    return any(s != settings[0] for s in settings)


def _note(results: Sequence[Result], experiment: Experiment) -> str:
    """Says where data were incomplete, batches split, or seeds trained with different settings by an older recipe."""
    numbers = {r["train_images"] for r in results if "train_images" in r} - {experiment.images}
    note = f" (on {min(numbers):,} of {experiment.images:,} images)" if numbers else ""
    note += " (each sample on its part of the batch)" if any(settings_of(r)["split_batch"] for r in results) else ""
    return note + (" (seeds with different settings)" if mixed(results) else "")
