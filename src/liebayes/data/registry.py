"""Data sets by name."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Protocol

from .cifar import cifar10, cifar100
from .dataset import Dataset
from .diabetes import diabetes
from .digits import digits
from .errors import DataError
from .idx import fashion_mnist, mnist
from .tiny_imagenet import tiny_imagenet


class Reader(Protocol):
    """The reader of a data set: a function of the data directory and whether to download missing files."""

    def __call__(self, data_dir: Path | None, download: bool, /) -> Dataset: ...


_readers: dict[str, Reader] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tinyimagenet": tiny_imagenet,
    "diabetes": diabetes,
}


def names() -> list[str]:
    """The names that `load` knows, the built-in ones first.

    >>> names()[:3]
    ['digits', 'mnist', 'fashion-mnist']
    """
    return list(_readers)


def load(name: str = "digits", data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """Loads a data set by name from the data directory; missing files are downloaded to it.

    `data_dir` defaults to the environment variable LIEBAYES_DATA, or else to a folder in the user's cache.

    >>> load("digits")
    Dataset('digits': 1,437 training and 360 test images of 1×8×8, 10 classes)
    """
    reader = _readers.get(_key(name))
    if reader is None:
        close = difflib.get_close_matches(_key(name), _readers, 1)
        raise DataError(
            f"there is no data set {name!r}{f'; did you mean {close[0]!r}?' if close else '.'} "
            f"Known: {', '.join(_readers)}. Your own data are a table (.csv, .parquet), arrays (.npz) or a folder of images; "
            "from Python, see liebayes.data.register."
        )
    return reader(None if data_dir is None else Path(data_dir), download)


def register(name: str, reader: Reader, *, replace: bool = False) -> None:
    """Makes a data set known to `load` by name, and so to runs and reports in this process.

    >>> from liebayes import data
    >>> data.register("small-digits", lambda data_dir, download: data.load("digits").folds(10)[0])
    >>> data.load("small-digits")
    Dataset('digits': 1,617 training and 180 test images of 1×8×8, 10 classes)
    >>> data.unregister("small-digits")
    """
    if not callable(reader):
        raise ValueError(f"the reader of {name!r} must be a function of (data_dir, download), not a {type(reader).__name__}")
    if not _key(name):
        raise ValueError("a data set needs a name")
    if _key(name) in _readers and not replace:
        raise ValueError(f"there is a data set {name!r} already; pass replace=True to replace it")
    _readers[_key(name)] = reader


def unregister(name: str) -> None:
    """Removes a registered data set."""
    if _readers.pop(_key(name), None) is None:
        raise ValueError(f"there is no data set {name!r}")


def _key(name: str) -> str:
    """The name in lower case, with hyphens."""
    if not isinstance(name, str):
        raise DataError(f"a data set is chosen by name, a string such as 'digits', but got {name!r}")
    return name.strip().lower().replace("_", "-")
