"""The training loop, from top to bottom.

Everything random is a function of the seed and the progress of the run, so a run resumed from any checkpoint ends with the
same bits as one that was never interrupted. Only `seconds` in metrics.jsonl is measured: the time of all steps, summed over
sessions, without those lost to a `kill -9`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .. import data
from ..data import as_task
from ..optim import NonFiniteError
from ..posterior import Posterior
from ..variational.progress import ProgressBar
from . import checkpoint
from .defaults import resolved
from .display import Display
from .free_energy import free_energy
from .learner import Learner, distributed, posterior_of
from .own_data import OwnData, as_dataset, data_of, keep_data
from .precision import autocast
from .processes import interruptible, team
from .run_directory import RunDirectory, RunError, environment, fingerprint, resumed_sessions
from .settings import BOOKKEEPING, TrainSettings, learning_rate
from .tasks import task_of


def train(settings: TrainSettings, dataset: OwnData | None = None) -> list[dict[str, Any]]:
    """Trains with the settings, leaves the posterior in the run directory and returns the lines of metrics.jsonl.

    Args:
        settings: see `TrainSettings`; defaults are filled in.
        dataset: your own data, in place of the data set that the settings name: a `liebayes.data.Dataset`, four tensors
            or arrays of numpy (training images and labels, test images and labels), or two DataLoaders (training and test),
            read once. Up to 64 MB of them are stored with the run, so that it can be evaluated and predicted with.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> lines = train(TrainSettings(rule="additive", epochs=1, output=Path(folder.name) / "run"))  # doctest: +ELLIPSIS
    epoch 1/1 ...
    The posterior is in ...
    >>> lines[-1]["test_accuracy"] > 0.8
    True
    >>> folder.cleanup()
    """
    own = None if dataset is None else as_dataset(dataset)
    if own is not None:
        augment = own.augmentation is not None if settings.augment is None else settings.augment
        settings = dataclasses.replace(settings, dataset=own.name, augment=augment)
    given, settings = settings, resolved(settings)
    assert settings.output is not None
    run = RunDirectory(settings.output)
    with team() as ranks, _threads(settings.threads), ExitStack() as stack:
        with ranks.together():
            if ranks.writes:
                run.require_usable(settings.resume)
            content = data_of(settings, run.path) if own is None else as_task(own, settings.task)
            if settings.task is None:  # some defaults depend on it
                settings = dataclasses.replace(resolved(dataclasses.replace(given, task=content.kind)), task=None)
            learner = Learner(settings, content, ranks)
        with ranks.together():
            if ranks.writes:
                stack.enter_context(run.opened(settings.resume, learner.checkpoint_size()))
            if settings.resume:
                _restore(run, learner)
        with ranks.together():
            if ranks.writes:
                if own is not None and not settings.resume and own.name not in data.names():
                    keep_data(own, run.path)
                _write_first_files(run, learner)
        return _train(run, learner)


def resume(output: Path | str, dataset: OwnData | None = None) -> list[dict[str, Any]]:
    """Continues the run in a directory, and returns the lines of metrics.jsonl."""
    settings = RunDirectory(Path(output)).settings()
    return train(dataclasses.replace(settings, output=Path(output), resume=True), dataset)


class InterruptedRunError(RunError):
    """The run was asked to stop; its checkpoint is written."""


class DivergedRunError(RunError):
    """The loss, its gradients or the predictions are no longer finite."""


class OtherEnvironmentWarning(UserWarning):
    """A run is resumed on another machine, or with another version or number of processes or threads."""


# The loop.


def _train(run: RunDirectory, learner: Learner) -> list[dict[str, Any]]:
    settings, progress, ranks = learner.settings, learner.progress, learner.ranks
    steps, epochs = len(learner.batches), settings.epochs or 1
    ended_before = progress.epoch == epochs and run.posterior.exists()
    with (
        ProgressBar(epochs * steps, sys.stdout, show=ranks.writes) as bar,
        interruptible(patience=0.0 if ranks.size == 1 else 1.0) as interrupted,
    ):
        session = _Session(run, learner, Display(bar, settings, steps, len(learner.dataset.train_labels)), interrupted)
        while progress.epoch < epochs:
            session.train_epoch()
            line = session.end_epoch()
            session.save()
            session.display.epoch(line)
            if progress.epoch < epochs:
                session.stop_if_asked()
        with ranks.together():
            if ranks.writes:
                _save_posterior(posterior_of(learner.optimizer, learner.model), run)
        bar.line(f"{'The run had already ended. ' if ended_before else ''}The posterior is in {run.path}")
        if ranks.highest(int(interrupted())):  # a sweep or a table must not begin its next run
            raise InterruptedRunError(f"Interrupted at the end: the run in {run.path} is complete.")
    return progress.lines


class _Session:
    """Training in one process, from its start or from a checkpoint to its end or an interruption."""

    def __init__(self, run: RunDirectory, learner: Learner, display: Display, interrupted: Callable[[], bool]) -> None:
        self.run, self.learner, self.display, self.interrupted = run, learner, display, interrupted
        self.settings, self.progress, self.ranks = learner.settings, learner.progress, learner.ranks
        network: Any = distributed(learner.model, self.settings) if self.ranks.size > 1 else learner.model
        self.network: Any = torch.compile(network) if self.settings.compile else network
        self.steps: int = len(learner.batches)
        self.saved_at: float = time.monotonic()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a training pass."""
        with autocast(self.settings.precision):
            output = self.network(images)
        return self.learner.task.loss(pytree.tree_map(Tensor.float, output), labels)

    def train_epoch(self) -> None:
        """The remaining steps of an epoch."""
        settings, progress, optimizer = self.settings, self.progress, self.learner.optimizer
        self.learner.model.train()
        for images, labels in self.learner.batches.epoch(progress.epoch, progress.batch):
            began = time.monotonic()
            lr = learning_rate(settings, progress.epoch + (progress.batch + 0.5) / self.steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            try:
                split = settings.split_batch and len(labels) == (settings.batch_size or 0) // self.ranks.size
                loss = float(_step(optimizer, self.loss, images, labels, split))
            except NonFiniteError:  # on all ranks, if on one
                loss = math.nan
            progress.batch += 1
            progress.loss_sum += loss
            progress.seconds += time.monotonic() - began
            self.display.step(progress.epoch, progress.batch, progress.loss_sum / progress.batch, _bounded(optimizer))
            due = self.interrupted() or time.monotonic() - self.saved_at > settings.checkpoint_seconds
            asked = self.ranks.highest(2 if not math.isfinite(loss) else int(due))
            if asked == 2:
                raise DivergedRunError(
                    f"The loss or its gradient is not finite in epoch {progress.epoch + 1}: try a lower --lr. The last "
                    "checkpoint is kept."
                )
            if asked == 1:
                self.save()
                self.stop_if_asked()

    def end_epoch(self) -> dict[str, Any]:
        """Evaluates if an evaluation is due, and returns the epoch's line of metrics.jsonl."""
        settings, progress, optimizer = self.settings, self.progress, self.learner.optimizer
        progress.epoch += 1
        line: dict[str, Any] = {
            "epoch": progress.epoch,
            "train_loss": self.ranks.mean(progress.loss_sum) / self.steps,
            "lr": learning_rate(settings, progress.epoch - 0.5 / self.steps),
            "seconds": round(progress.seconds, 3),
            "bounded": _bounded(optimizer),
        }
        progress.batch, progress.loss_sum = 0, 0.0
        if progress.epoch % settings.evaluate_every == 0 or progress.epoch == settings.epochs:
            posterior = posterior_of(optimizer, self.network)
            line |= evaluate(posterior, self.learner.dataset, predictive_samples(settings))
            if progress.epoch == settings.epochs:
                line |= free_energy(posterior, self.learner.dataset, settings)
        progress.lines.append(line)
        return line

    def save(self) -> None:
        """Writes a checkpoint and the metrics."""
        self.progress.loss_sum = self.ranks.mean(self.progress.loss_sum)
        with self.ranks.together():
            if self.ranks.writes:
                checkpoint.save(self.learner.state(), self.run.checkpoint)
                self.run.write_metrics(self.progress.lines)
        self.saved_at = time.monotonic()

    def stop_if_asked(self) -> None:
        """Ends the session if any rank was interrupted. Call it after `save`."""
        if self.ranks.highest(int(self.interrupted())):
            place = shlex.quote(str(self.run.path))
            raise InterruptedRunError(f"Interrupted. Continue with: liebayes train --resume --output {place}")


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Sets the number of threads, a setting because another number may round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(
    optimizer: torch.optim.Optimizer, loss_of: Callable[[Tensor, Tensor], Tensor], images: Tensor, labels: Tensor, split: bool
) -> Tensor:
    def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(images, labels)
        loss.backward()
        return loss.detach()

    return cast(Any, optimizer).step(closure, **({"batch": (images, labels)} if split else {}))


def _bounded(optimizer: torch.optim.Optimizer) -> int:
    """How many coordinates `max_step` has bounded so far."""
    return int(getattr(optimizer, "bounded", 0))


def predictive_samples(settings: TrainSettings, samples: int | None = None) -> int:
    """The samples that a predictive marginal needs. All samples of a point are the same, so one is enough for SGD."""
    return 1 if settings.rule == "sgd" else settings.predictive_samples if samples is None else samples


def evaluate(posterior: Posterior, dataset: data.Dataset, samples: int, batch_size: int = 500) -> dict[str, float]:
    """The metrics of the predictive marginal on the test data, and of the point estimate."""
    images, task = dataset.normalize(dataset.test_images), task_of(dataset)
    found: dict[str, float] = {}
    for prefix, number in (("test", samples), ("point", 0)):
        prediction = task.predict(posterior, images, number, batch_size)
        if not task.finite(prediction):
            raise DivergedRunError("Predictions on the test data are not finite: try a lower --lr.")
        found |= {f"{prefix}_{k}": v for k, v in task.metrics(prediction, dataset.test_labels).items()}
    return found


# Files.


def _restore(run: RunDirectory, learner: Learner) -> None:
    """Loads the newest good checkpoint, if settings and data are those it was written with. Writes nothing."""
    run.metrics()
    _require_same(learner.settings, run.settings().to_json(), run.path)
    now, then = fingerprint(learner.dataset), run.read_json("environment.json").get("data")
    if now != then:
        raise RunError(f"The data of {run.path} have changed: {then} then, {now} now. Restore the data it was started with.")
    state = checkpoint.load_last_good(run.checkpoint)
    if state is None:
        return  # interrupted before the first checkpoint: from the start
    try:
        then = {**TrainSettings().to_json(), **state["settings"]}  # settings added since then had their defaults
        _require_same(learner.settings, then, run.checkpoint)
        learner.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.progress.restore(state["progress"], learner.settings.epochs or 1, len(learner.batches))
    except RunError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError) as error:  # forged
        text = " ".join(str(error).split())[:300]
        raise RunError(f"{run.checkpoint} is not a checkpoint of this run: {text}. Put a good copy there.") from error


