"""Slow preparations, done once per test session even where `pytest -n` has several workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .processes import TIMEOUT


def once_per_session(factory: pytest.TempPathFactory, name: str, prepare: Callable[[Path], None]) -> Path:
    """The folder that `prepare` fills, in this worker or in another one. If it fails, it fails for all of them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        prepare(folder)
        return folder
    folder = factory.getbasetemp().parent / name  # of this run, and shared by its workers
    try:
        folder.mkdir()
    except FileExistsError:
        end = time.monotonic() + TIMEOUT
        while not (folder / "done").exists():
            if time.monotonic() > end or (folder / "failed").exists():
                raise RuntimeError(f"Preparing {name} failed in another worker.") from None
            time.sleep(0.1)
        return folder
    try:
        prepare(folder)
    except BaseException:
        (folder / "failed").touch()
        raise
    (folder / "done").touch()
    return folder
