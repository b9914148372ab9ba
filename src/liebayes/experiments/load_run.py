"""Loads a trained run: its posterior, data set and settings."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path

import torch
from torch import nn

from .. import data
from ..posterior import Posterior
from ..posterior_file import OtherModelError
from .learner import build_network
from .own_data import OwnData, as_dataset, data_of
from .run_directory import DamagedRunError, RunDirectory, RunError, fingerprint
from .settings import TrainSettings


class OtherDataWarning(UserWarning):
    """The data set has changed since the run was trained."""


def open_run(
    path: Path | str, data_dir: Path | None = None, dataset: OwnData | None = None
) -> tuple[Posterior, data.Dataset, TrainSettings]:
    """Loads the posterior, the data set and the settings of a run.

    Args:
        path: the run directory.
        data_dir: the folder with the data sets, if it is not the one the run used.
        dataset: the data of a run on data of your own that are neither files nor stored with the run.
    """
    directory = RunDirectory(Path(path))
    settings = directory.settings()
    if not directory.posterior.exists():
        raise RunError(
            f"{path} has no posterior: its training has not ended. Continue with: liebayes train --resume --output "
            f"{shlex.quote(str(path))}"
        )
    own = None if dataset is None else data.as_task(as_dataset(dataset), settings.task)
    found = (own or data_of(settings, directory.path, data_dir)).held_out(settings.held_out)
    if fingerprint(found) != directory.read_json("environment.json").get("data"):
        warnings.warn(
            f"{settings.dataset!r} has changed since {path} was trained: its test data may have been training data.",
            OtherDataWarning,
            stacklevel=2,
        )
    return load_posterior(directory, build_network(settings, found)), found, settings


def load_posterior(directory: RunDirectory, model: nn.Module) -> Posterior:
    """Loads the posterior of a finished run."""
    try:
        return Posterior.load(directory.posterior, model)
    except (ValueError, KeyError, OSError) as error:
        network = directory.settings().model or ""
        if isinstance(error, OtherModelError) and ":" in network:  # the user's code, which may have changed
            raise RunError(f"--model {network} does not make the network that was trained: {error}") from error
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
