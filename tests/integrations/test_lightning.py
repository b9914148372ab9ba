"""Lightning's real trainer: alone where it hands the closure to `step`, with our callback where it runs the closure itself."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from support.regression import BATCH, by_hand, data, distance, network, optimizer_for, states
from support.tolerances import roundings
from torch import Tensor
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.plugins.precision import MixedPrecision

    from liebayes.integrations.lightning import PosteriorSampling

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regression(lightning.LightningModule):
    """A module as anyone would write it."""

    def __init__(self, break_at: int = -1, **settings: Any) -> None:
        super().__init__()
        self.model = network()
        self.settings = settings
        self.break_at = break_at
        self.optimizer: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == self.break_at:
            raise KeyError("of the user")
        x, y = batch
        return (self.model(x) - y).square().mean()

    def configure_optimizers(self) -> Any:
        self.optimizer = optimizer_for(self, **self.settings)
        return self.optimizer


def fit(module: Regression, checkpoint: str | None = None, **settings: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, **{"max_epochs": 2, **quiet, **settings})
    trainer.fit(module, DataLoader(data(), BATCH), ckpt_path=checkpoint)
    return trainer


def trained(module: Regression) -> list[Tensor]:
    return states(module.model, module.optimizer)


@pytest.mark.parametrize("callbacks", [0, 1])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("mc_samples", [1, 2])
def test_the_plain_trainer(mc_samples: int, clip: float | None, callbacks: int):
    """Clipping is part of the closure that Lightning passes on: it counts, for every sample. The callback changes nothing."""
    module = Regression(mc_samples=mc_samples)
    fit(module, gradient_clip_val=clip, callbacks=[PosteriorSampling()] * callbacks)
    expected = by_hand(2, clip, mc_samples=mc_samples)
    torch.testing.assert_close(trained(module), expected, rtol=0, atol=0)
    if clip is not None:
        assert not torch.equal(expected[0], by_hand(2, mc_samples=mc_samples)[0])


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulation_equals_the_large_batch(clip: float | None):
    module = Regression()
    fit(module, accumulate_grad_batches=3, gradient_clip_val=clip, callbacks=[PosteriorSampling()])
    assert module.optimizer.steps == 4
    torch.testing.assert_close(trained(module), by_hand(2, clip, batch=3 * BATCH), **roundings(64, size=0.1))


def test_accumulation_without_the_callback_is_refused():
    with pytest.raises(RuntimeError, match=r"callback of liebayes\.integrations"):
        fit(Regression(), accumulate_grad_batches=3)


def scaler() -> dict[str, Any]:
    """What precision="16-mixed" is on an accelerator; on the CPU Lightning would take bfloat16."""
    return {"plugins": [MixedPrecision("16-mixed", device="cpu", scaler=torch.amp.GradScaler("cpu", init_scale=64.0))]}


def test_a_gradient_scaler_without_the_callback_is_refused():
    with pytest.raises(RuntimeError, match=r"callback of liebayes\.integrations"):
        fit(Regression(), **scaler())


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_gradient_scaler(clip: float | None, accumulate: int):
    module = Regression()
    fit(module, gradient_clip_val=clip, accumulate_grad_batches=accumulate, callbacks=[PosteriorSampling()], **scaler())
    expected = by_hand(2, clip, batch=accumulate * BATCH)
    assert module.optimizer.steps == 12 // accumulate
    assert distance(trained(module), expected) < 0.02 * distance(list(network().parameters()), expected)  # half precision


def test_a_scaler_that_skips_a_step_drops_the_sample():
    module = Regression()
    settings = scaler()
    settings["plugins"][0].scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # overflows until it is small enough
    fit(module, max_epochs=8, callbacks=[PosteriorSampling()], **settings)
    assert 0 < module.optimizer.steps < 48
    assert all(bool(value.isfinite().all()) for value in trained(module))


def test_bfloat16_without_the_callback():
    module = Regression(mc_samples=2)
    fit(module, precision="bf16-mixed")
    expected = by_hand(2, mc_samples=2)
    assert distance(trained(module), expected) < 0.05 * distance(list(network().parameters()), expected)


@pytest.mark.parametrize("outside", [{"accumulate_grad_batches": 2}, scaler()], ids=["accumulation", "scaler"])
def test_several_samples_are_refused_where_the_closure_runs_once(outside: dict[str, Any]):
    with pytest.raises(ValueError, match="mc_samples=2 needs the closure"):
        fit(Regression(mc_samples=2), callbacks=[PosteriorSampling()], **outside)


def test_the_callback_refuses_other_optimizers():
    class Other(Regression):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters())

    with pytest.raises(ValueError, match="one optimizer of liebayes"):
        fit(Other(), callbacks=[PosteriorSampling()])


@pytest.mark.parametrize("break_at", [0, 1])
@pytest.mark.parametrize("callbacks", [0, 1])
def test_an_exception_leaves_the_point(break_at: int, callbacks: int):
    module = Regression(break_at=break_at)
    with pytest.raises(KeyError):
        fit(module, accumulate_grad_batches=2 if callbacks else 1, callbacks=[PosteriorSampling()] * callbacks)
    if break_at == 0 or callbacks:
        torch.testing.assert_close(list(module.model.parameters()), list(network().parameters()), rtol=0, atol=0)
    else:
        assert module.optimizer.steps == 1


def test_validation_and_checkpoints_between_micro_batches_see_the_point():
    seen = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
            seen.append([p.detach().clone() for p in module.model.parameters()])

    fit(Regression(), accumulate_grad_batches=3, max_epochs=1, callbacks=[PosteriorSampling(), Watch()])
    start = [p.detach() for p in network().parameters()]
    for between in seen[:2]:
        torch.testing.assert_close(between, start, rtol=0, atol=0)
    assert not torch.equal(seen[2][0], start[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_resuming_is_exact(tmp_path: Any, accumulate: int):
    settings = {"accumulate_grad_batches": accumulate, "callbacks": [PosteriorSampling()]}
    whole, first, second = Regression(), Regression(), Regression()
    fit(whole, max_epochs=3, **settings)
    fit(first, max_epochs=1, **settings).save_checkpoint(tmp_path / "run.ckpt")
    fit(second, str(tmp_path / "run.ckpt"), max_epochs=3, **settings)
    torch.testing.assert_close(trained(second), trained(whole), rtol=0, atol=0)
    assert second.optimizer.steps == whole.optimizer.steps
