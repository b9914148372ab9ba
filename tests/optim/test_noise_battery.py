"""What benchmarks/noise_battery.py gives to the battery: the reference's words, in the order it says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import noise_battery
import torch

from liebayes import native
from liebayes.bases import Uniform
from liebayes.optim import kernel, philox
from liebayes.optim.noise import Noise

CHUNK = 2048
SIZES = [432, 16, 2304, 16, 4608, 32, 9216, 32, 18432, 64, 36864, 64, 640, 10]

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_battery.build(tmp_path_factory.mktemp("battery"))


def words(program: Path, stream: str, count: int) -> list[int]:
    with subprocess.Popen(noise_battery.command(program, stream), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        data = process.stdout.read(4 * count)
        process.stdout.close()
        process.terminate()
    return [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]


def reference(count: int, tensor: int = 0, step: int = 0, stream: int = 0, seed: int = noise_battery.SEED) -> list[int]:
    return philox.words(count, seed=seed, tensor=tensor, step=step, stream=stream).tolist()


@needs_compiler
def test_orders(program: Path) -> None:
    assert words(program, "philox-places", 70_000) == reference(70_000)
    assert words(program, "philox-chunks", 3 * CHUNK) == [w for step in range(3) for w in reference(CHUNK, step=step)]
    training = [w for stream in range(2) for number, size in enumerate(SIZES) for w in reference(size, number, 0, stream)]
    training += reference(SIZES[0], step=1)
    assert words(program, "philox-training", len(training)) == training
    for order, name in {"steps": "step", "tensors": "tensor", "streams": "stream"}.items():
        assert words(program, f"philox-{order}", 300) == [reference(1, **{name: n})[0] for n in range(300)]
    assert words(program, "philox-seeds", 300) == [reference(1, seed=noise_battery.SEED + n)[0] for n in range(300)]
    turned = [int(f"{w:032b}"[::-1], 2) for w in reference(300)]
    assert words(program, "philox-places-reversed", 300) == turned


@needs_compiler
@pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")
def test_xoshiro_is_the_kernels(program: Path) -> None:
    found = torch.tensor(words(program, "xoshiro-chunks", 2 * CHUNK))
    signed = (found - (found >> 31 << 32)).float() * 2.0**-31
    draws = [
        kernel.noise_of(Uniform(1.0), CHUNK, Noise("xoshiro", noise_battery.SEED, step, 0, {}), number=0) for step in range(2)
    ]
    assert torch.equal(signed, torch.cat(draws))


REPORT = """diehard_runs|0|100000|3|0.55026353|PASSED
#=============================================================================#
#                          Values of test p-values                            #
#=============================================================================#
|0.66606592|
|0.70736250|
|0.88342808|
#=============================================================================#

diehard_runs|0|100000|2|1.00000000|FAILED
#=============================================================================#
#                          Values of test p-values                            #
#=============================================================================#
|0.13389867|
|0.84767724|
#=============================================================================#
"""


def test_reports_are_judged_by_their_samples() -> None:
    first, second = noise_battery.parse(REPORT)
    # Of three numbers all are above d ≈ ⅔, or all below 1 − d, with probability 2(1 − d)³; twice that, as for either end.
    assert first.p == pytest.approx(4 * (1 - 0.66606592) ** 3, rel=1e-4)
    assert 0.01 < second.p <= 1
    assert (first.dieharder, second.dieharder) == ("PASSED", "FAILED")
    assert not noise_battery.summary([first, second])["rejected"]
