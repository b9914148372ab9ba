"""TinyImageNet: the published zip, or its folder.

`wnids.txt` lists the classes, `words.txt` their names; training images lie in `train/CLASS/images`, validation images in
`val/images` with their classes in `val/val_annotations.txt`. The published test images have no labels, so the validation
images are our test part, as in the literature. Classes are numbered in alphabetical order of their ids.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import torch
from torch import Tensor

from .archives import Folder, Zip
from .augment import Augmentation
from .dataset import Dataset
from .errors import DataFileError, check_count, reason
from .locate import Remote, data_root, folders, obtain

_TITLE = "TinyImageNet"
_REMOTE = Remote(
    "tiny-imagenet-200.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
)
_SUBFOLDERS = ("tinyimagenet", "tiny-imagenet", "TinyImageNet", "tiny_imagenet")
_LANDMARK = "wnids.txt"
_ANNOTATIONS = "val/val_annotations.txt"
_SIDE = 64
_TRAIN, _TEST = 100_000, 10_000
_TEXT_LIMIT, _IMAGE_LIMIT = 20_000_000, 1_000_000  # bytes


def tiny_imagenet(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """TinyImageNet: 100,000 and 10,000 colour images of 64×64, 200 classes; crops padded by 4 and flips. Needs Pillow."""
    store = _find(data_root(data_dir), download)
    try:
        return _read(store)
    finally:
        if isinstance(store, Zip):
            store.close()


def _find(root: Path, download: bool) -> Folder | Zip:
    places = folders(root, _SUBFOLDERS)
    for folder in [place / "tiny-imagenet-200" for place in places] + places:
        if (folder / _LANDMARK).is_file():
            return Folder(folder)
    for folder in places:
        if (folder / _REMOTE.filename).is_file():
            return Zip(folder / _REMOTE.filename, _LANDMARK)
    return Zip(obtain(_REMOTE, root, download, _TITLE), _LANDMARK)


def _read(store: Folder | Zip) -> Dataset:
    classes = sorted(_lines(store, _LANDMARK))
    if not classes or len(set(classes)) < len(classes) or not all(re.fullmatch(r"n\d{8}", wnid) for wnid in classes):
        raise DataFileError(store.describe(_LANDMARK), "expected one class id like n01443537 a line, each once")
    number = {wnid: k for k, wnid in enumerate(classes)}

    train: list[tuple[int, str]] = []
    validation: dict[str, str] = {}
    for name in store.names():
        if match := re.fullmatch(r"train/([^/]+)/images/[^/]+\.(?i:jpe?g)", name):
            if match[1] not in number:
                raise DataFileError(store.describe(name), f"its class {match[1]} is not in {_LANDMARK}")
            train.append((number[match[1]], name))
        elif match := re.fullmatch(r"val/images/([^/]+\.(?i:jpe?g))", name):
            validation[match[1]] = name
    # By class and number: the order in a zip or file system is arbitrary.
    train.sort(key=lambda entry: (entry[0], _natural(entry[1])))
    check_count(store.path, len(train), _TRAIN, "training images")

    labels = _annotations(store, number)
    unknown = sorted(validation.keys() - labels.keys(), key=_natural)
    if unknown:
        raise DataFileError(store.describe(_ANNOTATIONS), f"it has no line for {unknown[0]} ({len(unknown):,} such images)")
    test = [(labels[image], validation[image]) for image in sorted(validation, key=_natural)]
    check_count(store.path, len(test), _TEST, "validation images")

    return Dataset(
        "tinyimagenet",
        *_images(store, train),
        *_images(store, test),
        _class_names(store, classes),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        augmentation=Augmentation(padding=4, flip=True),
    )


def _lines(store: Folder | Zip, name: str) -> list[str]:
    try:
        return [line for line in store.read(name, _TEXT_LIMIT).decode("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataFileError(store.describe(name), f"not a text file ({reason(error)})") from error


def _annotations(store: Folder | Zip, number: dict[str, int]) -> dict[str, int]:
    """The class of each validation image."""
    labels: dict[str, int] = {}
    for row, line in enumerate(_lines(store, _ANNOTATIONS), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise DataFileError(
                store.describe(_ANNOTATIONS),
                f"line {row} is {line!r:.80}, expected an image, a tab and a class of {_LANDMARK}",
            )
        labels[fields[0]] = number[fields[1]]
    return labels


def _class_names(store: Folder | Zip, classes: list[str]) -> tuple[str, ...]:
    """The first name of each class, or its id if it has none; both if two classes share a name."""
    names = {}
    if "words.txt" in set(store.names()):
        for line in _lines(store, "words.txt"):
            wnid, _, words = line.partition("\t")
            names[wnid] = words.split(",")[0].strip()
    short = [names.get(wnid) or wnid for wnid in classes]
    return tuple(name if short.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(short, classes, strict=True))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts image_2 before image_10."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _images(store: Folder | Zip, entries: list[tuple[int, str]]) -> tuple[Tensor, Tensor]:
    images = torch.empty(len(entries), 3, _SIDE, _SIDE, dtype=torch.uint8)
    for row, (_, name) in enumerate(entries):
        images[row] = _decode(store.describe(name), store.read(name, _IMAGE_LIMIT))
    return images, torch.tensor([label for label, _ in entries], dtype=torch.int64)


def _decode(path: Path, content: bytearray) -> Tensor:
    """A JPEG as (3, 64, 64). Some of the published ones are grey."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("TinyImageNet's images are JPEGs, which need Pillow: pip install 'liebayes[data]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
            if image.size != (_SIDE, _SIDE):
                raise DataFileError(path, f"an image of {image.size[0]}×{image.size[1]}, expected {_SIDE}×{_SIDE}")
            pixels = bytearray(image.convert("RGB").tobytes())
    except DataFileError:
        raise
    except Exception as error:  # a broken image may raise anything
        raise DataFileError(path, f"not a whole JPEG image ({reason(error)})") from error
    return torch.frombuffer(pixels, dtype=torch.uint8).view(_SIDE, _SIDE, 3).permute(2, 0, 1)
