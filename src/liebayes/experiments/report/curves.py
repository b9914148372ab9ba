"""Learning curves, calibration and uncertainty: pictures of the predictions of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ...metrics import reliability
from .evidence import Evidence, comparable
from .style import (
    INK,
    MUTED,
    OUTSIDE,
    Picture,
    colour,
    in_style,
    legend,
    line_style,
    one_panel,
    panel_title,
    panels,
    plain_numbers,
)

CURVES = {
    "error": ("Test error", "test error in %"),
    "nll": ("Test negative log-likelihood", "NLL in nats"),
    "ece": ("Expected calibration error", "ECE"),
    "rmse": ("Root mean square error", "RMSE"),
    "crps": ("Continuous ranked probability score", "CRPS"),
    "train_loss": ("Training loss at sampled weights", "loss in nats"),
}


def curves_of(runs: Sequence[Evidence]) -> list[str]:
    """Which of `CURVES` the runs have."""
    return (
        ["rmse", "nll", "crps", "train_loss"]
        if runs[0].dataset.kind == "regression"
        else ["error", "nll", "ece", "train_loss"]
    )


@in_style
def learning_curve(runs: Sequence[Evidence], what: str) -> Picture:
    """One of `CURVES` over epochs: a line for the predictive marginal, dots for the point estimate."""
    title, label = CURVES[what]
    figure, axes = one_panel()
    for run in runs:
        marginal = _series(run, what, "test")
        few = "o" if len(marginal[0]) < 4 else None  # short lines are hard to see
        axes.plot(*marginal, color=colour(run.number), ls=line_style(run.number), marker=few, ms=4)
        if what != "train_loss" and not run.is_point:
            axes.plot(*_series(run, what, "point"), color=colour(run.number), ls=":", lw=1.0)
    positive = all(value > 0 for run in runs for value in _figures(run, what, "test")[1])  # densities have negative NLLs
    axes.set(xlabel="epoch", ylabel=label, yscale="log" if positive or what == "error" else "linear")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, max((run.lines[-1]["epoch"] for run in runs if run.lines), default=1) * 1.02 + 0.2)
    if axes.get_yscale() == "log":
        _plain_log(axes)
    legend(figure, runs)
    ends = {run.name: _figures(run, what, "test")[1][-1] for run in runs}
    final = min(ends.values())
    best = " and ".join(name for name, end in ends.items() if end == final)
    value = f"{final:.2f} %" if what == "error" else f"{final:.4f}"
    dotted = "" if what == "train_loss" or all(run.is_point for run in runs) else " Dotted: the point estimate alone."
    lowest = f"Lowest at the end: {best}, {value}." if len(runs) > 1 else f"{value} at the end."
    caption = f"{lowest}{dotted}" if comparable(runs) else dotted.strip()
    return Picture(f"learning-{what.replace('_', '-')}", title, caption, figure)


def _figures(run: Evidence, what: str, prefix: str) -> tuple[list[int], list[float]]:
    lines = run.lines if what == "train_loss" else [line for line in run.lines if f"{prefix}_nll" in line]
    values = {
        "train_loss": lambda line: line["train_loss"],
        "error": lambda line: 100 * (1 - line[f"{prefix}_accuracy"]),
    }.get(what, lambda line: line[f"{prefix}_{what}"])
    return [line["epoch"] for line in lines], [values(line) for line in lines]


def _series(run: Evidence, what: str, prefix: str) -> tuple[list[int], list[float]]:
    """Values for a logarithmic axis, where an error of zero is drawn as half an image."""
    epochs, values = _figures(run, what, prefix)
    least = 50 / len(run.dataset.test_labels) if what == "error" else -math.inf
    return epochs, [max(value, least) for value in values]


def _plain_log(axes: Axes) -> None:
    """Enough ticks with plain numbers on a logarithmic axis."""
    low, high = axes.get_ylim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ([1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]):
        if len(ticks) < 3:
            ticks = [t for t in (s * 10.0**e for e in powers for s in steps) if low <= t <= high]
    if len(ticks) < 3:  # within a small part of a decade the axis is nearly linear
        ticks = [t for t in MaxNLocator(4).tick_values(low, high) if low <= t <= high]
    axes.set_yticks(ticks)
    plain_numbers(axes.yaxis)


@in_style
def reliability_diagram(runs: Sequence[Evidence], bins: int = 10) -> Picture:
    """Accuracy by confidence, in a panel for each run."""
    figure, all_axes = panels(len(runs))
    for run, axes in zip(runs, all_axes, strict=True):
        several = run.dataset.kind == "multilabel"  # every label of every input is a prediction of its own
        probabilities = run.marginal.probabilities.flatten(0, 1) if several else run.marginal.probabilities
        diagram = reliability(probabilities, run.dataset.test_labels.flatten().long(), bins)
        left, width = diagram.edges[:-1].numpy(), 1 / bins
        share = (diagram.counts / diagram.counts.sum()).numpy()
        heights = diagram.accuracy.nan_to_num(0.0).numpy()
        centres = np.where(diagram.counts.numpy() > 0, diagram.confidence.nan_to_num(0.0).numpy(), 0)
        for x, y, s, c in zip(left, heights, share, centres, strict=True):
            if s > 0:
                axes.bar(x, y, width, align="edge", color=colour(run.number), alpha=float(0.25 + 0.75 * s**0.35), lw=0)
                axes.plot([x + 0.1 * width, x + 0.9 * width], [c, c], color=INK, lw=1.2)
        axes.plot([0, 1], [0, 1], color=MUTED, lw=0.6, ls="--")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        panel_title(axes, run.number, run.name, f"ECE {run.metrics['ece']:.4f}")
    figure.supxlabel("confidence", size=9, color=MUTED)
    figure.supylabel("accuracy", size=9, color=MUTED)
    caption = (
        "A bar is the accuracy of predictions with similar confidence, in a stronger colour if there are more of them; the "
        "line is their mean confidence. A bar below its line is overconfident. The ECE has 20 bins, the picture 10."
    )
    return Picture("reliability", "Reliability", caption, figure)


@in_style
def confidence_histogram(runs: Sequence[Evidence]) -> Picture:
    """The confidence of right and of wrong predictions."""
    figure, all_axes = panels(len(runs))
    edges = np.linspace(0, 1, 21).tolist()
    for run, axes in zip(runs, all_axes, strict=True):
        confidence, guess = (t.numpy() for t in run.marginal.probabilities.max(1))
        right = guess == run.dataset.test_labels.numpy()
        axes.hist(confidence[right], edges, color=colour(run.number), alpha=0.45, lw=0, label="right")
        axes.hist(confidence[~right], edges, histtype="step", color=INK, lw=1.2, label="wrong")
        axes.set(yscale="log", xlim=(0, 1), xticks=[0, 0.5, 1])
        plain_numbers(axes.yaxis)
        axes.set_ylim(bottom=0.5)
        wrong = f"{int((~right).sum())} wrong" + (
            f", {int((confidence[~right] > 0.9).sum())} above 0.9" if (~right).any() else ""
        )
        panel_title(axes, run.number, run.name, wrong)
    figure.supxlabel("confidence", size=9, color=MUTED)
    figure.supylabel("test images", size=9, color=MUTED)
    caption = "Filled: right predictions. Outlined: wrong ones, which should be on the left."
    return Picture("confidence", "Confidence", caption, figure)


@in_style
def entropy_histogram(runs: Sequence[Evidence]) -> Picture:
    """Predictive entropy on test images and on out-of-distribution images."""
    figure, all_axes = panels(len(runs))
    top = max(math.log(run.dataset.num_classes) for run in runs)
    edges = np.linspace(0, top, 25).tolist()
    for run, axes in zip(runs, all_axes, strict=True):
        for values, style in (
            (run.marginal.entropy, {"color": colour(run.number), "alpha": 0.45, "lw": 0}),
            (run.marginal_outside.entropy, {"histtype": "step", "color": OUTSIDE, "lw": 1.4}),
        ):
            weights = np.full(len(values), 100 / len(values))
            axes.hist(values.clamp(0, top).numpy(), edges, weights=weights, **style)
        axes.set(xlim=(0, top), yscale="log")
        plain_numbers(axes.yaxis)
        panel_title(axes, run.number, run.name, f"AUROC {run.auroc_entropy.value:.3f}")
    figure.supxlabel("predictive entropy in nats", size=9, color=MUTED)
    figure.supylabel("% of images", size=9, color=MUTED)
    names = ", ".join(dict.fromkeys(run.outside.name for run in runs))
    caption = (
        f"Filled: test images. Grey line: {names}. The further the line lies to the right of the filled part, the better a "
        "run detects what it was not trained on: an AUROC of 1 is perfect separation, 0.5 is chance."
    )
    return Picture("entropy", "Entropy inside and outside", caption, figure)
