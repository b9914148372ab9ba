"""The user's own files as data sets: tables, folders of images, and arrays in `.npz` files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .dataset import Dataset, from_tensors, split_rows
from .errors import DataError, DataFileError, reason
from .pictures import picture_folder
from .registry import names
from .tables import TABLES, Task, table

_INPUTS, _TARGETS = ("x", "images", "inputs", "data"), ("y", "labels", "targets", "target")


def is_path(name: str) -> bool:
    """Whether text names a file or folder of the user, not a data set of the library.

    >>> is_path("digits"), is_path("houses.csv"), is_path("./pets")
    (False, True, True)
    """
    if name.strip().lower().replace("_", "-") in names():
        return False
    return "/" in name or "\\" in name or name.lower().endswith((*TABLES, ".npz")) or Path(name).is_dir()


def from_path(
    path: Path | str,
    *,
    target: Sequence[str] = (),
    task: Task | None = None,
    test: Path | str | None = None,
    ignore: Sequence[str] = (),
    image_size: int | None = None,
) -> Dataset:
    """A data set from the user's own files.

    Args:
        path: a table (`.csv`, `.tsv`, `.parquet`), arrays (`.npz`), or a folder with a folder of images for each class.
        target: of a table, the columns to be predicted.
        task: what is predicted, where the file leaves a choice.
        test: the file or folder with the test data; by default a fifth of the data, drawn by a fixed seed.
        ignore: columns of a table to leave out.
        image_size: resizes images to a square of this side.
    """
    path = Path(path)
    kind = "table" if path.suffix.lower() in TABLES else "arrays" if path.suffix.lower() == ".npz" else "images"
    only_for = [("--target", target, "table"), ("--ignore", ignore, "table"), ("--image-size", image_size, "images")]
    for option, given, of in only_for:
        if given and of != kind:
            raise DataError(f"{option} is for {'tables' if of == 'table' else 'folders of images'}, but --dataset is {path}.")
    if kind == "table":
        dataset = table(path, target, task=task, test=test, ignore=ignore)
    elif kind == "arrays":
        dataset = arrays(path, test)
    elif path.is_dir():
        dataset = picture_folder(path, test=test, image_size=image_size)
    else:
        what = "is not a table (.csv, .tsv, .parquet), arrays (.npz) or a folder" if path.exists() else "does not exist"
        raise DataError(f"--dataset: {path} {what}.")
    return as_task(dataset, task)


def as_task(dataset: Dataset, task: Task | None) -> Dataset:
    """The data set for a task, if its labels suit it. Class numbers can also be regression targets."""
    if task is None or task == dataset.kind or (task == "binary" and dataset.kind == "classification"):
        if task == "binary" and dataset.num_classes != 2:
            raise DataError(f"--task binary needs two classes, but {dataset.name} has {dataset.num_classes}.")
        return dataset
    if task == "regression" and dataset.kind == "classification":
        return replace(
            dataset,
            train_labels=dataset.train_labels.float(),
            test_labels=dataset.test_labels.float(),
            class_names=("class",),
        )
    raise DataError(f"--task {task} does not fit the labels of {dataset.name}, which are for {dataset.kind}.")


def arrays(path: Path | str, test: Path | str | None = None) -> Dataset:
    """A data set from an `.npz` file.

    Inputs are called x, images, inputs or data, targets y, labels, targets or target; with `_train` and `_test` behind, or
    `train_` and `test_` before, they are the two parts. Otherwise the second file has the test data, or a fifth is drawn.
    """
    found = _read(Path(path))
    training, testing = _pair(found, "train"), _pair(found, "test")
    if training is None or testing is None:
        training = training or _pair(found, "")
        if training is None:
            held = ", ".join(found) or "nothing"
            raise DataFileError(path, f"it holds {held}, but must hold x and y, or x_train, y_train, x_test and y_test")
        if test is not None:
            other = _read(Path(test))
            testing = _pair(other, "test") or _pair(other, "")
            if testing is None:
                raise DataFileError(test, f"it holds {', '.join(other) or 'nothing'}, but must hold x and y")
    try:
        if testing is not None:
            return from_tensors(*training, *testing, name=Path(path).stem)
        inputs, labels = map(torch.as_tensor, training)
        if len(inputs) != len(labels):
            raise ValueError(f"there are {len(inputs)} inputs, but {len(labels)} targets")
        chosen = split_rows(labels)
        return from_tensors(inputs[~chosen], labels[~chosen], inputs[chosen], labels[chosen], name=Path(path).stem)
    except (ValueError, TypeError) as error:
        raise DataFileError(path, reason(error)) from error


def _pair(found: dict[str, Any], part: str) -> tuple[Any, Any] | None:
    """The inputs and targets of a part, if the file has them."""
    chosen = []
    for known in (_INPUTS, _TARGETS):
        forms = [name for stem in known for name in ([f"{stem}_{part}", f"{part}_{stem}"] if part else [stem])]
        present = [found[name] for name in forms if name in found]
        if not present:
            return None
        chosen.append(present[0])
    return chosen[0], chosen[1]


def _read(path: Path) -> dict[str, Any]:
    import numpy

    if not path.is_file():
        raise DataError(f"{path} does not exist.")
    try:
        with numpy.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # readers raise anything on a foreign file
        raise DataFileError(path, f"it cannot be read as arrays: {' '.join(reason(error).split())[:200]}") from error
