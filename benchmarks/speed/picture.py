"""docs/speed.png: how the cost grows, from the stored result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PEER, INK, PALE = "#1f5fa8", "#c8742c", "#222222", "#d9d9d9"

Points = list[dict[str, Any]]


def draw(result: dict[str, Any], path: Path) -> None:
    """Three panels: parameters, samples, ranks."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(12, 3.9), dpi=150, layout="constrained", facecolor="white")
    parameters, samples, ranks = canvas.subplots(1, 3)
    _parameters(parameters, result["parameters"])
    _samples(samples, result["samples"])
    _ranks(ranks, result["ranks"])
    where = result["environment"]
    machine = f"{where['cpu']}, {where['cores']} cores, torch {where['torch']}, {where['date'][:10]}"
    note = "" if result["quiet"] else "; not a quiet machine"
    canvas.supxlabel(f"{machine}; bars: fastest and slowest round{note}", fontsize=8, color="#666666")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def _parameters(axes: Axes, points: Points) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    _line(axes, points, "AffineBLR", OURS, lambda seconds, n: seconds / n * 1e9)
    _line(axes, points, "fused SGD", PEER, lambda seconds, n: seconds / n * 1e9)
    axes.set(xscale="log", yscale="log", xlabel="parameters, in 200 tensors", ylabel="ns per parameter")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _finish(axes, "Sample + step")


def _samples(axes: Axes, points: Points) -> None:
    _line(axes, points, "loop", PEER, lambda seconds, n: seconds / n * 1e3, "one after the other")
    _line(axes, points, "threads", OURS, lambda seconds, n: seconds / n * 1e3, "one in each thread")
    counts = [point["count"] for point in points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(xlabel="samples in a step, K", ylabel="ms per sample")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.2)  # room for the legend
    _finish(axes, "MLP of Table 1, one step, batch 50")


def _ranks(axes: Axes, points: Points) -> None:
    """Samples per second of all ranks together: twice as many ranks could do twice as many."""
    names = list(points[0]["figures"])
    width = 0.36
    highest = 0.0
    for i, (name, colour) in enumerate(zip(names, (PEER, OURS), strict=True)):
        for place, point in enumerate(points):
            found = point["figures"][name]
            rate, least, most = (point["count"] * (i + 1) / found[key] for key in ("median", "max", "min"))
            x = place + (i - 0.5) * width
            axes.bar(x, rate, width * 0.94, color=colour, label=name if place == 0 else None)
            axes.errorbar(x, rate, [[rate - least], [most - rate]], color=INK, lw=1, capsize=2)
            axes.annotate(f"{rate:.3g}", (x, most), (0, 4), textcoords="offset points", ha="center", fontsize=9, color=INK)
            highest = max(highest, most)
    axes.set_xticks(range(len(points)), [f"K = {point['count']} each" for point in points])
    axes.set_xlim(-0.75, len(points) - 0.25)
    axes.set_ylim(0, highest * 1.3)
    axes.set(ylabel="samples per second, all ranks")
    _finish(axes, "MLP on ranks of one core each, over gloo")


def _line(
    axes: Axes, points: Points, name: str, colour: str, scaled: Callable[[float, int], float], label: str | None = None
) -> None:
    x = [point["count"] for point in points]
    middle, least, most = (
        [scaled(point["figures"][name][key], point["count"]) for point in points] for key in ("median", "min", "max")
    )
    errors = [[m - a for m, a in zip(middle, least, strict=True)], [b - m for m, b in zip(middle, most, strict=True)]]
    axes.errorbar(x, middle, errors, color=colour, marker="o", ms=4, lw=1.8, elinewidth=1, capsize=2, label=label or name)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10.5, loc="left", color=INK)
    axes.grid(True, axis="y", color=PALE, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors="#444444")
    axes.legend(frameon=False, fontsize=9)
