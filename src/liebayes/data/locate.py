"""The data directory, and downloads of missing files.

The data directory is the argument `data_dir`, otherwise the environment variable LIEBAYES_DATA, otherwise a folder in the
user's cache. The files of a data set may be directly in it or in a conventional subfolder. Downloads are written beside
their destination and renamed once their checksum is verified: a file under its final name is always complete, and the user's
files are never replaced or removed.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..atomic_write import atomic_write
from .errors import DataError, DataFileError, MissingDataError, reason

VARIABLE = "LIEBAYES_DATA"
TIMEOUT = 30.0  # seconds without a response
_CHUNK = 1 << 20

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its MD5 sum, and its URLs in the order in which they are tried."""

    filename: str
    md5: str
    addresses: tuple[str, ...]


def data_root(data_dir: str | os.PathLike[str] | None) -> Path:
    """The data directory: the argument, or else LIEBAYES_DATA, or else the user's cache."""
    chosen = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    if chosen is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "liebayes"
    root = Path(chosen).expanduser()
    if root.exists() and not root.is_dir():
        raise DataError(f"{root} is a file; data_dir (--data-dir, {VARIABLE}) must be the folder that holds the data")
    return root


def folders(root: Path, subfolders: Sequence[str]) -> list[Path]:
    """The conventional subfolders that exist, and the root.

    The root comes last because its files may belong to another data set with the same file names.
    """
    return [folder for folder in (*(root / name for name in subfolders), root) if folder.is_dir()]


def obtain(remote: Remote, folder: Path, download: bool, what: str, note: str = "") -> Path:
    """Downloads a missing file into the folder, or raises an error that says where to put it."""
    path = folder / remote.filename
    advice = (
        f"Get it from {remote.addresses[-1]} and put it there, or name the folder that has it with data_dir "
        f"(--data-dir) or the environment variable {VARIABLE}."
    )
    if not download:
        raise MissingDataError(f"{what}: there is no {path}{note}, and download is off. {advice}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingDataError(f"{what}: there is no {path}{note}, and no folder for it: {reason(error)}. {advice}") from error
    failures: list[str] = []
    wrong: DataFileError | None = None
    for address in remote.addresses:
        log.info("%s: downloading %s to %s", what, address, path)
        try:
            return _fetch(address, path, remote.md5)
        except DataFileError as error:
            wrong = error  # a URL may return a page that says it has moved; the next may have the file
        except (OSError, http.client.HTTPException) as error:
            # URLError wraps the error of the system.
            cause = getattr(error, "reason", None)
            failures.append(f"{address}: {reason(cause if isinstance(cause, BaseException) else error)}")
    if wrong is not None:
        raise wrong
    raise MissingDataError(
        f"{what}: there is no {path}{note}, and it could not be downloaded ({'; '.join(failures)}). {advice}"
    )


def _fetch(address: str, path: Path, md5: str) -> Path:
    digest = hashlib.md5(usedforsecurity=False)
    with atomic_write(path) as partial:
        with open(partial, "wb") as out, urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            size = 0
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                log.debug("%s: %d bytes", path.name, size)
        if digest.hexdigest() != md5:
            raise DataFileError(
                address,
                f"the download has the MD5 sum {digest.hexdigest()} ({size:,} bytes), expected {md5}; it was discarded. "
                f"Try again, or put the right {path.name} into {path.parent}",
            )
    return path
