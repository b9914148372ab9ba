"""Slow preparations once for all workers of `pytest -n`, each of which would repeat them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT = 150


def once_for_all_workers(factory: pytest.TempPathFactory, name: str, prepare: Callable[[Path], None]) -> Path:
    """The folder that `prepare` has filled, in this worker or in another; the others fail with it."""
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
                raise RuntimeError(f"The preparation {name} has failed in another worker.") from None
            time.sleep(0.1)
        return folder
    try:
        prepare(folder)
    except BaseException:
        (folder / "failed").touch()
        raise
    (folder / "done").touch()
    return folder
