"""Predictions under shift: accuracy, NLL and ECE of trained runs on corrupted test images (`liebayes.data.corruptions`).

Every run has one file of results, so that runs that end on different days fill one table and one picture.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..data.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from .load_run import open_run
from .run_directory import RunDirectory, RunError, provenance
from .settings import SettingsError
from .train import evaluate, predictive_samples

KINDS = ("accuracy", "nll", "ece")
Result = dict[str, Any]


def measure_shift(
    runs: Sequence[Path], output: Path, samples: int, images: int | None, data_dir: Path | None
) -> dict[str, list[Result]]:
    """Evaluates the runs that have no result in the output, and writes the table and the picture of all that have one."""
    names = [_name(path) for path in runs]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"two runs are called {name}, so their results would be one file: give one of them at a time.")
    files = RunDirectory(output)
    for path, name in zip(runs, names, strict=True):
        asked = {"date": RunDirectory(path).read_json("environment.json").get("date"), "samples": samples, "images": images}
        file = output / f"{name}.json"
        if file.exists() and {key: _read(file).get(key) for key in asked} == asked:
            print(f"{name}: measured before", flush=True)
            continue
        found = {"run": name, **asked, **_measured(path, samples, images, data_dir)}
        output.mkdir(parents=True, exist_ok=True)
        files.write_json(file.name, found, alone=False)
        print(f"{name}: {_in_words(found)}", flush=True)
    return write_shift(output)


def write_shift(output: Path) -> dict[str, list[Result]]:
    """Writes shift.md and shift.png from all results in a folder. Returns the results by method, whose seeds they are."""
    methods: dict[str, list[Result]] = {}
    for file in sorted(output.glob("*.json")):
        result = _read(file)
        methods.setdefault(method_of(result["run"]), []).append(result)
    if not methods:
        raise RunError(f"{output} has no results.")
    methods = dict(zip(_without_shared_ending(list(methods)), methods.values(), strict=True))
    conditions = {(r["data"], r["samples"], r["images"]) for results in methods.values() for r in results}
    if len(conditions) > 1:
        raise SettingsError(
            f"{output} has results on different test images, or with different numbers of samples, which cannot be compared: "
            "choose another --output."
        )
    from .report.shift_picture import draw_shift

    RunDirectory(output).write_text("shift.md", _table(methods), alone=False)
    draw_shift(methods, output)
    return methods


def method_of(name: str) -> str:
    """The name of a run without its seed.

    >>> method_of("affine-gaussian_short_e16_k1_seed2"), method_of("digits-sgd-0")
    ('affine-gaussian_short_e16_k1', 'digits-sgd')
    """
    return re.sub(r"[-_](seed)?\d+$", "", name)


def _without_shared_ending(names: Sequence[str]) -> list[str]:
    """The names without the words that all of them end with, such as the budget of a recipe.

    >>> _without_shared_ending(["sgd_short_e16_k1", "affine-laplace_short_e16_k1"])
    ['sgd', 'affine-laplace']
    """
    words = [name.split("_") for name in names]
    while len(words) > 1 and min(map(len, words)) > 1 and len({w[-1] for w in words}) == 1:
        words = [w[:-1] for w in words]
    return ["_".join(w) for w in words]


def figure(results: Iterable[Result], kind: str, severity: int, corruption: str | None = None) -> list[float]:
    """One number for each seed: of one corruption, or the mean over all. Severity 0 are the images as they are."""
    found = []
    for result in results:
        if severity == 0:
            found.append(result["clean"][kind])
        else:
            chosen = [corruption] if corruption is not None else list(CORRUPTIONS)
            found.append(fmean(result["corrupted"][name][severity - 1][kind] for name in chosen))
    return found


def _measured(path: Path, samples: int, images: int | None, data_dir: Path | None) -> Result:
    posterior, dataset, settings = open_run(path, data_dir)
    number = len(dataset.test_labels) if images is None else images
    if not 1 <= number <= len(dataset.test_labels):
        raise SettingsError(f"--images must be from 1 to the {len(dataset.test_labels)} test images, but is {number}.")
    pictures, labels = dataset.test_images[:number], dataset.test_labels[:number]

    def measured(pictures: Any) -> dict[str, float]:
        altered = dataclasses.replace(dataset, test_images=pictures, test_labels=labels)
        return evaluate(posterior, altered, predictive_samples(settings, samples))

    try:
        found = {kind: [corrupted(pictures, kind, severity) for severity in SEVERITIES] for kind in CORRUPTIONS}
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    return {
        "clean": _figures(measured(pictures)),
        "corrupted": {kind: [_figures(measured(altered)) for altered in levels] for kind, levels in found.items()},
        **provenance(RunDirectory(path).read_json("environment.json"), settings),
    }


def _figures(found: Mapping[str, float]) -> dict[str, float]:
    return {kind: found[f"test_{kind}"] for kind in KINDS}


def _name(path: Path) -> str:
    return path.resolve().name


def _read(file: Path) -> Result:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}. Remove it; the same command writes it again.") from error
    if not isinstance(found, dict) or not {"run", "clean", "corrupted"} <= set(found):
        raise RunError(f"{file} is not a result of `liebayes shift`. Choose another --output, or remove it.")
    return found


def _in_words(result: Result) -> str:
    worst = figure([result], "accuracy", SEVERITIES[-1])[0]
    return f"accuracy {100 * result['clean']['accuracy']:.2f} %, {100 * worst:.2f} % at severity {SEVERITIES[-1]}"


def _table(methods: Mapping[str, Sequence[Result]]) -> str:
    """Means over seeds: all corruptions together for each severity, then each corruption over all severities."""
    from .reproduce.table import grid

    first = next(iter(methods.values()))[0]
    on = "all" if first["images"] is None else f"the first {first['images']:,}"
    about = (
        f"Accuracy in per cent, NLL and ECE on {on} test images of {first['settings']['dataset']}, corrupted at five "
        f"severities (`liebayes.data.corruptions`), with {first['samples']} samples; one for SGD, which is a point. Means "
        "over corruptions and seeds."
    )
    lines = ["# Predictions under shift", "", about, ""]
    columns = [("as they are", 0, None), *((f"severity {s}", s, None) for s in SEVERITIES)]
    lines += [grid(("method", "seeds", *(name for name, _, _ in columns)), _rows(methods, columns)), ""]
    lines += [f"At severity {SEVERITIES[-1]}, by corruption:", ""]
    columns = [(kind, SEVERITIES[-1], kind) for kind in CORRUPTIONS]
    return "\n".join([*lines, grid(("method", "seeds", *CORRUPTIONS), _rows(methods, columns)), ""])


def _rows(methods: Mapping[str, Sequence[Result]], columns: Sequence[tuple[str, int, str | None]]) -> list[list[str]]:
    rows = []
    for method, results in methods.items():
        cells = []
        for _, severity, corruption in columns:
            accuracy, nll, ece = (fmean(figure(results, kind, severity, corruption)) for kind in KINDS)
            cells.append(f"{100 * accuracy:.2f} / {nll:.3f} / {ece:.3f}")
        rows.append([method, str(len(results)), *cells])
    return rows
