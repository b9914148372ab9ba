"""The package as users get it: built, installed in a fresh environment, and used; and its version, told once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from support.pages import ROOT, blocks

import liebayes

LEAVE_OUT = (".git", ".venv", "build", "dist", "site", "runs", "*.so", "*.egg-info", "__pycache__", ".*_cache")
TRAIN = ["train", "--dataset", "digits", "--rule", "affine", "--epochs", "1", "--output", "run"]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints; outside the repository, so that nothing is imported from there."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LIEBAYES_KERNEL")}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of a fresh environment in which there is this wheel; torch and the rest are those of the tests."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--no-compile", "--no-deps", "--no-index"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    # Only after the installation: pip would find our own liebayes among them.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def use(programs: Path, *, kernel: bool, folder: Path) -> None:
    """The README's example and a run of the program, from the installed package."""
    example = folder / "quickstart.py"
    example.write_text(
        blocks("README.md")[0].code.replace("range(5)", "range(1)")
        + f"""
from importlib import metadata
from liebayes import cli, native
assert lb.__file__.startswith({str(programs.parent)!r}), lb.__file__
assert metadata.version("liebayes") == lb.__version__ == {liebayes.__version__!r}
assert native.available() is {kernel}, native.describe()
assert cli.main({TRAIN}) == 0
"""
    )
    run(programs / "python", example, cwd=folder, OMP_NUM_THREADS="1")
    assert (folder / "run" / "posterior.safetensors").exists()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the repository, without what was built in it."""
    return Path(shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(*LEAVE_OUT)))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_wheel_from_the_source_distribution(source: Path, tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    assert "Deprecat" not in said
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert re.fullmatch(rf"liebayes-{re.escape(liebayes.__version__)}-py3-none-(?!any)\w+\.whl", wheel.name)
    assert (tmp_path / "dist" / f"liebayes-{liebayes.__version__}.tar.gz").exists()
    files = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert {"py.typed", "page.html", "_kernel.so", "LICENSE"} <= files
    assert not [name for name in files if name.endswith((".c", ".h"))]
    programs = installed(wheel, tmp_path / "fresh")
    use(programs, kernel=True, folder=tmp_path)
    assert "native" in run(programs / "liebayes", "info", cwd=tmp_path)


def test_wheel_without_a_compiler(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", source]
    run(*command, cwd=tmp_path, CC="no-such-compiler")
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    use(installed(wheel, tmp_path / "fresh"), kernel=False, folder=tmp_path)


def test_one_version_and_date() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## \[(\d[\d.]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == (citation["version"], str(citation["date-released"]))
    assert citation["version"] == liebayes.__version__


def test_workflows_run_on_the_versions_that_are_promised() -> None:
    for file in (ROOT / ".github").rglob("*.yml"):
        yaml.safe_load(file.read_text())
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert jobs["tests"]["strategy"]["matrix"]["python"] == promised
