"""The recipe of a table: experiments, methods and budgets as data, and the runs that follow from them.

Settings are those of `TrainSettings`, written for the paper's full protocol. A scale only shortens it: fewer epochs, Monte
Carlo samples and seeds (and at the smoke scale fewer images). The network, the data and the comparison stay.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..defaults import resolved
from ..settings import SettingsError, TrainSettings

Scale = Literal["paper", "desktop", "smoke"]
Source = Literal["paper", "published", "ours", "short"]
"""Where settings come from: the paper's appendix, the authors' published commands, or this project; its short ones are a set
of their own, for few epochs."""
Figure = tuple[float, float]
"""A mean and its ±; accuracies in per cent. The paper does not say what its ± is."""


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table."""

    accuracy: Figure
    nll: Figure
    ece: Figure


@dataclass(frozen=True)
class Method:
    """A row of a table. `where` names the source of its settings, and how they were read."""

    name: str
    source: Source
    settings: Mapping[str, Any]
    where: str

    @property
    def slug(self) -> str:
        """The name as part of a path."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


@dataclass(frozen=True)
class Budget:
    """The part of the protocol that a scale keeps. None keeps the protocol's own number."""

    seeds: int
    epochs: int | None = None
    mc_samples: int | None = None
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    """Methods with another number of seeds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How runs are executed: how often to evaluate, whether to compile or to split batches."""
    images: int | None = None
    """Training images, and as many test images; only at the smoke scale."""


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, and the methods compared on it."""

    name: str
    title: str
    settings: Mapping[str, Any]
    """Settings that all methods share; `where` is their source."""
    where: str
    methods: Sequence[Method]
    printed: Mapping[str, Printed]
    """The paper's figures, by method."""
    budgets: Mapping[Scale, Budget]
    images: int
    """Training images of the published data set. Tables say where a run had fewer."""


@dataclass(frozen=True)
class Recipe:
    """A table of the paper. `readings` say how we read what the paper leaves open."""

    name: str
    title: str
    experiments: Sequence[Experiment]
    readings: Sequence[str]


@dataclass(frozen=True)
class Planned:
    """One run of a recipe. `epochs` and `mc_samples` replace those of the scale."""

    recipe: str
    experiment: Experiment
    method: Method
    scale: Scale
    seed: int
    epochs: int | None = None
    mc_samples: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the recipe, shortened to the scale. The warm-up keeps its share of the run."""
        budget = self.experiment.budgets[self.scale]
        full: dict[str, Any] = {**self.experiment.settings, **budget.settings, **self.method.settings, "seed": self.seed}
        epochs = self.epochs or min(full["epochs"], budget.epochs or full["epochs"])
        samples = full.get("mc_samples", 1)
        wanted = self.mc_samples if full["rule"] != "sgd" else None  # a point has no samples
        full["mc_samples"] = wanted or min(samples, budget.mc_samples or samples)
        full["warmup_epochs"] = round(full["warmup_epochs"] * epochs / full["epochs"], 6)
        full["epochs"] = epochs
        full["split_batch"] = full.get("split_batch", False) and full["batch_size"] % full["mc_samples"] == 0
        full["evaluate_every"] = min(full.get("evaluate_every", epochs), epochs)
        if budget.images is not None:
            full["dataset"] = f"{full['dataset']}-first-{budget.images}"
        return full

    @property
    def settings(self) -> TrainSettings:
        """The settings of the run, every default filled in."""
        return resolved(TrainSettings.from_json(self.given))

    @property
    def name(self) -> str:
        """Distinguishes the run from all others of the recipe."""
        given, method = self.given, self.method
        budget = f"e{given['epochs']}_k{given['mc_samples']}"
        return f"{self.experiment.name}/{method.slug}_{method.source}_{budget}_seed{self.seed}"

    def directory(self, output: Path) -> Path:
        """Its run directory."""
        return output / self.recipe / self.scale / self.name

    @property
    def command(self) -> str:
        """The command line that repeats the run."""
        words = ["liebayes", "reproduce", self.recipe, "--scale", self.scale, "--settings", self.method.source]
        words += ["--only", self.method.name, "--experiments", self.experiment.name, "--seeds", str(self.seed)]
        words += ["--epochs", str(self.epochs)] if self.epochs else []
        return shlex.join([*words, *(["--mc-samples", str(self.mc_samples)] if self.mc_samples else [])])


@dataclass(frozen=True)
class Selection:
    """Which runs of a recipe are wanted. Empty or None leaves the choice to the recipe."""

    scale: Scale = "desktop"
    sources: Sequence[Source] = ("paper", "ours")
    only: Sequence[str] = ()
    experiments: Sequence[str] = ()
    datasets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    epochs: int | None = None
    mc_samples: int | None = None


def plan(recipe: Recipe, chosen: Selection) -> list[Planned]:
    """The selected runs: all methods with one seed, then all with the next, so that a table fills evenly."""
    only = _known("--only", chosen.only, [method.name for e in recipe.experiments for method in e.methods])
    names = _known("--experiments", chosen.experiments, [e.name for e in recipe.experiments])
    datasets = _known("--datasets", chosen.datasets, [e.settings["dataset"] for e in recipe.experiments])
    smallest = {"epochs": (chosen.epochs, 1), "mc-samples": (chosen.mc_samples, 1), "seeds": (min(chosen.seeds, default=0), 0)}
    for name, (value, least) in smallest.items():
        if value is not None and value < least:
            raise SettingsError(f"--{name} must be at least {least}, but is {value}.")
    found: list[tuple[int, Planned]] = []
    for place, experiment in enumerate(recipe.experiments):
        budget = experiment.budgets[chosen.scale]
        if experiment.name not in names or experiment.settings["dataset"] not in datasets:
            continue
        for method in experiment.methods:
            if method.source in chosen.sources and method.name in only:
                for seed in dict.fromkeys(chosen.seeds or range(budget.seeds_of.get(method.name, budget.seeds))):
                    run = Planned(recipe.name, experiment, method, chosen.scale, seed, chosen.epochs, chosen.mc_samples)
                    found.append((place, run))
    if not found:
        raise SettingsError(
            f"no run of {recipe.name} matches --settings {' '.join(chosen.sources)}, --only "
            f"{', '.join(chosen.only) or 'all'}, --experiments {' '.join(chosen.experiments) or 'all'} and --datasets "
            f"{' '.join(chosen.datasets) or 'all'} together. Leave one out."
        )
    for _, run in found:
        _ = run.settings  # refuses contradictory settings before anything is trained
    return [run for _, run in sorted(found, key=lambda pair: (pair[0], pair[1].seed))]


def _known(option: str, chosen: Sequence[str], names: Sequence[str]) -> set[str]:
    """The chosen names as the recipe spells them; all names if nothing was chosen."""
    spelled = {name.lower(): name for name in names}
    for name in chosen:
        if name.strip().lower() not in spelled:
            raise SettingsError(f"{option} {name!r} is none of {', '.join(spelled.values())}.")
    return {spelled[name.strip().lower()] for name in chosen} or set(names)
