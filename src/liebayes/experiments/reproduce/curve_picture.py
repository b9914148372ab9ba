"""The picture of the curves: test figures over each setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..report import Picture
from ..report.style import MUTED, WIDTH, colour, in_style, save
from ..run_directory import writable
from .curves import AXES, CENTRE, CURVES, Axis
from .recipe import Scale, Selection, plan
from .result import FIGURES, Result


def draw_curves(results: Path, stored: Sequence[Result], scale: Scale) -> Path | None:
    """Writes curves.png, or curves-SCALE.png at another scale than desktop; None if there are no results."""
    budgets = {run.method.name: run.given for run in plan(CURVES, Selection(scale, ("ours",)))}
    measured = [
        r
        for r in stored
        if r["scale"] == scale
        and "failed" not in r
        and all(r[name] == budgets.get(r["method"], {}).get(name) for name in ("epochs", "mc_samples"))
    ]
    if not measured:
        return None
    title = "The multiplicative rule on MNIST, one setting changed at a time"
    picture = Picture(f"curves{'' if scale == 'desktop' else f'-{scale}'}", title, "", _figure(measured))
    with writable(results, "--results"):
        return save(picture, results)


@in_style
def _figure(stored: Sequence[Result]) -> Figure:
    figure = Figure(figsize=(2 * WIDTH, 5.2))
    panels = figure.subplots(len(FIGURES), len(AXES), sharey="row", squeeze=False)
    for kind, across in zip(FIGURES, panels, strict=True):
        for axis, axes in zip(AXES, across, strict=True):
            _panel(axes, kind, axis, stored)
            if axes is across[0]:
                axes.set_ylabel({"accuracy": "test accuracy %", "nll": "test NLL", "ece": "test ECE"}[kind])
    for axis, axes in zip(AXES, panels[-1], strict=True):
        axes.set_xlabel(axis.label)
    return figure


def _panel(axes: Axes, kind: str, axis: Axis, stored: Sequence[Result]) -> None:
    """One figure over one setting: every seed, and a line through the means."""
    factor = 100 if kind == "accuracy" else 1
    found = [[factor * r[kind] for r in stored if r["method"] == axis.method(value)] for value in axis.values]
    means = [(place, sum(values) / len(values)) for place, values in enumerate(found) if values]
    axes.plot([place for place, _ in means], [mean for _, mean in means], color=colour(0), marker="o", markersize=4)
    for place, values in enumerate(found):
        axes.plot([place] * len(values), values, ".", color=colour(0), alpha=0.5)
        if axis.values[place] == CENTRE[axis.setting]:
            axes.axvline(place, color=MUTED, linewidth=0.6, linestyle=":")
    axes.set_xticks(range(len(axis.values)), [f"{value:g}" for value in axis.values])
    axes.yaxis.set_major_locator(MaxNLocator(5))
