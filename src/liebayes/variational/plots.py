"""A fit in one picture: the objective with its error, marginals against the posterior's, the most correlated pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..rule.importance import Diagnosis, columns, named_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILY, POSTERIOR = "#0072b2", "#d55e00"


def plot_fit(q: Any, loss: Callable[[Any], Tensor], draws: int = 4000, most: int = 6, **options: Any) -> Figure:
    """A matplotlib figure of a fitted family; `figure.savefig("fit.png")` writes it. Needs the extra `plots`.

    Args:
        q: what `fit` returned.
        loss: everything that was fitted, including the regulariser.
        draws: how many draws are weighed.
        most: how many marginals are shown: those that the weights change most.
        options: those of `q.diagnose`.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plot_fit needs matplotlib: pip install liebayes[plots]") from error
    found: Diagnosis = q.diagnose(loss, draws, **options)
    values = {name: x.double().cpu() for part, v in named_parts(found.draws).items() for name, x in columns(part, v)}
    weights = found.weights.double().cpu()
    shown = sorted(values, key=lambda name: -_difference(values[name], weights, found.own))[:most]
    pairs = _most_correlated(values, weights, 3)
    across = 3
    down = 1 + -(-len(shown) // across) + bool(pairs)
    figure = Figure(figsize=(3.4 * across, 2.5 * down), layout="constrained")
    FigureCanvasAgg(figure)  # also without a screen
    grid = figure.add_gridspec(down, across)
    _objective(figure.add_subplot(grid[0, :]), q.history, found)
    for place, name in enumerate(shown):
        axes = figure.add_subplot(grid[1 + place // across, place % across])
        _marginal(axes, name, values[name], weights, found.own, place == 0)
    chosen = torch.multinomial(weights, 1000, replacement=True, generator=torch.Generator().manual_seed(0))
    for place, (a, b) in enumerate(pairs):
        axes = figure.add_subplot(grid[down - 1, place])
        axes.plot(values[a][: found.own][:1000], values[b][: found.own][:1000], ".", color=FAMILY, alpha=0.15, markersize=3)
        axes.plot(values[a][chosen], values[b][chosen], ".", color=POSTERIOR, alpha=0.15, markersize=3)
        axes.set(xlabel=a, ylabel=b)
    return figure


def _objective(axes: Axes, history: Any, found: Diagnosis) -> None:
    """Means of ten records with their standard errors, and the final one with its own."""
    axes.set_title(found.verdict.split(":")[0].rstrip("."), fontsize="small", loc="left")
    if history is None or not history.step:
        return
    recorded = torch.tensor(history.objective, dtype=torch.float64)
    size = min(10, len(recorded))
    windows = recorded[len(recorded) % size :].reshape(-1, size)
    steps = torch.tensor(history.step)[len(recorded) % size :].reshape(-1, size).double().mean(1)
    mean, error = windows.mean(1), windows.std(1) / size**0.5 if size > 1 else torch.zeros(len(windows))
    axes.plot(steps, mean, color=FAMILY, label="objective")
    axes.fill_between(steps, mean - 2 * error, mean + 2 * error, color=FAMILY, alpha=0.25, linewidth=0)
    axes.axhline(history.final_objective, color="black", linewidth=0.8, label="at the end")
    axes.axhline(-found.log_evidence, color=POSTERIOR, linewidth=0.8, linestyle="--", label="−log evidence, by weights")
    tail = recorded[len(recorded) // 4 :]
    low, high = float(tail.min()), float(tail.max())
    axes.set_ylim(min(low, -found.log_evidence) - 0.05 * (high - low + 1), high + 0.1 * (high - low + 1))
    axes.set(xlabel="step")
    axes.legend(fontsize="x-small", frameon=False)


def _marginal(axes: Axes, name: str, x: Tensor, weights: Tensor, own: int, labelled: bool) -> None:
    low, high = torch.quantile(x[:own], torch.tensor([0.002, 0.998], dtype=x.dtype)).tolist()
    for label, color, values, w in (("family", FAMILY, x[:own], None), ("posterior", POSTERIOR, x, weights)):
        axes.hist(values, bins=50, range=(low, high), weights=w, density=True, histtype="step", color=color, label=label)
    axes.set(xlabel=name, yticks=[])
    if labelled:
        axes.legend(fontsize="x-small", frameon=False)


def _difference(x: Tensor, weights: Tensor, own: int) -> float:
    """The Kolmogorov–Smirnov distance of the weighted draws from the first ones, the family's own."""
    order = x.argsort()
    return float((weights[order].cumsum(0) - (order < own).cumsum(0) / own).abs().max())


def _most_correlated(values: dict[str, Tensor], weights: Tensor, count: int) -> list[tuple[str, str]]:
    """Pairs by the size of their correlation in the posterior."""
    names = list(values)[:200]
    x = torch.stack([values[name] for name in names])
    centred = (x - (x * weights).sum(1, keepdim=True)) * weights.sqrt()
    unit = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-300)
    correlation = (unit @ unit.mT).abs()
    places = sorted(itertools.combinations(range(len(names)), 2), key=lambda p: -float(correlation[p]))
    return [(names[i], names[j]) for i, j in places[:count]]
