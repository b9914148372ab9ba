"""A program for torchrun: Lightning and Accelerate on two processes with DistributedDataParallel."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import liebayes as lb

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.regression import BATCH, DATA, data, network, optimizer_for, states


def own_loader() -> DataLoader[Any]:
    """Rank r has the r-th half of every batch."""
    half = BATCH // 2
    x, y = (t.view(DATA // BATCH, 2, half, -1)[:, dist.get_rank()].reshape(DATA // 2, -1) for t in data(torch.float64).tensors)
    return DataLoader(TensorDataset(x, y), half)


def with_lightning(callbacks: int) -> list[Tensor]:
    import lightning.pytorch as pl

    from liebayes.integrations.lightning import PosteriorSampling

    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(torch.float64)

        def train_dataloader(self) -> DataLoader[Any]:
            return own_loader()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return optimizer_for(self)

    module = Regression()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, use_distributed_sampler=False, barebones=False,
        callbacks=[PosteriorSampling()] * callbacks,
    )  # fmt: skip
    trainer.fit(module)
    return states(module.model, trainer.optimizers[0])


def with_accelerate() -> list[Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(torch.float64)
    model, optimizer = accelerator.prepare(model, optimizer_for(model))
    assert accelerator.num_processes == 2
    lb.optim.local_gradients(model)
    for x, y in own_loader():
        with optimizer.optimizer.sampled(again=True):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return states(model, optimizer.optimizer)


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {"lightning": outcome(with_lightning, 1), "accelerate": outcome(with_accelerate)}
    found["lightning, no callback"] = outcome(with_lightning, 0)
    torch.save(found, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.barrier()
    gc.collect()  # DistributedDataParallel must not outlive its process group
    dist.destroy_process_group()
    os._exit(0)  # as in liebayes.__main__: past this a thread of gloo may abort a process that has done its work
