"""`make test-matrix`: the test suite under other instruction sets, threads, seeds, kernels and versions, in a few cells.

    python tests/matrix.py [--cells NAME ...] [--pythons PYTHON ...] [--only PATH ...] [--results FOLDER] [--again] [--list]

A cell sets several switches at once, so that a few cover them all; cells with a single switch are there by name, to find what
broke. The cell `grid` has all pairs of groups and bases, longer runs and every recipe; the suite by itself has some that cover
them. Other Pythons with a torch of their own run the numerics: `--pythons`, LIEBAYES_PYTHONS, or python3.X on the path. One
that has torch, pytest, pytest-xdist and hypothesis but no numpy is the package without extras: what needs them is skipped.

Processors differ in the last digits of what they compute; nothing here may depend on those. The last result is stored as
results/test_matrix.json and .md, after every cell, with its commit: a run that was interrupted goes on where it was, and cells
that are stored for the present code are not run again. With --only nothing is stored, unless a folder is named. Standard
library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LEVELS = ("DEFAULT", "AVX2", "AVX512")  # as torch names what a processor can do
SWITCHES = {
    "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "LIEBAYES_EXTRAS", "LIEBAYES_KERNEL", "LIEBAYES_TEST_GRID",
    "LIEBAYES_TEST_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS",
}  # fmt: skip
"""Taken out of the caller's environment, so that a cell is what it says."""


