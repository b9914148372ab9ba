"""Writing files atomically: complete, or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """A place beside ``path`` to write to, moved to ``path`` when the block ends, and removed if it fails.

    So whatever happens while writing, ``path`` is what it was, or new and complete.

    Args:
        path: the file.
        alone: nobody else writes the same file at the same time, so that what a killed process has left may be overwritten.
    """
    path = path.resolve()  # a link stays one
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(path.parent))
    partial = path.with_name(f".{path.name}.part" if alone else f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        partial.touch()
        mode = partial.stat().st_mode  # that of every new file; some writers make theirs private
        yield partial
        partial.chmod(mode)
        with open(partial, "rb") as file:  # on the disk before its name is: a machine may lose its power
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
