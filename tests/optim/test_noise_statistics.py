"""The checks of benchmarks/noise_statistics.py at 1e6 numbers: both sources pass them, and generators with a fault do not."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import noise_statistics as noise
import numpy as np
import torch

from liebayes import native
from liebayes.optim.noise import Source

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")


@pytest.mark.parametrize("source", noise.SOURCES)
def test_sources_pass(source: Source) -> None:
    worst, rejected = noise.least(noise.checks(noise.kernel_noise(source), noise.QUICK))
    assert not rejected, worst


def test_faults_are_found() -> None:
    for name, found in noise.controls(noise.kernel_noise("xoshiro"), noise.QUICK).items():
        worst, rejected = noise.least(found)
        assert rejected, (name, worst)


def test_a_plain_hash_is_found_across_steps_only() -> None:
    """Which is why those checks are there: all that look at one step's numbers are content with it."""
    for check in noise.independence_checks(noise.plain_hash, noise.QUICK):
        if check.test.startswith("steps shifted") and "near" in check.test:
            assert check.p < 1e-9, check
        elif not check.test.startswith("steps"):
            assert check.p > 1e-4, check


def test_bins_keep_the_order_of_floats() -> None:
    x = torch.tensor([-torch.inf, -2.5, -1e-20, -0.0, 0.0, 1e-40, 1e-20, 0.999, 1.0, 3e38])
    bins = noise._bin(x)
    assert (np.diff(bins) >= 0).all()
    assert (np.diff(bins)[[0, 1, 5, 6, 8]] > 0).all()
    assert (noise._upper_edge(bins)[1:] >= x[1:].double().numpy()).all()
    assert (noise._upper_edge(bins[1:] - 1) <= x[1:].double().numpy()).all()
