"""The picture and the table of docs/posteriors.md, from the stored results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from .models import MODELS

COLOURS = {
    "TriangularAffine": "#0072b2",
    "LowRankAffine(2)": "#56b4e9",
    "DiagonalAffine": "#009e73",
    "NumPyro AutoMultivariateNormal": "#d55e00",
    "NumPyro AutoMultivariateNormal, tuned": "#e69f00",
    "NumPyro AutoNormal": "#cc79a7",
    "NumPyro AutoNormal, tuned": "#999999",
    "Pyro AutoMultivariateNormal": "#8c564b",
    "Pyro AutoNormal": "#c49c94",
    "Pathfinder": "#000000",
}


def error(row: dict[str, Any]) -> float:
    """In units of what is right: a tenth of a standard deviation of a mean, a tenth of a standard deviation itself."""
    found = max(row.get("mean_error", math.inf), row.get("sd_error", math.inf)) / 0.1
    return found if math.isfinite(found) else math.inf


def series(folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """For each model and method the runs, from short to long."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in ("ours", "jax", "pyro"):
        for model, methods in _models(folder, name).items():
            for method, rows in methods.items():
                runs = rows["float64"] if name == "ours" else [row for row in rows if "failed" not in row]
                found.setdefault(model, {})[method] = sorted(runs, key=lambda row: row["steps"])
    return found


def _models(folder: Path, name: str) -> dict[str, Any]:
    """What is stored, in the order of `MODELS`."""
    path = folder / f"{name}.json"
    stored = json.loads(path.read_text())["models"] if path.exists() else {}
    return {model: stored[model] for model in MODELS if model in stored}


def draw(folder: Path, target: Path) -> None:
    """Error against CPU seconds, one panel for each posterior."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    found = series(folder)
    across = 4
    down = -(-len(found) // across)
    figure = Figure(figsize=(3.2 * across, 2.4 * down + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    lines: dict[str, Any] = {}
    for place, (model, methods) in enumerate(found.items()):
        axes = figure.add_subplot(down, across, place + 1)
        axes.axhspan(1e-3, 1, color="#e8f4e8", linewidth=0)
        for method, rows in methods.items():
            heights = [min(error(row), 1e3) for row in rows]
            mark = "o" if "Affine" in method else "s" if method == "Pathfinder" else "^"
            (line,) = axes.plot(
                [row["cpu_seconds"] for row in rows], heights, marker=mark, markersize=4, linewidth=1.2, color=COLOURS[method]
            )
            lines.setdefault(method, line)
        axes.set(xscale="log", yscale="log", ylim=(0.05, 1.2e3))
        axes.set_title(model, fontsize="small", loc="left")
        axes.tick_params(labelsize="x-small")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(0.1, 50)
        if place % across == 0:
            axes.set_ylabel("error / what is right", fontsize="x-small")
        if place >= len(found) - across:
            axes.set_xlabel("CPU seconds", fontsize="x-small")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="x-small", frameon=False)
    figure.savefig(target, dpi=110)


def at_equal_seconds(folder: Path) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the rows of the table: worst mean and worst width, at the CPU seconds of TriangularAffine."""
    found = series(folder)
    methods = [name for name in COLOURS if any(name in rows for rows in found.values())]
    lines: list[tuple[str, ...]] = []
    right = dict.fromkeys(methods, 0)
    for model, runs in found.items():
        cells = []
        for method in methods:
            rows = runs.get(method, [])
            chosen = [row for row in rows if row.get("times", 1.0) == 1.0][-1:]
            if not chosen:
                cells.append("–")
                continue
            row = chosen[0]
            fine = error(row) <= 1
            right[method] += fine
            text = f"{_short(row['mean_error'])} / {_short(100 * row['sd_error'])} %"
            cells.append(f"**{text}**" if fine else text)
        lines.append((model, *cells))
    lines.append(("right", *(f"{right[method]} of {sum(method in runs for runs in found.values())}" for method in methods)))
    return ("posterior", *methods), lines


def _short(x: float) -> str:
    if not math.isfinite(x) or x >= 1e4:
        return "> 10⁴"
    return f"{x:.0f}" if x >= 10 else f"{x:.2f}"


def verdicts(folder: Path) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What `fit` and `diagnose` say of the results, beside what is true."""
    lines = []
    best = _models(folder, "best")
    for model, methods in _models(folder, "ours").items():
        for method, kinds in methods.items():
            row, single = kinds["float64"][-1], kinds.get("float32", [{}])[-1]
            reach = best.get(model, {}).get(method)
            told = [row["converged"].lower()] * (row["converged"] != "CONVERGED")
            told += ["k"] * (row["pareto_k"] > 0.7) + ["misses"] * (row.get("misses", 0) > 0)
            words = (_answer(reach), _answer(row), _answer(single), f"{row['pareto_k']:.2f}", ", ".join(told))
            weights = _answer(row["weighted"]) if row["reliable"] else "not to be trusted"
            lines.append((model, method, str(row["taken"]), *words, weights))
    header = ("posterior", "family", "steps", "its best member", "float64", "float32", "k", "flagged by", "weighted figures")
    return header, lines


def _answer(row: dict[str, Any] | None) -> str:
    if not row or "mean_error" not in row:
        return "–"
    return "right" if error(row) <= 1 else f"{_short(row['mean_error'])} / {_short(100 * row['sd_error'])} %"
