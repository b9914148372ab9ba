"""Pictures made of images: first-layer features, the most uncertain test images, and out-of-distribution images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ...nn.conversion import constraints_of
from ..features import features_of
from . import mosaic
from .evidence import Evidence
from .style import INK, MUTED, WIDTH, WRONG, Picture, in_style, new_figure, short

COLUMNS = 8
FEATURES = 32
UNCERTAIN = 12
HEAD, BELOW, GAP = 0.95, 0.12, 0.5  # inches


@in_style
def feature_figure(networks: Sequence[tuple[Tensor, Tensor, Sequence[str]]]) -> Figure:
    """Networks side by side: an image with lines of text beside it, and the first features below."""
    rows = max(-(-min(len(features), FEATURES) // COLUMNS) for _, features, _ in networks)
    tall = rows * WIDTH / COLUMNS
    figure = new_figure(HEAD + BELOW + tall, len(networks) * (WIDTH + GAP) - GAP)
    for k, (photograph, features, lines) in enumerate(networks):
        left = k * (WIDTH + GAP)
        mosaic.draw(_axes(figure, left, 0, HEAD, HEAD), [mosaic.photograph(photograph)], 1)
        beside = _axes(figure, left + HEAD + 0.15, 0, WIDTH - HEAD - 0.15, HEAD)
        beside.set_axis_off()
        for j, line in enumerate(reversed(lines)):
            beside.text(0, 0.12 + 0.24 * j, line, color=INK if j == len(lines) - 1 else MUTED)
        below = _axes(figure, left, HEAD + BELOW, WIDTH, tall)
        mosaic.draw(below, [mosaic.feature(feature) for feature in features[:FEATURES]], COLUMNS)
    return figure


@in_style
def features(run: Evidence, index: int = 0) -> list[Picture]:
    """Weights of the first layer as images, sorted by their activation on one test image.

    Where signs are fixed, a second picture shows excitatory and inhibitory magnitudes side by side.
    """
    if not run.images:
        return []
    layer, weights, activation, order = features_of(run.network, run.dataset, index)
    if weights is None:
        return []
    convolution = isinstance(layer, nn.Conv2d)
    kind = "filter" if convolution else "unit"
    where = "averaged over the image" if convolution else "before the nonlinearity"
    chosen = order[:FEATURES]
    lines = [
        f"input: {run.dataset.class_names[int(run.dataset.test_labels[index])]} (test image {index})",
        f"{len(chosen)} of {len(order)} {kind}s, the most active first",
        f"activation {float(activation[chosen[0]]):.2f} to {float(activation[chosen[-1]]):.2f}",
    ]
    figure = feature_figure([(run.dataset.test_images[index], weights[chosen], lines)])
    colours = "Red excites, blue inhibits" if len(weights[0]) == 1 else "Grey is zero"
    caption = f"Sorted by activation, {where}. {colours}; each {kind} has its own scale. Dots and strokes are sparse features."
    found = [Picture(f"features-{run.slug}", f"First-layer features: {run.name}", caption, figure)]
    parts = _signed_parts(layer, weights)
    return found if parts is None else [*found, _excitatory_and_inhibitory(run, kind, parts, order[: FEATURES // 2])]


def _signed_parts(layer: nn.Module, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Excitatory and inhibitory magnitudes: the two trained tensors, or the positive and negative parts of the weight."""
    if "weight" not in constraints_of(layer):
        return None
    lists: Any = layer.parametrizations
    if hasattr(lists.weight, "original1"):
        return lists.weight.original0.detach().view_as(weight), lists.weight.original1.detach().view_as(weight)
    return weight.clamp_min(0), (-weight).clamp_min(0)


