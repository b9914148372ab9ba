"""The tables of the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ...metrics import sparsity
from .evidence import Evidence, comparable
from .markup import cell, column_heading, folded, scrolling, table
from .style import RUN_COLOURS

Column = tuple[str, Callable[[Evidence], float | None], str, int]
"""Heading, value, format, and whether high (1), low (-1) or nothing (0) is best."""

_SUMMARY: list[tuple[str, str, str, int]] = [
    ("Accuracy", "accuracy", ".2%", 1),
    ("NLL", "nll", ".4f", -1),
    ("ECE", "ece", ".4f", -1),
    ("Brier", "brier", ".4f", -1),
]


def summary(runs: Sequence[Evidence]) -> str:
    """One row for each run; on a phone one card."""
    rivals = runs if comparable(runs) else []
    best = {key: _best([run.metrics[key] for run in rivals], form, sign) for _, key, form, sign in _SUMMARY}
    best_auroc = _best([run.auroc_entropy for run in rivals], ".3f", 1)
    rows = []
    for run in runs:
        cells = [_run(run), cell(run.settings.rule, "Rule", "word"), cell(run.base, "Base", "word")]
        for heading, key, form, _ in _SUMMARY:
            value = _number(run.metrics[key], form)
            point = "" if run.is_point else _number(run.point_metrics[key], form)
            cells.append(cell(value, heading, "best" if value == best[key] else "", small=point))
        value = _number(run.auroc_entropy, ".3f")
        cells.append(cell(value, "AUROC", "best" if value == best_auroc else ""))
        cells.append(cell(str(run.lines[-1]["epoch"]) if run.lines else "0", "Epochs"))
        cells.append(cell(_duration(run.seconds), "Training"))
        rows.append(cells)
    words = [column_heading(text, "word") for text in ("Run", "Rule", "Base")]
    numbers = [column_heading(text) for text in [*(heading for heading, *_ in _SUMMARY), "AUROC", "Epochs", "Training"]]
    samples = sorted({run.settings.predictive_samples for run in runs if not run.is_point})
    note = "Best marginal in bold." if len(rivals) > 1 else ""
    if samples:
        note += f" Large: the predictive marginal, averaged over {' or '.join(map(str, samples))} draws of the weights; "
        note += "small: the point estimate alone."
    names = ", ".join(dict.fromkeys(run.outside.name for run in runs))
    note += f" AUROC: how well predictive entropy tells {names} from test images."
    return f'{table([*words, *numbers], rows, "cards summary")}\n<p class="note">{escape(note.strip())}</p>'


def outside(runs: Sequence[Evidence]) -> str:
    """How well runs tell images from outside."""
    return _comparison(
        runs,
        [
            ("AUROC, entropy", lambda run: run.auroc_entropy, ".3f", 1),
            ("AUROC, mutual information", lambda run: run.auroc_information, ".3f", 1),
            ("Entropy inside", lambda run: float(run.marginal.entropy.mean()), ".3f", 0),
            ("Entropy outside", lambda run: float(run.marginal_outside.entropy.mean()), ".3f", 0),
        ],
    )


def sparseness(runs: Sequence[Evidence]) -> str:
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


def settings(runs: Sequence[Evidence]) -> str:
    """What differs between runs, and folded away what does not."""
    content = [{**dataclasses.asdict(run.settings), "base": run.base} for run in runs]
    keys = [key for key in content[0] if key not in ("output", "data_dir", "resume")]
    differing = [key for key in keys if len({str(c[key]) for c in content}) > 1]
    blocks = []
    if differing:
        rows = [[cell(_spaced(key)), *(cell(_shown(c[key]), kind="word") for c in content)] for key in differing]
        blocks.append(scrolling(table([column_heading(""), *(column_heading(run.name, "word") for run in runs)], rows)))
    rows = [[cell(_spaced(key)), cell(_shown(content[0][key]), kind="word")] for key in keys if key not in differing]
    blocks.append(folded("Settings all runs share" if len(runs) > 1 else "All settings", table([], rows)))
    rows = [[_run(run), cell(_environment(run.environment), kind="word")] for run in runs]
    blocks.append(folded("Where and when they ran", table([], rows)))
    return "\n".join(blocks)


# Parts.


def _comparison(runs: Sequence[Evidence], columns: Sequence[Column]) -> str:
    rivals = runs if comparable(runs) else []
    best = [_best([value(run) for run in rivals], form, sign) for _, value, form, sign in columns]
    rows = []
    for run in runs:
        texts = [_number(value(run), form) for _, value, form, _ in columns]
        cells = [
            cell(text, column[0], "best" if text == b else "") for text, column, b in zip(texts, columns, best, strict=True)
        ]
        rows.append([_run(run), *cells])
    return table([column_heading("Run"), *(column_heading(column[0]) for column in columns)], rows, "cards")


def _best(values: Sequence[float | None], form: str, sign: int) -> str | None:
    """The text of the best value; None where there is nothing to compare."""
    known = [value for value in values if value is not None]
    if sign == 0 or len(known) < 2:
        return None
    return _number(max(known) if sign > 0 else min(known), form)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form).replace("%", "\u00a0%")


def _run(run: Evidence) -> str:
    return f'<td><span class="run" style="--c: var(--run-{run.number % len(RUN_COLOURS)})">{escape(run.name)}</span></td>'


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _environment(environment: dict[str, Any]) -> str:
    git = environment.get("git")
    parts = [
        str(environment.get("date", "")),
        f"liebayes {environment.get('liebayes', '?')}" + (f" ({git[:10]})" if git else ""),
        f"torch {environment.get('torch', '?')}, Python {environment.get('python', '?')}",
        f"{environment.get('processor', '?')}, {environment.get('threads', '?')} threads",
    ]
    return "; ".join(part for part in parts if part)
