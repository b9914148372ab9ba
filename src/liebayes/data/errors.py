"""What can be wrong with a data set's files, in words that name the file."""

from __future__ import annotations

import warnings
from pathlib import Path


class DataError(ValueError):
    """A data set cannot be had; the two cases are below."""


class DataFileError(DataError):
    """A file is there, but it is broken, cut short or another file than its name says.

    The message names the file, what was expected and what came; `path` is the file.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path: Path = Path(path)
        self.problem: str = problem


class MissingDataError(DataError, FileNotFoundError):
    """A file is not there and could not be downloaded. The message says which file to put where."""


class IncompleteDataWarning(UserWarning):
    """A file holds whole records, but fewer than the published one."""


def check_count(path: Path | str, came: int, published: int, what: str = "records") -> None:
    """Fewer records than published: a warning. None at all, or more: not this data set."""
    if came == 0:
        raise DataFileError(path, f"it holds no {what}; {published:,} are published")
    if came > published:
        raise DataFileError(path, f"it holds {came:,} {what}, but only {published:,} are published: another file?")
    if came < published:
        warnings.warn(
            f"{path}: {came:,} of the {published:,} published {what}; going on with these",
            IncompleteDataWarning,
            stacklevel=2,
        )


def reason(error: BaseException) -> str:
    """The error in a few words: what the system says of an OSError, otherwise its text or its kind."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
