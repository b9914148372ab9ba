"""The training loop, from top to bottom.

Everything random is a function of the seed and of how far the run is, so that a run resumed from any checkpoint ends with the
same bits as one that was never interrupted. Only `seconds` in metrics.jsonl is measured: the time of the steps, over all
sessions, without those lost to a `kill -9`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .. import data
from ..metrics import classification_metrics
from ..optim import NonFiniteError
from ..posterior import Posterior
from . import checkpoint
from .defaults import resolved
from .display import Display
from .learner import build_network, build_optimizer, distributed, effective_size, posterior_of
from .own_data import OwnData, as_dataset
from .processes import Team, interruptible, team
from .run_directory import RunDirectory, RunError, environment, fingerprint
from .settings import SettingsError, TrainSettings, learning_rate


def train(settings: TrainSettings, dataset: OwnData | None = None) -> list[dict[str, Any]]:
    """Trains as the settings say, and returns the lines of metrics.jsonl. The posterior is in the run directory then.

    Args:
        settings: see `TrainSettings`; those left out are filled in.
        dataset: data of your own in place of those the settings name: a `liebayes.data.Dataset`, four tensors (training
            images and labels, test images and labels), or two DataLoaders (training and test), which are read once.

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
    settings = resolved(settings)
    assert settings.output is not None
    run = RunDirectory(settings.output)
    with team() as ranks, _threads(settings.threads), ExitStack() as stack:
        with ranks.together():
            if ranks.writes:
                run.require_fit(settings.resume)
            content = data.load(settings.dataset, settings.data_dir) if own is None else own
            learner = _Learner(settings, content, ranks)
        with ranks.together():
            if ranks.writes:
                stack.enter_context(run.opened(settings.resume, learner.checkpoint_size()))
            if settings.resume:
                _restore(run, learner)
        with ranks.together():
            if ranks.writes:
                _open_files(run, learner)
        return _train(run, learner)


def resume(output: Path | str, dataset: OwnData | None = None) -> list[dict[str, Any]]:
    """Goes on with the run in a directory, and returns the lines of metrics.jsonl."""
    settings = RunDirectory(Path(output)).settings()
    return train(dataclasses.replace(settings, output=Path(output), resume=True), dataset)


