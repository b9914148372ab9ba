"""The matrix of `make test-matrix`: cells as processes, resumed, with what a machine lacks named."""

import json
from pathlib import Path

import matrix
import pytest

TESTS = """
import os

def test_environment():
    assert os.environ["LIEBAYES_KERNEL"] == "off"

def test_failure():
    assert False
"""


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    path = tmp_path / "test_of_a_cell.py"
    path.write_text(TESTS)
    return path


def run(tests: Path, *cells: str) -> int:
    return matrix.main(["--workers", "0", "--only", str(tests), "--results", str(tests.parent / "results"), "--cells", *cells])


def test_a_cell_is_counted_stored_and_not_run_again(
    tests: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tests, "kernel-off") == 1
    said = capsys.readouterr().out
    assert "kernel-off       failed" in said
    assert "1 passed    1 failed     0 skipped" in said
    assert "test_failure" in said
    result = json.loads((tests.parent / "results" / "test_matrix.json").read_text())
    assert set(result["cells"]["kernel-off"]["versions"]) >= {"python", "torch", "pytest"}
    assert result["cpu"] in (tests.parent / "results" / "test_matrix.md").read_text()
    tests.unlink()  # another run would find nothing
    assert run(tests, "kernel-off") == 1
    assert capsys.readouterr().out == said
    monkeypatch.setattr(matrix, "code", lambda: "another commit")  # whose result this is not
    assert run(tests, "kernel-off") == 1
    assert "test_failure" not in capsys.readouterr().out


def test_what_the_machine_lacks_is_skipped(tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "LEVELS", (*matrix.LEVELS, "AVX1024"))
    found = matrix.run(matrix.Cell("of tomorrow", level="AVX1024"), [str(tests)], 0)
    assert found == {"outcome": "skipped", "why": "this processor has no AVX1024"}
    missing = matrix.run(matrix.Cell("elsewhere", {}, python="/usr/bin/false"), [str(tests)], 0)
    assert missing["outcome"] == "failed"
