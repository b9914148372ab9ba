"""Inputs for predictions: rows of tables, arrays as they are, image files converted to the format of a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import TABLES, Dataset, picture, read_table
from ..data.pictures import PICTURES
from .run_directory import RunError

ARRAYS = (".npy", ".pt")


def read_inputs(paths: Sequence[Path], dataset: Dataset, *, invert: bool = False) -> tuple[list[str], Tensor]:
    """The inputs of files and folders, and their names: the file, and for arrays and tables the place in it."""
    names: list[str] = []
    inputs: list[Tensor] = []
    resized: list[str] = []
    for path in _files(paths):
        if path.suffix.lower() in (*ARRAYS, *TABLES):
            found = _array(path, dataset) if path.suffix.lower() in ARRAYS else _rows(path, dataset)
            names += [f"{path}[{i}]" for i in range(len(found))]
            inputs.append(found)
        else:
            pixels, changed = _picture(path, dataset, invert)
            resized += [str(path)] if changed else []
            names.append(str(path))
            inputs.append(pixels)
    if resized:
        size = "×".join(map(str, dataset.image_shape[1:]))
        print(f"liebayes: {len(resized)} of {len(names)} images resized to {size}, such as {resized[0]}", file=sys.stderr)
    return names, torch.cat(inputs)


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURES)
            if not inside:
                raise RunError(f"{path} holds no image files ({', '.join(PICTURES)}).")
            found += inside
        elif not path.exists():
            raise RunError(f"{path} does not exist. Give image files, folders of them, tables, or .npy or .pt arrays.")
        elif path.suffix.lower() not in (*ARRAYS, *TABLES, *PICTURES):
            raise RunError(f"{path} is none of {', '.join((*PICTURES, *TABLES, *ARRAYS))}.")
        else:
            found.append(path)
    if not found:
        raise RunError("no inputs: give image files, folders of them, tables, or .npy or .pt arrays.")
    return found


def _rows(path: Path, dataset: Dataset) -> Tensor:
    """The rows of a table, encoded like the training rows."""
    if dataset.encoding is None:
        raise RunError(f"{path} is a table, but the network was trained on {dataset.name}, which is not a table.")
    return dataset.encoding.encode(read_table(path), path)


def _array(path: Path, dataset: Dataset) -> Tensor:
    try:
        if path.suffix.lower() == ".pt":
            images: Any = torch.load(path, weights_only=True)
        else:
            import numpy

            images = torch.from_numpy(numpy.load(path, allow_pickle=False))
        if not isinstance(images, Tensor):
            raise TypeError(f"it holds a {type(images).__name__}")
    except Exception as error:  # readers raise anything on a foreign file
        raise RunError(f"{path} cannot be read as an array: {' '.join(str(error).split())[:200]}") from error
    images = images.unsqueeze(1) if images.ndim == 3 and len(dataset.image_shape) == 3 else images
    wanted = dataset.train_images.dtype
    if images.dtype == torch.float64 and wanted == torch.float32:  # what numpy makes of numbers
        images = images.float()
    if tuple(images.shape[1:]) != dataset.image_shape or images.dtype != wanted or not len(images):
        raise RunError(
            f"{path} holds {images.dtype} of shape {tuple(images.shape)}, but the network was trained on "
            f"{wanted} of shape (N, {', '.join(map(str, dataset.image_shape))})."
        )
    return images


def _picture(path: Path, dataset: Dataset, invert: bool) -> tuple[Tensor, bool]:
    """An image file with the channels and the size of the data set, and whether it was resized."""
    shape = dataset.image_shape
    if dataset.train_images.dtype != torch.uint8 or shape[0] not in (1, 3):
        raise RunError(f"{path}: the network was trained on {dataset.name}, which is not a data set of grey or colour images.")
    pixels, changed = picture(path, shape[0], (shape[1], shape[2]))
    return (255 - pixels if invert else pixels).unsqueeze(0), changed
