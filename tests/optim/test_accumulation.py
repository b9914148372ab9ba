"""Micro-batches: one sample over several blocks equals the whole batch, and gradients off a sample are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb


def problem(**settings: Any) -> tuple[nn.Module, lb.LieGroupBLR, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=p.dtype))
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=20, base=lb.bases.Normal(0.2), **settings)
    return model, optimizer, x


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def whole_batch(steps: int = 2) -> list[Tensor]:
    model, optimizer, x = problem()
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled():
            model(x).square().mean().backward()
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("late", [False, True])
def test_blocks_of_one_sample_equal_the_whole_batch(late: bool):
    model, optimizer, x = problem()
    for _ in range(2):
        optimizer.zero_grad()
        for part in x.chunk(3):
            with optimizer.sampled(again=True):
                loss = model(part).square().mean() / 3
                if not late:
                    loss.backward()
            if late:
                loss.backward()
        optimizer.step()
    torch.testing.assert_close(values(model), whole_batch(), rtol=0, atol=1e-13)


def test_a_step_inside_a_block_runs_its_closure_on_the_sample():
    """How a trainer uses it: the closure leaves the block."""
    model, optimizer, x = problem()
    for _ in range(2):
        block = optimizer.sampled(again=True)
        block.__enter__()

        def closure(block: Any = block) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            block.__exit__(None, None, None)
            return loss

        assert optimizer.step(closure) > 0
    torch.testing.assert_close(values(model), whole_batch(), rtol=0, atol=0)


def test_a_closure_that_does_not_leave_the_block_is_refused():
    model, optimizer, x = problem()
    before = values(model)
    with optimizer.sampled(), pytest.raises(RuntimeError, match="Leave the block"):
        optimizer.step(lambda: model(x).square().mean().backward())
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)


def test_several_samples_have_no_again():
    _, optimizer, _ = problem(mc_samples=2)
    with pytest.raises(ValueError, match="needs mc_samples=1"), optimizer.sampled(again=True):
        pass


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_gradients_off_a_sample_are_refused(mc_samples: int):
    model, optimizer, x = problem(mc_samples=mc_samples)
    before = values(model)
    model(x).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"sampled\(again=True\)"):
        optimizer.step(lambda: model(x).square().mean().backward())
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("clear", ["before", "inside", "model", "in place"])
def test_gradients_off_a_sample_that_are_cleared_do_no_harm(clear: str):
    model, optimizer, x = problem()
    for _ in range(2):
        model(x).square().mean().backward()
        if clear == "before":
            optimizer.zero_grad()
        elif clear == "in place":
            model.zero_grad(set_to_none=False)

        def closure() -> None:
            if clear in ("inside", "model"):
                optimizer.zero_grad() if clear == "inside" else model.zero_grad()
            model(x).square().mean().backward()

        optimizer.step(closure)
    torch.testing.assert_close(values(model), whole_batch(), rtol=0, atol=0)
