"""The benchmark scripts run, at sizes that say nothing about speed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from liebayes import native
from liebayes.bases import philox

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import noise_battery
import noise_statistics
from speed import command

needs_kernel = pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")


@pytest.mark.parametrize("part", [pytest.param([], id="table"), pytest.param(["--parts"], id="parts", marks=needs_kernel)])
def test_speed(part: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is measured, and its ratios follow from its figures."""
    output = tmp_path / "speed.json"
    monkeypatch.setattr(sys, "argv", ["speed", *part, "--sizes", "tiny", "--anyway", "--output", str(output)])
    assert command.main(None) == 0
    result = json.loads(output.read_text())
    assert not result["quiet"], "--anyway is on record"
    assert part or [row["key"] for row in result["rows"]] == list(command.ROWS)
    for row in result["rows"]:
        assert all(value > 0 for figure in row["figures"].values() for value in figure["rounds"])
        for limit in row["limits"]:
            if limit["kind"] == "times" and limit["ratio"] is not None:
                ours, peer = (row["figures"][name]["median"] for name in (row["ours"], limit["peer"]))
                assert limit["ratio"] == pytest.approx(ours / peer)


@needs_kernel
def test_noise_statistics() -> None:
    """At 1e6 numbers the sources pass all checks, and generators with a fault do not."""
    for source in noise_statistics.SOURCES:
        found = noise_statistics.checks(noise_statistics.from_kernel(source), noise_statistics.QUICK)
        worst, rejected = noise_statistics.least(found)
        assert not rejected, worst
    good = noise_statistics.from_kernel(noise_statistics.SOURCES[0])
    for name, found in noise_statistics.controls(good, noise_statistics.QUICK).items():
        worst, rejected = noise_statistics.least(found)
        assert rejected, (name, worst)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_noise_battery(tmp_path: Path) -> None:
    """The battery is fed the kernel's words, in the order it names."""
    program, count = noise_battery.build(tmp_path), 300
    for order, counter in {"places": "", "steps": "step", "tensors": "tensor", "streams": "stream"}.items():
        with subprocess.Popen(noise_battery.command(program, f"philox-{order}"), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            data = process.stdout.read(4 * count)
            process.terminate()
        found = [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]
        place = {"seed": noise_battery.SEED, "tensor": 0, "step": 0, "stream": 0}
        if counter:
            expected = [int(philox.words(1, **{**place, counter: n})[0]) for n in range(count)]
        else:
            expected = philox.words(count, **place).tolist()
        assert found == expected, order