def _excitatory_and_inhibitory(run: Evidence, kind: str, parts: tuple[Tensor, Tensor], order: Tensor) -> Picture:
    columns = COLUMNS // 2
    rows = -(-len(order) // columns)
    space, title = 0.2, 0.26  # inches
    half = (WIDTH - space) / 2
    height = half / columns * rows
    figure = new_figure(height + title)
    tops = [max(float(parts[0][unit].max()), float(parts[1][unit].max()), 1e-12) for unit in order.tolist()]
    for k, (part, name, colours) in enumerate(zip(parts, ("excitatory", "inhibitory"), ("Reds", "Blues"), strict=True)):
        axes = _axes(figure, k * (half + space), title, half, height)
        axes.set_anchor("NW")
        tiles = [mosaic.coloured(part[u].mean(0) / top, colours) for u, top in zip(order.tolist(), tops, strict=True)]
        mosaic.draw(axes, tiles, columns)
        axes.set_title(name, size=9, color=INK)
    totals = [float(part.sum()) for part in parts]
    caption = (
        f"The magnitudes behind the same {kind}s: what each adds (left) and subtracts (right), on a common scale. "
        f"Excitation is {100 * totals[0] / sum(totals):.0f} % of the layer."
    )
    return Picture(f"signs-{run.slug}", f"Excitatory and inhibitory: {run.name}", caption, figure)


@in_style
def uncertain_images(run: Evidence) -> list[Picture]:
    """The test images with the largest predictive entropy, and their two likeliest classes."""
    if not run.images:
        return []
    order = run.marginal.entropy.argsort(descending=True)[:UNCERTAIN].tolist()
    columns = 4
    rows = -(-len(order) // columns)
    tile, above, below = WIDTH / (columns + 0.3 * (columns - 1)), 0.36, 0.2  # inches
    row_gap = (above + below) / tile
    figure = new_figure(rows * (tile + above + below))
    axes = _axes(figure, 0, above, WIDTH, rows * (tile + above + below) - above - below)
    tiles = [mosaic.photograph(run.dataset.test_images[i]) for i in order]
    grid = mosaic.draw(axes, tiles, columns, gap=0.3, row_gap=row_gap)
    names = run.dataset.class_names
    missed = 0
    for left, top, i in zip(grid.lefts, grid.tops, order, strict=True):
        probabilities, classes = run.marginal.probabilities[i].topk(2)
        truth = int(run.dataset.test_labels[i])
        guesses = [f"{short(names[int(c)], 9)}: {100 * float(p):.0f} %" for p, c in zip(probabilities, classes, strict=True)]
        unit = grid.height / tile  # pixels of the mosaic in an inch
        for k, text in enumerate(guesses):
            axes.text(left, top - unit * (0.2 - 0.15 * k), text, size=8.5, color=INK if k == 0 else MUTED, va="bottom")
        if int(classes[0]) != truth:
            missed += 1
            axes.text(left, top + grid.height + 0.03 * unit, f"is {short(names[truth], 11)}", size=8.5, color=WRONG, va="top")
    caption = f"Above each image: its two likeliest classes. {missed} of the {len(order)} are wrong; the true class is below."
    return [Picture(f"uncertain-{run.slug}", f"Most uncertain: {run.name}", caption, figure)]


@in_style
def outside_strip(runs: Sequence[Evidence]) -> list[Picture]:
    """Test images, and out-of-distribution images."""
    shown = {(run.dataset.name, run.outside.name): run for run in runs if run.images}
    if not shown:
        return []
    rows, title = 2, 0.3  # of each kind; inches
    tile = WIDTH / COLUMNS
    block = rows * tile + title
    figure = new_figure(2 * len(shown) * block)
    for k, run in enumerate(shown.values()):
        kinds = [(f"{run.dataset.name}: test images", run.dataset.test_images), (run.outside.name, run.outside.images)]
        for j, (name, images) in enumerate(kinds):
            axes = _axes(figure, 0, (2 * k + j) * block + title, WIDTH, rows * tile)
            mosaic.draw(axes, [mosaic.photograph(image) for image in images[: rows * COLUMNS]], COLUMNS)
            axes.set_title(name, size=9, color=INK)
    caption = "Images like the training data, and out-of-distribution images: those behind the entropies."
    return [Picture("outside", "Inside and outside", caption, figure)]


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a position in inches from the upper left corner."""
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.set_anchor("NW")
    return axes
