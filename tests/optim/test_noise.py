"""The noise of training: independent per tensor, step, sample and seed, a function of counters alone, and resumable."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Normal
from liebayes.optim.noise import stream_generator

COUNT = 4000


def noise_of_steps(optimizer: Any, steps: int, used: tuple[int, ...] = (0, 1, 2)) -> Tensor:
    """One row for every sample and tensor: the parameters stay at zero, so that samples are noise."""
    parameters, drawn = optimizer.param_groups[0]["params"], []

    def closure() -> None:
        optimizer.zero_grad()
        drawn.extend(p.detach().flatten().clone() for p in parameters)
        sum((0 * parameters[k].sum() for k in used), torch.zeros(())).backward()

    for _ in range(steps):
        optimizer.step(closure)
    return torch.stack(drawn)


def still(**options: Any) -> Any:
    """Three tensors with unit noise around zero, where they stay."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((COUNT,), (40, 100), (COUNT,))]
    settings = {"data_size": 10, "base": Normal(1.0), "prior": 0.0, "mc_samples": 2, **options}
    return lb.AdditiveBLR(parameters, 0.1, **settings)


@pytest.mark.parametrize("noise", ["torch", "philox", None])
def test_independent_per_tensor_step_and_sample(noise: Any) -> None:
    drawn = noise_of_steps(still(noise=noise), 6)
    assert drawn.shape == (36, COUNT)
    # 630 correlations, each of deviation 1/√4000: 5 of them leave a chance of 4e-4.
    assert float((torch.corrcoef(drawn) - torch.eye(36)).abs().max()) < 5 / math.sqrt(COUNT)
    for lag in (1, 2, 16):  # within a tensor, and where one tensor's stream would continue another's
        shifted = torch.corrcoef(torch.cat([drawn[:, lag:], drawn[:, :-lag]]))[:36, 36:]
        assert float(shifted.abs().max()) < 5.5 / math.sqrt(COUNT - lag)
    # Of 144,000 float32 Normals a few coincide by rounding; a stream used twice would give thousands.
    assert drawn.numel() - drawn.unique().numel() < 0.02 * drawn.numel()
    assert abs(float(drawn.mean())) < 4 / math.sqrt(drawn.numel())
    assert abs(float(drawn.var()) - 1) < 4 * math.sqrt(2 / drawn.numel())


def test_seeds_are_independent_and_torchs_own_generator_plays_no_part() -> None:
    runs = []
    for own, seed in enumerate((0, 1, 0)):
        torch.manual_seed(own)
        before = torch.get_rng_state()
        runs.append(noise_of_steps(still(seed=seed), 1))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(runs[0], runs[2])
    for a, b in zip(runs[0], runs[1], strict=True):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4.5 / math.sqrt(COUNT)


def test_a_resumed_run_has_the_noise_of_an_uninterrupted_one() -> None:
    optimizer = still()
    noise_of_steps(optimizer, 3)
    resumed = still(seed=99)  # the checkpoint's seed counts
    resumed.load_state_dict(optimizer.state_dict())
    assert torch.equal(noise_of_steps(resumed, 3), noise_of_steps(optimizer, 3))


def test_a_parameter_without_gradient_keeps_its_place_in_the_stream() -> None:
    """The noise of the others does not depend on which parameters happen to have a gradient."""
    all_used, some_used = (noise_of_steps(still(mc_samples=1), 3, used) for used in ((0, 1, 2), (0, 2)))
    assert torch.equal(all_used.view(3, 3, -1)[:, 2], some_used.view(3, 3, -1)[:, 2])


@pytest.mark.parametrize("seed", [0, 2**40 + 3])
def test_no_two_counters_share_a_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps 32 bits of a seed; of 2¹⁶ hashed ones two would collide (half a pair), with a bijection none."""
    seeds: set[int] = set()

    class Noted:
        def __init__(self, device: torch.device) -> None:
            self.manual_seed = seeds.add

    monkeypatch.setattr(torch, "Generator", Noted)
    for counter in range(2**16):
        stream_generator(seed, counter >> 4, counter & 15, torch.device("cpu"))
    assert len(seeds) == 2**16
    assert all(0 <= s < 2**32 for s in seeds)


def test_neighbouring_counters_give_unrelated_numbers() -> None:
    rows = [
        torch.randn(20_000, generator=stream_generator(0, step, stream, torch.device("cpu")))
        for step in (0, 1, 2, 255, 256, 2**24 - 1)
        for stream in (0, 1, 2, 255, 256)
    ]
    off = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert float(off.abs().max()) < 5 / math.sqrt(20_000)
