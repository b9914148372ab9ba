"""What a report shows of a run: predictions, weights and first layer, computed once for all pictures."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import data
from ...metrics import Interval, Statistic, auroc, auroc_replicates, difference, interval, replicates, unseen
from ...posterior import Posterior
from ..load_run import at_point, open_run
from ..run_directory import RunDirectory, fingerprint
from ..settings import SettingsError, TrainSettings
from ..tasks import Task, task_of
from ..train import predictive_samples
from .outside import Outside, outside_images

BATCH = 500


@dataclass(frozen=True)
class Evidence:
    """A trained run and its predictions."""

    name: str
    slug: str
    """The name as part of a file name."""
    number: int
    """The place among the runs, which determines the colour."""
    settings: TrainSettings
    environment: dict[str, Any]
    lines: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    posterior: Posterior
    dataset: data.Dataset
    marginal: Any
    """What `task.predict` gives."""
    point: Any
    outside: Any
    """Of runs that tell classes: images of other kinds, `Outside`, and the prediction for them."""
    marginal_outside: Any

    @property
    def task(self) -> Task:
        """What is predicted."""
        return task_of(self.dataset)

    @property
    def is_point(self) -> bool:
        """Whether the posterior is a single point, as for SGD: all samples are the same."""
        return all(family.base.entropy == float("-inf") for family in self.posterior.families.values())

    @property
    def base(self) -> str:
        """The base distribution of the weights, with three digits."""
        if self.is_point:
            return "point"
        base = self.families[0].base
        numbers = [f"{value:.3g}" for value in vars(base).values() if isinstance(value, (int, float))]
        return type(base).__name__ + (f"({', '.join(numbers)})" if numbers else "")

    @property
    def images(self) -> bool:
        """Whether inputs can be shown as images."""
        return len(self.dataset.image_shape) == 3 and self.dataset.image_shape[0] in (1, 3)

    @property
    def seconds(self) -> float:
        """Training time without evaluations."""
        return float(self.lines[-1]["seconds"]) if self.lines else 0.0

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the predictive marginal."""
        return {name: statistic.value for name, statistic in self.statistics.items()}

    @cached_property
    def point_metrics(self) -> dict[str, float]:
        """The metrics of the point estimate."""
        return {name: statistic.value for name, statistic in self.point_statistics.items()}

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        """The figures of the marginal as means over test inputs, for intervals."""
        return self.task.statistics(self.marginal, self.dataset.test_labels)

    @cached_property
    def point_statistics(self) -> dict[str, Statistic]:
        """The same of the point estimate."""
        return self.task.statistics(self.point, self.dataset.test_labels)

    @cached_property
    def resampled(self) -> dict[str, Tensor]:
        """The figures of the marginal on resamples of the test inputs: the same for all runs of a data set."""
        return replicates(self.statistics)

    def interval(self, name: str) -> Interval:
        """A figure of the marginal, with its 95 % interval."""
        return interval(self.statistics[name], self.resampled[name])

    def against(self, other: Evidence, name: str) -> Interval:
        """How much larger a figure is than another run's on the same inputs, with its 95 % interval."""
        return difference(self.statistics[name], other.statistics[name], self.resampled[name], other.resampled[name])

    @cached_property
    def averaging(self) -> Interval:
        """The NLL of the marginal minus that of the point, with its 95 % interval: above 0, averaging hurts."""
        both = replicates({"marginal": self.statistics["nll"], "point": self.point_statistics["nll"]})
        return difference(self.statistics["nll"], self.point_statistics["nll"], both["marginal"], both["point"])

    @cached_property
    def point_nll(self) -> Interval:
        """The NLL of the point estimate, with its 95 % interval."""
        return _interval(self.point_statistics["nll"])

    @cached_property
    def auroc_entropy(self) -> Interval:
        """How well predictive entropy detects out-of-distribution images."""
        return _separation(self.marginal.entropy, self.marginal_outside.entropy)

    @cached_property
    def auroc_information(self) -> Interval | None:
        """The same for the mutual information, which a point does not have."""
        if self.is_point:
            return None
        return _separation(self.marginal.mutual_information, self.marginal_outside.mutual_information)

    @cached_property
    def entropies(self) -> tuple[Interval, Interval]:
        """The mean predictive entropy of test images and of out-of-distribution images."""
        inside, outside = (Statistic(each.entropy[:, None], low=0.0) for each in (self.marginal, self.marginal_outside))
        return _interval(inside), _interval(outside)

    @cached_property
    def network(self) -> nn.Module:
        """The network at the point estimate. The module belongs to this report, so it may be modified."""
        return at_point(self.posterior)

    @cached_property
    def layers(self) -> list[tuple[str, nn.Linear | nn.Conv2d]]:
        """The linear and convolutional layers, in order."""
        return [(name, m) for name, m in self.network.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]

    @cached_property
    def effective_weights(self) -> Tensor:
        """All weights of the layers as the network uses them, with their signs and without biases."""
        with torch.no_grad():
            return torch.cat([m.weight.detach().flatten() for _, m in self.layers])

    @cached_property
    def families(self) -> list[Any]:
        """The distributions of the trained tensors behind those weights: with w⁺ − w⁻, two for each layer."""
        found = []
        for layer, _ in self.layers:
            start = f"{layer}." if layer else ""
            for name, family in self.posterior.families.items():
                if name == f"{start}weight" or name.startswith(f"{start}parametrizations.weight."):
                    found.append(family)
        return found

    def stddev(self) -> Tensor:
        """The standard deviation of every trained weight, or its scale if the base has no variance."""
        return torch.cat([_spread(family).flatten() for family in self.families])

    def mean_and_entropy(self) -> tuple[Tensor, Tensor]:
        """|E[θ]| and the entropy of the distribution of every trained weight, in nats."""
        pairs = [_mean_and_entropy(family) for family in self.families]
        return torch.cat([m.flatten() for m, _ in pairs]), torch.cat([h.flatten() for _, h in pairs])


