"""Writing files atomically: complete, or not there at all.

What is being written is in `.<file>.<where>-<process>-<start>-<number>.part` beside the file. A process that is killed leaves
its part behind; the next write to the same file removes it. Whether a process still runs can be told on its own machine
(`where`: one boot, one space of process numbers) by its number and its start; parts of elsewhere are left alone for a day.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

FORGOTTEN = 24 * 3600
"""After how many seconds without a change a part is nobody's, wherever it was written."""


@contextlib.contextmanager
def atomic_write(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """A place beside ``path`` to write to, moved to ``path`` when the block ends,, which is removed if the block fails.

    So whatever happens while writing, ``path`` is what it was, or new and complete.

    Args:
        path: the file.
        alone: nobody else writes the same file at the same time, so that what a killed process has left may be overwritten.
    """
    path = path.resolve()  # a link stays one
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "This is a folder, and a file was to be written", str(path))
    if path.exists() and not path.is_file():  # a move would put a file in the place of /dev/null, for one
        raise OSError(errno.EINVAL, "This is a device or a pipe, and a file was to be written", str(path))
    _remove_orphans(path)
    own = f".{path.name}.{_where()}-{os.getpid()}-{_start(os.getpid())}-{secrets.token_hex(4)}.part"
    partial = path.with_name(f".{path.name}.part" if alone else own)
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


def _remove_orphans(path: Path) -> None:
    """Removes the parts of this file whose process is gone."""
    name = re.compile(rf"\.{re.escape(path.name)}\.(?:([0-9a-f]{{8}})-([0-9]+)-([0-9]+)-)?[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):
        for found, file in [(name.fullmatch(file.name), file) for file in os.scandir(path.parent)]:
            if found is None:
                continue
            with contextlib.suppress(OSError):
                where, process, start = found.groups()
                status = file.stat()
                ours = where == _where() and status.st_uid == os.getuid()  # others' processes may be hidden
                if (ours and _start(int(process)) != int(start)) or time.time() - status.st_mtime > FORGOTTEN:
                    os.unlink(file.path)


@functools.cache
def _where() -> str:
    """This boot of this machine and its process namespace: containers have their own."""
    marks = []
    with contextlib.suppress(OSError):
        marks = [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    # Where there is no /proc, nobody can tell: every process is a place of its own.
    return hashlib.sha256(repr(marks or secrets.token_bytes()).encode()).hexdigest()[:8]


def _start(process: int) -> int:
    """When a process started, in ticks since boot; 0 if it is not running."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the name before it may have spaces
    return 0 if fields[0] in "ZX" else int(fields[19])
