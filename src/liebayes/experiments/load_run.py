"""Loads a trained run: its posterior, data set and settings."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path

import torch
from torch import nn

from .. import data
from ..posterior import Posterior
from .learner import build_network
from .run_directory import DamagedRunError, RunDirectory, RunError, fingerprint
from .settings import TrainSettings


class OtherDataWarning(UserWarning):
    """The data set has changed since the run was trained."""


def open_run(path: Path | str, data_dir: Path | None = None) -> tuple[Posterior, data.Dataset, TrainSettings]:
    """Loads the posterior, the data set and the settings of a run."""
    directory = RunDirectory(Path(path))
    settings = directory.settings()
    if not directory.posterior.exists():
        raise RunError(
            f"{path} has no posterior: its training has not ended. Continue with: liebayes train --resume --output "
            f"{shlex.quote(str(path))}"
        )
    if settings.dataset not in data.names():
        raise RunError(
            f"{path} was trained on {settings.dataset!r}, which is not a known data set: from Python, make it known with "
            "liebayes.data.register and use liebayes.experiments.open_run."
        )
    dataset = data.load(settings.dataset, data_dir or settings.data_dir).held_out(settings.held_out)
    if fingerprint(dataset) != directory.read_json("environment.json").get("data"):
        warnings.warn(
            f"{settings.dataset!r} has changed since {path} was trained: its test images may have been training images.",
            OtherDataWarning,
            stacklevel=2,
        )
    return load_posterior(directory, build_network(settings, dataset)), dataset, settings


def load_posterior(directory: RunDirectory, model: nn.Module) -> Posterior:
    """Loads the posterior of a finished run."""
    try:
        return Posterior.load(directory.posterior, model)
    except (ValueError, KeyError, OSError) as error:
        text = f"{directory.posterior} is damaged: {error} Remove it; train --resume writes it again."
        raise DamagedRunError(text) from error


def at_point(posterior: Posterior) -> nn.Module:
    """The module of the posterior, in evaluation mode, with the point estimate as its weights."""
    model = posterior.model.eval()
    values = {**posterior.point(), **posterior.buffers}
    with torch.no_grad():
        for name, slot in [*model.named_parameters(), *model.named_buffers()]:
            slot.copy_(values[name])
    return model
