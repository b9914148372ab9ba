"""Accelerate's real wrappers, with the loops of docs/integrations.md."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.regression import BATCH, by_hand, data, distance, network, optimizer_for, states
from support.tolerances import roundings
from torch import Tensor, nn
from torch.utils.data import DataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate = pytest.importorskip("accelerate")


def reset() -> None:
    """Accelerate keeps its settings for the whole process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    reset()
    yield
    reset()


def prepared(batch: int = BATCH, mc_samples: int = 1, **settings: Any) -> tuple[Any, Any, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    model = network()
    return accelerator, *accelerator.prepare(model, optimizer_for(model, mc_samples=mc_samples), DataLoader(data(), batch))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("mc_samples", [1, 2])
def test_closures(mc_samples: int, clip: float | None):
    accelerator, model, optimizer, loader = prepared(mc_samples=mc_samples)
    for x, y in loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            return loss

        optimizer.step(closure)
    expected = by_hand(clip=clip, mc_samples=mc_samples)
    torch.testing.assert_close(states(model, optimizer), expected, rtol=0, atol=0)
    if clip is not None:
        assert not torch.equal(expected[0], by_hand(mc_samples=mc_samples)[0])


def train_in_blocks(accelerator: Any, model: Any, optimizer: Any, loader: Any, clip: float | None = None) -> None:
    for x, y in loader:
        with accelerator.accumulate(model):
            with optimizer.optimizer.sampled(again=True):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
            if accelerator.sync_gradients and clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_blocks_with_accumulation(accumulate: int, clip: float | None):
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=accumulate)
    train_in_blocks(accelerator, model, optimizer, loader, clip)
    assert optimizer.optimizer.steps == 6 // accumulate
    expected = by_hand(clip=clip, batch=BATCH * accumulate)
    torch.testing.assert_close(states(model, optimizer), expected, **roundings(64, size=0.1))


def test_a_step_without_a_sample_is_refused():
    accelerator, model, optimizer, loader = prepared()
    x, y = next(iter(loader))
    accelerator.backward(nn.functional.mse_loss(model(x), y))
    with pytest.raises(RuntimeError, match=r"step\(\) without a sample"):
        optimizer.step()


def test_bfloat16():
    accelerator, model, optimizer, loader = prepared(mixed_precision="bf16")
    train_in_blocks(accelerator, model, optimizer, loader)
    assert 0 < distance(states(model, optimizer), by_hand()) < 0.05 * distance(list(network().parameters()), by_hand())


@pytest.mark.parametrize("safe", [True, False])
def test_saved_states_resume_exactly(tmp_path: Any, safe: bool):
    accelerator, model, optimizer, loader = prepared()
    train_in_blocks(accelerator, model, optimizer, loader)
    accelerator.save_state(tmp_path / "state", safe_serialization=safe)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, model, optimizer, loader = prepared()
    accelerator.load_state(tmp_path / "state")
    train_in_blocks(accelerator, model, optimizer, loader)
    torch.testing.assert_close(states(model, optimizer), by_hand(epochs=2), rtol=0, atol=0)


def test_the_posterior_of_a_prepared_model():
    accelerator, model, optimizer, loader = prepared()
    train_in_blocks(accelerator, model, optimizer, loader)
    posterior = optimizer.optimizer.posterior(accelerator.unwrap_model(model))
    torch.testing.assert_close(list(posterior.point().values()), by_hand()[:4], rtol=0, atol=0)
