"""Out-of-distribution images: another data set, or altered test images, which need no file:

shuffled    the pixels of all test images in the same random order
noise       every pixel drawn independently from the training pixels
rotated     test images turned by 90 degrees
inverted    dark and light exchanged
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ... import data
from ..settings import SettingsError

LIMIT = 10_000
"""The largest number of images that is worth predicting."""
COMPANIONS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "cifar10": "cifar100", "cifar100": "cifar10"}
"""The data set to compare with, if it is present."""


@dataclass(frozen=True)
class Outside:
    """Out-of-distribution images, in the shape and dtype of the data set they are compared with."""

    name: str
    images: Tensor


def outside_images(dataset: data.Dataset, choice: str | None, data_dir: Path | None) -> Outside:
    """The images to compare a data set with: the choice, or else its companion if present, or else shuffled test images."""
    if choice in MADE:
        return Outside(f"{choice} test images", MADE[choice](dataset)[:LIMIT])
    if choice is not None:
        if choice.replace("_", "-") not in data.names():
            known = ", ".join([*MADE, *data.names()])
            raise SettingsError(f"--ood must be one of {known}, but is {choice}.")
        return Outside(choice, _fitted(data.load(choice, data_dir), dataset))
    companion = COMPANIONS.get(dataset.name.partition(" ")[0])  # the name of a held-out split has more words
    if companion is not None and len(dataset.image_shape) == 3:
        try:
            return Outside(companion, _fitted(data.load(companion, data_dir, download=False), dataset))
        except data.MissingDataError:
            pass
        except data.DataError as error:  # the user did not ask for it
            warnings.warn(f"{error} Using shuffled images instead.", stacklevel=2)
    return outside_images(dataset, "shuffled", data_dir)


def _shuffled(dataset: data.Dataset) -> Tensor:
    images = dataset.test_images
    start = 2 if images.ndim == 4 else 1  # all channels in the same order
    flat = images.flatten(start)
    order = torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(0))
    return flat[..., order].view_as(images)


def _noise(dataset: data.Dataset) -> Tensor:
    pixels = dataset.train_images.flatten()
    chosen = torch.randint(len(pixels), dataset.test_images.shape, generator=torch.Generator().manual_seed(0))
    return pixels[chosen]


def _rotated(dataset: data.Dataset) -> Tensor:
    images = dataset.test_images
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise SettingsError(f"--ood rotated needs square images, but {dataset.name} has the shape {dataset.image_shape}.")
    return images.rot90(1, (2, 3))


def _inverted(dataset: data.Dataset) -> Tensor:
    images = dataset.test_images
    if images.dtype != torch.uint8:
        raise SettingsError(f"--ood inverted needs 8-bit images, but {dataset.name} has {images.dtype}.")
    return 255 - images


MADE: dict[str, Callable[[data.Dataset], Tensor]] = {
    "shuffled": _shuffled,
    "noise": _noise,
    "rotated": _rotated,
    "inverted": _inverted,
}


def _fitted(other: data.Dataset, dataset: data.Dataset) -> Tensor:
    """The test images of another data set, with the size and channels of this one."""
    images = other.test_images[:LIMIT]
    shape = dataset.image_shape
    if images.dtype != torch.uint8 or dataset.test_images.dtype != torch.uint8 or len(shape) != 3:
        raise SettingsError(f"--ood {other.name} cannot be converted to {dataset.name}: both must have 8-bit images.")
    if tuple(images.shape[1:]) == shape:
        return images
    floating = images.float()
    if floating.shape[1] != shape[0]:
        floating = floating.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(floating.shape[2:]) != shape[1:]:
        floating = torch.nn.functional.interpolate(floating, shape[1:], mode="bilinear", antialias=True)
    return floating.round().clamp(0, 255).to(torch.uint8)
