"""The sections of a report in their order: one list for the page and for the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import curves, images, numbers, tables, weights
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
        pictures=[curves.learning_curve(runs, what) for what in curves.curves_of(runs)],
    )
    yield from {"regression": _of_numbers, "multilabel": _of_labels, "classification": _of_classes}[runs[0].dataset.kind](runs)
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
    if runs[0].dataset.kind == "classification":
        yield Section(
            "uncertain",
            "Most uncertain test images",
            "The images with the largest predictive entropy.",
            pictures=[picture for run in runs for picture in images.uncertain_images(run)],
        )


def _of_classes(runs: Sequence[Evidence]) -> Iterator[Section]:
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


def _of_labels(runs: Sequence[Evidence]) -> Iterator[Section]:
    yield Section(
        "calibration",
        "Calibration",
        "Of labels predicted with a confidence of 80 %, four in five should be right.",
        pictures=[curves.reliability_diagram(runs)],
    )


def _of_numbers(runs: Sequence[Evidence]) -> Iterator[Section]:
    yield Section(
        "predictions",
        "Predictions",
        "Targets of the test data beside their predictions, and what is left of them.",
        pictures=[*numbers.bands(runs), numbers.residuals(runs)],
    )
    yield Section(
        "calibration",
        "Calibration",
        "Below the predicted 10 % quantile should lie 10 % of the targets, and so on.",
        pictures=[numbers.quantiles(runs)],
    )


def title_and_lead(runs: Sequence[Evidence]) -> tuple[str, str]:
    """The data, the number of runs, and which run is best."""
    datasets = {run.dataset.name: run.dataset for run in runs}
    title = f"{' and '.join(datasets)}: " + ("one run" if len(runs) == 1 else f"{len(runs)} runs side by side")
    parts = {
        "classification": "images in {} classes",
        "multilabel": "inputs with {} labels",
        "regression": "inputs, {} target",
    }
    data = "; ".join(
        f"{d.name}: {len(d.train_labels):,} training and {len(d.test_labels):,} test {parts[d.kind].format(d.num_classes)}"
        for d in datasets.values()
    )
    lead = f"{data[0].upper()}{data[1:]}."
    if len(runs) == 1 or len(datasets) > 1:
        return title, lead
    first = runs[0].task.figures[0]
    lead += f" {_leader(runs, 'nll', 'the lowest NLL', '.4f', -1)}"
    word = f"the {'highest' if first.sign > 0 else 'lowest'} {first.heading}"
    return title, f"{lead} {_leader(runs, first.name, word, first.form, first.sign)}"


def _leader(runs: Sequence[Evidence], name: str, word: str, form: str, sign: int) -> str:
    """Which run has the best figure, and whether that is beyond chance."""
    best = max(sign * run.metrics[name] for run in runs)
    leaders = [run for run in runs if sign * run.metrics[name] == best]
    value = format(leaders[0].metrics[name], form).replace("%", " %")
    others = [run for run in runs if run not in leaders]
    decided = len(leaders) == 1 and all(leaders[0].against(run, name).decided for run in others)
    chance = "" if decided or not others else "; the test data do not decide between it and all others"
    return f"{_have([run.name for run in leaders])} {word}, {value}{chance}."


def _have(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'}"
