"""The picture of predictions under shift: accuracy, NLL and ECE against severity, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ...data.corruptions import SEVERITIES
from ..run_directory import writable
from ..shift import figure
from .style import WIDTH, Picture, colour, in_style, line_style, save

_LABELS = {"accuracy": "accuracy %", "nll": "NLL", "ece": "ECE"}


def draw_shift(methods: Mapping[str, Sequence[dict[str, Any]]], output: Path) -> Path:
    """Writes shift.png: means over corruptions and seeds, every seed as a dot."""
    picture = Picture("shift", "Accuracy, NLL and ECE against the severity of corruption", "", _figure(methods))
    with writable(output):
        return save(picture, output)


@in_style
def _figure(methods: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    drawn = Figure(figsize=(2 * WIDTH, 3.1))
    places = (0, *SEVERITIES)
    for axes, (kind, label) in zip(drawn.subplots(1, len(_LABELS)), _LABELS.items(), strict=True):
        factor = 100 if kind == "accuracy" else 1
        for number, (method, results) in enumerate(methods.items()):
            values = [[factor * value for value in figure(results, kind, place)] for place in places]
            axes.plot(places, [fmean(v) for v in values], color=colour(number), ls=line_style(number), label=method)
            if len(results) > 1:
                for place, seeds in zip(places, values, strict=True):
                    axes.plot([place] * len(seeds), seeds, ".", color=colour(number), alpha=0.5, markersize=3)
        axes.set_title(label)
        axes.set_xlabel("severity")
        axes.set_xticks(places, ["none", *map(str, SEVERITIES)])
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper left", ncols=4, borderaxespad=0.2)
    return drawn