def _interval(statistic: Statistic) -> Interval:
    return interval(statistic, replicates({"": statistic})[""])


def _separation(inside: Tensor, outside: Tensor) -> Interval:
    """An AUROC with its 95 % interval. If no pair is in the wrong order, resamples do not spread: `unseen` gives the bound."""
    value, resampled = auroc(inside, outside), auroc_replicates(inside, outside)
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=resampled.dtype)).tolist()
    reach = unseen(min(len(inside), len(outside)))
    return Interval(value, 1 - reach if value == 1 else low, reach if value == 0 else high)


def _spread(family: Any) -> Tensor:
    try:
        return family.stddev
    except ValueError:  # Cauchy
        return _log_scale(family).exp() * family.base.scale


def _log_scale(family: Any) -> Tensor:
    """The logarithm of how much wider than the base every weight is: marginally, if the group correlates weights."""
    if not hasattr(family.group, "log_scale_and_shift"):
        return family.stddev.log() - math.log(family.base.stddev)
    return family.group.log_scale_and_shift(family.element)[0]


def _mean_and_entropy(family: Any) -> tuple[Tensor, Tensor]:
    try:
        mean = family.mean
    except ValueError:
        mean = family.group.log_scale_and_shift(family.element)[1]
    return mean.abs(), family.base.entropy + _log_scale(family)


def gather(paths: Sequence[Path], ood: str | None = None, data_dir: Path | None = None) -> list[Evidence]:
    """Loads runs and predicts with them. Runs on one data set share it, and the out-of-distribution images."""
    if not paths:
        raise SettingsError("give at least one run directory, the --output of a `liebayes train`.")
    outsides: dict[str, tuple[data.Dataset, Outside]] = {}
    found = []
    names = run_names(paths)
    for number, (path, name, slug) in enumerate(zip(paths, names, slugs(names), strict=True)):
        posterior, dataset, settings = open_run(path, data_dir)
        directory = RunDirectory(path)
        classes = dataset.kind == "classification"
        known = f"{dataset.name} {fingerprint(dataset)}"  # names alone will not do: all tensors of Python's have the same
        if known not in outsides:
            there = data_dir or settings.data_dir
            images = outside_images(dataset, ood, there) if classes else Outside("", dataset.test_images[:0])
            outsides[known] = dataset, images
        dataset, outside = outsides[known]
        samples, task = predictive_samples(settings), task_of(dataset)
        inputs = dataset.normalize(dataset.test_images)
        elsewhere = posterior.predict(dataset.normalize(outside.images), samples, batch_size=BATCH) if classes else None
        found.append(
            Evidence(
                name=name,
                slug=slug,
                number=number,
                settings=settings,
                environment=directory.read_json("environment.json"),
                lines=directory.finished_metrics(),
                posterior=posterior,
                dataset=dataset,
                outside=outside,
                marginal=task.predict(posterior, inputs, samples, BATCH),
                point=task.predict(posterior, inputs, 0, BATCH),
                marginal_outside=elsewhere,
            )
        )
    if len({run.dataset.kind for run in found}) > 1:
        raise SettingsError(
            "all runs of a report must have one task: classes, labels or numbers. Make a report for each task."
        )
    return found


def comparable(runs: Sequence[Evidence]) -> bool:
    """Whether the figures of runs can be compared, because they share a data set."""
    return all(run.dataset is runs[0].dataset for run in runs)


def slugs(names: Sequence[str]) -> list[str]:
    """Distinct names for use in file names.

    >>> slugs(["affine", "lr 0.1", "lr-0.1"])
    ['affine', 'lr-0.1', 'lr-0.1-2']
    """
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "-", name)
        others = (f"{plain}-{number}" for number in itertools.count(2))
        found.append(next(slug for slug in itertools.chain([plain], others) if slug not in found))
    return found


def run_names(paths: Sequence[Path]) -> list[str]:
    """Short names that distinguish runs: the last parts of their paths, as few as needed.

    >>> run_names([Path("a/sgd"), Path("a/affine")]), run_names([Path("a/sgd"), Path("b/sgd")])
    (['sgd', 'affine'], ['a/sgd', 'b/sgd'])
    """
    parts = [path.resolve().parts[1:] for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    raise SettingsError(f"The same run is given twice: {', '.join(map(str, paths))}.")
