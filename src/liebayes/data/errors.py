"""Errors about the files of a data set; every message names the file."""

from __future__ import annotations

import warnings
from pathlib import Path


class DataError(ValueError):
    """A data set cannot be loaded: see the two subclasses."""


class DataFileError(DataError):
    """A file exists, but it is broken, truncated or not the file that its name says.

    The message names the file, what was expected and what was found; `path` is the file.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path: Path = Path(path)
        self.problem: str = problem


class MissingDataError(DataError, FileNotFoundError):
    """A file is missing and could not be downloaded. The message says where to put it."""


class IncompleteDataWarning(UserWarning):
    """A file is intact, but has fewer records than the published one."""


def check_count(path: Path | str, came: int, published: int, what: str = "records") -> None:
    """Warns about fewer records than published, and refuses a file with none or with more."""
    if came == 0:
        raise DataFileError(path, f"it holds no {what}; {published:,} are published")
    if came > published:
        raise DataFileError(path, f"it holds {came:,} {what}, but only {published:,} are published: another file?")
    if came < published:
        warnings.warn(
            f"{path}: {came:,} of the {published:,} published {what}; continuing with these",
            IncompleteDataWarning,
            stacklevel=2,
        )


def reason(error: BaseException) -> str:
    """An error in a few words: the system's message for an OSError, otherwise its text or type."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
