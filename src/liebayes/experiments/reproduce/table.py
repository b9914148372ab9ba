"""The results of a recipe beside the paper's figures, as Markdown and as a page. Missing results say "not run"."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from .claims import CLAIMS, verdicts
from .recipe import Figure, Recipe, Scale
from .result import Result, read_all, write_file
from .rows import Row, mean_and_error, rows

NOT_RUN = "not run"
HEADINGS = (
    "method", "settings", "epochs", "K", "seeds", "accuracy %", "NLL", "ECE", "paper: accuracy %", "NLL", "ECE",
    "largest weight",
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A section of the page: a heading, a sentence and a table."""

    name: str
    heading: str
    text: str
    headings: Sequence[str] = ()
    lines: Sequence[Sequence[str]] = ()


def write_tables(recipe: Recipe, results: Path) -> str:
    """Writes RECIPE.md and RECIPE.html beside the results, and returns the Markdown."""
    found = read_all(results, recipe.name)
    known = {(e.name, m.name, m.source) for e in recipe.experiments for m in e.methods}
    strange = sorted({r["method"] for r in found if (r["experiment"], r["method"], r["settings_from"]) not in known})
    if strange:
        text = f"{results / recipe.name} has results of methods that {recipe.name} does not have: {', '.join(strange)}."
        warnings.warn(f"{text} The tables leave them out.", stacklevel=2)
    parts = blocks(recipe, found)
    text = markdown(recipe, parts)
    write_file(results / f"{recipe.name}.md", text)
    write_file(results / f"{recipe.name}.html", page(recipe, parts))
    return text


def blocks(recipe: Recipe, results: Sequence[Result]) -> list[Block]:
    """The tables of every scale with results (the desktop scale if there are none), the claims and the settings."""
    scales: list[Scale] = [s for s in get_args(Scale) if any(r["scale"] == s for r in results)] or ["desktop"]
    found: list[Block] = []
    for scale in scales:
        judged: list[Sequence[str]] = []
        for experiment in recipe.experiments:
            these = rows(recipe, experiment, scale, results)
            heading = f"{experiment.title}, {scale} scale"
            found.append(Block(f"{experiment.name}-{scale}", heading, "", HEADINGS, [line(r) for r in these]))
            if scale != "smoke":  # too short to say anything about a method
                judged += [
                    (v.claim, f"{experiment.title}: {v.pair}", v.word, v.evidence)
                    for v in verdicts(CLAIMS.get(recipe.name, []), these)
                ]
        outside = [r for e in recipe.experiments for r in rows(recipe, e, scale, results) if r.values("auroc_entropy")]
        if outside:
            found.append(_outside(scale, outside))
        if judged:
            text = (
                "A verdict needs three seeds of each method, none of them diverged; figures differ if Welch's t-test says so "
                f"at 5 %. It is about the {scale} scale, not the paper's own runs. Pairs without any run are left out."
            )
            heading = f"The paper's claims, {scale} scale"
            found.append(Block(f"claims-{scale}", heading, text, ("claim", "where", "here", "why"), judged))
    return [*found, _settings(recipe)]


