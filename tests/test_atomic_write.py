"""atomic_write: a file keeps its old content until the new one is complete."""

from __future__ import annotations

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
            all_have_written.wait(timeout=60)

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


def test_leftovers_of_a_killed_process_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    (tmp_path / ".checkpoint.safetensors.part").write_text("of a killed process")
    with atomic_write(path, alone=True) as partial:
        partial.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("checkpoint.safetensors", "new")]
