"""The subcommands of the program. The signature of a function gives its arguments, its docstring the help."""

from __future__ import annotations

import dataclasses
import difflib
import platform
import sys
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from .. import __version__, data, native
from ..atomic_write import atomic_write
from .command_line import arguments_of, parse, summary_of
from .defaults import default_text, resolved
from .inputs import read_inputs
from .load_run import open_run
from .reproduce.command import reproduce
from .run_directory import RunDirectory, RunError, writable
from .settings import SettingsError, TrainSettings
from .sweep import sweep as sweep_runs
from .tables import comparison, figures, show
from .tasks import task_of
from .train import evaluate as evaluate_posterior
from .train import predictive_samples
from .train import train as train_run

COMMANDS: dict[str, Callable[..., Any]] = {}
Command = TypeVar("Command", bound=Callable[..., Any])


def command(function: Command) -> Command:
    """Makes a function a subcommand: its signature gives the arguments, its docstring the help."""
    COMMANDS[function.__name__] = function
    return function


def run(words: Sequence[str]) -> int:
    """Runs a subcommand and returns the exit status."""
    name, others = (words[0], words[1:]) if words else ("--help", ())
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(COMMANDS)}."
        raise SettingsError(f"there is no command {name!r}; {hint}")
    function = COMMANDS[name]
    arguments = [*(arguments_of(TrainSettings, default_text) if function is train else ()), *arguments_of(function)]
    try:
        given = parse(arguments, others, prog=f"liebayes {name}", description=summary_of(function))
    except SystemExit:  # after --help
        return 0
    return function(**given) or 0


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary_of(function).splitlines()[0]}" for name, function in COMMANDS.items()]
    return "\n".join([_USAGE, "", *lines, "", _FOOTER])


_USAGE = """usage: liebayes COMMAND [OPTIONS]

The Lie-group Bayesian learning rule: train a posterior over the weights of a network, and use it."""
_FOOTER = "liebayes COMMAND --help lists the options of a command. --debug shows the traceback of an error."


@command
def train(*, from_file: Path | None = None, **given: Any) -> None:
    """Train a posterior and store it in a run directory.

    Settings that are left out have defaults for the data set and the rule.

    Args:
        from_file: Read settings from a JSON file, such as the settings.json of another run. Options given here win.
    """
    settings = TrainSettings()
    if from_file is not None:
        settings = dataclasses.replace(TrainSettings.read(from_file), output=None, resume=False)
    settings = dataclasses.replace(settings, **given)
    if settings.resume:
        output = settings.output or resolved(settings).output
        assert output is not None
        settings = dataclasses.replace(RunDirectory(output).settings(), **{"resume": True, **given, "output": output})
    train_run(settings)


@command
def evaluate(runs: tuple[Path, ...], *, samples: int = 32, data_dir: Path | None = None, json: bool = False) -> None:
    """Evaluate trained runs again, on their test data or on the images they held out.

    Prints the figures of the predictive marginal and of the point estimate: of classes accuracy, NLL, ECE and Brier score; of
    numbers RMSE, NLL, CRPS, how many of the targets lie in 90 % intervals, calibration of quantiles, and sharpness.

    Args:
        runs: run directories.
        samples: samples from the posterior predictive.
        data_dir: the folder with the data sets, if it is not the one the run used.
        json: print one JSON line per run instead of a table.
    """
    runs = _runs_among(runs)
    _require_samples(samples)
    results: list[dict[str, Any]] = []
    for path in runs:
        posterior, dataset, settings = open_run(path, data_dir)
        results.append({"run": str(path), **evaluate_posterior(posterior, dataset, predictive_samples(settings, samples))})
        if json:
            print(dumps(results[-1]), flush=True)
    if not json:
        show(figures(results))


@command
def predict(
    run: Path,
    inputs: tuple[Path, ...],
    *,
    samples: int = 32,
    invert: bool = False,
    output: Path | None = None,
    data_dir: Path | None = None,
) -> None:
    """Predict with a trained run: classes of images, or the targets of a table's rows.

    Prints one JSON line per input. Classes: class, confidence, entropy, mutual information and all probabilities. Numbers:
    mean, standard deviation, an interval that should hold 90 %, and what of the deviation is noise or due to the weights.

    Args:
        run: a run directory.
        inputs: image files (PNG, JPEG, ...), folders of them, tables with the columns of the training table, or arrays (.npy,
            .pt) of shape (N, C, H, W), (N, H, W) or (N, features) in the format of the data set. Image files are converted to
            the channels and the size of the data set.
        samples: samples from the posterior predictive.
        invert: exchange dark and light, for example to give ink on paper to a network trained on mnist.
        output: the file to write, instead of the standard output.
        data_dir: the folder with the data sets, if it is not the one the run used.
    """
    _require_samples(samples)
    if output is not None and output.exists():
        raise SettingsError(f"{output} exists already; choose another --output.")
    posterior, dataset, _ = open_run(run, data_dir)
    names, images = read_inputs(inputs, dataset, invert=invert)
    task = task_of(dataset)
    prediction = task.predict(posterior, dataset.normalize(images), samples)
    lines = [dumps({"input": name, **task.described(prediction, i, dataset)}) + "\n" for i, name in enumerate(names)]
    if output is None:
        sys.stdout.writelines(lines)
        return
    with writable(output), atomic_write(output) as partial:
        partial.write_text("".join(lines), encoding="utf-8")


