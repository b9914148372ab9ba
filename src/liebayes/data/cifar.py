"""CIFAR-10 and CIFAR-100, in the binary or the python version, packed (tar.gz) or unpacked.

Binary version: records of one label byte (two for CIFAR-100: coarse, fine) and 3×32×32 pixels, nothing else. Python
version: pickled dictionaries with the same pixels as an array of shape (N, 3072) and the labels as a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from .archives import read_file, read_tar
from .augment import Augmentation
from .dataset import Dataset
from .errors import DataFileError, check_count
from .locate import Remote, data_root, folders, obtain
from .pickles import read_pickle

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32

_Parse = Callable[["_Source", Path, bytearray, int], tuple[Tensor, Tensor]]

ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class _Source:
    name: str
    title: str
    md5: str  # of the archive of the binary version
    folders: tuple[str, str]  # in that archive, and in the one of the python version
    train: dict[str, int]  # files, without .bin, and their published numbers of records
    test: dict[str, int]
    labels: tuple[int, ...]  # for each label byte the number of classes; the last is the one that counts
    key: str  # of the labels in the python version
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def subfolders(self) -> tuple[str, ...]:
        return self.name, self.title.lower(), self.name.upper(), self.title, "cifar"

    @property
    def binary(self) -> Remote:
        archive = f"{self.title.lower()}-binary.tar.gz"
        return Remote(archive, self.md5, (ADDRESS + archive,))

    @property
    def python_archive(self) -> str:
        return f"{self.title.lower()}-python.tar.gz"


CIFAR10 = _Source(
    name="cifar10",
    title="CIFAR-10",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    train={f"data_batch_{k}": 10_000 for k in range(1, 6)},
    test={"test_batch": 10_000},
    labels=(10,),
    key="labels",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

CIFAR100 = _Source(
    name="cifar100",
    title="CIFAR-100",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folders=("cifar-100-binary", "cifar-100-python"),
    train={"train": 50_000},
    test={"test": 10_000},
    labels=(20, 100),
    key="fine_labels",
    class_names=tuple(
        """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
        caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
        forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
        mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
        possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
        sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
        willow_tree wolf woman worm""".split()  # noqa: SIM905 (as a list it would be 100 lines)
    ),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def cifar10(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 colour images of 32×32, 10 classes; crops padded by 4 and flips."""
    return _load(CIFAR10, data_dir, download)


