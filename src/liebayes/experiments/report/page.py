"""The page: a table, the pictures with their captions, and the settings, in one HTML file without references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ... import __version__
from .css import CSS
from .evidence import Evidence
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
    menu = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading in links)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · liebayes</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title[0].upper() + title[1:])}</h1>
<p class="lead">{escape(_opening(runs))}</p>
</header>
<nav aria-label="Sections"><ul>{menu}</ul></nav>
<main>
<section id="summary">
<h2>Summary</h2>
{summary(runs)}
</section>
{body}
<section id="settings">
<h2>Settings</h2>
{settings(runs)}
</section>
</main>
<footer>Made by liebayes {escape(__version__)}: the Lie-group Bayesian learning rule of Kıral, Möllenhoff and Khan (AISTATS
2023). Section numbers are the paper's.</footer>
</body>
</html>
"""


def _opening(runs: Sequence[Evidence]) -> str:
    described = {run.dataset.name: run.dataset for run in runs}
    data = "; ".join(
        f"{d.name}: {len(d.train_labels):,} training and {len(d.test_labels):,} test images in {d.num_classes} classes"
        for d in described.values()
    )
    if len(runs) == 1 or len(described) > 1:
        return f"{data[0].upper()}{data[1:]}."
    best = min(runs, key=lambda run: run.metrics["nll"])
    right = max(runs, key=lambda run: run.metrics["accuracy"])
    words = f"The best probabilities come from {best.name} (NLL {best.metrics['nll']:.4f})"
    if right is best:
        words += f", and the most right answers too ({100 * best.metrics['accuracy']:.2f} %)."
    else:
        words += f", the most right answers from {right.name} ({100 * right.metrics['accuracy']:.2f} %)."
    return f"{data[0].upper()}{data[1:]}. {words}"


def _section(part: Section, table: str) -> str:
    figures = "\n".join(
        f'<figure id="picture-{escape(p.name)}"><h3>{escape(p.title)}</h3>\n{inline_svg(p)}\n'
        f"<figcaption>{escape(p.caption.replace(PERCENT, NO_BREAK))}</figcaption></figure>"
        for p in part.pictures
    )
    return f"""<section id="{part.name}">
<h2>{escape(part.heading)}</h2>
<p class="lead">{escape(part.lead)}</p>
{table}
<div class="pictures">
{figures}
</div>
</section>"""
