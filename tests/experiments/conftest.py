"""Trained runs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from liebayes.cli import main

QUICK = ["--epochs", "1", "--batch-size", "128", "--predictive-samples", "2"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs, in folders with long names."""
    folder = tmp_path_factory.mktemp("runs")
    for rule in ("sgd", "affine"):
        name = folder / "a-folder-with-quite-a-long-name-for-a-terminal" / f"{rule}-on-the-digits-with-seed-zero"
        assert main(["train", "--rule", rule, *QUICK, "--output", str(name)]) == 0
        (folder / rule).symlink_to(name)
    return folder
