"""Figure 1(c) of the paper: a small network that obeys Dale's law, trained on digits with the multiplicative rule.

Every hidden unit is excitatory or inhibitory: all its outgoing weights have the same sign, in training and in every posterior
sample. Their magnitudes are learned, and many fade. Inputs may excite and inhibit, so a receptive field has both colours. The
width of a line is the weight times the mean activity of its unit, its average contribution. (The weight alone says little: a
unit half as active with twice the weights does the same.) The fill of a node is its activity for the digit shown. Takes about
half a minute on one core.
"""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...metrics import accuracy
from ...nn import dale, mlp, unit_signs
from ...optim import MultiplicativeBLR
from ...posterior import Posterior
from ..features import feature_numbers
from ..run_directory import writable

INK, RED, BLUE, GREY = "#222222", "#c8102e", "#1f5fa8", "#8c8c8c"
FIELDS = LinearSegmentedColormap.from_list("fields", [BLUE, "#9dbfe0", "#ffffff", "#f0a79b", RED])
HIDDEN = (28, 18)
WIDTH = 13.0
EPOCHS, BATCH, TRAINING = 100, 100, 1400
HEIGHTS = {"input": 0.0, "fields": 1.55, "first": 2.3, "second": 4.35, "output": 6.2}


def data() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.images, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]


def train(images: Tensor, labels: Tensor, epochs: int) -> tuple[nn.Sequential, Posterior]:
    torch.manual_seed(0)
    network = dale(mlp((8, 8), hidden=HIDDEN, activation=nn.ReLU, gain=math.sqrt(2)))
    optimizer = MultiplicativeBLR(network.parameters(), lr=0.05, data_size=len(images), temperature=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(len(images) / BATCH))
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(network(images[batch]), labels[batch])
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
    return network, optimizer.posterior(network)


def arranged(signs: Tensor, strength: Tensor) -> Tensor:
    """The order of units from left to right: excitatory ones first, the strongest of each kind in the middle."""
    result: list[int] = []
    for sign in (1, -1):
        members = sorted((signs == sign).nonzero().flatten().tolist(), key=lambda j: float(strength[j]))
        result += members[::2] + members[1::2][::-1]
    return torch.tensor(result)


def places(count: int, width: float, gap_after: int | None = None) -> list[float]:
    """Centred positions of units, with a gap between the two kinds."""
    gap = 0.0 if gap_after is None else 0.8
    step = width / (count - 1 + gap)
    return [-width / 2 + step * (i + (gap if gap_after is not None and i >= gap_after else 0.0)) for i in range(count)]


def draw_edges(axes: Axes, weight: Tensor, below: list[float], above: list[float], y: tuple[float, float]) -> None:
    """The weights (above, below) as curves, the strongest on top."""
    curve = torch.linspace(0, 1, 40)
    bend = 3 * curve**2 - 2 * curve**3
    strength = (weight.abs() / weight.abs().max()).flatten()
    lines, colours, widths = [], [], []
    for index in strength.argsort().tolist():
        i, j = divmod(index, weight.shape[1])
        share = float(strength[index])
        if share < 0.01:
            continue
        x = below[j] + (above[i] - below[j]) * bend
        lines.append(torch.stack([x, y[0] + (y[1] - y[0]) * curve], 1).numpy())
        colours.append(to_rgba(RED if weight[i, j] > 0 else BLUE, min(1.0, 0.12 + 0.8 * share**0.7)))
        widths.append(0.3 + 3.2 * share)
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=widths, capstyle="round", zorder=2))


def draw_nodes(axes: Axes, x: list[float], y: float, activity: Tensor, signs: Tensor) -> None:
    """Units, filled according to their activity."""
    share = activity / activity.max().clamp_min(1e-9)
    for place, level, sign in zip(x, share.tolist(), signs.tolist(), strict=True):
        colour = RED if sign > 0 else BLUE
        axes.scatter(place, y, s=105, color="white", edgecolor=colour, linewidth=1.5, zorder=4)
        axes.scatter(place, y, s=105, color=to_rgba(colour, 0.1 + 0.9 * level), edgecolor="none", zorder=5)


def small_share(*weights: Tensor) -> float:
    return float(torch.cat([(weight.abs() < 0.05 * weight.abs().max()).flatten() for weight in weights]).float().mean())


def picture(axes: Axes, values: Tensor, x: float, y: float, size: float, **style: object) -> None:
    box = (x - size / 2, x + size / 2, y - size / 2, y + size / 2)
    axes.imshow(values.numpy(), extent=box, zorder=3, interpolation="nearest", **style)  # pyright: ignore