def cifar100(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """CIFAR-100: CIFAR-10's sizes, 100 classes (the fine labels)."""
    return _load(CIFAR100, data_dir, download)


def _load(source: _Source, data_dir: Path | str | None, download: bool) -> Dataset:
    files, parse, suffix = _find(source, data_root(data_dir), download)
    train = _part(source, files, source.train, parse, suffix, "training images")
    test = _part(source, files, source.test, parse, suffix, "test images")
    return Dataset(source.name, *train, *test, source.class_names, source.mean, source.std, Augmentation(padding=4, flip=True))


def _part(
    source: _Source, files: dict[str, tuple[Path, bytearray]], published: dict[str, int], parse: _Parse, suffix: str, what: str
) -> tuple[Tensor, Tensor]:
    """The images and labels of all files of a part that are there."""
    here = {name: files[name + suffix] for name in published if name + suffix in files}
    parsed = [parse(source, path, content, published[name]) for name, (path, content) in here.items()]
    images, labels = torch.cat([images for images, _ in parsed]), torch.cat([labels for _, labels in parsed])
    path = next(path for path, _ in here.values())
    check_count(path if len(published) == 1 else path.parent, len(labels), sum(published.values()), what)
    return images, labels


def _find(source: _Source, root: Path, download: bool) -> tuple[dict[str, tuple[Path, bytearray]], _Parse, str]:
    """The files' contents from the first place that has a test file and at least one training file, and their reader."""
    places = folders(root, source.subfolders)
    note = ""
    # Unpacked before packed, for speed; binary before python, for simplicity.
    for parse, suffix, inner in zip((_parse_binary, _parse_python), (".bin", ""), source.folders, strict=True):
        for folder in [place / inner for place in places] + places:
            present = [name for name in (*source.train, *source.test) if (folder / (name + suffix)).is_file()]
            if _enough(source, present):
                return (
                    {
                        name + suffix: (
                            folder / (name + suffix),
                            read_file(folder / (name + suffix), _most(source, name, suffix)),
                        )
                        for name in present
                    },
                    parse,
                    suffix,
                )
            if present:
                note = f" ({folder} has {', '.join(name + suffix for name in present)}, but not the rest)"
    for parse, suffix, archive in (
        (_parse_binary, ".bin", source.binary.filename),
        (_parse_python, "", source.python_archive),
    ):
        for folder in places:
            if (folder / archive).is_file():
                return _unpack(source, folder / archive, suffix), parse, suffix
    path = obtain(source.binary, root, download, source.title, note)
    return _unpack(source, path, ".bin"), _parse_binary, ".bin"


def _enough(source: _Source, present: list[str]) -> bool:
    return any(name in present for name in source.train) and all(name in present for name in source.test)


def _most(source: _Source, name: str, suffix: str) -> int:
    """The bytes a file may have: its records, and in a pickle some more for names and labels."""
    records = {**source.train, **source.test}[name]
    return records * (_PIXELS + len(source.labels)) if suffix else records * (_PIXELS + 200) + 10_000


def _unpack(source: _Source, path: Path, suffix: str) -> dict[str, tuple[Path, bytearray]]:
    limits = {name + suffix: _most(source, name, suffix) for name in (*source.train, *source.test)}

    def wanted(member: PurePosixPath) -> int | None:
        return limits.get(member.name)

    found = read_tar(path, wanted)
    if not _enough(source, [name.removesuffix(suffix) if suffix else name for name in found]):
        raise DataFileError(
            path, f"it holds {', '.join(found) or 'none'} of the files {', '.join(limits)}: not the published archive"
        )
    return {name: (path / name, content) for name, content in found.items()}


def _parse_binary(source: _Source, path: Path, content: bytearray, most: int) -> tuple[Tensor, Tensor]:
    record = len(source.labels) + _PIXELS
    whole, rest = divmod(len(content), record)
    if rest or not whole:
        raise DataFileError(
            path,
            f"{len(content):,} bytes are not whole records of {record:,} bytes ({whole:,} records and {rest:,} bytes more): "
            "cut short or another file",
        )
    if whole > most:
        raise DataFileError(path, f"it holds {whole:,} records, but only {most:,} are published: another file?")
    records = torch.frombuffer(content, dtype=torch.uint8).view(whole, record)
    for column, classes in enumerate(source.labels):
        _check_labels(path, records[:, column], classes)
    return records[:, len(source.labels) :].reshape(whole, *_SHAPE), records[:, len(source.labels) - 1].to(torch.int64)


def _parse_python(source: _Source, path: Path, content: bytearray, most: int) -> tuple[Tensor, Tensor]:
    loaded = read_pickle(path, content)
    images, labels = loaded.get("data"), loaded.get(source.key)
    if not isinstance(images, Tensor) or not isinstance(labels, list):
        raise DataFileError(
            path, f"expected 'data' and '{source.key}', but it has {', '.join(map(repr, loaded)) or 'nothing'}: another file?"
        )
    if images.ndim != 2 or images.shape[1] != _PIXELS or not 0 < len(images) <= most:
        raise DataFileError(path, f"expected an array of at most {most:,}×{_PIXELS} pixels, but {tuple(images.shape)} came")
    if len(labels) != len(images):
        raise DataFileError(path, f"{len(images):,} images, but {len(labels):,} labels")
    classes = source.labels[-1]
    for record, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < classes:
            raise DataFileError(path, f"record {record} has the label {label!r:.40}, expected 0 to {classes - 1}")
    return images.view(-1, *_SHAPE), torch.tensor(labels, dtype=torch.int64)


def _check_labels(path: Path, labels: Tensor, classes: int) -> None:
    wrong = (labels >= classes).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataFileError(
            path, f"record {first} has the label {int(labels[first])}, expected 0 to {classes - 1}: broken or another file"
        )
