"""The subcommands of the program, and their arguments."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from tyro.extras import SubcommandApp

from .. import __version__, data
from ..metrics import classification_metrics
from ..posterior import Posterior
from .learner import build_network
from .run_directory import RunDirectory, RunError
from .settings import TrainSettings
from .train import evaluate as evaluate_posterior
from .train import train as train_run

app = SubcommandApp()

Runs = Annotated[tuple[Path, ...], tyro.conf.Positional]


def run(words: Sequence[str]) -> None:
    """Runs a subcommand. `train --settings FILE` reads defaults from a file that `train` or a person wrote."""
    app.cli(prog="liebayes", description="The Lie-group Bayesian learning rule.", args=list(words), use_underscores=False)


@app.command
def train(
    settings: Annotated[TrainSettings, tyro.conf.arg(name="")],
    from_file: Path | None = None,
) -> None:
    """Train a posterior and leave it in a run directory.

    Args:
        settings: the settings of the run.
        from_file: settings as JSON, such as the settings.json of another run; those given on the command line win.
    """
    if from_file is not None:
        default = TrainSettings()
        given = {k: v for k, v in vars(settings).items() if v != getattr(default, k)}
        settings = dataclasses.replace(TrainSettings.read(from_file), output=None, resume=False)
        settings = dataclasses.replace(settings, **given)
    train_run(settings)


@app.command
def evaluate(runs: Runs, samples: int = 32, data_dir: Path | None = None) -> None:
    """Evaluate trained runs anew on their test data: the predictive marginal and the point estimate.

    Args:
        runs: run directories.
        samples: samples of the posterior predictive.
        data_dir: where data sets are, if not where the run had them.
    """
    for path in runs:
        posterior, dataset, _ = open_run(path, data_dir)
        print(json.dumps({"run": str(path), **evaluate_posterior(posterior, dataset, samples)}))


@app.command
def predict(
    run: Annotated[Path, tyro.conf.Positional],
    inputs: Annotated[Path, tyro.conf.Positional],
    samples: int = 32,
    output: Path | None = None,
) -> None:
    """Predict the classes of images with a trained run: probabilities and uncertainty, one JSON line for each image.

    Args:
        run: a run directory.
        inputs: images: a .npy array or a .pt tensor of shape (N, C, H, W) or (N, H, W), uint8 as the data set has them.
        samples: samples of the posterior predictive.
        output: where to write; the standard output by default.
    """
    posterior, dataset, _ = open_run(run, None)
    images = _read_images(inputs, dataset)
    prediction = posterior.predict(dataset.normalize(images), samples, batch_size=500)
    lines = []
    for i, p in enumerate(prediction.probabilities):
        best = int(p.argmax())
        lines.append(
            json.dumps(
                {
                    "class": dataset.class_names[best],
                    "confidence": round(float(p[best]), 6),
                    "entropy": round(float(prediction.entropy[i]), 6),
                    "mutual_information": round(float(prediction.mutual_information[i]), 6),
                    "probabilities": [round(float(x), 6) for x in p],
                }
            )
        )
    text = "\n".join(lines) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


@app.command
def compare(runs: Runs) -> None:
    """A table over runs: their settings and last figures.

    Args:
        runs: run directories.
    """
    Console().print(comparison(runs))


def comparison(runs: Sequence[Path]) -> Table:
    """The table of `compare`."""
    if not runs:
        raise ValueError("compare needs at least one run directory.")
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "rule", "base", "epochs", "accuracy", "NLL", "ECE", "NLL at the point", "seconds"):
        table.add_column(heading, justify="left" if heading in ("run", "rule", "base") else "right")
    for path in runs:
        directory = RunDirectory(path)
        settings = directory.read_json("settings.json")
        lines = [line for line in directory.metrics() if "test_accuracy" in line]
        if not lines:
            table.add_row(str(path), settings["rule"], settings["base"] or "", "0", *["not run"] * 5)
            continue
        last = lines[-1]
        table.add_row(
            str(path),
            settings["rule"],
            settings["base"] or "default",
            str(last["epoch"]),
            f"{100 * last['test_accuracy']:.2f} %",
            f"{last['test_nll']:.4f}",
            f"{last['test_ece']:.4f}",
            f"{last['point_nll']:.4f}",
            f"{last['seconds']:.0f}",
        )
    return table


@app.command
def info() -> None:
    """What is installed, and which parts are in use."""
    rows = {
        "liebayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": "cpu" + (f", {torch.cuda.device_count()} cuda" if torch.cuda.is_available() else ""),
        "threads": torch.get_num_threads(),
        "kernels": "torch",
        "data sets": ", ".join(data.names()),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


def open_run(path: Path, data_dir: Path | None) -> tuple[Posterior, data.Dataset, TrainSettings]:
    """The posterior, the data set and the settings of a run."""
    directory = RunDirectory(path)
    settings = TrainSettings.from_json(directory.read_json("settings.json"))
    if not directory.posterior.exists():
        raise RunError(f"{path} has no posterior yet: its training has not ended. Go on with train --resume --output {path}.")
    dataset = data.load(settings.dataset, data_dir or settings.data_dir)
    return Posterior.load(directory.posterior, build_network(settings, dataset)), dataset, settings


def _read_images(path: Path, dataset: data.Dataset) -> torch.Tensor:
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    try:
        if path.suffix == ".pt":
            images: Any = torch.load(path, weights_only=True)
        else:
            import numpy

            images = torch.from_numpy(numpy.load(path, allow_pickle=False))
    except Exception as error:
        raise ValueError(f"{path} cannot be read as an array of images: {error}") from error
    images = images.unsqueeze(1) if images.ndim == 3 else images
    if tuple(images.shape[1:]) != dataset.image_shape or images.dtype != dataset.train_images.dtype:
        raise ValueError(
            f"{path} holds {images.dtype} of shape {tuple(images.shape)}, but the network was trained on "
            f"{dataset.train_images.dtype} of shape (N, {', '.join(map(str, dataset.image_shape))})."
        )
    return images


__all__ = ["app", "classification_metrics", "comparison", "open_run", "run"]