def draw(network: nn.Sequential, posterior: Posterior, images: Tensor, image: Tensor, score: float) -> Figure:
    """The network, with the activities that one image causes."""
    W1, W2, W3 = (layer.weight.detach() for layer in network if isinstance(layer, nn.Linear))
    first, second = unit_signs(HIDDEN[0]), unit_signs(HIDDEN[1])
    with torch.no_grad():
        W2, W3 = W2 * network[:3](images).mean(0), W3 * network[:5](images).mean(0)
        activity1, activity2 = network[:3](image.unsqueeze(0))[0], network[:5](image.unsqueeze(0))[0]
    order1, order2 = arranged(first, W2.abs().sum(0)), arranged(second, W3.abs().sum(0))
    W1, W2, W3 = W1[order1], W2[order2][:, order1], W3[:, order2]
    first, second = first[order1], second[order2]
    x1 = places(HIDDEN[0], WIDTH, int((first > 0).sum()))
    x2 = places(HIDDEN[1], WIDTH * 0.86, int((second > 0).sum()))
    x3 = places(10, WIDTH * 0.62)
    figure = Figure(figsize=(13.2, 7.6))
    axes = figure.add_subplot()
    axes.set(xlim=(-WIDTH / 2 - 1.15, WIDTH / 2 + 0.35), ylim=(-0.75, 7.75))
    axes.set_aspect("equal")
    axes.axis("off")
    draw_input(axes, image, W1, x1, first)
    draw_edges(axes, W2, x1, x2, (HEIGHTS["first"], HEIGHTS["second"]))
    draw_edges(axes, W3, x2, x3, (HEIGHTS["second"], HEIGHTS["output"]))
    draw_nodes(axes, x1, HEIGHTS["first"], activity1[order1], first)
    draw_nodes(axes, x2, HEIGHTS["second"], activity2[order2], second)
    draw_output(axes, x3, posterior.predict(image.unsqueeze(0), samples=200).probabilities[0])
    fields = feature_numbers(W1.view(-1, 1, 8, 8))
    draw_words(
        axes,
        f"receptive fields: 90 % of the mass in {100 * fields['carry_90_percent_share']:.0f} % of\nthe weights, Gini index "
        f"{fields['gini']:.2f}, localisation {fields['localisation']:.2f}\n({fields['localisation_if_flat']:.2f} if flat)\n"
        f"{100 * small_share(W2, W3):.0f} % of the hidden connections contribute\n"
        f"less than 5 % of their layer's strongest\ntest accuracy {100 * score:.1f} %",
    )
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995)
    return figure


def draw_input(axes: Axes, image: Tensor, fields: Tensor, x: list[float], signs: Tensor) -> None:
    """The image, and above it the receptive fields of the first layer."""
    picture(axes, image, 0.0, HEIGHTS["input"], 1.3, cmap="Greys", vmin=0, vmax=1)
    axes.add_patch(Rectangle((-0.65, HEIGHTS["input"] - 0.65), 1.3, 1.3, fill=False, ec=GREY, lw=0.8, zorder=4))
    size = 0.42
    fan = [[(place * 0.09, HEIGHTS["input"] + 0.65), (place, HEIGHTS["fields"] - size / 2)] for place in x]
    axes.add_collection(LineCollection(fan, colors="#cccccc", linewidths=0.6, zorder=1))
    for place, field, sign in zip(x, fields, signs, strict=True):
        bound = float(field.abs().max())
        picture(axes, field.view(8, 8), place, HEIGHTS["fields"], size, cmap=FIELDS, vmin=-bound, vmax=bound)
        corner = (place - size / 2, HEIGHTS["fields"] - size / 2)
        axes.add_patch(Rectangle(corner, size, size, fill=False, ec=RED if sign > 0 else BLUE, lw=1.1, zorder=4))
        axes.plot([place] * 2, [HEIGHTS["fields"] + size / 2, HEIGHTS["first"]], color="#cccccc", lw=0.8, zorder=1)


def draw_output(axes: Axes, x: list[float], probabilities: Tensor) -> None:
    """The classes, with their predictive probabilities as bars."""
    y = HEIGHTS["output"]
    for digit, (place, p) in enumerate(zip(x, probabilities.tolist(), strict=True)):
        chosen = digit == int(probabilities.argmax())
        weight = "bold" if chosen else "normal"
        axes.scatter(place, y, s=260, color="white", edgecolor=INK, linewidth=1.8 if chosen else 0.8, zorder=5)
        axes.text(place, y - 0.01, str(digit), ha="center", va="center", fontsize=10, color=INK, zorder=6, weight=weight)
        axes.add_patch(Rectangle((place - 0.2, y + 0.33), 0.4, 0.8 * p, color=INK if chosen else GREY))
        axes.plot([place - 0.2, place + 0.2], [y + 0.33] * 2, color=GREY, lw=0.8)


def draw_words(axes: Axes, facts: str) -> None:
    left = -WIDTH / 2 - 1.1
    labels = {
        HEIGHTS["fields"]: "receptive\nfields",
        HEIGHTS["first"] + 0.28: "hidden 1",
        HEIGHTS["second"] + 0.28: "hidden 2",
        HEIGHTS["output"]: "class, and its predictive probability",
        HEIGHTS["input"]: "input",
    }
    for y, text in labels.items():
        axes.text(left, y, text, ha="left", va="center", fontsize=9.5, color="#555555")
    axes.text(left, 7.5, "(c) Dale's law: a unit excites or inhibits, never both", fontsize=14, weight="bold", color=INK)
    handles = [
        Line2D([], [], color=colour, lw=2.5, marker="o", markersize=8, label=f"{kind} unit and its outgoing weights")
        for colour, kind in ((RED, "excitatory"), (BLUE, "inhibitory"))
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.575, 0.0), frameon=False, fontsize=9.5)
    axes.text(0.08, 0.075, facts, transform=axes.transAxes, fontsize=9.5, color="#555555", va="center")


def draw_figure1c(output: Path, name: str, epochs: int) -> Path:
    """Trains the network, and writes its picture into a folder."""
    images, labels = data()
    with torch.random.fork_rng(devices=[]):
        network, posterior = train(images[:TRAINING], labels[:TRAINING], epochs)
    probabilities = posterior.predict(images[TRAINING:], samples=32).probabilities
    score = accuracy(probabilities, labels[TRAINING:])
    shown = TRAINING + int((probabilities.max(1)[0] - 0.7).abs().argmin())  # a digit that the network is not quite certain of
    path = output / f"{name}.png"
    file = BytesIO()
    draw(network, posterior, images[:TRAINING], images[shown], score).savefig(file, dpi=105)
    small = Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)  # a third of the size
    with writable(path, "--results"):
        path.parent.mkdir(parents=True, exist_ok=True)
        small.save(path, optimize=True)
    return path