@command
def shift(
    runs: tuple[Path, ...],
    *,
    output: Path = Path("shift"),
    samples: int = 32,
    images: int | None = None,
    data_dir: Path | None = None,
) -> None:
    """Evaluate trained runs on corrupted test images: noise, blur, contrast, brightness and JPEG at five severities.

    Writes a file of results for each run, and shift.md and shift.png about all results in the output, where seeds of one
    method (names that differ in their last number) are one line. Runs measured before are not measured again.

    Args:
        runs: run directories of finished runs.
        output: the folder for the results, the table and the picture.
        samples: samples from the posterior predictive.
        images: how many test images, the first ones; all by default. There are 26 evaluations.
        data_dir: the folder with the data sets, if it is not the one the runs used.
    """
    runs = _runs_among(runs)
    _require_samples(samples)
    from .shift import measure_shift

    measure_shift(runs, output, samples, images, data_dir)
    print(output / "shift.md")
    print(output / "shift.png")


@command
def compare(runs: tuple[Path, ...]) -> None:
    """Compare runs in a table: their settings and their last figures.

    Args:
        runs: run directories.
    """
    show(comparison(_runs_among(runs)))


@command
def report(
    runs: tuple[Path, ...],
    *,
    output: Path = Path("report.html"),
    ood: str | None = None,
    image: int = 0,
    data_dir: Path | None = None,
) -> None:
    """Make one HTML page about runs: tables, curves, calibration, uncertainty, weights and features.

    The page is a single file that works offline and on a phone.

    Args:
        runs: run directories of finished runs.
        output: the page.
        ood: out-of-distribution images: a data set such as fashion-mnist, or altered test images: shuffled, noise, rotated or
            inverted. By default, a related data set if it is present, otherwise shuffled.
        image: the number of the test image by whose activations the first-layer features are sorted.
        data_dir: the folder with the data sets, if it is not the one the runs used.
    """
    runs = _runs_among(runs)
    from .report import write_report

    print(write_report(runs, output, ood=ood, image=image, data_dir=data_dir))


@command
def plot(
    runs: tuple[Path, ...],
    *,
    output: Path,
    format: Literal["png", "svg"] = "png",
    ood: str | None = None,
    image: int = 0,
    data_dir: Path | None = None,
) -> None:
    """Write the pictures of `report` as files.

    Args:
        runs: run directories of finished runs.
        output: the folder for the pictures.
        format: png or svg.
        ood: out-of-distribution images, as for `report`.
        image: the number of the test image by whose activations the first-layer features are sorted.
        data_dir: the folder with the data sets, if it is not the one the runs used.
    """
    runs = _runs_among(runs)
    from .report import write_pictures

    for path in write_pictures(runs, output, form=format, ood=ood, image=image, data_dir=data_dir):
        print(path)


@command
def sweep(file: Path, *, output: Path) -> int:
    """Train a grid of settings (App. B) and make a table of the runs.

    The file is JSON: {"settings": {"dataset": "digits"}, "grid": {"rule": ["additive", "affine"], "seed": [0, 1]}}. Each run
    has a folder in the output, named after its place in the grid; the table is in sweep.json and sweep.md. Repeat the command
    to continue: finished runs are skipped, an interrupted one is resumed. With "held_out": 300 among the settings, runs are
    judged on 300 training images, so that the choice between them does not use the test data.

    Args:
        file: the settings, and the lists to combine.
        output: the folder for the runs and the table.
    """
    return sweep_runs(file, output)


command(reproduce)


@command
def info() -> None:
    """Show the versions, the devices and the kernel in use."""
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
    """The paths that are runs, without files and folders of runs: `runs/*` also names those of `reproduce`."""
    if not paths:
        raise SettingsError("give at least one run directory, the --output of a `liebayes train`.")
    below = {path: next(path.glob("*/**/settings.json"), None) for path in paths if not (path / "settings.json").exists()}
    above = {path: found.parent for path, found in below.items() if found is not None}
    left = tuple(path for path in paths if path not in above and not path.is_file())
    if not left and above:
        path, run = next(iter(above.items()))
        raise RunError(f"{path} is not a run, but contains some: give those, such as {run}.")
    if left and above:
        print(f"liebayes: skipped, because their runs are in subfolders: {', '.join(map(str, above))}", file=sys.stderr)
    return left or tuple(paths)


def _require_samples(samples: int) -> None:
    if samples < 1:
        raise SettingsError(f"--samples must be at least 1, but is {samples}.")
