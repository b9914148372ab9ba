"""A grid of settings, as in the grid search of App. B: one run for every combination, and a table of all runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .defaults import resolved
from .processes import require_one_process
from .run_directory import BusyRunError, RunDirectory, RunError, provenance, writable
from .settings import BOOKKEEPING, SettingsError, TrainSettings, read_json
from .tasks import task_of_line
from .train import InterruptedRunError, train


def sweep(file: Path, output: Path) -> int:
    """Trains every combination that is not finished, and rewrites the table after each.

    Returns 1 if a run failed or belongs to another process.
    """
    require_one_process("sweep")
    content = read_json(file)
    runs = combinations(content)
    planned = {name: resolved(dataclasses.replace(settings, output=output / name)) for name, settings in runs.items()}
    finished = [name for name in planned if _finished(planned[name])]
    with writable(output):
        output.mkdir(parents=True, exist_ok=True)  # for the table, even if every run is refused
    print(f"{len(runs)} runs in {output}" + (f", {len(finished)} of them finished" if finished else ""), flush=True)
    axes, rows = list(content["grid"]), {}
    for number, (name, settings) in enumerate(planned.items(), 1):
        if name not in finished:
            print(f"run {number} of {len(runs)}: {name}", flush=True)
        try:
            rows[name] = _row(settings, axes)
        except BusyRunError as error:
            print(f"{name}: skipped. {error}", flush=True)
        rows |= {other: _row(planned[other], axes) for other in planned if other not in rows and _finished(planned[other])}
        _write(output, rows)
    print((output / "sweep.md").read_text(encoding="utf-8"), end="")
    return int(len(rows) < len(planned) or any("failed" in row for row in rows.values()))


def combinations(content: Any) -> dict[str, TrainSettings]:
    """The settings of every run, named after its place in the grid.

    >>> list(combinations({"settings": {"epochs": 1}, "grid": {"rule": ["sgd"], "lr": [0.1, 0.01]}}))
    ['rule-sgd_lr-0.1', 'rule-sgd_lr-0.01']
    """
    parts = [content.get("grid"), content.get("settings", {})] if isinstance(content, dict) else [None]
    if not all(isinstance(part, dict) for part in parts) or set(content) - {"settings", "grid"}:
        raise SettingsError('a sweep is a JSON object {"settings": {...}, "grid": {"lr": [0.1, 0.01], ...}}.')
    fixed, grid = content.get("settings", {}), content["grid"]
    for setting, values in grid.items():
        if setting in (*BOOKKEEPING, "held_out"):  # all runs must be judged on the same images
            raise SettingsError(f"{setting} cannot be an axis of the grid.")
        if not isinstance(values, list) or not values or any(values.count(value) > 1 for value in values):
            raise SettingsError(f"the axis {setting} must be a list of different values, but is {json.dumps(values)}.")
        if setting in fixed:
            raise SettingsError(f"{setting} is both in the settings and in the grid.")
    if not grid:
        raise SettingsError("the grid has no axis.")
    found: dict[str, TrainSettings] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = "_".join(f"{setting}-{re.sub(r'[^A-Za-z0-9.,()=+-]', '-', str(value))}" for setting, value in chosen.items())
        if name in found:
            raise SettingsError(f"two combinations would be called {name}.")
        found[name] = TrainSettings.from_json({**fixed, **chosen, "output": None, "resume": False})
    return found


def _finished(settings: TrainSettings) -> bool:
    """Whether the run has ended, with these settings."""
    assert settings.output is not None
    return RunDirectory(settings.output).finished(settings, of="the sweep")


def _row(settings: TrainSettings, axes: Sequence[str]) -> dict[str, Any]:
    assert settings.output is not None
    run = RunDirectory(settings.output)
    row: dict[str, Any] = {"run": settings.output.name, **{axis: getattr(settings, axis) for axis in axes}}
    try:
        if not _finished(settings):
            train(dataclasses.replace(settings, resume=(settings.output / "settings.json").exists()))
    except InterruptedRunError as stop:
        raise InterruptedRunError("Interrupted. The same command continues the sweep.") from stop
    except BusyRunError:
        raise
    except (RunError, RuntimeError, ValueError) as error:
        # A combination that fails, such as a step size that diverges, is a result too.
        return {**row, "failed": " ".join(str(error).split())}
    last = run.finished_metrics()[-1]
    known = provenance(run.read_json("environment.json"), run.settings())
    figures = [f"test_{figure.name}" for figure in task_of_line(last).figures]
    return {**row, **{column: last[column] for column in (*figures, "point_nll", "seconds")}, **known}


def _write(output: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes sweep.json and sweep.md, the lowest NLL first."""
    ordered = sorted(rows.values(), key=lambda row: row.get("test_nll", float("inf")))
    directory = RunDirectory(output)
    directory.write_json("sweep.json", ordered, alone=False)
    judged = next((row["settings"]["held_out"] for row in ordered if "settings" in row), 0)
    on = f" on {judged:,} held out" if judged else ""
    figures = task_of_line(next((row for row in ordered if "failed" not in row), {})).figures[:3]
    first, *others = (figure.heading for figure in figures)
    lines = [f"| run | {first}{on} | {' | '.join(others)} | point NLL | seconds |", "|---|---|---|---|---|---|"]
    for row in ordered:
        if "failed" in row:
            lines.append(f"| {row['run']} | failed: {row['failed']} | | | | |")
            continue
        cells = [figure.text(row[f"test_{figure.name}"]) for figure in figures]
        lines.append(f"| {row['run']} | {' | '.join(cells)} | {row['point_nll']:.4f} | {row['seconds']:.1f} |")
    directory.write_text("sweep.md", "\n".join(lines) + "\n", alone=False)
