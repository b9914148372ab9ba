"""The sections of a report in their order: one list for the page and for the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import curves, images, tables, weights
from .evidence import Evidence
from .page import Section


def sections(runs: Sequence[Evidence], image: int = 0) -> Iterator[Section]:
    """All sections with pictures.

    Args:
        runs: see `gather`.
        image: the test image by whose activations the features are sorted.
    """
    yield Section(
        "learning",
        "Learning",
        "Performance on the test data after every epoch, with predictions averaged over samples of the weights.",
        pictures=[curves.learning_curve(runs, what) for what in curves.CURVES],
    )
    yield Section(
        "calibration",
        "Calibration",
        "Of predictions made with a confidence of 80 %, four in five should be right.",
        pictures=[curves.reliability_diagram(runs), curves.confidence_histogram(runs)],
    )
    yield Section(
        "uncertainty",
        "Inside and outside",
        "A network should be confident on images like those it was trained on, and uncertain on others.",
        [tables.outside(runs)],
        [curves.entropy_histogram(runs), *images.outside_strip(runs)],
    )
    yield Section(
        "weights",
        "Weights",
        "How the group and the base shape the distributions of the weights.",
        [tables.sparseness(runs)],
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
        "What the first layer responds to.",
        pictures=[picture for run in runs for picture in images.features(run, image)],
    )
    yield Section(
        "uncertain",
        "Most uncertain test images",
        "The images with the largest predictive entropy.",
        pictures=[picture for run in runs for picture in images.uncertain_images(run)],
    )


def title_and_lead(runs: Sequence[Evidence]) -> tuple[str, str]:
    """The data, the number of runs, and which run is best."""
    datasets = {run.dataset.name: run.dataset for run in runs}
    title = f"{' and '.join(datasets)}: " + ("one run" if len(runs) == 1 else f"{len(runs)} runs side by side")
    data = "; ".join(
        f"{d.name}: {len(d.train_labels):,} training and {len(d.test_labels):,} test images in {d.num_classes} classes"
        for d in datasets.values()
    )
    lead = f"{data[0].upper()}{data[1:]}."
    if len(runs) == 1 or len(datasets) > 1:
        return title, lead
    nll, accuracy = min(run.metrics["nll"] for run in runs), max(run.metrics["accuracy"] for run in runs)
    best = [run.name for run in runs if run.metrics["nll"] == nll]
    most_accurate = [run.name for run in runs if run.metrics["accuracy"] == accuracy]  # ties are common
    lead += f" {_have(best)} the lowest NLL, {nll:.4f}"
    if best == most_accurate:
        return title, f"{lead}, and the highest accuracy, {100 * accuracy:.2f} %."
    return title, f"{lead}; {_have(most_accurate)} the highest accuracy, {100 * accuracy:.2f} %."


def _have(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'}"
