"""Files from a folder, a gzipped tar or a zip, read into memory.

Nothing is extracted to disk, so a path inside an archive cannot write anywhere; archives with such paths are refused.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from .errors import DataFileError, reason

_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, RuntimeError, NotImplementedError)


def inside(archive: Path, name: str) -> PurePosixPath:
    """The path of a member. Refuses one that leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]):
        raise DataFileError(archive, f"it holds the path {name!r}, which leads out of its folder: not the published archive")
    return path


def read_file(path: Path, most: int) -> bytearray:
    """A whole file of at most `most` bytes."""
    try:
        with path.open("rb") as file:
            content = bytearray(file.read(most + 1))
    except OSError as error:
        raise DataFileError(path, f"cannot be read: {reason(error)}") from error
    if len(content) > most:
        raise DataFileError(path, f"it has more than the {most:,} bytes that are published: another file?")
    return content


def read_tar(path: Path, wanted: Callable[[PurePosixPath], int | None]) -> dict[str, bytearray]:
    """The members of a gzipped tar by file name. `wanted` gives the size limit of a member, or None to skip it."""
    found: dict[str, bytearray] = {}
    try:
        # Opened in two steps so that the stream can be read to its end, where gzip's checksum is.
        with gzip.open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                name = inside(path, member.name)
                most = wanted(name)
                if most is None:
                    continue
                if not member.isreg():
                    raise DataFileError(path, f"its member {member.name} is not a regular file")
                if member.size > most:
                    raise DataFileError(
                        path, f"its member {member.name} has {member.size:,} bytes; at most {most:,} are published"
                    )
                file = archive.extractfile(member)
                content = bytearray(file.read() if file is not None else b"")
                if len(content) != member.size:
                    raise DataFileError(
                        path, f"its member {member.name} is cut short: {len(content):,} of {member.size:,} bytes"
                    )
                found[name.name] = content
            while stream.read(1 << 20):
                pass
    except _BROKEN as error:
        raise DataFileError(path, f"the tar.gz archive is cut short or broken ({reason(error)})") from error
    except OSError as error:
        raise DataFileError(path, f"cannot be read: {reason(error)}") from error
    return found


class Folder:
    """The files below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> Iterable[str]:
        """All files, as paths relative to the folder, with forward slashes."""
        return (path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file())

    def read(self, name: str, most: int) -> bytearray:
        return read_file(self.path / name, most)

    def describe(self, name: str) -> Path:
        """The file, for error messages."""
        return self.path / name


class Zip:
    """The files of a zip archive below the folder that holds `landmark`."""

    def __init__(self, path: Path, landmark: str) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise DataFileError(path, f"the zip archive is cut short or broken ({reason(error)})") from error
        except OSError as error:
            raise DataFileError(path, f"cannot be read: {reason(error)}") from error
        members = {str(inside(path, info.filename)): info for info in self._archive.infolist() if not info.is_dir()}
        tops = [name.removesuffix(landmark) for name in members if name == landmark or name.endswith(f"/{landmark}")]
        if not tops:
            self._archive.close()
            raise DataFileError(path, f"it holds no {landmark}: not the published archive")
        top = min(tops, key=len)
        self._members = {name.removeprefix(top): info for name, info in members.items() if name.startswith(top)}

    def names(self) -> Iterable[str]:
        return iter(self._members)

    def read(self, name: str, most: int) -> bytearray:
        info = self._members.get(name)
        if info is None:
            raise DataFileError(self.path, f"it holds no {name}: not the published archive")
        if info.file_size > most:
            raise DataFileError(self.path, f"its member {name} has {info.file_size:,} bytes; at most {most:,} are expected")
        try:
            return bytearray(self._archive.read(info))
        except (*_BROKEN, OSError) as error:
            raise DataFileError(self.path, f"its member {name} is broken ({reason(error)})") from error

    def describe(self, name: str) -> Path:
        return self.path / name

    def close(self) -> None:
        self._archive.close()
