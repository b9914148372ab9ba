"""The filter figures of Sec. 5.1: features of additive and multiplicative networks side by side, sorted by activation.

A picture shows the weights of the first layer at the point estimate, as images: the 32 features that one test image activates
most, before the nonlinearity. The numbers describe the whole layer: how many weights carry 90 % of Σ|w|, the Gini index, and
the localisation, which is the share of a feature's Σ|w| inside its best square window with a quarter of the side (a sixteenth
of the area). The localisation, and the share and Gini index of a feature, are averages over all features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..features import feature_numbers, features_of
from ..load_run import at_point, open_run
from ..report import Picture
from ..report.images import feature_figure
from ..report.style import save
from ..run_directory import RunDirectory, RunError, writable
from .recipe import Planned
from .result import write_file
from .run import finished_runs, prepare
from .table import grid


@dataclass(frozen=True)
class Side:
    """A trained network, and what is shown of it."""

    label: str
    accuracy: float
    photograph: Tensor
    features: Tensor
    """As images (units, channels, height, width), the most active first."""
    numbers: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        n = self.numbers
        return [
            f"{self.label}, accuracy {100 * self.accuracy:.2f} %",
            f"90 % of the mass in {100 * n['carry_90_percent_share']:.0f} % of {n['weights']:,} weights",
            f"Gini index {n['feature_gini']:.2f} in a feature, {n['gini']:.2f} in the layer",
            f"localisation {n['localisation']:.2f} ({n['localisation_if_flat']:.2f} if flat)",
        ]

    @property
    def cells(self) -> list[str]:
        n = self.numbers
        figures = [f"{100 * self.accuracy:.2f}", f"{n['weights']:,}", f"{n['carry_90_percent']:,}"]
        for share, gini in (("carry_90_percent_share", "gini"), ("feature_share", "feature_gini")):
            figures += [f"{100 * n[share]:.1f}", f"{n[gini]:.3f}"]
        return [self.label, *figures, f"{n['localisation']:.3f}", f"{n['localisation_if_flat']:.3f}"]


def side_of(path: Path, label: str, image: int, data_dir: Path | None) -> Side:
    """Opens a finished run."""
    posterior, dataset, _ = open_run(path, data_dir)
    found = features_of(at_point(posterior), dataset, image)
    if found.weights is None:
        raise RunError(f"{path}: the first-layer weights of this network are not images.")
    accuracy = RunDirectory(path).finished_metrics()[-1]["test_accuracy"]
    return Side(label, accuracy, dataset.test_images[image], found.weights[found.order], feature_numbers(found.weights))


HEADINGS = (
    "picture", "network", "accuracy %", "weights", "carry 90 % of the mass", "share %", "Gini", "of a feature: share %",
    "Gini", "localisation", "if flat",
)  # fmt: skip


def draw_filters(
    runs: Sequence[Planned], chosen: Sequence[Path], output: Path, results: Path, image: int, data_dir: Path | None
) -> str:
    """Draws the chosen runs, or all finished pairs of table 1, and writes a page with their numbers."""
    pairs: dict[str, list[Side]] = {}
    if chosen:
        pairs["filters"] = [side_of(path, path.name, image, data_dir) for path in chosen]
    else:
        for run in finished_runs(runs, output):
            rule, *variant = run.method.slug.split("-")
            if rule in ("additive", "multiplicative"):
                prepare(run, data_dir)
                given, kind = run.given, "-".join([run.method.source, *variant])  # the two of a pair differ in the rule only
                budget = f"{run.scale}-e{given['epochs']}-k{given['mc_samples']}-seed{run.seed}"
                side = side_of(run.directory(output), run.method.name, image, data_dir)
                pairs.setdefault(f"filters-{run.experiment.name}-{kind}-{budget}", []).append(side)
        pairs = {name: sides for name, sides in pairs.items() if len(sides) == 2}
    if not pairs:
        raise RunError(
            f"{output} has no finished pair of additive and multiplicative runs: run liebayes reproduce table1 first, or give "
            "run directories with --runs."
        )
    with writable(results, "--results"):
        results.mkdir(parents=True, exist_ok=True)
    page = results / "figure-filters.md"
    lines = _lines_of_other_pictures(page, set(pairs))
    for name, sides in pairs.items():
        figure = feature_figure([(side.photograph, side.features, side.lines) for side in sides])
        with writable(results, "--results"):
            path = save(Picture(name, f"First-layer features: {name}", "", figure), results)
        lines += [[f"[{name}]({path.name})", *side.cells] for side in sides]
    about = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    text = "\n".join(["# First-layer features (Sec. 5.1)", "", about, "", grid(HEADINGS, lines), ""])
    write_file(page, text)
    return text


def _lines_of_other_pictures(page: Path, drawn: set[str]) -> list[list[str]]:
    """The lines of the page about existing pictures that are not drawn now."""
    if not page.exists():
        return []
    found = re.findall(r"^\| (\[([^]]+)\]\(([^)]+)\).*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.split(" | ") for line, name, file in found if name not in drawn and (page.parent / file).exists()]