class _Learner:
    """What is trained, on what, and how far it is."""

    def __init__(self, settings: TrainSettings, dataset: data.Dataset, ranks: Team) -> None:
        self.settings, self.ranks = settings, ranks
        try:
            self.dataset = dataset = dataset.held_out(settings.held_out)
            if not len(dataset.test_labels) or len(dataset.class_names) < 2:
                raise ValueError(
                    f"Runs are judged on test images of at least two classes, but {dataset.name} has "
                    f"{len(dataset.test_labels)} test images and {len(dataset.class_names)} classes."
                )
            self.model = build_network(settings, dataset)
            self.optimizer = build_optimizer(settings, self.model, effective_size(settings, dataset))
            self.batches = data.Batches(
                dataset, settings.batch_size or 1, seed=settings.seed, augment=bool(settings.augment), rank=ranks.rank,
                world_size=ranks.size,
            )  # fmt: skip
            self._require_parts()
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self.progress = Progress()

    def _require_parts(self) -> None:
        """Every sample needs its part of this rank's part of a batch. The last batch of an epoch, if smaller, is not split."""
        size, samples = (self.settings.batch_size or 1) // self.ranks.size, self.settings.mc_samples or 1
        images = len(self.dataset.train_labels)
        if self.settings.split_batch and (size % samples or size > images):
            raise ValueError(
                f"--split-batch: {size} images of {images}, for each of {self.ranks.size} processes, do not split into "
                f"{samples} equal parts, one for each sample. Choose another --batch-size or --mc-samples."
            )

    def checkpoint_size(self) -> int:
        """In bytes, about: the parameters, their element and momentum, and the metric's memory."""
        return 4 * 6 * sum(p.numel() for p in self.model.parameters()) + 100_000

    def tree(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "settings": self.settings.to_json(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": self.progress.to_json(),
        }


class Progress:
    """How far a run is: what a checkpoint holds beside the model and the optimizer."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.loss_sum: float = 0.0
        self.seconds: float = 0.0
        self.lines: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, content: dict[str, Any]) -> None:
        vars(self).update(content)


class InterruptedRunError(RunError):
    """The run was asked to stop; its checkpoint is written."""


class DivergedRunError(RunError):
    """The loss, its gradients or the predictions are not finite any more."""


class OtherEnvironmentWarning(UserWarning):
    """A run is resumed elsewhere, or with another number of processes or threads."""


def _train(run: RunDirectory, learner: _Learner) -> list[dict[str, Any]]:
    settings, model, optimizer, batches, progress, ranks = (
        learner.settings, learner.model, learner.optimizer, learner.batches, learner.progress, learner.ranks
    )  # fmt: skip
    network: Any = distributed(model, settings) if ranks.size > 1 else model
    network = torch.compile(network) if settings.compile else network
    steps_per_epoch, epochs = len(batches), settings.epochs or 1
    saved_at = time.monotonic()
    complete = progress.epoch == epochs and run.posterior.exists()

    def save() -> None:
        nonlocal saved_at
        progress.loss_sum = ranks.mean(progress.loss_sum)
        with ranks.together():
            if ranks.writes:
                checkpoint.save(learner.tree(), run.checkpoint)
                run.write_metrics(progress.lines)
        saved_at = time.monotonic()

    def stop_if_asked() -> None:
        if ranks.highest(interrupted()):
            place = shlex.quote(str(run.path))
            raise InterruptedRunError(f"Interrupted. Go on with: liebayes train --resume --output {place}")

    with (
        Display(settings, steps_per_epoch, len(learner.dataset.train_labels), quiet=not ranks.writes) as display,
        interruptible(patience=0.0 if ranks.size == 1 else 1.0) as interrupted,
    ):
        while progress.epoch < epochs:
            model.train()
            for images, labels in batches.epoch(progress.epoch, progress.batch):
                began = time.monotonic()
                done = progress.epoch + (progress.batch + 0.5) / steps_per_epoch
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(settings, done)
                try:
                    split = settings.split_batch and len(labels) == (settings.batch_size or 0) // ranks.size
                    loss = float(_step(optimizer, network, images, labels, split))
                except NonFiniteError:  # on all ranks, if on one
                    loss = math.nan
                progress.batch += 1
                progress.loss_sum += loss
                progress.seconds += time.monotonic() - began
                display.step(progress, optimizer)
                due = interrupted() or time.monotonic() - saved_at > settings.checkpoint_seconds
                asked = ranks.highest(2 if not math.isfinite(loss) else int(due))
                if asked == 2:
                    raise DivergedRunError(
                        f"The loss or its gradient is not finite in epoch {progress.epoch + 1}: try a lower --lr. The last "
                        "checkpoint is kept."
                    )
                if asked == 1:
                    save()
                    stop_if_asked()
            progress.epoch += 1
            line: dict[str, Any] = {
                "epoch": progress.epoch,
                "train_loss": ranks.mean(progress.loss_sum) / steps_per_epoch,
                "lr": learning_rate(settings, progress.epoch - 0.5 / steps_per_epoch),
                "seconds": round(progress.seconds, 3),
                "bounded": int(getattr(optimizer, "bounded", 0)),
            }
            progress.batch, progress.loss_sum = 0, 0.0
            if progress.epoch % settings.evaluate_every == 0 or progress.epoch == epochs:
                samples = 1 if settings.rule == "sgd" else settings.predictive_samples  # all draws of a point are one
                line |= evaluate(posterior_of(optimizer, network), learner.dataset, samples)
            progress.lines.append(line)
            save()
            display.epoch(line)
            if progress.epoch < epochs:
                stop_if_asked()
        with ranks.together():
            if ranks.writes:
                _save_posterior(posterior_of(optimizer, model), run)
        before = "Nothing was left to do: the run had ended. " if complete else ""
        display.line(f"{before}The posterior is in {run.path}")
        if ranks.highest(int(interrupted())):  # a sweep or a table must not begin its next run
            raise InterruptedRunError(f"Interrupted at the end: the run in {run.path} is complete.")
    return progress.lines


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """A part of the settings because another number may round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(
    optimizer: torch.optim.Optimizer, network: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, split: bool
) -> Tensor:
    def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(network(images), labels)
        loss.backward()
        return loss.detach()

    return cast(Any, optimizer).step(closure, **({"batch": (images, labels)} if split else {}))


def evaluate(posterior: Posterior, dataset: data.Dataset, samples: int, batch_size: int = 500) -> dict[str, float]:
    """The metrics of the predictive marginal on the test data, and of the point estimate."""
    images = dataset.normalize(dataset.test_images)
    marginal = posterior.predict(images, samples, batch_size=batch_size)
    point = posterior.predict(images, 0, batch_size=batch_size)
    if not all(bool(prediction.probabilities.isfinite().all()) for prediction in (marginal, point)):
        raise DivergedRunError("Predictions on the test data are not finite: try a lower --lr.")
    found = {f"test_{k}": v for k, v in classification_metrics(marginal.probabilities, dataset.test_labels).items()}
    found |= {f"point_{k}": v for k, v in classification_metrics(point.probabilities, dataset.test_labels).items()}
    return found


# Files.


def _restore(run: RunDirectory, learner: _Learner) -> None:
    """Takes up the newest good checkpoint, if settings and data are those it was written with. Nothing is written."""
    run.metrics()
    _require_same(learner.settings, run.settings().to_json(), run.path)
    now, then = fingerprint(learner.dataset), run.read_json("environment.json").get("data")
    if now != then:
        raise RunError(f"The data of {run.path} have changed: {then} then, {now} now. Bring back those it was started with.")
    tree = checkpoint.load_last_good(run.checkpoint)
    if tree is None:
        return  # interrupted before the first checkpoint: from the start
    then = {**TrainSettings().to_json(), **tree["settings"]}  # settings that came later had their defaults
    _require_same(learner.settings, then, run.checkpoint)
    learner.model.load_state_dict(tree["model"])
    learner.optimizer.load_state_dict(tree["optimizer"])
    learner.progress.restore(tree["progress"])


def _require_same(settings: TrainSettings, then: dict[str, Any], path: Path) -> None:
    for name, value in sorted(settings.to_json().items()):
        # Others may differ: they do not change what is computed.
        if name not in ("resume", "output", "data_dir", "checkpoint_seconds") and then.get(name) != value:
            raise RunError(
                f"{path} was started with other settings: {name} is {value!r} and was {then.get(name)!r}. "
                "Resume with the same ones."
            )


def _open_files(run: RunDirectory, learner: _Learner) -> None:
    here = {**environment(), "processes": learner.ranks.size, "data": fingerprint(learner.dataset)}
    if learner.settings.resume:
        checkpoint.set_damaged_aside(run.checkpoint)
        first = run.read_json("environment.json")
        changed = [
            name for name in ("liebayes", "torch", "threads", "processor", "processes") if first.get(name) != here[name]
        ]
        if changed:
            text = ", ".join(f"{name} {here[name]} instead of {first.get(name)}" for name in changed)
            warnings.warn(f"{run.path} is resumed with {text}: its bits may differ.", OtherEnvironmentWarning, stacklevel=2)
        here = {**first, "resumed": [*first.get("resumed", []), here]}
    # settings.json comes last: with it a run has started, and can be resumed.
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
            f"{run.posterior} could not be written: {reason}. Make room; the last checkpoint is kept: go on with --resume."
        ) from error
