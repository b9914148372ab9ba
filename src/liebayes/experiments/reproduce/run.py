"""Executes a recipe: every planned run is trained, resumed or skipped in its run directory, and its result is stored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ... import data
from ..run_directory import BusyRunError, DamagedRunError, RunDirectory
from ..train import DivergedRunError, InterruptedRunError, train
from .recipe import Planned, Recipe
from .result import WALL, failed, is_stored, measured, result_path, store
from .table import write_tables


def finished(run: Planned, directory: Path) -> bool:
    """Whether the run has ended, with the settings of the recipe; the number of threads and the precision may differ."""
    return RunDirectory(directory).finished(run.settings, of="the recipe", may_differ=("threads", "precision"))


def execute(
    recipe: Recipe,
    runs: Sequence[Planned],
    output: Path,
    results: Path,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> int:
    """Trains the runs that are not finished, stores each result and rewrites the tables after it.

    Returns the number of runs without a result: their data are missing, another process trains them, or they are damaged.
    """
    without = 0
    for number, run in enumerate(runs, 1):
        directory, path = run.directory(output), result_path(results, run)
        head = f"run {number} of {len(runs)}: {run.method.name} ({run.method.source}), {run.experiment.title}, seed {run.seed}"
        try:
            done = finished(run, directory)
            if is_stored(path, directory):  # measured, or diverged
                continue
            dataset = prepare(run, data_dir)
            if not done:
                print(f"{head}, {run.settings.epochs} epochs, in {directory}", flush=True)
                _train(run, directory, dataset, data_dir, threads)
            said = store(path, measured(run, directory, dataset, data_dir))
        except InterruptedRunError as stop:
            raise InterruptedRunError("Interrupted. The same command continues the table.") from stop
        except (data.MissingDataError, BusyRunError, DamagedRunError) as error:
            print(f"{head}: not run. {error}", flush=True)
            without += 1
            continue
        except DivergedRunError as error:
            said = store(path, failed(run, directory, str(error)))
        print(f"{head}: {said}", flush=True)
        write_tables(recipe, results)
    return without


def finished_runs(runs: Sequence[Planned], output: Path) -> list[Planned]:
    """The runs that have ended."""
    return [run for run in runs if finished(run, run.directory(output))]


def _train(run: Planned, directory: Path, dataset: data.Dataset, data_dir: Path | None, threads: int | None) -> None:
    """Trains a run, or the rest of it, and records how long that took."""
    files, began = RunDirectory(directory), time.monotonic()
    started = (directory / "settings.json").exists()
    settings = dataclasses.replace(run.settings, output=directory, data_dir=data_dir, threads=threads, resume=started)
    if started:
        settings = dataclasses.replace(settings, threads=files.settings().threads, precision=files.settings().precision)
    try:
        train(settings, dataset)
    finally:
        if (directory / "settings.json").exists():
            before = files.read_json(WALL)["seconds"] if (directory / WALL).exists() else 0.0
            files.write_json(WALL, {"seconds": round(before + time.monotonic() - began, 1)})
        if settings.compile:
            torch.compiler.reset()  # or compiled networks of earlier runs stay in memory


_loaded: dict[tuple[str, Path | None], data.Dataset] = {}


def prepare(run: Planned, data_dir: Path | None) -> data.Dataset:
    """The data of a run, read once for all runs. At the smoke scale: the first images, registered under their own name."""
    place = (run.settings.dataset, data_dir)
    if place not in _loaded:
        found = data.load(run.experiment.settings["dataset"], data_dir)
        images = run.experiment.budgets[run.scale].images
        if images is not None:
            small = found = first_images(found, images, place[0])
            data.register(place[0], lambda data_dir, download: small, replace=True)
        _loaded.clear()  # one data set in memory is enough
        _loaded[place] = found
    return _loaded[place]


def first_images(dataset: data.Dataset, number: int, name: str) -> data.Dataset:
    """The first images of a data set, as a data set with another name."""
    parts = {part: getattr(dataset, part)[:number] for part in ("train_images", "train_labels", "test_images", "test_labels")}
    return dataclasses.replace(dataset, name=name, **parts)
