"""Pictures made of images: features of the first layer, test images a run is unsure about, images from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ...nn.conversion import constraints_of
from ..features import activations, weight_images
from ..settings import SettingsError
from . import mosaic
from .evidence import Evidence
from .style import INK, MUTED, WIDTH, WRONG, Picture, in_style, new_figure, short

COLUMNS = 8
FEATURES = 32
UNCERTAIN = 12


@in_style
def features(run: Evidence, index: int = 0) -> list[Picture]:
    """Weights of the first layer as images, those first that one test image excites most.

    With signs fixed, excitatory and inhibitory magnitudes are shown side by side.
    """
    if not run.images:
        return []
    if not 0 <= index < len(run.dataset.test_labels):
        raise SettingsError(f"--image must be the number of a test image, 0 to {len(run.dataset.test_labels) - 1}.")
    weight, order, activation = _first_layer(run, index)
    if weight is None:
        return []
    chosen = order[:FEATURES]
    convolution = isinstance(run.layers[0][1], nn.Conv2d)
    kind = "filter" if convolution else "unit"
    label = run.dataset.class_names[int(run.dataset.test_labels[index])]
    rows = -(-len(chosen) // COLUMNS)
    head, tile = 0.95, WIDTH / COLUMNS  # inches
    figure = new_figure(head + 0.12 + tile * rows)
    below = _axes(figure, 0, head + 0.12, WIDTH, tile * rows)
    mosaic.draw(below, [mosaic.feature(weight[unit]) for unit in chosen.tolist()], COLUMNS)
    mosaic.draw(_axes(figure, 0, 0, head, head), [mosaic.photograph(run.dataset.test_images[index])], 1)
    strongest, weakest = float(activation[chosen[0]]), float(activation[chosen[-1]])
    words = _axes(figure, head + 0.15, 0, WIDTH - head - 0.15, head)
    words.set_axis_off()
    words.text(0, 0.6, f"input: {label} (test image {index})", color=INK)
    words.text(0, 0.36, f"{len(chosen)} of {len(order)} {kind}s, the most active first", color=MUTED)
    words.text(0, 0.12, f"activation {strongest:.2f} to {weakest:.2f}", color=MUTED)
    where = "averaged over the image" if convolution else "before the nonlinearity"
    colours = "Red excites, blue inhibits" if len(weight[0]) == 1 else "Grey is zero"
    caption = (
        f"Sorted by activation {where}. {colours}, each {kind} on its own scale. Lone dots and strokes are sparse features."
    )
    found = [Picture(f"features-{run.slug}", f"First-layer features: {run.name}", caption, figure)]
    parts = _signed_parts(run.layers[0][1], weight)
    if parts is not None:
        found.append(_excitatory_and_inhibitory(run, kind, parts, order[: FEATURES // 2]))
    return found


def _first_layer(run: Evidence, index: int) -> tuple[Tensor | None, Tensor, Tensor]:
    """The weights as images (units, channels, height, width), units sorted by activation, and the activations."""
    layer = run.layers[0][1]
    activation = activations(run.network, layer, run.dataset.normalize(run.dataset.test_images[index : index + 1]))
    weight = weight_images(layer, run.dataset.image_shape)
    return weight, activation.argsort(descending=True), activation


def _signed_parts(layer: nn.Module, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Excitatory and inhibitory magnitudes: the two that were trained, or the parts of the weight where its sign is fixed."""
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
        f"The magnitudes behind the same {kind}s: what each adds (left) and what it takes away (right), both on one scale. "
        f"Excitation makes {100 * totals[0] / sum(totals):.0f} % of the layer."
    )
    return Picture(f"signs-{run.slug}", f"Excitatory and inhibitory: {run.name}", caption, figure)


@in_style
def uncertain_images(run: Evidence) -> list[Picture]:
    """The test images with the largest predictive entropy, and the classes that come into question."""
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
    caption = f"Above each image its two likeliest classes. {missed} of these {len(order)} are wrong: the true class is below."
    return [Picture(f"uncertain-{run.slug}", f"Most uncertain: {run.name}", caption, figure)]


@in_style
def outside_strip(runs: Sequence[Evidence]) -> list[Picture]:
    """Test images, and images from outside."""
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
    caption = "What the networks were trained for, and what they were not: the images behind the entropies."
    return [Picture("outside", "Inside and outside", caption, figure)]


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.set_anchor("NW")
    return axes