def _settings(recipe: Recipe) -> Block:
    """All settings of the full protocol, with their sources. Those that several experiments share are listed once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for experiment in recipe.experiments:
        shared = {k: v for k, v in experiment.settings.items() if k not in ("dataset", "model")}
        found.setdefault(("all methods", _listed(shared), experiment.where), []).append(experiment.title)
        for method in experiment.methods:
            key = f"{method.name} ({method.source})", _listed(method.settings), method.where
            found.setdefault(key, []).append(experiment.title)
    lines = [("; ".join(titles), *key) for key, titles in found.items()]
    text = "The full protocol, named as in `liebayes train`; scales shorten epochs and samples. A method's own settings win."
    return Block("settings", "Settings and their sources", text, ("experiment", "method", "settings", "source"), lines)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def line(row: Row) -> list[str]:
    """The cells of a row."""
    asked = max(row.planned, len(row.results) + len(row.failures))
    seeds = str(asked) if len(row.results) == asked else f"{len(row.results)} of {asked}"
    cells = [row.method + row.note, row.source, str(row.epochs), str(row.mc_samples), seeds]
    if row.results:
        cells += [_measured(row, kind) for kind in ("accuracy", "nll", "ece")]
    else:
        cells += ["diverged" if row.failures else NOT_RUN] * 3
    printed = row.printed if row.source != "ours" else None
    cells += ["–"] * 3 if printed is None else [_figure(printed.accuracy, 2), _figure(printed.nll, 3), _figure(printed.ece, 3)]
    weights = row.values("largest_weight")
    return [*cells, f"{max(weights):.3g}" if weights else "–"]


def summary(recipe: Recipe, results: Sequence[Result], scale: Scale = "desktop") -> str:
    """The results at a scale as one table in Markdown, and the names of the missing ones."""
    lines, missing = [], []
    for experiment in recipe.experiments:
        these = rows(recipe, experiment, scale, results)
        lines += [[experiment.title, *line(row)[:-1]] for row in these if row.results or row.failures]
        absent = [f"{row.method} ({row.source}, K = {row.mc_samples})" for row in these if not (row.results or row.failures)]
        if absent:
            missing.append(f"{experiment.title}: {'all' if len(absent) == len(these) else ', '.join(absent)}")
    found = [grid(("experiment", *HEADINGS[:-1]), lines)] if lines else []
    found += [f"Not run at the {scale} scale: {'; '.join(missing)}."] if missing else []
    return "\n\n".join(found)


def _measured(row: Row, kind: str) -> str:
    factor, digits = (100, 2) if kind == "accuracy" else (1, 4)
    if not row.values(kind):
        return "not finite"
    return _figure(mean_and_error([factor * value for value in row.values(kind)]), digits)


def _figure(figure: Figure | tuple[float, float | None], digits: int) -> str:
    mean, error = figure
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _outside(scale: Scale, found: Sequence[Row]) -> Block:
    """How well the predictions of each method separate another data set from its own."""
    name = next(result["outside"] for row in found for result in row.results if "outside" in result)
    lines = []
    for row in found:
        cells = [_figure(mean_and_error(row.values(k)), 4) for k in ("auroc_entropy", "auroc_confidence")]
        seeds = str(len(row.values("auroc_entropy")))
        lines.append([row.method + row.note, row.source, str(row.epochs), str(row.mc_samples), seeds, *cells])
    text = f"How well the predictive entropy, and the largest probability, separate images of {name} from test images: AUROC."
    headings = ("method", "settings", "epochs", "K", "seeds", "AUROC, entropy", "AUROC, largest probability")
    return Block(f"outside-{scale}", f"Outside the data, {scale} scale", text, headings, lines)


_ABOUT = (
    "Accuracy, NLL and ECE (20 bins) of the predictive distribution on the test data, with 32 samples except at the smoke "
    "scale and for SGD, which is a point. Mean ± standard error over seeds; “2 of 3” means that the scale asks for three. K "
    "is the number of Monte Carlo samples in training. Settings are those of the paper's appendix (paper), of the authors' "
    "published commands (published) or our own (ours). The paper's figures are those of its full protocol at every scale."
)


def markdown(recipe: Recipe, parts: Sequence[Block]) -> str:
    """The page as Markdown."""
    lines = [
        f"# {recipe.title}",
        "",
        _ABOUT,
        f"Made by `liebayes reproduce {recipe.name} --collect` from the files in `{recipe.name}/`.",
        "",
    ]
    for part in parts:
        lines += [f"## {part.heading}", ""]
        lines += [part.text, ""] if part.text else []
        lines += [grid(part.headings, part.lines), ""]
    lines += ["## How the paper was read", "", *(f"- {reading}" for reading in recipe.readings)]
    return "\n".join(lines) + "\n"


def grid(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(grid(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return "\n".join(f"| {' | '.join(cells)} |" if cells else "|" + "---|" * len(headings) for cells in (headings, (), *lines))


def page(recipe: Recipe, parts: Sequence[Block]) -> str:
    """The page as HTML, in the style of reports."""
    from ..report.page import Cell, Section, Table, html

    def section(part: Block) -> Section:
        words = range(2 if len(part.headings) > 4 else len(part.headings))
        table = Table(part.headings, [[Cell(text) for text in line] for line in part.lines], words=words)
        return Section(part.name, part.heading, part.text, [table])

    readings = Section("readings", "How the paper was read", points=recipe.readings)
    return html(recipe.title, _ABOUT, [*map(section, parts), readings])