def _require_same(settings: TrainSettings, then: dict[str, Any], path: Path) -> None:
    for name, value in sorted(settings.to_json().items()):
        if name not in BOOKKEEPING and then.get(name) != value:
            raise RunError(
                f"{path} was started with other settings: {name} is {value!r} and was {then.get(name)!r}. "
                "Resume with the same ones."
            )


def _write_first_files(run: RunDirectory, learner: Learner) -> None:
    here = {**environment(), "processes": learner.ranks.size, "data": fingerprint(learner.dataset)}
    if learner.settings.resume:
        checkpoint.set_damaged_aside(run.checkpoint)
        first = run.read_json("environment.json")
        compared = ("liebayes", "torch", "threads", "processor", "processes")
        changed = [f"{name} {here[name]} instead of {first.get(name)}" for name in compared if first.get(name) != here[name]]
        if changed:
            text = f"{run.path} is resumed with {', '.join(changed)}: the results may differ in the last bits."
            warnings.warn(text, OtherEnvironmentWarning, stacklevel=2)
        here = {**first, "resumed": [*resumed_sessions(first), here]}
    # settings.json comes last: once it exists, the run has started and can be resumed.
    run.write_json("environment.json", here)
    run.write_metrics(learner.progress.lines)
    run.write_json("settings.json", dataclasses.replace(learner.settings, resume=False).to_json())


def _save_posterior(posterior: Posterior, run: RunDirectory) -> None:
    from safetensors import SafetensorError

    try:
        posterior.save(run.posterior)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"{run.posterior} could not be written: {reason}. Free some space, then continue with --resume from the last "
            "checkpoint."
        ) from error
