"""The tables of docs/out-of-the-box.md, from what `out_of_the_box.py` has stored."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence

from out_of_the_box import CHOSEN_ON, METHODS, OURS, Row, stored
from tasks import TASKS

from liebayes.experiments.reproduce.table import grid


def best(task: str, method: str) -> list[Row]:
    """The runs of a method at its best setting, judged by the seeds of the setting that is best on the first seed.

    So a search that has been interrupted is judged by what its settings have in common.
    """
    settings: dict[str, dict[int, Row]] = {}
    for row in stored(task):
        if row["method"] == method:
            settings.setdefault(json.dumps(row["setting"]), {})[row["seed"]] = row
    if not settings:
        return []
    first = min(seed for rows in settings.values() for seed in rows)

    def loss(rows: dict[int, Row], seeds: Iterable[int]) -> float:
        return sum(rows[seed]["point"]["nll"] if rows[seed]["point"] else math.inf for seed in seeds)

    searched = [rows for rows in settings.values() if first in rows]
    seeds = min(searched, key=lambda rows: loss(rows, [first])).keys()
    return list(min((rows for rows in searched if seeds <= rows.keys()), key=lambda rows: loss(rows, seeds)).values())


def at_an_edge(task: str, rows: Sequence[Row]) -> bool:
    """Whether the search that found these runs is unfinished: a larger or a smaller step size has not been tried."""
    tried = [row["setting"]["lr"] for row in stored(task) if row["method"] == rows[0]["method"] and row["setting"]]
    return bool(tried) and rows[0]["setting"]["lr"] in (min(tried), max(tried))


def mean(rows: Sequence[Row], part: str, figure: str, error: bool = False) -> str:
    """The mean over seeds, and its standard error if asked for; none where a seed has no figure."""
    values = [row[part][figure] for row in rows if row[part] and figure in row[part]]
    if not values or len(values) < len(rows):
        return "–"
    spread = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}" if error and len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def summary() -> str:
    """A line for every task: the NLL at the point, and after a stroke that of the marginal."""
    lines = []
    for task in TASKS:
        cells = []
        for method in METHODS:
            rows = best(task, method)
            parts = ("point", "marginal") if any(row["marginal"] for row in rows) else ("point",)
            cells.append(
                " / ".join(mean(rows, part, "nll") for part in parts) + ("*" if rows and at_an_edge(task, rows) else "")
            )
        lines.append((task, "yes" if task in CHOSEN_ON else "no", *cells))
    return grid(("task", "chosen on", *(method if method in OURS else f"best {method}" for method in METHODS)), lines)


def details() -> str:
    """A line for every task and method, with accuracy and ECE of the marginal where there is one."""
    lines = []
    for task in TASKS:
        for method in METHODS:
            if rows := best(task, method):
                part = "marginal" if rows[0]["marginal"] else "point"
                setting = ", ".join(f"{name} {value:g}" for name, value in rows[0]["setting"].items())
                setting += "*" if at_an_edge(task, rows) else ""
                diverged = sum(row["diverged"] for row in rows)
                lines.append(
                    (
                        task,
                        method,
                        setting or "defaults",
                        f"{len(rows)}" + (f", {diverged} diverged" if diverged else ""),
                        mean(rows, "point", "nll", error=True),
                        mean(rows, "marginal", "nll", error=True),
                        mean(rows, part, "accuracy"),
                        mean(rows, part, "ece"),
                        f"{min(row['step_ms'] or math.inf for row in rows):.2f}",
                    )
                )
    figures = ("NLL at the point", "NLL of the marginal", "accuracy", "ECE", "ms a step")
    return grid(("task", "method", "setting", "seeds", *figures), lines)
