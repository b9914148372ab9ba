"""Pictures of numbers that were predicted: with their bands, their residuals, and the calibration of their quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...metrics import quantile_calibration
from ..tasks import NINETY
from .evidence import Evidence
from .style import INK, MUTED, Picture, colour, in_style, legend, line_style, one_panel, panel_title, panels

MOST = 150
"""Targets in one picture of bands."""


@in_style
def bands(runs: Sequence[Evidence]) -> list[Picture]:
    """For every target, its values beside the intervals that should hold 90 % of them, in the order of the predictions."""
    found = []
    for target, name in enumerate(runs[0].dataset.class_names):
        figure, all_axes = panels(len(runs))
        for run, axes in zip(runs, all_axes, strict=True):
            mean, variance, truth = (_column(part, target) for part in _parts(run))
            order = mean.argsort()[:: max(1, len(mean) // MOST)]
            place, half = np.arange(len(order)), NINETY * np.sqrt(variance[order])
            axes.fill_between(place, mean[order] - half, mean[order] + half, color=colour(run.number), alpha=0.25, lw=0)
            axes.plot(place, mean[order], color=colour(run.number), lw=1.2)
            axes.plot(place, truth[order], ls="", marker=".", ms=3, color=INK)
            axes.set_xticks([])
            panel_title(axes, run.number, run.name, f"{100 * run.metrics['coverage']:.0f} % inside")
        figure.supylabel(name, size=9, color=MUTED)
        caption = "Dots: test targets, in the order of their predictions. Band: it should hold 90 % of them."
        found.append(Picture(f"bands-{target + 1}", f"Predictions of {name}", caption, figure))
    return found


@in_style
def residuals(runs: Sequence[Evidence]) -> Picture:
    """(target − mean)/σ beside the standard normal density that it should have."""
    figure, all_axes = panels(len(runs))
    edges = np.linspace(-4, 4, 33)
    centres = (edges[1:] + edges[:-1]) / 2
    for run, axes in zip(runs, all_axes, strict=True):
        mean, variance, truth = (part.numpy() for part in _parts(run))
        scaled = ((truth - mean) / np.sqrt(variance)).flatten()
        axes.hist(scaled.clip(-4, 4), edges.tolist(), density=True, color=colour(run.number), alpha=0.45, lw=0)
        axes.plot(centres, np.exp(-0.5 * centres**2) / np.sqrt(2 * np.pi), color=INK, lw=1.0)
        axes.set(yticks=[], xticks=[-4, -2, 0, 2, 4])
        panel_title(axes, run.number, run.name, f"RMSE {run.metrics['rmse']:.4g}")
    figure.supxlabel("residual in predicted standard deviations", size=9, color=MUTED)
    caption = "Line: what residuals of right predictions look like. Wider is overconfident, narrower too careful."
    return Picture("residuals", "Residuals", caption, figure)


@in_style
def quantiles(runs: Sequence[Evidence]) -> Picture:
    """The share of targets below each predicted quantile."""
    figure, axes = one_panel()
    for run in runs:
        mean, variance, truth = _parts(run)
        found = quantile_calibration(mean, variance, truth)
        axes.plot(found.levels, found.observed, color=colour(run.number), ls=line_style(run.number), marker="o", ms=3)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.6, ls="--")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted quantile", ylabel="share of targets below", aspect="equal")
    legend(figure, runs)
    errors = ", ".join(f"{run.name} {run.metrics['calibration']:.3f}" for run in runs)
    return Picture("quantiles", "Calibration of quantiles", f"Mean distance from the diagonal: {errors}.", figure)


def _parts(run: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    return run.marginal.mean, run.marginal.variance, run.dataset.test_labels


def _column(values: Tensor, target: int) -> Any:
    return values.reshape(len(values), -1)[:, target].numpy()
