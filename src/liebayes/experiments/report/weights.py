"""Weights and their standard deviations, and why multiplicative networks are sparse (Sec. 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...metrics import sparsity
from .evidence import Evidence
from .style import MUTED, Picture, colour, in_style, legend, line_style, one_panel, panel_title, panels, plain_numbers

POINTS = 3000
"""Dots per panel."""


@in_style
def weight_histogram(runs: Sequence[Evidence]) -> Picture:
    """All weights at the point estimate."""
    figure, axes = one_panel()
    reach = max(float(_quantile(run.effective_weights.abs(), 0.999)) for run in runs)
    edges = np.linspace(-reach, reach, 81).tolist()
    for run in runs:
        values = run.effective_weights.numpy()
        shares = np.full(len(values), 100 / len(values))
        axes.hist(values, edges, weights=shares, histtype="step", color=colour(run.number), ls=line_style(run.number),
                  lw=1.4)  # fmt: skip
    axes.set(xlabel="weight", ylabel="% of weights", yscale="log", xlim=(-reach, reach))
    plain_numbers(axes.yaxis)
    legend(figure, runs)
    found = {run.name: sparsity(run.effective_weights).below for run in runs}
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.items())
    caption = f"A high peak at zero with long tails is a sparse network. Weights below 1 % of the largest: {text}."
    return Picture("weights", "Weights", caption, figure)


@in_style
def mass_curve(runs: Sequence[Evidence]) -> Picture:
    """The share of Σ|w| in the largest weights."""
    figure, axes = one_panel()
    for run in runs:
        sizes = run.effective_weights.double().abs().sort(descending=True)[0]
        carried = 100 * sizes.cumsum(0) / sizes.sum()
        shown = torch.linspace(0, len(sizes) - 1, min(400, len(sizes))).long()
        shares = 100 * (shown + 1) / len(sizes)
        style: Any = {"color": colour(run.number), "ls": line_style(run.number)}
        axes.plot([0, *shares.tolist()], [0, *carried[shown].tolist()], **style)
    axes.plot([0, 100], [0, 100], color=MUTED, lw=0.6, ls="--")
    axes.axhline(90, color=MUTED, lw=0.6, ls=":")
    axes.set(xlim=(0, 100), ylim=(0, 101), xlabel="% of the weights, the largest first", ylabel="% of Σ|w|")
    legend(figure, runs)
    sparsest = min(runs, key=lambda run: sparsity(run.effective_weights).mass_share)
    share = sparsity(sparsest.effective_weights).mass_share
    caption = (
        f"The steeper a curve rises, the fewer weights matter. In {sparsest.name}, {100 * share:.0f} % of the weights carry "
        "90 % of the total. Dashed: equal weights."
    )
    return Picture("mass", "Share of the largest weights", caption, figure)


@in_style
def scale_histogram(runs: Sequence[Evidence]) -> list[Picture]:
    """The posterior standard deviation of every trained weight. A point has none."""
    chosen = [run for run in runs if not run.is_point]
    if not chosen:
        return []
    figure, axes = one_panel()
    spreads = [run.stddev().double().clamp_min(1e-30).log10() for run in chosen]
    low = min(float(_quantile(s, 0.001)) for s in spreads) - 0.1
    high = max(float(s.max()) for s in spreads) + 0.1
    edges = np.logspace(low, high, 71).tolist()
    for run, s in zip(chosen, spreads, strict=True):
        values = (10 ** s.clamp(low, high)).numpy()
        shares = np.full(len(values), 100 / len(values))
        axes.hist(values, edges, weights=shares, histtype="step", color=colour(run.number), ls=line_style(run.number),
                  lw=1.4)  # fmt: skip
    axes.set(xlabel="standard deviation of a weight", ylabel="% of weights", xscale="log", yscale="log")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    legend(figure, chosen)
    caption = (
        "The additive group cannot change the width of its base, so all weights have the same standard deviation. The affine "
        "and the Kronecker group learn them; from samples alone slowly, so that in a short run they stay near that of the "
        "base. In the multiplicative group they are proportional to the weights."
    )
    return [Picture("scales", "Standard deviations", caption, figure)]


@in_style
def mean_against_entropy(runs: Sequence[Evidence]) -> list[Picture]:
    """The size of each weight's mean against the entropy of its distribution."""
    chosen = [run for run in runs if not run.is_point]
    if not chosen:
        return []
    figure, all_axes = panels(len(chosen))
    for run, axes in zip(chosen, all_axes, strict=True):
        mean, entropy = (t.double() for t in run.mean_and_entropy())
        correlation = _rank_correlation(mean, entropy)
        shown = torch.randperm(len(mean), generator=torch.Generator().manual_seed(0))[:POINTS]
        axes.scatter(
            mean[shown].clamp_min(1e-12).numpy(),
            entropy[shown].numpy(),
            s=3,
            alpha=0.35,
            lw=0,
            color=colour(run.number),
            rasterized=True,
        )
        axes.set(xscale="log")
        plain_numbers(axes.xaxis)
        panel_title(
            axes,
            run.number,
            run.name,
            "fixed entropy" if correlation is None else f"rank correlation {correlation:.2f}".replace("-", "−"),
        )
    # A few weights near zero would otherwise compress the axes.
    means, entropies = (torch.cat([run.mean_and_entropy()[k].double() for run in chosen]) for k in (0, 1))
    all_axes[0].set_xlim(float(_quantile(means, 0.002)) / 1.5, float(means.max()) * 1.5)
    all_axes[0].set_ylim(float(_quantile(entropies, 0.002)) - 0.5, float(entropies.max()) + 0.5)
    figure.supxlabel("size of the mean", size=9, color=MUTED)
    figure.supylabel("entropy in nats", size=9, color=MUTED)
    caption = (
        "Each dot is a trained weight (a magnitude, where signs are fixed). In the multiplicative family a large mean implies "
        "a large entropy: large weights are noisy, so those that are not needed shrink, and the network becomes sparse "
        "(Sec. 5.1). In the other groups mean and entropy are independent."
    )
    return [Picture("mean-entropy", "Mean against entropy", caption, figure)]


def _rank_correlation(x: Tensor, y: Tensor) -> float | None:
    """Spearman's correlation; None if one of them is constant."""
    if float(y.max() - y.min()) < 1e-9 or float(x.max() - x.min()) == 0:
        return None
    ranks = torch.stack([v.argsort().argsort().double() for v in (x, y)])
    return float(torch.corrcoef(ranks)[0, 1])


def _quantile(values: Tensor, q: float) -> Tensor:
    """torch.quantile refuses tensors of more than 16 million entries."""
    return values.flatten().sort()[0][min(int(q * values.numel()), values.numel() - 1)]
