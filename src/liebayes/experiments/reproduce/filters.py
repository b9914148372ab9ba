"""The filter figures of Sec. 5.1: features of additive and multiplicative networks side by side, ordered by activation.

A picture shows the weights of the first layer at the point estimate, as images: those 32 first that one test image excites
most, before the nonlinearity. Beside it stand numbers of the whole layer: how many weights carry 90 % of Σ|w|, the Gini index,
and the localisation, the share of a feature's Σ|w| inside its best square window of a quarter of the side (a sixteenth of the
area). The localisation, and the share and Gini index of a feature, are averages over all features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..features import activations, feature_numbers, first_layer, weight_images
from ..load_run import at_point, open_run
from ..report import Picture, mosaic
from ..report.style import INK, MUTED, in_style, save
from ..run_directory import RunDirectory, RunError, writable
from ..settings import SettingsError
from .recipe import Planned
from .result import write_whole
from .run import finished_runs, prepare
from .table import grid

COLUMNS, FEATURES = 8, 32
PANEL, GAP, HEAD, BETWEEN = 4.6, 0.5, 0.95, 0.12  # inches


@dataclass(frozen=True)
class Side:
    """A trained network, and what is shown of it."""

    label: str
    accuracy: float
    photograph: Tensor
    features: Tensor
    """As images (units, channels, height, width), the most active first."""
    numbers: dict[str, Any]


def sides_of(path: Path, label: str, image: int, data_dir: Path | None) -> Side:
    """Opens a finished run."""
    posterior, dataset, _ = open_run(path, data_dir)
    if not 0 <= image < len(dataset.test_labels):
        raise SettingsError(f"--image must be the number of a test image, 0 to {len(dataset.test_labels) - 1}, not {image}.")
    model = at_point(posterior)
    layer = first_layer(model)
    weights = weight_images(layer, dataset.image_shape)
    if weights is None:
        raise RunError(f"{path}: the first layer of this network has no weights that are images.")
    order = activations(model, layer, dataset.normalize(dataset.test_images[image : image + 1])).argsort(descending=True)
    accuracy = RunDirectory(path).finished_metrics()[-1]["test_accuracy"]
    return Side(label, accuracy, dataset.test_images[image], weights[order], feature_numbers(weights))


@in_style
def picture(name: str, title: str, sides: Sequence[Side]) -> Picture:
    """The features of networks side by side."""
    rows = max(-(-min(len(side.features), FEATURES) // COLUMNS) for side in sides)
    height = HEAD + BETWEEN + rows * PANEL / COLUMNS
    width = len(sides) * PANEL + (len(sides) - 1) * GAP
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")

    def axes_at(left: float, top: float, across: float, down: float) -> Axes:
        axes = figure.add_axes((left / width, 1 - (top + down) / height, across / width, down / height))
        axes.set_anchor("NW")
        axes.set_axis_off()
        return axes

    for k, side in enumerate(sides):
        left = k * (PANEL + GAP)
        mosaic.draw(axes_at(left, 0, HEAD, HEAD), [mosaic.photograph(side.photograph)], 1)
        words = axes_at(left + HEAD + 0.15, 0, PANEL - HEAD - 0.15, HEAD)
        words.text(0, 0.82, f"{side.label}, accuracy {100 * side.accuracy:.2f} %", color=INK, size=10, weight="bold")
        for j, text in enumerate(_words(side.numbers)):
            words.text(0, 0.58 - 0.22 * j, text, color=MUTED)
        tiles = [mosaic.feature(feature) for feature in side.features[:FEATURES]]
        mosaic.draw(axes_at(left, HEAD + BETWEEN, PANEL, height - HEAD - BETWEEN), tiles, COLUMNS)
    return Picture(name, title, "", figure)


def _words(numbers: dict[str, Any]) -> list[str]:
    return [
        f"90 % of the mass in {100 * numbers['carry_90_percent_share']:.0f} % of {numbers['weights']:,} weights",
        f"Gini index {numbers['feature_gini']:.2f} in a feature, {numbers['gini']:.2f} in the layer",
        f"localisation {numbers['localisation']:.2f} ({numbers['localisation_if_flat']:.2f} if flat)",
    ]


HEADINGS = (
    "picture",
    "network",
    "accuracy %",
    "weights",
    "carry 90 % of the mass",
    "share %",
    "Gini",
    "of a feature: share %",
    "Gini",
    "localisation",
    "if flat",
)


def draw_filters(
    runs: Sequence[Planned], chosen: Sequence[Path], output: Path, results: Path, image: int, data_dir: Path | None
) -> str:
    """Pictures of runs that were chosen, or of all finished pairs of table 1, and a page with their numbers."""
    pairs: dict[str, list[Side]] = {}
    if chosen:
        pairs["filters"] = [sides_of(path, path.name, image, data_dir) for path in chosen]
    done = (
        []
        if chosen
        else [r for r in finished_runs(runs, output) if r.method.name.split()[0] in ("additive", "multiplicative")]
    )
    for run in done:
        prepare(run, data_dir)
        given = run.given
        kind = "-".join([run.method.source, *run.method.slug.split("-")[1:]])  # two of a kind differ in the rule only
        name = f"filters-{run.experiment.name}-{kind}-{run.scale}-e{given['epochs']}-k{given['mc_samples']}-seed{run.seed}"
        pairs.setdefault(name, []).append(sides_of(run.directory(output), run.method.name, image, data_dir))
    if not chosen:
        pairs = {name: sides for name, sides in pairs.items() if len(sides) == 2}
    if not pairs:
        raise RunError(
            f"{output} has no finished pair of additive and multiplicative runs yet: run liebayes reproduce table1 first, or "
            "give run directories with --runs."
        )
    with writable(results, "--results"):
        results.mkdir(parents=True, exist_ok=True)
    page = results / "figure-filters.md"
    lines = _lines_of_other_pictures(page, set(pairs))
    for name, sides in pairs.items():
        with writable(results, "--results"):
            path = save(picture(name, f"First-layer features: {name}", sides), results)
        for side in sides:
            n = side.numbers
            figures = [f"{100 * side.accuracy:.2f}", f"{n['weights']:,}", f"{n['carry_90_percent']:,}"]
            for share, gini in (("carry_90_percent_share", "gini"), ("feature_share", "feature_gini")):
                figures += [f"{100 * n[share]:.1f}", f"{n[gini]:.3f}"]
            figures += [f"{n[key]:.3f}" for key in ("localisation", "localisation_if_flat")]
            lines.append([f"[{name}]({path.name})", side.label, *figures])
    text = "\n".join(["# First-layer features (Sec. 5.1)", "", *_about(), "", grid(HEADINGS, lines), ""])
    write_whole(page, text)
    return text


def _lines_of_other_pictures(page: Path, drawn: set[str]) -> list[list[str]]:
    """What the page says about pictures that are still there and are not drawn now."""
    if not page.exists():
        return []
    found = re.findall(r"^\| (\[([^]]+)\]\(([^)]+)\).*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.split(" | ") for line, name, file in found if name not in drawn and (page.parent / file).exists()]


def _about() -> list[str]:
    return [" ".join((__doc__ or "").split("\n\n", 1)[1].split())]
