"""What a recipe of a table is: its experiments, methods and budgets as data, and the runs they amount to.

Settings are those of `TrainSettings`, written for the paper's own protocol. A scale only shortens: fewer epochs, fewer Monte
Carlo samples, fewer seeds (and at the smoke scale fewer images); the network, the data and the comparison stay.
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
Source = Literal["paper", "published", "ours"]
"""Where settings come from: the paper's appendix, the authors' published commands, or this project."""
Figure = tuple[float, float]
"""A mean and its standard error; accuracies in per cent. What the paper's ± is it does not say."""


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table."""

    accuracy: Figure
    nll: Figure
    ece: Figure


@dataclass(frozen=True)
class Method:
    """A row of a table."""

    name: str
    source: Source
    settings: Mapping[str, Any]
    where: str
    """Where the settings stand, and how they were read."""

    @property
    def slug(self) -> str:
        """Its name as part of a path."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


@dataclass(frozen=True)
class Budget:
    """What a scale leaves of the protocol. None leaves everything."""

    seeds: int
    epochs: int | None = None
    mc_samples: int | None = None
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    """Methods with another number of seeds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it is run: how often to evaluate, whether to compile, whether each sample has its part of the batch."""
    images: int | None = None
    """Training images, and as many test images; only for the smoke scale."""


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, and the methods that are compared on it."""

    name: str
    title: str
    settings: Mapping[str, Any]
    """Those that all methods share."""
    where: str
    """Where those stand."""
    methods: Sequence[Method]
    printed: Mapping[str, Printed]
    """The paper's figures, by the name of the method."""
    budgets: Mapping[Scale, Budget]
    images: int
    """Training images of the published data; tables say where fewer were there."""


@dataclass(frozen=True)
class Recipe:
    """A table of the paper."""

    name: str
    title: str
    experiments: Sequence[Experiment]
    readings: Sequence[str]
    """How we read what the paper leaves open."""


@dataclass(frozen=True)
class Planned:
    """One run of a recipe: a method on an experiment with a budget and a seed."""

    recipe: str
    experiment: Experiment
    method: Method
    scale: Scale
    seed: int
    epochs: int | None = None
    """In place of the scale's."""
    mc_samples: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that the recipe gives: the protocol, shortened to the scale. The warm-up keeps its share of the run."""
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
        """What to train, every setting filled in."""
        return resolved(TrainSettings.from_json(self.given))

    @property
    def name(self) -> str:
        """What tells it from all other runs of the recipe."""
        given, method = self.given, self.method
        budget = f"e{given['epochs']}_k{given['mc_samples']}"
        return f"{self.experiment.name}/{method.slug}_{method.source}_{budget}_seed{self.seed}"

    def directory(self, output: Path) -> Path:
        """Its run directory."""
        return output / self.recipe / self.scale / self.name

    @property
    def command(self) -> str:
        """The command line that runs it again."""
        words = ["liebayes", "reproduce", self.recipe, "--scale", self.scale, "--settings", self.method.source]
        words += ["--only", self.method.name, "--experiments", self.experiment.name, "--seeds", str(self.seed)]
        words += ["--epochs", str(self.epochs)] if self.epochs else []
        words += ["--mc-samples", str(self.mc_samples)] if self.mc_samples else []
        return shlex.join(words)


@dataclass(frozen=True)
class Selection:
    """Which runs of a recipe are wanted. What is empty or None leaves the choice to the recipe."""

    scale: Scale = "desktop"
    sources: Sequence[Source] = ("paper", "ours")
    only: Sequence[str] = ()
    experiments: Sequence[str] = ()
    datasets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    epochs: int | None = None
    mc_samples: int | None = None


def plan(recipe: Recipe, chosen: Selection) -> list[Planned]:
    """The runs of a selection: all methods with one seed, then all with the next, so that a table fills evenly."""
    methods = {method.name.lower(): method.name for e in recipe.experiments for method in e.methods}
    experiments = {e.name: e.name for e in recipe.experiments}
    datasets = {e.settings["dataset"]: e.settings["dataset"] for e in recipe.experiments}
    only = {_known("--only", name, methods) for name in chosen.only}
    names = {_known("--experiments", name, experiments) for name in chosen.experiments}
    data = {_known("--datasets", name, datasets) for name in chosen.datasets}
    least_of = {"epochs": (chosen.epochs, 1), "mc-samples": (chosen.mc_samples, 1), "seeds": (min(chosen.seeds, default=0), 0)}
    for name, (value, least) in least_of.items():
        if value is not None and value < least:
            raise SettingsError(f"--{name} must be at least {least}, but is {value}.")
    found: list[Planned] = []
    for experiment in recipe.experiments:
        if (names and experiment.name not in names) or (data and experiment.settings["dataset"] not in data):
            continue
        budget = experiment.budgets[chosen.scale]
        for method in experiment.methods:
            if method.source not in chosen.sources or (only and method.name not in only):
                continue
            seeds = chosen.seeds or range(budget.seeds_of.get(method.name, budget.seeds))
            found += [
                Planned(recipe.name, experiment, method, chosen.scale, seed, chosen.epochs, chosen.mc_samples)
                for seed in dict.fromkeys(seeds)
            ]
    if not found:
        raise SettingsError(
            f"no run of {recipe.name} is all of that: --settings {' '.join(chosen.sources)}, --only "
            f"{', '.join(chosen.only) or 'all'}, --experiments {' '.join(chosen.experiments) or 'all'}, "
            f"--datasets {' '.join(chosen.datasets) or 'all'}. Leave one out."
        )
    for run in found:
        _ = run.settings  # refuses what does not fit together, before anything is trained
    order = [experiment.name for experiment in recipe.experiments]
    return sorted(found, key=lambda run: (order.index(run.experiment.name), run.seed))


def _known(option: str, name: str, names: Mapping[str, str]) -> str:
    key = name.strip().lower()
    if key not in names:
        raise SettingsError(f"{option} {name!r} is none of {', '.join(names.values())}.")
    return names[key]
