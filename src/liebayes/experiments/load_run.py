"""A trained run, opened for use."""

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
    """The data a run was trained on are not those of the same name now."""


def open_run(path: Path | str, data_dir: Path | None = None) -> tuple[Posterior, data.Dataset, TrainSettings]:
    """The posterior, the data set and the settings of a run."""
    directory = RunDirectory(Path(path))
    settings = directory.settings()
    if not directory.posterior.exists():
        raise RunError(
            f"{path} has no posterior yet: its training has not ended. Continue with: liebayes train --resume --output "
            f"{shlex.quote(str(path))}"
        )
    if settings.dataset not in data.names():
        raise RunError(
            f"{path} was trained on data of its own, {settings.dataset!r}, which are not registered: "
            "use liebayes.data.register and liebayes.experiments.open_run from Python."
        )
    dataset = data.load(settings.dataset, data_dir or settings.data_dir).held_out(settings.held_out)
    if fingerprint(dataset) != directory.read_json("environment.json").get("data"):
        warnings.warn(
            f"{path} was trained on other data than {settings.dataset!r} is now: test images may have been trained on.",
            OtherDataWarning,
            stacklevel=2,
        )
    return load_posterior(directory, build_network(settings, dataset)), dataset, settings


def load_posterior(directory: RunDirectory, model: nn.Module) -> Posterior:
    """The posterior of a finished run."""
    try:
        return Posterior.load(directory.posterior, model)
    except (ValueError, KeyError, OSError) as error:
        text = f"{directory.posterior} is damaged: {error} Remove it, and train --resume writes it anew."
        raise DamagedRunError(text) from error


def at_point(posterior: Posterior) -> nn.Module:
    """The posterior's own module, with the point estimate in it, for evaluation."""
    model = posterior.model.eval()
    values = {**posterior.point(), **posterior.buffers}
    with torch.no_grad():
        for name, slot in [*model.named_parameters(), *model.named_buffers()]:
            slot.copy_(values[name])
    return model
