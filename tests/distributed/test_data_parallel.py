"""Two ranks of DistributedDataParallel equal one process with two samples on two sub-batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import data_parallel_scenarios as scenarios
import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, results, results_of_two_ranks
from small_problem import (
    BASELINES,
    OPTIMIZERS,
    batches,
    largest_difference,
    network,
    one_process,
    optimizer_for,
    states,
    train,
)
from support.processes import TIMEOUT

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")

ROUNDING = 1e-13


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return results_of_two_ranks("data_parallel_scenarios", tmp_path_factory)


def test_ranks_with_different_numbers_of_blocks_stay_together(ranks: Ranks):
    first, second = results(ranks, "uneven blocks")
    assert largest_difference(first, second) == 0


def test_every_block_of_every_rank_has_its_own_noise(ranks: Ranks):
    first, second = results(ranks, "noise of blocks")
    assert len({*first, *second}) == 8


def test_a_process_outside_of_its_group_is_refused(ranks: Ranks):
    """torch would count −1 processes, and the mean over them would climb the loss."""
    member, other = ranks["not a member"]
    assert isinstance(member, dict)
    assert isinstance(other, ValueError)
    assert "This process is not a member of process_group" in str(other)


@pytest.mark.parametrize("mc_samples", [1, 2])
@pytest.mark.parametrize("kind", [*OPTIMIZERS, *BASELINES])
def test_two_ranks_equal_one_process(ranks: Ranks, kind: str, mc_samples: int):
    first, second = results(ranks, f"{kind} {mc_samples}")
    assert largest_difference(first, second) == 0
    assert largest_difference(first, one_process(kind, 2 * mc_samples, split=True)) < ROUNDING


def test_both_protocols_are_equal(ranks: Ranks):
    first, second = results(ranks, "blocks")
    assert largest_difference(first, second) == 0
    assert largest_difference(first, one_process("affine", 2, split=True)) < ROUNDING


def test_averaged_gradients_are_refused_on_every_rank(ranks: Ranks):
    for error in ranks["averaged"]:
        assert isinstance(error, RuntimeError)
        assert "local_gradients" in str(error)


@pytest.mark.parametrize("mc_samples", [1, 2])
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_ranks_agree_on_what_is_not_finite(ranks: Ranks, policy: str, mc_samples: int):
    first, second = results(ranks, f"nonfinite {policy} {mc_samples}")
    for result in (first, second):
        assert largest_difference(result["before"], result["after"]) == 0
        assert ("not finite" in result["raised"]) == (policy == "raise")
        assert result["skipped"] == (policy == "skip")
        assert largest_difference(result["before"], result["end"]) > 1e-4
    assert largest_difference(first["end"], second["end"]) == 0


@pytest.mark.parametrize("kernel", [False, True])
def test_ranks_agree_on_a_result_that_is_not_finite(ranks: Ranks, kernel: bool):
    first, second = results(ranks, f"infinite result {kernel}")
    for result in (first, second):
        assert "the step would have written infinite or NaN numbers" in result["raised"]
        assert largest_difference(result["before"], result["after"]) == 0
        assert largest_difference(result["before"], result["end"]) > 0
    assert largest_difference(first["end"], second["end"]) == 0


@pytest.mark.parametrize("unscale", [False, True])
def test_a_gradient_scaler(ranks: Ranks, unscale: bool):
    first, second = results(ranks, f"scaler False {unscale}")
    assert largest_difference(first["states"], second["states"]) == 0
    assert largest_difference(first["states"], one_process("affine", 2, split=True)) < ROUNDING


@pytest.mark.parametrize("unscale", [False, True])
def test_ranks_skip_together_what_a_scaler_skips_on_one(ranks: Ranks, unscale: bool):
    first, second = results(ranks, f"scaler True {unscale}")
    assert first["skipped"] == second["skipped"] == [False, True, False, False]
    assert largest_difference(first["states"], second["states"]) == 0


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_gradient_on_one_rank_only(ranks: Ranks, mc_samples: int, wrapped: bool):
    first, second = results(ranks, f"one-sided {mc_samples} {wrapped}")
    assert largest_difference(first, second) == 0
    model = scenarios.TwoHeads()
    optimizer = optimizer_for("affine", model, mc_samples=2 * mc_samples)
    for x, y in scenarios.one_sided_batches():
        parts = iter([part for half in zip(x.chunk(2), y.chunk(2), strict=True) for part in [half] * mc_samples])

        def closure(parts: Any = parts) -> torch.Tensor:
            optimizer.zero_grad()
            part, target = next(parts)
            loss = (model(part) - target).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert largest_difference(first, states(model, optimizer)) < ROUNDING
    assert float((first["point head.weight"] - 0.5).abs()) > 1e-4


def test_a_checkpoint_of_two_ranks_continues_on_one(ranks: Ranks):
    checkpoint = results(ranks, "first half")[0]
    model = network()
    optimizer = optimizer_for("affine", model, mc_samples=2)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, batches()[2:], split=True)
    assert largest_difference(states(model, optimizer), one_process("affine", 2, split=True)) < ROUNDING


def test_a_checkpoint_of_one_process_continues_on_two(ranks: Ranks):
    first, second = results(ranks, "second half")
    assert largest_difference(first, second) == 0
    assert largest_difference(first, one_process("affine", 2, split=True)) < ROUNDING


CLOSED = """
import gc, os, sys
import torch, torch.distributed as dist
import liebayes

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(1)
before = threads()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
assert threads() > before
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model = None
gc.collect()
dist.destroy_process_group()
assert threads() == before, "a process group was kept"
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
def test_a_process_group_is_closed(tmp_path: Path):
    """torch keeps it where a certain module is loaded too late, and may then abort at exit."""
    subprocess.run([sys.executable, "-c", CLOSED, str(tmp_path / "meeting")], check=True, timeout=TIMEOUT)
