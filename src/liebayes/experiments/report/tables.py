"""The tables of a report, as data for the template."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...metrics import sparsity
from ..display import duration
from .evidence import Evidence, comparable
from .page import Cell, Table
from .style import RUN_COLOURS

Column = tuple[str, Callable[[Evidence], float | None], str, int]
"""Heading, value, format, and whether high (1), low (-1) or nothing (0) is best."""


_METRICS = [
    ("Accuracy", "accuracy", ".2%", 1),
    *((heading, heading.lower(), ".4f", -1) for heading in ("NLL", "ECE", "Brier")),
]


def summary(runs: Sequence[Evidence]) -> Table:
    """One row for each run: the marginal, and in small the point estimate."""
    columns: list[Column] = [(h, lambda run, key=key: run.metrics[key], form, sign) for h, key, form, sign in _METRICS]
    columns.append(("AUROC", lambda run: run.auroc_entropy, ".3f", 1))
    rows = []
    for run, figures in zip(runs, _figures(runs, columns), strict=True):
        if not run.is_point:
            small = [_number(run.point_metrics[key], form) for _, key, form, _ in _METRICS]
            figures[:4] = [dataclasses.replace(cell, small=text) for cell, text in zip(figures, small, strict=False)]
        epochs = str(run.lines[-1]["epoch"]) if run.lines else "0"
        words = [Cell(run.settings.rule), Cell(run.base)]
        rows.append([_name(run), *words, *figures, Cell(epochs), Cell(duration(run.seconds))])
    samples = sorted({run.settings.predictive_samples for run in runs if not run.is_point})
    notes = ["The best marginal is in bold."] if len(runs) > 1 and comparable(runs) else []
    if samples:
        notes.append(
            f"Large: the predictive marginal, averaged over {' or '.join(map(str, samples))} samples of the weights; small: "
            "the point estimate alone."
        )
    names = ", ".join(dict.fromkeys(run.outside.name for run in runs))
    notes.append(f"AUROC: how well predictive entropy separates {names} from test images.")
    headings = ["Run", "Rule", "Base", *(heading for heading, *_ in columns), "Epochs", "Training"]
    return Table(headings, rows, "cards summary", words=(0, 1, 2), note=" ".join(notes))


def outside(runs: Sequence[Evidence]) -> Table:
    """How well runs recognise images from outside the training data."""
    return _comparison(
        runs,
        [
            ("AUROC, entropy", lambda run: run.auroc_entropy, ".3f", 1),
            ("AUROC, mutual information", lambda run: run.auroc_information, ".3f", 1),
            ("Entropy inside", lambda run: float(run.marginal.entropy.mean()), ".3f", 0),
            ("Entropy outside", lambda run: float(run.marginal_outside.entropy.mean()), ".3f", 0),
        ],
    )


def sparseness(runs: Sequence[Evidence]) -> Table:
    """How unequal the weights are."""
    found = {run.name: sparsity(run.effective_weights) for run in runs}
    return _comparison(
        runs,
        [
            ("Weights", lambda run: run.effective_weights.numel(), ",.0f", 0),
            ("Below 1 % of the largest", lambda run: found[run.name].below, ".1%", 1),
            ("Carry 90 % of Σ|w|", lambda run: found[run.name].mass_share, ".1%", -1),
            ("Gini", lambda run: found[run.name].gini, ".3f", 1),
            ("Hoyer", lambda run: found[run.name].hoyer, ".3f", 1),
        ],
    )


def settings(runs: Sequence[Evidence]) -> list[Table]:
    """The settings that differ between runs, and folded away, those they share and where they ran."""
    content = [{**dataclasses.asdict(run.settings), "base": run.base} for run in runs]
    names = [name for name in content[0] if name not in ("output", "data_dir", "resume")]
    differing = [name for name in names if len({str(c[name]) for c in content}) > 1]
    rows = {name: [Cell(name.replace("_", " ")), *(Cell(_shown(c[name])) for c in content)] for name in names}
    columns = range(len(runs) + 1)
    found = [Table(["", *(run.name for run in runs)], [rows[n] for n in differing], words=columns)] if differing else []
    shared = "Settings that all runs share" if len(runs) > 1 else "All settings"
    found.append(Table([], [rows[name][:2] for name in names if name not in differing], words=columns, folded=shared))
    places = [[_name(run), Cell(_environment(run.environment))] for run in runs]
    return [*found, Table([], places, words=columns, folded="Where and when they ran")]


def _comparison(runs: Sequence[Evidence], columns: Sequence[Column]) -> Table:
    rows = [[_name(run), *figures] for run, figures in zip(runs, _figures(runs, columns), strict=True)]
    return Table(["Run", *(heading for heading, *_ in columns)], rows, "cards")


def _figures(runs: Sequence[Evidence], columns: Sequence[Column]) -> list[list[Cell]]:
    """A row of figures for each run, the best of each column marked where runs can be compared."""
    across = []
    for _, value, form, sign in columns:
        values = [value(run) for run in runs]
        known = [v for v in values if v is not None]
        best = None
        if sign and len(known) > 1 and comparable(runs):
            best = _number(max(known) if sign > 0 else min(known), form)
        across.append([Cell(_number(v, form), best=_number(v, form) == best) for v in values])
    return [list(row) for row in zip(*across, strict=True)]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form).replace("%", "\u00a0%")


def _name(run: Evidence) -> Cell:
    return Cell(run.name, colour=run.number % len(RUN_COLOURS))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _environment(environment: dict[str, Any]) -> str:
    git = environment.get("git")
    parts = [
        str(environment.get("date", "")),
        f"liebayes {environment.get('liebayes', '?')}" + (f" ({git[:10]})" if git else ""),
        f"torch {environment.get('torch', '?')}, Python {environment.get('python', '?')}",
        f"{environment.get('processor', '?')}, {environment.get('threads', '?')} threads",
    ]
    return "; ".join(part for part in parts if part)
