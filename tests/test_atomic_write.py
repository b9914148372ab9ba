"""atomic_write: a file keeps its old content until the new one is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from liebayes.atomic_write import atomic_write


@pytest.mark.parametrize("alone", [False, True])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, alone: bool) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_write(path, alone=alone) as partial:
            partial.write_text("half")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "old")]


def test_concurrent_writers(tmp_path: Path) -> None:
    path, all_have_written = tmp_path / "table.md", Barrier(4)

    def write(letter: str) -> None:
        with atomic_write(path) as partial:
            partial.write_text(letter * 1000)
            all_have_written.wait(timeout=600)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert path.read_text() in [letter * 1000 for letter in "abcd"]
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay_links_and_modes_are_those_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, plain = tmp_path / "link", tmp_path / "plain"
    link.symlink_to(tmp_path / "disk" / "target")
    plain.touch()
    with atomic_write(link) as partial:
        partial.write_text("new")
        partial.chmod(0o600)  # as safetensors does
    assert link.is_symlink()
    assert (tmp_path / "disk" / "target").read_text() == "new"
    assert (tmp_path / "disk" / "target").stat().st_mode == plain.stat().st_mode


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    block = atomic_write(tmp_path / "nowhere" / "file")
    with pytest.raises(FileNotFoundError, match=r"There is no such folder: .*nowhere'$"):
        block.__enter__()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("alone", [False, True])
def test_only_files_are_replaced(tmp_path: Path, alone: bool) -> None:
    """A move would put a file in the place of /dev/null, for one."""
    with pytest.raises(IsADirectoryError, match=r"This is a folder, and a file was to be written"):
        atomic_write(tmp_path, alone=alone).__enter__()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="This is a device or a pipe"), atomic_write(tmp_path / name, alone=alone):
            pass
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]


def test_leftovers_of_a_killed_process_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    (tmp_path / ".checkpoint.safetensors.part").write_text("of a killed process")
    with atomic_write(path, alone=True) as partial:
        partial.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("checkpoint.safetensors", "new")]


WRITER = """
import sys, time
from pathlib import Path
from liebayes.atomic_write import atomic_write
with atomic_write(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


def parts(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.endswith(".part")]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells by /proc which processes run")
def test_orphans_of_killed_processes_are_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE, text=True)
        for target in (path, path, tmp_path / "report.html.gz")
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        assert len(parts(tmp_path)) == 3
        writers[0].kill()
        writers[0].wait()
        with atomic_write(path) as partial:
            partial.write_text("new")
        # Those of the process that still writes, and of another file, stay.
        assert sorted(name.split("-")[1] for name in parts(tmp_path)) == sorted(str(writer.pid) for writer in writers[1:])
        for writer in writers[1:]:
            writer.kill()
            writer.wait()
        with atomic_write(path, alone=True) as partial:
            partial.write_text("newer")
        assert [name.split("-")[1] for name in parts(tmp_path)] == [str(writers[2].pid)]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()


def test_orphans_of_elsewhere_are_removed_after_a_day(tmp_path: Path) -> None:
    elsewhere = [tmp_path / f".table.md.{mark}.part" for mark in ("00000000-1-1-0123abcd", "0123abcd")]
    strangers = [tmp_path / name for name in (".table.md.notes.part", ".other.md.0123abcd.part", ".table.md")]
    for file in [*elsewhere, *strangers]:
        file.touch()

    def left_after(seconds: float) -> set[Path]:
        for file in [*elsewhere, *strangers]:
            if file.exists():
                os.utime(file, (time.time() - seconds,) * 2)
        with atomic_write(tmp_path / "table.md") as partial:
            partial.write_text("new")
        return set(tmp_path.iterdir()) - {tmp_path / "table.md"}

    assert left_after(3600) == {*elsewhere, *strangers}
    assert left_after(48 * 3600) == set(strangers)
