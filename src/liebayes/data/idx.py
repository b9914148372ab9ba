"""MNIST and Fashion-MNIST: four idx files each, gzipped or unpacked.

An idx file is big-endian: two zero bytes, a type (8: uint8), the number of dimensions, each dimension in four bytes, then
the values. Both data sets use the same file names, so files of the other one are recognised by their first labels.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from .dataset import Dataset
from .errors import DataFileError, check_count, reason
from .locate import Remote, data_root, folders, obtain

_SIDE = 28
_PUBLISHED = {"train": 60_000, "t10k": 10_000}


@dataclass(frozen=True)
class _Source:
    name: str
    title: str
    subfolders: tuple[str, ...]
    addresses: tuple[str, ...]
    md5: dict[str, str]
    class_names: tuple[str, ...]
    mean: float
    std: float
    first_labels: dict[str, tuple[int, ...]]


MNIST = _Source(
    name="mnist",
    title="MNIST",
    subfolders=("mnist", "MNIST/raw", "MNIST"),
    addresses=("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    md5={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    class_names=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
    first_labels={
        "train": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7),
        "t10k": (7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6, 9, 0, 1, 5),
    },
)

FASHION_MNIST = _Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    subfolders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist", "fashion"),
    addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    class_names=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    mean=0.2860,
    std=0.3530,
    first_labels={
        "train": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9),
        "t10k": (9, 2, 1, 1, 6, 1, 4, 6, 5, 7, 4, 5, 7, 3, 4, 1),
    },
)


def mnist(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """MNIST: 60,000 and 10,000 grey images of 28×28, 10 digits; no augmentation (App. B)."""
    return _load(MNIST, FASHION_MNIST, data_dir, download)


def fashion_mnist(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """Fashion-MNIST: MNIST's format and sizes, 10 kinds of clothing."""
    return _load(FASHION_MNIST, MNIST, data_dir, download)


def _load(source: _Source, sibling: _Source, data_dir: Path | str | None, download: bool) -> Dataset:
    paths = _find(source, sibling, data_root(data_dir), download)
    train = _part(source, sibling, paths, "train")
    test = _part(source, sibling, paths, "t10k")
    return Dataset(source.name, *train, *test, source.class_names, (source.mean,), (source.std,))


def _part(source: _Source, sibling: _Source, paths: dict[str, Path], part: str) -> tuple[Tensor, Tensor]:
    images_path, labels_path = paths[f"{part}-images-idx3-ubyte"], paths[f"{part}-labels-idx1-ubyte"]
    labels = read_idx(labels_path, 1, _PUBLISHED[part])
    _check_labels(source, sibling, part, labels, labels_path)
    images = read_idx(images_path, 3, _PUBLISHED[part])
    if images.shape[1:] != (_SIDE, _SIDE):
        raise DataFileError(images_path, f"images of {images.shape[1]}×{images.shape[2]}, expected {_SIDE}×{_SIDE}")
    if len(images) != len(labels):
        raise DataFileError(images_path, f"{len(images):,} images, but {len(labels):,} labels in {labels_path.name}")
    check_count(images_path, len(images), _PUBLISHED[part], "images")
    return images.unsqueeze(1), labels.to(torch.int64)


def _check_labels(source: _Source, sibling: _Source, part: str, labels: Tensor, path: Path) -> None:
    wrong = (labels >= len(source.class_names)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataFileError(
            path, f"record {first} has the label {int(labels[first])}, expected 0 to 9: broken or another file"
        )
    theirs = sibling.first_labels[part]
    if tuple(labels[: len(theirs)].tolist()) == theirs:
        raise DataFileError(
            path, f"these are the labels of {sibling.title}, not of {source.title}, which has the same file names"
        )


def _find(source: _Source, sibling: _Source, root: Path, download: bool) -> dict[str, Path]:
    """The four files from the first folder that has all of them; otherwise the missing ones are downloaded.

    Downloads never go beside files of the other data set, which have the same names.
    """
    best: tuple[dict[str, Path], Path] = ({}, root / source.subfolders[0])
    for folder in folders(root, source.subfolders):
        found = {stem: path for stem in source.md5 for path in _variants(folder, stem) if path.is_file()}
        if len(found) == len(source.md5):
            return found
        if len(found) > len(best[0]) and _own(sibling, found, sure=folder != root):
            best = (found, folder)
    found, folder = best
    note = f" (beside {', '.join(path.name for path in found.values())})" if found else ""
    for stem, md5 in source.md5.items():
        if stem not in found:
            filename = f"{stem}.gz"
            remote = Remote(filename, md5, tuple(address + filename for address in source.addresses))
            found[stem] = obtain(remote, folder, download, source.title, note)
    return found


def _own(sibling: _Source, found: dict[str, Path], sure: bool) -> bool:
    """Whether files belong to this data set: by their labels, or else by the name of their folder (`sure`)."""
    labels = {stem.partition("-")[0]: path for stem, path in found.items() if "labels" in stem}
    for part, path in labels.items():
        theirs = sibling.first_labels[part]
        if tuple(read_idx(path, 1, _PUBLISHED[part])[: len(theirs)].tolist()) == theirs:
            return False
    return bool(labels) or sure


def _variants(folder: Path, stem: str) -> Iterator[Path]:
    """Possible file names; the last one that exists wins: the gzipped file, which has a checksum."""
    yield folder / stem.replace("-idx", ".idx")  # as some mirrors unpack it
    yield folder / stem
    yield folder / f"{stem}.gz"


def read_idx(path: Path, dimensions: int, most: int) -> Tensor:
    """Reads an idx file of uint8 with this many dimensions and at most `most` records. Refuses anything else."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            if not zipped and path.suffix == ".gz":
                raise DataFileError(path, "not a gzip file, though its name ends in .gz")
            raw.seek(0)
            with cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw) as stream:
                return _parse(path, stream, dimensions, most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataFileError(path, f"the gzip file is cut short or broken ({reason(error)})") from error
    except OSError as error:
        raise DataFileError(path, f"cannot be read: {reason(error)}") from error


def _parse(path: Path, stream: BinaryIO, dimensions: int, most: int) -> Tensor:
    expected = bytes([0, 0, 8, dimensions])
    magic = stream.read(4)
    if magic != expected:
        raise DataFileError(
            path, f"starts with the bytes {magic.hex(' ') or '(none)'}, expected {expected.hex(' ')}: not this idx file"
        )
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DataFileError(path, f"ends inside its header, after {4 + len(header)} bytes: cut short")
    shape = [int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4)]
    # Checked before reading, so that a forged header cannot make us allocate without bound.
    if shape[0] > most or any(size > 4096 for size in shape[1:]):
        raise DataFileError(
            path, f"its header says {'×'.join(map(str, shape))} values, but at most {most:,} records are published"
        )
    if math.prod(shape) == 0:
        raise DataFileError(path, f"its header says {'×'.join(map(str, shape))} values: empty")
    size = math.prod(shape)
    # One byte more than expected, so that the end (and with it a gzip checksum) is reached.
    values = bytearray(stream.read(size + 1))
    if len(values) != size:
        more = "more follow" if len(values) > size else f"only {len(values):,} came: cut short"
        raise DataFileError(path, f"its header says {'×'.join(map(str, shape))} = {size:,} bytes of values, but {more}")
    return torch.frombuffer(values, dtype=torch.uint8).view(shape)
