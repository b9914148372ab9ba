"""Tables of runs, for a terminal of 80 columns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .display import duration
from .run_directory import RunDirectory
from .tasks import TASKS, Figure, task_of_line


def show(table: Table) -> None:
    """Prints a table: within the width of a terminal; elsewhere, as in a pipe, with every row on one line."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if not terminal.is_terminal and "COLUMNS" not in os.environ:
        terminal = Console(highlight=False, markup=False, emoji=False, width=10_000)
    terminal.print(table)


def comparison(runs: Sequence[Path]) -> Table:
    """The settings and the last figures of runs."""
    directories = [RunDirectory(path) for path in runs]
    evaluated = [[line for line in directory.metrics() if "test_nll" in line] for directory in directories]
    shown = _shared([lines[-1] for lines in evaluated if lines], 3)
    table = _table(("run", "rule", "base"), ("epochs", *(figure.heading for figure in shown), "point NLL", "time"))
    for name, directory, figured in zip(short_names(runs), directories, evaluated, strict=True):
        settings = directory.settings()
        base = settings.base or ("default" if settings.rule in ("additive", "affine") else "")
        lines = directory.metrics()
        done = f"{len(lines)}" if len(lines) == settings.epochs else f"{len(lines)} of {settings.epochs}"
        if not figured:
            table.add_row(name, settings.rule, base, done, *[""] * (len(shown) + 2))
            continue
        last = figured[-1]
        done += "" if last is lines[-1] or last["epoch"] == len(lines) else f", figures of {last['epoch']}"
        done += ", held out" if settings.held_out else ""
        cells = [_cell(figure, last, "test") for figure in shown]
        table.add_row(name, settings.rule, base, done, *cells, f"{last['point_nll']:.4f}", duration(last["seconds"]))
    return table


def figures(results: Sequence[dict[str, Any]]) -> Table:
    """The metrics of runs: a row for the marginal and one for the point estimate."""
    shown = _shared(results, 9)
    table = _table(("run", ""), tuple(figure.heading for figure in shown))
    for name, result in zip(short_names([Path(result["run"]) for result in results]), results, strict=True):
        for label, prefix in (("marginal", "test"), ("point", "point")):
            cells = [_cell(figure, result, prefix) for figure in shown]
            table.add_row(name if prefix == "test" else "", label, *cells)
    return table


def _shared(lines: Sequence[Mapping[str, Any]], most: int) -> list[Figure]:
    """The figures of runs, the first ones of every task among them."""
    tasks = dict.fromkeys(task_of_line(line) for line in lines) or {TASKS["classification"]: None}
    return list(dict.fromkeys(figure for task in tasks for figure in task.figures[:most]))


def _cell(figure: Figure, line: Mapping[str, Any], prefix: str) -> str:
    value = line.get(f"{prefix}_{figure.name}")
    return "" if value is None else figure.text(value)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=heading != "point NLL")
    return table


def short_names(runs: Sequence[Path]) -> list[str]:
    """The names of runs, without the folders that all of them share.

    >>> short_names([Path("runs/a/x"), Path("runs/b")])
    ['a/x', 'b']
    >>> short_names([Path("runs/a"), Path("runs/a")])
    ['a', 'a']
    """
    absolute = [os.path.abspath(run) for run in runs]
    shared = os.path.commonpath([os.path.dirname(run) for run in absolute])
    return [os.path.relpath(run, shared) for run in absolute]
