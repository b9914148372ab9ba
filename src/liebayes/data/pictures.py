"""Image files: one at a time, or folders with a folder for each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dataset import Dataset, from_tensors, split_rows
from .errors import DataError, DataFileError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_GREY = ("1", "L", "LA")


def picture(path: Path, channels: int, size: tuple[int, int] | None = None) -> tuple[Tensor, bool]:
    """An image file as bytes (channels, height, width), and whether it was resized to the size (height, width).

    Transparent parts become black, like the background of MNIST.
    """
    import numpy
    from PIL import Image

    with _opened(path) as found:
        if "A" in found.mode or "transparency" in found.info:
            found = found.convert("RGBA")
            found = Image.alpha_composite(Image.new("RGBA", found.size, "black"), found)
        found = found.convert("L" if channels == 1 else "RGB")
        height, width = size or (found.height, found.width)
        resized = found.size != (width, height)
        if resized:
            found = found.resize((width, height), Image.Resampling.BOX if found.width > width else Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(numpy.array(found))
    return (pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)).contiguous(), resized


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            f"{path}: image files need pillow: pip install 'liebayes[data]'. Arrays (.npy, .npz, .pt) do not.", name="PIL"
        ) from error
    try:
        with Image.open(path) as file:
            found = ImageOps.exif_transpose(file)
            if found.mode not in _MODES:
                raise DataFileError(path, f"it has pixels of mode {found.mode}; save it with 8 bits per channel")
            yield found
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataFileError(path, f"it cannot be read as an image: {' '.join(str(error).split())[:200]}") from error


def picture_folder(path: Path | str, *, test: Path | str | None = None, image_size: int | None = None) -> Dataset:
    """A data set from a folder that has a folder of images for each class.

    Args:
        path: the folder. If it holds folders `train` and `test`, these are the two parts.
        test: the folder of the test images, with the same classes; by default a fifth of the images, drawn by a fixed seed.
        image_size: resizes all images to a square of this side. Without it, they must have one size.
    """
    path = Path(path)
    if test is None and (path / "train").is_dir() and (path / "test").is_dir():
        path, test = path / "train", path / "test"
    names = _classes(path)
    training, labels = _files(path, names)
    testing, test_labels = ([], []) if test is None else _files(Path(test), names)
    size, channels = _common(training + testing, image_size)
    images = torch.stack([picture(file, channels, size)[0] for file in training])
    if test is None:
        chosen = split_rows(torch.tensor(labels))
        parts = images[~chosen], torch.tensor(labels)[~chosen], images[chosen], torch.tensor(labels)[chosen]
    else:
        more = torch.stack([picture(file, channels, size)[0] for file in testing])
        parts = images, torch.tensor(labels), more, torch.tensor(test_labels)
    stem = path.parent.name if path.name == "train" else path.name
    return from_tensors(*parts, name=stem, class_names=names)


def _classes(path: Path) -> list[str]:
    names = sorted(folder.name for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if len(names) < 2:
        raise DataError(f"{path} must hold a folder of images for each class, at least two, but holds {len(names)}.")
    return names


def _files(path: Path, names: list[str]) -> tuple[list[Path], list[int]]:
    if not path.is_dir():
        raise DataError(f"{path} is not a folder of images.")
    unknown = sorted({folder.name for folder in path.iterdir() if folder.is_dir() and folder.name[0] != "."} - set(names))
    if unknown:
        raise DataError(f"{path / unknown[0]}: the training images have no class {unknown[0]!r}.")
    found: list[tuple[Path, int]] = []
    for label, name in enumerate(names):
        inside = sorted(file for file in (path / name).glob("*") if file.suffix.lower() in PICTURES)
        if not inside:
            raise DataError(f"{path / name} holds no image files ({', '.join(PICTURES)}).")
        found += [(file, label) for file in inside]
    return [file for file, _ in found], [label for _, label in found]


def _common(files: list[Path], image_size: int | None) -> tuple[tuple[int, int], int]:
    """The common size of the images, or the requested one, and their channels: grey (1) or colour (3)."""
    seen: dict[tuple[int, int], Path] = {}
    counts: Counter[tuple[int, int]] = Counter()
    grey = True
    for file in files:
        with _opened(file) as found:
            size = (found.height, found.width)
            grey = grey and found.mode in _GREY
        seen.setdefault(size, file)
        counts[size] += 1
    if image_size is not None:
        return (image_size, image_size), 1 if grey else 3
    if len(seen) > 1:
        (common, _), *_, (rare, _) = counts.most_common()
        raise DataFileError(
            seen[rare],
            f"it has {rare[0]}×{rare[1]} pixels, but {seen[common]} and {counts[common] - 1} others have "
            f"{common[0]}×{common[1]}: give images of one size, or resize all with --image-size",
        )
    return next(iter(seen)), 1 if grey else 3
