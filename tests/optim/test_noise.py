"""The noise of training: independent per tensor, step and sample, a matter of counters alone, and resumable."""

import math
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Normal
from liebayes.optim import buckets
from liebayes.optim.noise import stream_generator

COUNT = 4000


def tensors() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(COUNT)), nn.Parameter(torch.zeros(40, 100)), nn.Parameter(torch.zeros(COUNT))]


def one_step(optimizer: Any, parameters: list[nn.Parameter], samples: int) -> list[list[Tensor]]:
    """The noise of one step, for each sample and tensor; the parameters stay at zero, so samples are noise."""
    drawn: list[list[Tensor]] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        drawn.append([p.detach().flatten().clone() for p in parameters])
        loss = sum((0 * p.sum() for p in parameters), torch.zeros(()))
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(drawn) == samples
    return drawn


def still(parameters: list[nn.Parameter], samples: int = 2, **options: Any) -> Any:
    """Unit noise around zero, where it stays."""
    return lb.AdditiveBLR(parameters, 0.1, data_size=10, base=Normal(1.0), prior=0.0, mc_samples=samples, **options)


def test_independent_per_tensor_step_and_sample() -> None:
    parameters = tensors()
    optimizer = still(parameters)
    drawn = [noise for _ in range(6) for sample in one_step(optimizer, parameters, 2) for noise in sample]
    assert len(drawn) == 36
    matrix = torch.stack(drawn)
    correlations = torch.corrcoef(matrix)
    off = correlations[~torch.eye(36, dtype=torch.bool)]
    # 630 correlations, each of deviation 1/√4000: 5 of them leave a chance of 4e-4.
    assert float(off.abs().max()) < 5 / math.sqrt(COUNT)
    for lag in (1, 2, 16):  # within a tensor, and where one tensor's stream would continue another's
        shifted = torch.corrcoef(torch.cat([matrix[:, lag:], matrix[:, :-lag]]))[:36, 36:]
        assert float(shifted.abs().max()) < 5.5 / math.sqrt(COUNT - lag)
    # Equal values: of 144,000 float32 Normals a few coincide by rounding; a stream used twice would give thousands.
    assert matrix.numel() - matrix.unique().numel() < 0.02 * matrix.numel()
    for a, b in pairwise(drawn):
        assert not torch.isin(a[:50], b).sum() > 5
    assert abs(float(matrix.mean())) < 4 / math.sqrt(matrix.numel())
    assert abs(float(matrix.var()) - 1) < 4 * math.sqrt(2 / matrix.numel())


def test_seeds_are_independent() -> None:
    parameters = tensors()
    first, second = (one_step(still(parameters, 1, seed=seed), parameters, 1)[0] for seed in (0, 1))
    again = one_step(still(parameters, 1, seed=0), parameters, 1)[0]
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, c)
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4.5 / math.sqrt(COUNT)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40 + 3])
def test_no_two_counters_share_a_seed(seed: int) -> None:
    """torch keeps 32 bits of a seed; of 2¹⁶ hashed ones two would collide (half a pair), with a bijection none."""
    seeds = []

    class Recorder:
        def __init__(self, device: Any) -> None:
            pass

        def manual_seed(self, value: int) -> "Recorder":
            seeds.append(value)
            return self

    with mock.patch("torch.Generator", Recorder):
        for step in range(2**12):
            for stream in range(2**4):
                stream_generator(seed, step, stream, torch.device("cpu"))
    assert len(set(seeds)) == 2**16
    assert all(0 <= s < 2**32 for s in seeds)


def test_neighbouring_counters_give_unrelated_numbers() -> None:
    rows = [
        torch.randn(20_000, generator=stream_generator(0, step, stream, torch.device("cpu")))
        for step in (0, 1, 2, 255, 256, 2**24 - 1)
        for stream in (0, 1, 2, 255, 256)
    ]
    off = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert float(off.abs().max()) < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("size", [buckets.SIZE, 1000])
def test_the_same_noise_with_and_without_foreach(size: int) -> None:
    with mock.patch.object(buckets, "SIZE", size):
        runs = []
        for foreach in (True, False):
            parameters = tensors()
            optimizer = still(parameters, foreach=foreach)
            runs.append([noise for _ in range(2) for sample in one_step(optimizer, parameters, 2) for noise in sample])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_noise_does_not_depend_on_torchs_own_generator_nor_touch_it() -> None:
    parameters = tensors()
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        runs.append(one_step(still(parameters), parameters, 2))
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for s, t in zip(*runs, strict=True) for a, b in zip(s, t, strict=True))


def test_after_resume_the_noise_of_an_uninterrupted_run() -> None:
    parameters = tensors()
    optimizer = still(parameters)
    for _ in range(3):
        one_step(optimizer, parameters, 2)
    checkpoint = optimizer.state_dict()
    expected = [one_step(optimizer, parameters, 2) for _ in range(3)]
    resumed = still(parameters, seed=99)  # the checkpoint's seed counts
    resumed.load_state_dict(checkpoint)
    found = [one_step(resumed, parameters, 2) for _ in range(3)]
    for a, b in zip(expected, found, strict=True):
        assert all(torch.equal(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True))


def test_a_parameter_without_gradient_keeps_its_place_in_the_stream() -> None:
    """The noise of the others does not depend on which parameters happen to have a gradient."""
    runs = []
    for unused in (True, False):
        parameters = tensors()
        optimizer = still(parameters, 1)
        drawn = []
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                drawn.append([p.detach().clone() for p in parameters])
                (0 * (parameters[0].sum() + (0 if unused else parameters[1].sum()) + parameters[2].sum())).backward()
            optimizer.step()
        runs.append(drawn)
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a[2], b[2])
