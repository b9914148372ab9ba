"""Tables of runs, for a terminal of 80 columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .display import duration
from .run_directory import RunDirectory

KINDS = ("accuracy", "nll", "ece", "brier", "entropy")


def show(table: Table) -> None:
    """Prints a table."""
    Console(highlight=False, markup=False, emoji=False).print(table)


def comparison(runs: Sequence[Path]) -> Table:
    """The settings and the last figures of runs."""
    table = _table(("run", "rule", "base"), ("epochs", "accuracy", "NLL", "ECE", "point NLL", "time"))
    for name, path in zip(short_names(runs), runs, strict=True):
        directory = RunDirectory(path)
        settings = directory.settings()
        base = settings.base or ("default" if settings.rule in ("additive", "affine") else "")
        lines = directory.metrics()
        evaluated = [line for line in lines if "test_accuracy" in line]
        done = f"{len(lines)}" if len(lines) == settings.epochs else f"{len(lines)} of {settings.epochs}"
        if not evaluated:
            table.add_row(name, settings.rule, base, done, "", "", "", "", "")
            continue
        last = evaluated[-1]
        done += "" if last is lines[-1] else f", figures of {last['epoch']}"
        done += ", held out" if settings.held_out else ""
        figures = [f"{last[key]:.4f}" for key in ("test_nll", "test_ece", "point_nll")]
        table.add_row(
            name, settings.rule, base, done, f"{100 * last['test_accuracy']:.2f} %", *figures, duration(last["seconds"])
        )
    return table


def figures(results: Sequence[dict[str, Any]]) -> Table:
    """The metrics of runs: a row for the marginal and one for the point estimate."""
    table = _table(("run", ""), ("accuracy", "NLL", "ECE", "Brier", "entropy"))
    for name, result in zip(short_names([Path(result["run"]) for result in results]), results, strict=True):
        for label, prefix in (("marginal", "test"), ("point", "point")):
            values = [result[f"{prefix}_{kind}"] for kind in KINDS]
            table.add_row(
                name if prefix == "test" else "", label, f"{100 * values[0]:.2f} %", *(f"{v:.4f}" for v in values[1:])
            )
    return table


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
