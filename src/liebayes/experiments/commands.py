"""The subcommands of the program, and their arguments."""

from __future__ import annotations

import dataclasses
import difflib
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
import tyro

from .. import __version__, data, native
from ..atomic_write import atomic_write
from .command_line import optional_arguments_without_none, parse, settings_type
from .opening import open_run
from .pictures import read_images
from .reproduce.command import reproduce
from .run_directory import RunDirectory, RunError, writable
from .settings import SettingsError, TrainSettings, resolved
from .sweep import sweep as sweep_runs
from .tables import comparison, figures, show
from .train import evaluate as evaluate_posterior
from .train import train as train_run

Command = TypeVar("Command", bound=Callable[..., Any])
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="")]
File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Files = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...", help_behavior_hint="")]


class Commands:
    """The subcommands by name. A function becomes one by `@app.command`; its docstring is the help."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}

    def command(self, function: Command) -> Command:
        optional_arguments_without_none(function)
        self.functions[function.__name__.replace("_", "-")] = function
        return function

    def help(self) -> str:
        width = max(map(len, self.functions))
        lines = [f"  {name:{width}}  {(f.__doc__ or '').strip().splitlines()[0]}" for name, f in self.functions.items()]
        return "\n".join(
            [
                "usage: liebayes COMMAND [OPTIONS]",
                "",
                "The Lie-group Bayesian learning rule: train a posterior over the weights of a network, and use it.",
                "",
                *lines,
                "",
                "liebayes COMMAND --help lists the options of a command. --debug shows where an error comes from.",
            ]
        )


app: Commands = Commands()


def run(words: Sequence[str]) -> int:
    """Runs a subcommand and returns the exit status."""
    name, rest = (words[0], words[1:]) if words else ("--help", ())
    if name in ("-h", "--help"):
        print(app.help())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in app.functions:
        close = difflib.get_close_matches(name, app.functions, 1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(app.functions)}."
        raise SettingsError(f"there is no command {name!r}; {hint}")
    try:
        if name == "train":
            train(*_training_arguments(rest))
        else:
            return int(parse(app.functions[name], rest, prog=f"liebayes {name}") or 0)
    except SystemExit:  # after --help
        pass
    return 0


@app.command
def train(settings: TrainSettings) -> None:
    """Train a posterior and leave it in a run directory."""
    train_run(settings)


def _training_arguments(words: Sequence[str]) -> tuple[TrainSettings]:
    """The settings of a command line, over those of a file, over those of the run that is resumed."""

    def read(start: TrainSettings | None) -> Any:
        line = dataclasses.make_dataclass(
            "TrainLine",
            [("from_file", FromFile, dataclasses.field(default=None))],
            bases=(settings_type(start),),
            frozen=True,
        )
        line.__doc__ = TrainSettings.__doc__
        return parse(line, words, prog="liebayes train")

    found = read(None)
    if found.from_file is not None:
        # Those of a file are the defaults now, so that the command line wins, also where it gives a default.
        found = read(dataclasses.replace(TrainSettings.read(found.from_file), output=None, resume=False))
    if found.resume:
        output = found.output or resolved(_settings(found)).output
        assert output is not None
        found = read(dataclasses.replace(RunDirectory(output).settings(), output=output))
    return (_settings(found),)


def _settings(line: Any) -> TrainSettings:
    return TrainSettings(**{field.name: getattr(line, field.name) for field in dataclasses.fields(TrainSettings)})


FromFile = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="PATH",
        help="Settings as JSON, such as the settings.json of another run; those given here win.",
        help_behavior_hint="(default: none)",
    ),
]


@app.command
def evaluate(runs: Runs, samples: int = 32, data_dir: Path | None = None, json: bool = False) -> None:
    """Evaluate trained runs anew on their test data, or on the images they held out.

    Prints accuracy, NLL, ECE, Brier score and entropy of the predictive marginal, and of the point estimate.

    Args:
        runs: run directories.
        samples: samples of the posterior predictive.
        data_dir: where data sets are, if not where the run had them.
        json: print one JSON line for each run instead of a table.
    """
    runs = _runs_among(runs)
    _require_samples(samples)
    results: list[dict[str, Any]] = []
    for path in runs:
        posterior, dataset, settings = open_run(path, data_dir)
        used = 1 if settings.rule == "sgd" else samples
        results.append({"run": str(path), **evaluate_posterior(posterior, dataset, used)})
        if json:
            print(_json(results[-1]), flush=True)
    if not json:
        show(figures(results))


@app.command
def predict(
    run: Run,
    inputs: Files,
    samples: int = 32,
    invert: bool = False,
    output: Path | None = None,
    data_dir: Path | None = None,
) -> None:
    """Predict the classes of images with a trained run.

    Prints one JSON line for each image: class, confidence, entropy, mutual information and all probabilities.

    Args:
        run: a run directory.
        inputs: image files (PNG, JPEG, ...), folders of them, or arrays (.npy, .pt) of shape (N, C, H, W) or (N, H, W) as the
            data set has them. Pictures are brought to the channels and the size of the data set.
        samples: samples of the posterior predictive.
        invert: turn pictures dark for light, such as ink on paper for a network trained on mnist.
        output: where to write; the standard output by default.
        data_dir: where data sets are, if not where the run had them.
    """
    _require_samples(samples)
    if output is not None and output.exists():
        raise SettingsError(f"{output} exists already; choose another --output.")
    posterior, dataset, _ = open_run(run, data_dir)
    names, images = read_images(inputs, dataset, invert=invert)
    prediction = posterior.predict(dataset.normalize(images), samples, batch_size=500)
    lines = []
    for i, p in enumerate(prediction.probabilities):
        best = int(p.argmax())
        entry = {
            "input": names[i],
            "class": dataset.class_names[best],
            "confidence": round(float(p[best]), 6),
            "entropy": round(float(prediction.entropy[i]), 6),
            "mutual_information": round(float(prediction.mutual_information[i]), 6),
            "probabilities": [round(float(x), 6) for x in p],
        }
        lines.append(_json(entry) + "\n")
    if output is None:
        sys.stdout.writelines(lines)
        return
    with writable(output), atomic_write(output) as partial:
        partial.write_text("".join(lines), encoding="utf-8")


@app.command
def compare(runs: Runs) -> None:
    """Compare runs in a table: their settings and last figures.

    Args:
        runs: run directories.
    """
    show(comparison(_runs_among(runs)))


@app.command
def report(
    runs: Runs, output: Path = Path("report.html"), ood: str | None = None, image: int = 0, data_dir: Path | None = None
) -> None:
    """Make one HTML page about runs: tables, curves, calibration, uncertainty, weights and features.

    The page needs no network and no other file, and can be read on a phone.

    Args:
        runs: run directories of trained runs.
        output: the page.
        ood: images from outside the training data: a data set such as fashion-mnist, or test images made unlike themselves:
            shuffled, noise, rotated or inverted. By default a related data set where it is present, otherwise shuffled.
        image: the number of the test image that sorts the features of the first layer.
        data_dir: where data sets are, if not where the run had them.
    """
    runs = _runs_among(runs)
    from .report import write_report

    print(write_report(runs, output, ood=ood, image=image, data_dir=data_dir))


@app.command
def plot(
    runs: Runs,
    output: Path,
    format: Literal["png", "svg"] = "png",
    ood: str | None = None,
    image: int = 0,
    data_dir: Path | None = None,
) -> None:
    """Write the pictures of `report` as files.

    Args:
        runs: run directories of trained runs.
        output: the folder for the pictures.
        format: png or svg.
        ood: images from outside the training data, as for `report`.
        image: the number of the test image that sorts the features of the first layer.
        data_dir: where data sets are, if not where the run had them.
    """
    runs = _runs_among(runs)
    from .report import write_pictures

    for path in write_pictures(runs, output, form=format, ood=ood, image=image, data_dir=data_dir):
        print(path)


@app.command
def sweep(file: File, output: Path) -> int:
    """Train a grid of settings (App. B) and make a table of the runs.

    The file is JSON: {"settings": {"dataset": "digits"}, "grid": {"rule": ["additive", "affine"], "seed": [0, 1]}}. The
    runs are in folders of the output named after the grid, beside sweep.json and sweep.md with the table. Called again, it
    leaves out finished runs and goes on with an interrupted one. "held_out": 300 among the settings judges the runs on 300
    training images, so that the choice between them does not see the test data.

    Args:
        file: the settings, and the lists to combine.
        output: the folder for the runs and the table.
    """
    return sweep_runs(file, output)


app.command(reproduce)


@app.command
def info() -> None:
    """Show what is installed, and which parts are in use."""
    rows = {
        "liebayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": "cpu" + (f", {torch.cuda.device_count()} cuda" if torch.cuda.is_available() else ""),
        "threads": torch.get_num_threads(),
        "kernel": native.describe(),
        "data sets": ", ".join(data.names()),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


def _runs_among(paths: Sequence[Path]) -> tuple[Path, ...]:
    """What was given, without files and folders that hold runs only deeper below: `runs/*` names those of `reproduce` too."""
    if not paths:
        raise SettingsError("give at least one run directory, the --output of a `liebayes train`.")
    below = {path: next(path.glob("*/**/settings.json"), None) for path in paths if not (path / "settings.json").exists()}
    above = {path: found.parent for path, found in below.items() if found is not None}
    left = tuple(path for path in paths if path not in above and not path.is_file())
    if not left and above:
        path, run = next(iter(above.items()))
        raise RunError(f"{path} holds no run itself, but some deeper below: give those, such as {run}.")
    if left and above:
        print(f"liebayes: left out, as their runs are deeper below: {', '.join(map(str, above))}", file=sys.stderr)
    return left or tuple(paths)


def _require_samples(samples: int) -> None:
    if samples < 1:
        raise SettingsError(f"--samples must be at least 1, but is {samples}.")


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content)


__all__ = ["app", "open_run", "run"]
