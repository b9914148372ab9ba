"""The page: a table, the pictures with their captions, and the settings, in one HTML file without references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .evidence import Evidence
from .markup import document, section
from .sections import Section
from .style import inline_svg
from .tables import outside, settings, sparseness, summary

PERCENT, NO_BREAK = " %", "\u00a0%"


def html(runs: Sequence[Evidence], parts: Iterable[Section]) -> str:
    """The whole page."""
    names = list(dict.fromkeys(run.dataset.name for run in runs))
    title = f"{' and '.join(names)}: " + ("one run" if len(runs) == 1 else f"{len(runs)} runs side by side")
    shown = [part for part in parts if part.pictures]
    tables = {"uncertainty": outside, "weights": sparseness}
    body = "\n".join(_section(part, tables[part.name](runs) if part.name in tables else "") for part in shown)
    links = [("summary", "Summary"), *((part.name, part.heading) for part in shown), ("settings", "Settings")]
    main = "\n".join(
        [section("summary", "Summary", summary(runs)), body, section("settings", "Settings", settings(runs))]
    )
    return document(title, _opening(runs), links, main)


def _opening(runs: Sequence[Evidence]) -> str:
    described = {run.dataset.name: run.dataset for run in runs}
    data = "; ".join(
        f"{d.name}: {len(d.train_labels):,} training and {len(d.test_labels):,} test images in {d.num_classes} classes"
        for d in described.values()
    )
    if len(runs) == 1 or len(described) > 1:
        return f"{data[0].upper()}{data[1:]}."
    nll, accuracy = min(run.metrics["nll"] for run in runs), max(run.metrics["accuracy"] for run in runs)
    best = [run.name for run in runs if run.metrics["nll"] == nll]
    right = [run.name for run in runs if run.metrics["accuracy"] == accuracy]  # a few thousand answers tie easily
    words = f"The best probabilities come from {' and '.join(best)} (NLL {nll:.4f})"
    if right == best:
        words += f", and the most right answers too ({100 * accuracy:.2f} %)."
    else:
        words += f", the most right answers from {' and '.join(right)} ({100 * accuracy:.2f} %)."
    return f"{data[0].upper()}{data[1:]}. {words}"


def _section(part: Section, table: str) -> str:
    figures = "\n".join(
        f'<figure id="picture-{escape(p.name)}"><h3>{escape(p.title)}</h3>\n{inline_svg(p)}\n'
        f"<figcaption>{escape(p.caption.replace(PERCENT, NO_BREAK))}</figcaption></figure>"
        for p in part.pictures
    )
    lead = f'<p class="lead">{escape(part.lead)}</p>'
    return section(part.name, part.heading, f'{lead}\n{table}\n<div class="pictures">\n{figures}\n</div>')
