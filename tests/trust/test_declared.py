"""What the project declares of itself, and what its tests promise of their limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "test_matrix.json"


@pytest.fixture(scope="module")
def passed() -> dict[str, dict[str, Any]]:
    """The cells of `make test-matrix` that are stored and have passed."""
    cells = json.loads(STORED.read_text())["cells"]
    return {name: cell for name, cell in cells.items() if cell["outcome"] == "passed"}


def test_the_lowest_torch_that_is_declared_has_been_run(passed: dict[str, dict[str, Any]]) -> None:
    declared = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    run = {cell["versions"]["torch"] for cell in passed.values()}
    assert len(declared) == 1
    assert any(version.startswith(f"{declared[0]}.") for version in run), f"torch {declared[0]} is declared; {run} were run"


def test_every_declared_python_has_been_run(passed: dict[str, dict[str, Any]]) -> None:
    declared = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()))
    run = {cell["versions"]["python"].rpartition(".")[0] for cell in passed.values()}
    assert declared
    assert declared <= run


def test_time_limits_only_end_what_hangs() -> None:
    """A loaded machine may take minutes for what takes a second: limits are `TIMEOUT` of support/processes.py, or longer."""
    limit = re.compile(r"\b(?:timeout|wait|join)(?:_seconds)?(?:=|\()(\d+(?:\.\d+)?)\b")
    short = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(float(seconds) < 600 for seconds in limit.findall(line)) and "def " not in line
    ]
    assert short == []
