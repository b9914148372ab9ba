"""The data of a run: a set by name, the user's own files, and from Python a data set, tensors, arrays or loaders.

Files are kept by reference, with a fingerprint in environment.json; what came from Python is stored with the run, if small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import data
from ..atomic_write import atomic_write
from ..data import Dataset, from_tensors
from .run_directory import RunError
from .settings import SettingsError, TrainSettings, option

OwnData: TypeAlias = Dataset | tuple[Any, Any, Any, Any] | tuple[Iterable[Any], Iterable[Any]]
STORED = "data.safetensors"
LARGEST = 64_000_000
"""Bytes of data that are stored with a run."""
_TENSORS = ("train_images", "train_labels", "test_images", "test_labels")


def data_of(settings: TrainSettings, run: Path, data_dir: Path | None = None) -> Dataset:
    """The data that the settings name, or those stored in a run directory."""
    for_files = {name: getattr(settings, name) for name in ("target", "ignore", "test_data", "image_size")}
    if (run / STORED).exists():
        return stored_data(run / STORED)
    if data.is_path(settings.dataset):
        return data.from_path(
            _found(Path(settings.dataset), run, data_dir),
            target=_names(settings.target),
            task=settings.task,
            test=None if settings.test_data is None else _found(Path(settings.test_data), run, data_dir),
            ignore=_names(settings.ignore),
            image_size=settings.image_size,
        )
    for name, value in for_files.items():
        if value is not None:
            raise SettingsError(f"{option(name)} {value} is for files of your own, but --dataset is {settings.dataset}.")
    if (run / "settings.json").exists() and settings.dataset not in data.names():
        raise RunError(
            f"{run} was trained on {settings.dataset!r}, data from Python that were too large to store with it. Give them "
            "again, from Python: liebayes.experiments.open_run(run, dataset=...), or liebayes.data.register."
        )
    return data.as_task(data.load(settings.dataset, data_dir or settings.data_dir), settings.task)


def _found(path: Path, run: Path, data_dir: Path | None) -> Path:
    """The user's file: where it was during training, or in the folder it was moved to."""
    places = [path] if data_dir is None else [data_dir / path.name, path]
    found = next((place for place in places if place.exists()), path)
    if (run / "settings.json").exists() and not found.exists():
        raise RunError(
            f"{run} was trained on {path}, which is no longer there. Put it back, or name the folder that it is in now with "
            "--data-dir."
        )
    return found


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def keep_data(dataset: Dataset, run: Path) -> None:
    """Stores data from Python with their run, if they are small."""
    tensors = {name: getattr(dataset, name).detach().cpu().contiguous() for name in _TENSORS}
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > LARGEST:
        return
    from safetensors.torch import save_file

    about = {
        "name": dataset.name,
        "class_names": dataset.class_names,
        "mean": dataset.mean,
        "std": dataset.std,
        "encoding": None if dataset.encoding is None else dataset.encoding.to_json(),
    }
    with atomic_write(run / STORED) as partial:
        save_file(tensors, partial, {"dataset": json.dumps(about)})


def stored_data(path: Path) -> Dataset:
    """The data that a run has stored. Augmentation is not stored: to continue training, pass it again."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["dataset"])
            encoding = about.pop("encoding")
            lists = {key: tuple(about[key]) for key in ("class_names", "mean", "std")}
            table = None if encoding is None else data.TableEncoding.from_json(encoding)
            return Dataset(about["name"], *(file.get_tensor(name) for name in _TENSORS), **lists, encoding=table)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged: {error}. Nothing was changed; put a good copy there.") from error


def as_dataset(content: OwnData) -> Dataset:
    """Turns the data into a data set in memory.

    A loader is read once; the order of every epoch then follows from the seed, so that runs can be resumed. This would freeze
    random augmentation in a loader: give a `Dataset` with an `augmentation` instead.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> images, labels = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    >>> as_dataset((loader, loader))
    Dataset('tensors': 6 training and 6 test images of 2, 3 classes)
    """
    if isinstance(content, Dataset):
        return content
    if not isinstance(content, tuple) or len(content) not in (2, 4):
        raise ValueError(
            "dataset must be a liebayes.data.Dataset, four tensors (training images and labels, test images and labels; or "
            f"arrays of numpy) or two loaders (training and test), but is a {type(content).__name__}."
        )
    if len(content) == 4:
        return from_tensors(*content)
    return from_tensors(*_read(content[0], "training"), *_read(content[1], "test"))


def _read(loader: Iterable[Any], which: str) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(f"The {which} loader must give pairs of images and labels, but gave a {type(batch).__name__}.")
        images.append(torch.as_tensor(batch[0]))
        labels.append(torch.as_tensor(batch[1]))
        if labels[-1].ndim not in (1, 2) or len(labels[-1]) != len(images[-1]):
            raise ValueError(
                f"The {which} loader must give batches with a label for each image, but the labels of one have the shape "
                f"{tuple(labels[-1].shape)}. Wrap a data set in a torch.utils.data.DataLoader."
            )
    if not images:
        raise ValueError(f"The {which} loader gave no batch.")
    return torch.cat(images), torch.cat(labels)
