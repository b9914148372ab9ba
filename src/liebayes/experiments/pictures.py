"""Images for predictions: arrays as they are, image files converted to the format of a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Dataset
from .run_directory import RunError

ARRAYS = (".npy", ".pt")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_images(paths: Sequence[Path], dataset: Dataset, *, invert: bool = False) -> tuple[list[str], Tensor]:
    """The images of files and folders, and their names: the file, and for arrays the index in it."""
    names: list[str] = []
    images: list[Tensor] = []
    resized: list[str] = []
    for path in _files(paths):
        if path.suffix.lower() in ARRAYS:
            found = _array(path, dataset)
            names += [f"{path}[{i}]" for i in range(len(found))]
            images.append(found)
        else:
            picture, changed = _picture(path, dataset, invert)
            resized += [str(path)] if changed else []
            names.append(str(path))
            images.append(picture)
    if resized:
        size = "×".join(map(str, dataset.image_shape[1:]))
        print(f"liebayes: {len(resized)} of {len(names)} images resized to {size}, such as {resized[0]}", file=sys.stderr)
    return names, torch.cat(images)


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURES)
            if not inside:
                raise RunError(f"{path} holds no image files ({', '.join(PICTURES)}).")
            found += inside
        elif not path.exists():
            raise RunError(f"{path} does not exist. Give image files, folders of them, or .npy or .pt arrays.")
        elif path.suffix.lower() not in (*ARRAYS, *PICTURES):
            raise RunError(f"{path} is none of {', '.join((*PICTURES, *ARRAYS))}.")
        else:
            found.append(path)
    if not found:
        raise RunError("no inputs: give image files, folders of them, or .npy or .pt arrays.")
    return found


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
        raise RunError(f"{path} cannot be read as an array of images: {' '.join(str(error).split())[:200]}") from error
    images = images.unsqueeze(1) if images.ndim == 3 and len(dataset.image_shape) == 3 else images
    if tuple(images.shape[1:]) != dataset.image_shape or images.dtype != dataset.train_images.dtype or not len(images):
        raise RunError(
            f"{path} holds {images.dtype} of shape {tuple(images.shape)}, but the network was trained on "
            f"{dataset.train_images.dtype} of shape (N, {', '.join(map(str, dataset.image_shape))})."
        )
    return images


def _picture(path: Path, dataset: Dataset, invert: bool) -> tuple[Tensor, bool]:
    """An image file with the channels and the size of the data set, and whether it was resized."""
    if dataset.train_images.dtype != torch.uint8 or dataset.image_shape[0] not in (1, 3):
        raise RunError(f"{path}: the network was trained on {dataset.name}, which is not a data set of grey or colour images.")
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise RunError(f"{path}: image files need pillow: pip install 'liebayes[data]'. Arrays (.npy, .pt) do not.") from None
    import numpy

    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file)
            if picture.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"):
                raise RunError(f"{path} has pixels of mode {picture.mode}; save it with 8 bits per channel.")
            if "A" in picture.mode or "transparency" in picture.info:
                picture = picture.convert("RGBA")  # transparent becomes black, like the background of MNIST
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "black"), picture)
            picture = picture.convert("L" if dataset.image_shape[0] == 1 else "RGB")
            height, width = dataset.image_shape[1:]
            changed = picture.size != (width, height)
            if changed:
                picture = picture.resize(
                    (width, height), Image.Resampling.BOX if picture.width > width else Image.Resampling.BICUBIC
                )
            pixels = torch.from_numpy(numpy.array(picture))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunError(f"{path} cannot be read as an image: {' '.join(str(error).split())[:200]}") from error
    pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return (255 - pixels if invert else pixels).contiguous().unsqueeze(0), changed