@dataclass(frozen=True)
class Cell:
    """One way to run the suite. Another version of torch or Python is another `python`."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    level: str = LEVELS[0]
    """What the processor must have."""
    compiled: bool = False
    """Whether the compiled kernel must be there."""
    python: str = sys.executable
    only: tuple[str, ...] = ()
    """The tests, if not all of them."""


COVERING = [
    Cell(
        "oldest",
        {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "LIEBAYES_TEST_THREADS": "1",
         "LIEBAYES_KERNEL": "off"},
        ("--hypothesis-profile=seeded", "--hypothesis-seed=1"),
    ),
    Cell(
        "avx2-portable",
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "LIEBAYES_TEST_THREADS": "2",
         "LIEBAYES_KERNEL": "portable"},
        ("--hypothesis-profile=seeded", "--hypothesis-seed=2"), "AVX2", compiled=True,
    ),
    Cell(
        "avx2-kernel",
        {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "LIEBAYES_KERNEL": "avx2"},
        ("--hypothesis-profile=seeded", "--hypothesis-seed=3"), "AVX2", compiled=True,
    ),
    Cell(
        "avx512",
        {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512", "LIEBAYES_TEST_THREADS": "2",
         "LIEBAYES_KERNEL": "avx512"},
        ("--hypothesis-profile=seeded", "--hypothesis-seed=4"), "AVX512", compiled=True,
    ),
    Cell("grid", {"LIEBAYES_TEST_GRID": "whole"}),
]  # fmt: skip
"""Every switch in few runs: each cell sets several at once."""

SINGLE = [
    Cell("aten-default", {"ATEN_CPU_CAPABILITY": "default"}),
    Cell("aten-avx2", {"ATEN_CPU_CAPABILITY": "avx2"}, level="AVX2"),
    Cell("aten-avx512", {"ATEN_CPU_CAPABILITY": "avx512"}, level="AVX512"),
    Cell("mkl-sse4_2", {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    Cell("mkl-avx2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, level="AVX2"),
    Cell("mkl-avx512", {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, level="AVX512"),
    Cell("threads-1", {"LIEBAYES_TEST_THREADS": "1"}),
    Cell("threads-2", {"LIEBAYES_TEST_THREADS": "2"}),
    Cell("seed-1", arguments=("--hypothesis-profile=seeded", "--hypothesis-seed=1")),
    Cell("seed-2", arguments=("--hypothesis-profile=seeded", "--hypothesis-seed=2")),
    Cell("kernel-off", {"LIEBAYES_KERNEL": "off"}),
    Cell("kernel-portable", {"LIEBAYES_KERNEL": "portable"}, compiled=True),
    Cell("kernel-avx2", {"LIEBAYES_KERNEL": "avx2"}, level="AVX2", compiled=True),
    Cell("kernel-avx512", {"LIEBAYES_KERNEL": "avx512"}, level="AVX512", compiled=True),
]
"""One switch each, to find the one that broke a cell above; they are run by name."""

NUMERICS = [f"tests/{room}" for room in ("groups", "bases", "rule", "laws", "optim", "posterior", "trust")]
"""What is run under other versions of Python and torch."""


def others(given: list[str]) -> list[Cell]:
    """A cell for every other Python: those given, or named in LIEBAYES_PYTHONS, or on the path with a torch of their own."""
    named = given or [word for word in os.environ.get("LIEBAYES_PYTHONS", "").split(os.pathsep) if word]
    found = named or [place for n in range(10, 14) if (place := shutil.which(f"python3.{n}"))]
    cells = []
    for python in found:
        text = [python, "-c", VERSIONS]
        try:
            seen = subprocess.run(text, capture_output=True, text=True, check=False).stdout.split()
        except OSError:
            seen = []
        if seen:
            environment = {"PYTHONPATH": str(ROOT / "src"), "LIEBAYES_TEST_THREADS": "1"}
            name, arguments = f"python{seen[0]}-torch{seen[1]}", ()
            if seen[2] == "bare":  # tests that need more are skipped
                name, environment = f"{name}-bare", environment | {"LIEBAYES_EXTRAS": "off"}
                arguments = ("--doctest-ignore-import-errors",)
            cells.append(Cell(name, environment, arguments, python=python, only=tuple(NUMERICS)))
        elif named:
            raise SystemExit(f"{python} has no torch: install one there, or leave it out.")
    return cells


VERSIONS = """
import importlib.util, platform, torch
print(platform.python_version(), torch.__version__, "whole" if importlib.util.find_spec("numpy") else "bare")
"""
PROBE = """
import importlib.metadata, json, platform, torch
from liebayes import native
installed = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
NAMES = ("torch", "numpy", "scipy", "pytest", "hypothesis", "pyro-ppl", "jax", "numpyro", "pymc", "pystan")
print(json.dumps({
    "level": torch.backends.cpu.get_cpu_capability(), "compiled": native.available(), "kernel": native.describe(),
    "versions": {"python": platform.python_version()}
    | {name: installed[name] for name in NAMES if name in installed},
}))
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The test suite on a matrix of settings.", prog="tests/matrix.py")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="these, also of those with a single switch")
    parser.add_argument("--pythons", nargs="+", metavar="PYTHON", default=[], help="other Pythons, each with its own torch")
    parser.add_argument("--only", nargs="+", metavar="PATH", help="these tests, for quick use")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to store (results; with --only nowhere)")
    parser.add_argument("--workers", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--again", action="store_true", help="also run cells that are stored for this code")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    asked = parser.parse_args(arguments)
    known_cells = {cell.name: cell for cell in (*COVERING, *others(asked.pythons), *SINGLE)}
    unknown = [name for name in asked.cells or () if name not in known_cells]
    if unknown:
        parser.error(f"there is no cell {unknown[0]!r} here; they are {', '.join(known_cells)}")
    single = {cell.name for cell in SINGLE}
    chosen = [cell for name, cell in known_cells.items() if (name in asked.cells if asked.cells else name not in single)]
    if asked.list:
        print("\n".join(f"{cell.name:16} {describe(cell)}" for cell in known_cells.values()))
        return 0
    folder = asked.results or (None if asked.only else ROOT / "results")
    result, now = start(folder, asked.only), code()
    for cell in chosen:
        known = result["cells"].get(cell.name)
        stale = known is None or known["code"] != now or known["outcome"] == "skipped"  # what was missing may be there now
        if stale or asked.again:
            ran = run(cell, asked.only or list(cell.only), asked.workers)
            known = result["cells"][cell.name] = {**ran, "code": now}
            if folder is not None:
                store(result, folder)
        print(line(cell.name, known), flush=True)
    return 1 if any(result["cells"][cell.name]["outcome"] == "failed" for cell in chosen) else 0


def describe(cell: Cell) -> str:
    """A cell in the words of a command line."""
    places = (f"{key}={value}" for key, value in cell.environment.items() if key != "PYTHONPATH")
    return " ".join([*places, "pytest", *cell.arguments])


def start(folder: Path | None, only: list[str] | None) -> dict[str, Any]:
    """What is stored for this processor and these tests, or an empty result."""
    result = {"command": "make test-matrix", "cpu": cpu(), "only": only, "cells": {}}
    stored = folder / "test_matrix.json" if folder else None
    if stored is not None and stored.exists():
        before = json.loads(stored.read_text())
        if all(before.get(key) == result[key] for key in ("cpu", "only")):
            return before
    return result


def code() -> str:
    """The last commit that changed something beside results, and what has changed since."""
    beside = ("--", ".", ":!results")
    commit = git("log", "-1", "--format=%h", *beside).strip()
    changes = git("diff", "HEAD", *beside)
    return commit + (f"+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def run(cell: Cell, only: list[str], workers: int) -> dict[str, Any]:
    """Runs the suite in a cell, if the machine has what it needs."""
    plain = {key: value for key, value in os.environ.items() if key not in SWITCHES}
    paths = {key: value for key, value in cell.environment.items() if key == "PYTHONPATH"}
    asking = [cell.python, "-c", PROBE]
    probe = subprocess.run(asking, env=plain | paths, cwd=ROOT, capture_output=True, text=True, check=False)
    if probe.returncode:
        return {"outcome": "failed", "why": f"{cell.python} has no working package: {probe.stderr.strip()[-300:]}"}
    machine = json.loads(probe.stdout)
    if LEVELS.index(cell.level) > LEVELS.index(machine["level"]):
        return {"outcome": "skipped", "why": f"this processor has no {cell.level}"}
    if cell.compiled and not machine["compiled"]:
        return {"outcome": "skipped", "why": "the kernel is not built here"}
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        command = [cell.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-n", str(workers), "--dist", "worksteal", *cell.arguments, *only]
        began = time.monotonic()
        done = subprocess.run(
            command, env=plain | cell.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )  # fmt: skip
        seconds = round(time.monotonic() - began, 1)
        found = counts(report) if report.exists() else {"why": (done.stdout + done.stderr).strip()[-2000:]}
    outcome = "passed" if done.returncode == 0 else "failed"
    words = f"{describe(cell)} -n {workers} {shlex.join(only)}".strip()
    return {"outcome": outcome, "seconds": seconds, "command": words, **found, "versions": machine["versions"]}


def counts(report: Path) -> dict[str, Any]:
    """How many tests passed, failed and were skipped, and which failed, from a report in JUnit's format."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    kinds = [{child.tag for child in case} for case in cases]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in cases]
    lost = sorted(name for name, kind in zip(names, kinds, strict=True) if kind & {"failure", "error"})
    skipped = sum("skipped" in kind for kind in kinds)
    return {"passed": len(cases) - len(lost) - skipped, "failed": len(lost), "skipped": skipped, "failures": lost[:50]}


def line(name: str, cell: dict[str, Any]) -> str:
    if "passed" not in cell:
        return f"{name:16} {cell['outcome']:8} {cell['why']}"
    numbers = f"{cell['passed']:6} passed {cell['failed']:4} failed {cell['skipped']:5} skipped {cell['seconds']:8.1f} s"
    return "\n".join([f"{name:16} {cell['outcome']:8} {numbers}", *(f"    {test}" for test in cell["failures"][:5])])


def store(result: dict[str, Any], folder: Path) -> None:
    """The result as .json and .md, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("test_matrix.json", json.dumps(result, indent=1) + "\n"), ("test_matrix.md", page(result))):
        part = folder / f"{name}.part"
        part.write_text(text)
        part.replace(folder / name)


def page(result: dict[str, Any]) -> str:
    cells = list(result["cells"].items())
    versions = next((found["versions"] for _, found in cells if "versions" in found), {})
    lines = [
        "# The test suite on a matrix of settings",
        "",
        f"`{result['command']}` on {result['cpu']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + (f"; only {', '.join(result['only'])}" if result["only"] else "")
        + ".",
        "",
        "| cell | commit | what differs | outcome | passed | failed | skipped | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in cells:
        numbers = [str(found.get(key, "")) for key in ("passed", "failed", "skipped", "seconds")]
        outcome = found["outcome"] + (f": {found['why'].splitlines()[-1]}" if found.get("why") else "")
        lines.append(f"| {name} | {found['code']} | `{found.get('command', '')}` | {outcome} | {' | '.join(numbers)} |")
    lost = [f"- {name}: `{test}`" for name, found in cells for test in found.get("failures", [])]
    return "\n".join([*lines, *(["", "Failed:", "", *lost] if lost else [])]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
