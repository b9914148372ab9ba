"""The training loop, from top to bottom.

Everything random is a function of the seed and of how far the run is, so that a run resumed from any checkpoint ends with the
same bits as one that was never interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import data
from ..metrics import classification_metrics
from ..optim import LieGroupBLR
from ..posterior import Posterior
from . import checkpoint
from .display import Display
from .learner import build_network, build_optimizer, effective_size, parallel, posterior_of
from .run_directory import RunDirectory, RunError, environment
from .settings import TrainSettings, learning_rate, resolved


def train(settings: TrainSettings, dataset: data.Dataset | None = None) -> list[dict[str, Any]]:
    """Trains as the settings say, and returns the lines of metrics.jsonl.

    Args:
        settings: see `TrainSettings`; those left out are filled in.
        dataset: data of your own, in place of the one the settings name.
    """
    settings = resolved(settings)
    assert settings.output is not None
    run = RunDirectory(settings.output)
    with _processes() as (rank, world_size):
        if rank == 0:
            run.create(settings.resume)
        if world_size > 1:
            dist.barrier()
        with run.locked() if rank == 0 else _nothing():
            return _train(settings, dataset, run, rank, world_size)


def _train(
    settings: TrainSettings, dataset: data.Dataset | None, run: RunDirectory, rank: int, world_size: int
) -> list[dict[str, Any]]:
    dataset = data.load(settings.dataset, settings.data_dir) if dataset is None else dataset
    model = build_network(settings, dataset)
    data_size = effective_size(settings, dataset)
    optimizer = build_optimizer(settings, model, data_size)
    batches = data.Batches(
        dataset, settings.batch_size or 1, seed=settings.seed, augment=bool(settings.augment), rank=rank, world_size=world_size
    )
    progress = Progress()
    if settings.resume:
        _restore(run, settings, model, optimizer, progress)
    if rank == 0:
        run.require_space(4 * 6 * sum(p.numel() for p in model.parameters()))
        run.write_json("settings.json", settings.to_json())
        run.write_json("environment.json", {**environment(), "processes": world_size})
        run.write_metrics(progress.lines)
    network = parallel(model, settings) if world_size > 1 else model
    network = torch.compile(network) if settings.compile else network

    def save() -> None:
        if rank == 0:
            tree = {"settings": settings.to_json(), "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "progress": progress.to_json()}  # fmt: skip
            run.save_checkpoint(tree)
            run.write_metrics(progress.lines)

    steps_per_epoch = len(batches)
    epochs = settings.epochs or 1
    with (
        Display(settings, steps_per_epoch, len(dataset.train_labels), quiet=rank > 0) as display,
        _interruptible() as interrupted,
    ):
        saved_at = time.monotonic()
        while progress.epoch < epochs:
            model.train()
            for images, labels in batches.epoch(progress.epoch, progress.batch):
                began = time.monotonic()
                done = progress.epoch + (progress.batch + 0.5) / steps_per_epoch
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(settings, done)
                loss = _step(optimizer, network, images, labels)
                progress.batch += 1
                progress.loss_sum += float(loss)
                progress.seconds += time.monotonic() - began
                display.step(progress, optimizer)
                due = time.monotonic() - saved_at > settings.checkpoint_seconds
                if _any_rank(interrupted() or due, world_size):
                    save()
                    saved_at = time.monotonic()
                    if _any_rank(interrupted(), world_size):
                        raise InterruptedRunError(f"Interrupted; go on with --resume --output {run.path}")
            progress.epoch += 1
            line: dict[str, Any] = {
                "epoch": progress.epoch,
                "train_loss": progress.loss_sum / steps_per_epoch,
                "lr": learning_rate(settings, progress.epoch - 0.5 / steps_per_epoch),
                "seconds": round(progress.seconds, 3),
                "bounded": int(getattr(optimizer, "bounded", 0)),
            }
            progress.batch, progress.loss_sum = 0, 0.0
            if progress.epoch % settings.evaluate_every == 0 or progress.epoch == epochs:
                samples = 1 if settings.rule == "sgd" else settings.predictive_samples  # all draws of a point are one
                line |= evaluate(posterior_of(optimizer, model), dataset, samples)
            progress.lines.append(line)
            save()
            saved_at = time.monotonic()
            display.epoch(line)
        if rank == 0:
            posterior_of(optimizer, model).save(run.posterior)
    return progress.lines


class InterruptedRunError(RunError):
    """The run was asked to stop; its checkpoint is written."""


class Progress:
    """How far a run is: what a checkpoint holds beside the model and the optimizer."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.loss_sum = 0.0
        self.seconds = 0.0
        self.lines: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, content: dict[str, Any]) -> None:
        vars(self).update(content)


def _step(optimizer: torch.optim.Optimizer, network: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(network(images), labels)
        loss.backward()
        return loss.detach()

    if isinstance(optimizer, LieGroupBLR):
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    return loss


def evaluate(posterior: Posterior, dataset: data.Dataset, samples: int, batch_size: int = 500) -> dict[str, float]:
    """The metrics of the predictive marginal on the test data, and of the point estimate."""
    images = dataset.normalize(dataset.test_images)
    marginal = posterior.predict(images, samples, batch_size=batch_size)
    point = posterior.predict(images, 0, batch_size=batch_size)
    found = {f"test_{k}": v for k, v in classification_metrics(marginal.probabilities, dataset.test_labels).items()}
    found |= {f"point_{k}": v for k, v in classification_metrics(point.probabilities, dataset.test_labels).items()}
    return found


def _restore(
    run: RunDirectory, settings: TrainSettings, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Takes up the newest good checkpoint, if the settings are those it was written with."""
    found = checkpoint.load_last_good(run.checkpoint)
    if found is None:
        return  # interrupted before the first checkpoint: from the start
    tree, path = found
    # These may differ: they do not change what is computed.
    free = {"resume", "output", "data_dir", "checkpoint_seconds"}
    differing = {k: (v, tree["settings"].get(k)) for k, v in settings.to_json().items()
                 if k not in free and tree["settings"].get(k) != v}  # fmt: skip
    if differing:
        text = ", ".join(f"{k} is {mine!r} and was {theirs!r}" for k, (mine, theirs) in sorted(differing.items()))
        raise RunError(f"{path} was written with other settings: {text}. Resume with the same ones.")
    model.load_state_dict(tree["model"])
    optimizer.load_state_dict(tree["optimizer"])
    progress.restore(tree["progress"])


@contextmanager
def _processes() -> Iterator[tuple[int, int]]:
    """The rank and number of processes, as torchrun sets them up."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield 0, 1
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank(), world_size
    finally:
        dist.destroy_process_group()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM let the step finish first; a second one ends the program at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # only the main one may handle signals
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _any_rank(flag: bool, world_size: int) -> bool:
    if world_size == 1:
        return flag
    value = torch.tensor(int(flag))
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value)
