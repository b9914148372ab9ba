"""The pictures of a report in their order: one list for the page and for the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import curves, images, weights
from .evidence import Evidence
from .style import Picture


@dataclass(frozen=True)
class Section:
    """Some pictures under one heading."""

    name: str
    heading: str
    lead: str
    pictures: list[Picture]


def sections(runs: Sequence[Evidence], image: int = 0) -> Iterator[Section]:
    """All pictures of runs.

    Args:
        runs: see `gather`.
        image: the test image that sorts the features.
    """
    yield Section(
        "learning",
        "Learning",
        "The test data after every epoch, judged by the predictive marginal: the average over draws of the weights.",
        [curves.learning_curve(runs, what) for what in curves.CURVES],
    )
    yield Section(
        "calibration",
        "Calibration",
        "Of predictions made with a confidence of 80 %, four in five should be right.",
        [curves.reliability_diagram(runs), curves.confidence_histogram(runs)],
    )
    yield Section(
        "uncertainty",
        "Inside and outside",
        "A network should be sure about images like those it was trained on, and unsure about others.",
        [curves.entropy_histogram(runs), *images.outside_strip(runs)],
    )
    yield Section(
        "weights",
        "Weights",
        "What the group and the base make of the weights' distributions.",
        [
            weights.weight_histogram(runs),
            weights.mass_curve(runs),
            *weights.scale_histogram(runs),
            *weights.mean_against_entropy(runs),
        ],
    )
    yield Section(
        "features",
        "Features",
        "What the first layer looks for in an image.",
        [picture for run in runs for picture in images.features(run, image)],
    )
    yield Section(
        "uncertain",
        "Most uncertain test images",
        "The images with the largest predictive entropy.",
        [picture for run in runs for picture in images.uncertain_images(run)],
    )
