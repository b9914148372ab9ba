"""The result of a run as JSON: its settings, the command that repeats it, where it ran, and its figures."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import data
from ...atomic_write import atomic_write
from ...metrics import auroc
from ...posterior import Posterior
from ..features import feature_numbers, first_layer, weight_images
from ..learner import build_network
from ..load_run import at_point, load_posterior
from ..run_directory import RunDirectory, RunError, provenance, writable
from ..settings import TrainSettings
from ..train import predictive_samples
from .recipe import Planned

Result = dict[str, Any]
FIGURES = ("accuracy", "nll", "ece")
_OF_A_RUN = frozenset((
    "settings", "command", "date", "liebayes", "python", "torch", "threads", "processor", "git", "sessions", "step_seconds",
    "wall_seconds",
))  # fmt: skip
"""Fields that may differ between two runs with the same figures. Settings are compared separately."""
_KEY = ("scale", "experiment", "method", "settings_from", "epochs", "mc_samples", "seed")
"""The fields that identify a result."""
_IMPLIED = {"sgd": "Dirac", "ivon": "Normal", "vogn": "Normal", "ivon-opt": "Normal"}
"""Bases of rules that offer no choice."""
WALL = "wall.json"
"""A file in the run directory: the seconds of all its sessions."""
_OUTSIDE = {"mnist": "fashion-mnist"}
"""The out-of-distribution data of a data set."""


def result_path(results: Path, run: Planned) -> Path:
    """The file of a run's result."""
    return results / run.recipe / f"{run.scale}_{run.name.replace('/', '_')}.json"


def identity(run: Planned, settings: TrainSettings) -> Result:
    """The fields that say which run a result belongs to."""
    threads = "" if settings.threads is None else f" --threads {settings.threads}"  # another number may round differently
    return {
        "recipe": run.recipe,
        "experiment": run.experiment.name,
        "model": settings.model,
        "dataset": settings.dataset,
        "method": run.method.name,
        "rule": settings.rule,
        "base": settings.base or _IMPLIED.get(settings.rule),
        "settings_from": run.method.source,
        "scale": run.scale,
        "seed": run.seed,
        "epochs": settings.epochs,
        "mc_samples": settings.mc_samples,
        "command": run.command + threads,
    }


def measured(run: Planned, directory: Path, dataset: data.Dataset, data_dir: Path | None) -> Result:
    """The result of a finished run."""
    files = RunDirectory(directory)
    environment, last, settings = files.read_json("environment.json"), files.finished_metrics()[-1], files.settings()
    posterior = load_posterior(files, build_network(settings, dataset))
    wall = files.read_json(WALL).get("seconds") if (directory / WALL).exists() else None
    found = {
        **identity(run, settings),
        **{kind: last[f"test_{kind}"] for kind in (*FIGURES, "brier", "entropy")},
        **{name: value for name, value in last.items() if name.startswith("point_")},
        "train_images": len(dataset.train_labels),
        "train_loss": last["train_loss"],
        "bounded_steps": last["bounded"],
        "largest_weight": max(float(value.abs().max()) for value in posterior.point().values()),
        **_features(posterior, dataset),
        **_outside(posterior, settings, dataset, data_dir),
        **provenance(environment, settings),
        "step_seconds": last["seconds"],
        "wall_seconds": wall,
    }
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in found.items()}


def failed(run: Planned, directory: Path, reason: str) -> Result:
    """The result of a run that diverged."""
    files = RunDirectory(directory)
    environment, settings = files.read_json("environment.json"), files.settings()
    return {**identity(run, settings), "failed": reason, **provenance(environment, settings)}


def _features(posterior: Posterior, dataset: data.Dataset) -> Result:
    """How sparse and local the first layer is at the point estimate."""
    images = weight_images(first_layer(at_point(posterior)), dataset.image_shape)
    return {} if images is None else feature_numbers(images)


def _outside(posterior: Posterior, settings: TrainSettings, own: data.Dataset, data_dir: Path | None) -> Result:
    """How well the posterior separates another data set, if it is present, from the test images."""
    name = _OUTSIDE.get(settings.dataset)
    if name is None:
        return {}
    try:
        other = data.load(name, data_dir, download=False)
    except data.MissingDataError:
        return {}
    except data.DataError as error:  # the user did not ask for it
        warnings.warn(f"{error} Out-of-distribution figures are left out.", stacklevel=2)
        return {}
    samples = predictive_samples(settings)
    inside, outside = (
        posterior.predict(own.normalize(images), samples, batch_size=500) for images in (own.test_images, other.test_images)
    )
    confidence = [-prediction.probabilities.max(1)[0] for prediction in (inside, outside)]
    return {
        "outside": name,
        "auroc_entropy": auroc(inside.entropy, outside.entropy),
        "auroc_confidence": auroc(*confidence),
    }


def is_stored(path: Path, directory: Path) -> bool:
    """Whether the stored result belongs to the run in this directory."""
    if not path.exists() or not (directory / "environment.json").exists():
        return False
    return read(path).get("date") == RunDirectory(directory).read_json("environment.json").get("date")


def store(path: Path, result: Result) -> str:
    """Writes a result unless one with the same figures and data is stored already. Returns what it did, in words."""
    before = read(path) if path.exists() else None
    old, new = ({k: v for k, v in (r or {}).items() if k not in _OF_A_RUN} for r in (before, result))
    same = before is not None and all(old[name] == new[name] for name in old.keys() & new.keys())
    same = same and all(old.get(name) == new.get(name) for name in ("failed", "data"))
    same = same and settings_of(before or {}) == settings_of(result)
    if same and set(new) <= set(old):
        return "the same figures as stored"
    write_file(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
    if before is None:
        return "stored"
    what = "fewer figures" if same else "other figures, settings or data"
    return f"stored in place of a result with {what} ({before.get('date')})"


def settings_of(result: Result) -> dict[str, Any]:
    """The settings of a result. Settings that were added later had their defaults."""
    return {**TrainSettings().to_json(), **result.get("settings", {})}


def write_file(path: Path, text: str) -> None:
    """Writes a file atomically, also if two commands do so at the same time."""
    with writable(path, "--results"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text(text, encoding="utf-8")


def read(path: Path) -> Result:
    """A stored result."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}. Remove it; --collect writes it again.") from error
    missing = [] if not isinstance(found, dict) else [name for name in _KEY if name not in found]
    missing += [name for name in FIGURES if isinstance(found, dict) and "failed" not in found and name not in found]
    if not isinstance(found, dict) or missing:
        raise RunError(f"{path} is not a result: {', '.join(missing) or 'a JSON object'} is missing. Remove it.")
    return found


def read_all(results: Path, recipe: str) -> Sequence[Result]:
    """All results of a recipe. Refuses copies, which would count as another seed."""
    found: dict[tuple[Any, ...], tuple[Path, Result]] = {}
    for path in sorted((results / recipe).glob("*.json")):
        result = read(path)
        key = tuple(result[name] for name in _KEY)
        if key in found:
            raise RunError(f"{found[key][0]} and {path} are results of the same run. Remove one of them.")
        found[key] = path, result
    return [result for _, result in found.values()]
