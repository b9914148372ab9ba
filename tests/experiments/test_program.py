"""The program's commands, their errors and their help."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, open_run, train
from liebayes.experiments.command_line import arguments_of
from liebayes.experiments.commands import COMMANDS
from liebayes.experiments.defaults import DATASETS, RULES, default_text, resolved
from liebayes.experiments.settings import SettingsError
from liebayes.experiments.train import DivergedRunError, InterruptedRunError

Captured = pytest.CaptureFixture[str]
QUICK = ["--epochs", "1", "--batch-size", "128", "--predictive-samples", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs, in folders with long names."""
    folder = tmp_path_factory.mktemp("runs")
    for rule in ("sgd", "affine"):
        name = folder / "a-folder-with-quite-a-long-name-for-a-terminal" / f"{rule}-on-the-digits-with-seed-zero"
        assert main(["train", "--rule", rule, *QUICK, "--output", str(name)]) == 0
        (folder / rule).symlink_to(name)
    return folder


# Errors.

BAD_USAGE = {
    "trian": "did you mean train",
    "train --epoch 3": "Did you mean --epochs",
    "train --epochs many": "--epochs must be a whole number, but is 'many'",
    "train --epochs 0": "--epochs must be at least 1",
    "train --threads none": "--threads must be a whole number, but is 'none'",
    "train --max-step None": "--max-step must be a number, but is 'None'",
    "train --augment": "the data set digits has no augmentation",
    "train --lr -1": "--lr must be positive",
    "train --lr nan": "--lr must be positive",
    "train --momentum 1": "--momentum must be at least 0 and below 1",
    "train --rule adam": "--rule must be sgd or additive or multiplicative or affine",
    "train --model vgg": "--model must be mlp, lenet or resnet20",
    "train --base Gauss(1)": "the names are Cauchy",
    "train --base Rayleigh(1)": "acts on the real line",
    "train --model lenet": "too small",
    "train --dataset mnits": "did you mean 'mnist'",
    "train --dataset mine": "liebayes.experiments.train(settings, dataset=...)",
    "train --dataset digits --data-dir FILE --dataset mnist": "is a file",
    "train --rule multiplicative --signs none": "choose --signs plus-minus, dale or fixed",
    "train --signs dale": "which only --rule multiplicative maintains",
    "train --rule sgd --base Normal(1)": "has no meaning for --rule sgd",
    "train --rule sgd --mc-samples 2": "has no meaning for --rule sgd",
    "train --rule sgd --split-batch": "has no meaning for --rule sgd",
    "train --seed 99999999999999999999": "--seed must be below 2^63",
    "train --mc-samples 4 --split-batch --batch-size 4000": "4000 images of 1437",
    "train --mc-samples 5 --split-batch": "32 images of 1437, for each of 1 processes, do not split into 5 equal parts",
    "train --rule additive --scale-lr 1": "has no meaning for --rule additive",
    "train --warmup-epochs 9 --epochs 3": "more than the 3 --epochs",
    "train --from-file nothing.json": "nothing.json cannot be read: No such file",
    "train --from-file FILE": "is not JSON",
    "evaluate": "at least one run directory",
    "evaluate RUN --samples 0": "--samples must be at least 1",
    "compare": "at least one run directory",
    "predict": "arguments are required: RUN, INPUT",
    "sweep": "arguments are required: --output",
    "sweep nothing.json --output there": "nothing.json cannot be read",
}
FAILURES = {
    "train --dataset mnist --data-dir EMPTY": "put it there",
    "train --output RUN": "Continue with --resume, or choose another --output",
    "train --resume --output EMPTY": "holds no run",
    "evaluate EMPTY": "holds no run",
    "evaluate nothing": "holds no run",
    "compare FILE": "holds no run",
    "predict RUN nothing.png": "nothing.png does not exist",
    "predict RUN EMPTY": "holds no image files",
    "predict RUN FILE": "is none of .png",
}


def line(text: str, folder: Path, runs: Path) -> list[str]:
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("not JSON")
    places = {"EMPTY": folder / "empty", "FILE": folder / "file.txt", "RUN": runs / "affine"}
    return [str(places.get(word, word)) for word in text.split()]


@pytest.mark.parametrize(("text", "status"), [*((t, 2) for t in BAD_USAGE), *((t, 1) for t in FAILURES)])
def test_an_error_is_one_line(
    text: str, status: int, tmp_path: Path, runs: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = line(text, tmp_path, runs)
    monkeypatch.chdir(tmp_path)
    before = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert main(words) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("liebayes: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    assert {**BAD_USAGE, **FAILURES}[text] in said.err
    assert "Traceback" not in said.err
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == before, "something was left behind"


def test_a_traceback_only_with_debug(capsys: Captured, tmp_path: Path) -> None:
    assert main(["evaluate", str(tmp_path), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["train", "--lr", "0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_loss_that_diverges_is_a_failure(tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", "--rule", "sgd", "--lr", "1e30", *QUICK, "--output", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == (
        "liebayes: The loss or its gradient is not finite in epoch 1: try a lower --lr. The last checkpoint is kept.\n"
    )


def test_predictions_that_are_not_finite_are_a_failure(tmp_path: Path) -> None:
    """The last step of an epoch breaks the weights: no loss is taken after it."""
    images = 1437
    settings = TrainSettings(rule="additive", lr=1e39, epochs=1, batch_size=images, warmup_epochs=0.0, output=tmp_path / "run")
    with pytest.raises(DivergedRunError, match="not finite"):
        train(settings)


@pytest.mark.parametrize("change", [{"rule": "afine"}, {"metric": "fischer"}, {"signs": "plus_minus"}])
def test_values_that_do_not_exist_are_refused_from_python_too(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(change))} must be"):
        resolved(TrainSettings(**change))


def test_augmentation_is_that_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="digits has no augmentation"):
        train(TrainSettings(augment=True, output=tmp_path / "none"))
    own = dataclasses.replace(data.load("digits"), name="own", augmentation=data.Augmentation(1, False))
    train(TrainSettings(rule="sgd", epochs=1, output=tmp_path / "own"), own)
    assert RunDirectory(tmp_path / "own").settings().augment is True
    train(TrainSettings(rule="sgd", epochs=1, augment=False, output=tmp_path / "plain"), own)
    assert RunDirectory(tmp_path / "plain").settings().augment is False


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_data_file_is_named_and_left(damage: str, tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in (("train", 20), ("t10k", 10)):
        images = struct.pack(">iiii", 2051, count, 28, 28) + bytes(784 * count)
        labels = struct.pack(">ii", 2049, count) + bytes(count)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    bad = folder / "train-images-idx3-ubyte.gz"
    bad.write_bytes(bad.read_bytes()[:-20] if damage == "cut" else b"<html>not found</html>")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["train", "--dataset", "mnist", "--data-dir", str(folder), "--output", str(tmp_path / "run")]) == 1
    errors = [text for text in capsys.readouterr().err.splitlines() if not text.startswith("liebayes: warning: ")]
    assert len(errors) == 1
    assert str(bad) in errors[0]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "run").exists()


def test_a_damaged_posterior_is_named(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(runs / "affine", tmp_path / "run")
    (tmp_path / "run" / "posterior.safetensors").write_bytes(b"nothing of the kind")
    assert main(["evaluate", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "posterior.safetensors is damaged" in said


# Help.


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_words_there_is_help(words: list[str], capsys: Captured) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert {"train", "evaluate", "predict", "compare", "sweep", "info"} <= set(COMMANDS)
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: liebayes {name}")
    _, _, rest = text.partition("\n\n")
    assert max(map(len, rest.splitlines()[1:])) <= 80, "the summary and the usage are one line each"
    assert "None" not in text, "a default that says nothing"
    assert "(default: )" not in text


def test_the_help_of_training_is_the_documentation_of_the_settings(capsys: Captured) -> None:
    main(["train", "--help"])
    text = "".join(capsys.readouterr().out.split())
    for argument in arguments_of(TrainSettings, default_text):
        assert "".join(argument.help.split()) in text
        assert f"--{argument.name.replace('_', '-')}" in text
    assert "--no-augment" in text
    assert "--signs{none,plus-minus,dale,fixed}" in text


@pytest.mark.parametrize("name", ["epochs", "lr", "prior_precision", "mc_samples", "augment", "max_step"])
def test_every_value_of_the_tables_is_in_the_help(name: str) -> None:
    text = default_text(name)
    for dataset in DATASETS:
        for rule in RULES:
            value = getattr(resolved(TrainSettings(dataset=dataset, rule=rule)), name)
            assert ("none" if value is None else str(value)) in text


# Settings from files and runs.


def test_the_command_line_wins_over_a_file(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    """Also where it gives what would be the default without a file."""
    content = RunDirectory(runs / "affine").read_json("settings.json")
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({**content, "seed": 5, "predictive_samples": 3, "augment": True}))
    words = ["train", "--from-file", str(file), "--seed", "0", "--no-augment", "--output", str(tmp_path / "run")]
    assert main(words) == 0
    found = RunDirectory(tmp_path / "run").settings()
    assert (found.seed, found.predictive_samples, found.batch_size, found.epochs) == (0, 3, 128, 1)
    assert found.output == tmp_path / "run"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"epoch": 1}, "there is no setting 'epoch'; did you mean 'epochs'?"),
        ({"epochs": "ten"}, "epochs must be a whole number or null, but is 'ten'"),
        ({"epochs": True}, "epochs must be a whole number or null"),
        ({"rule": "adam"}, "rule must be sgd or additive or multiplicative or affine"),
        ([1], "settings are a JSON object"),
    ],
)
def test_a_wrong_file_of_settings(content: object, said: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(content))
    assert main(["train", "--from-file", str(file), "--output", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_settings_travel_through_json() -> None:
    settings = resolved(TrainSettings(rule="multiplicative", data_dir=Path("there")))
    assert TrainSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_a_resumed_run_tells_so(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(runs / "sgd", tmp_path / "run")
    assert main(["train", "--resume", "--output", str(tmp_path / "run")]) == 0
    assert "The run had already ended. The posterior is in" in capsys.readouterr().out
    found = RunDirectory(tmp_path / "run").read_json("environment.json")
    assert found["date"] == RunDirectory(runs / "sgd").read_json("environment.json")["date"]
    assert len(found["resumed"]) == 1
    assert {"torch", "git", "data", "command", "processes"} <= set(found["resumed"][0])


# What the commands print.


def test_compare_fits_a_terminal(runs: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = [str(path.resolve()) for path in (runs / "sgd", runs / "affine")]
    assert main(["compare", *long, str(runs / "affine")]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    lines = RunDirectory(runs / "affine").metrics()
    assert text.count(f"{100 * lines[-1]['test_accuracy']:.2f} %") >= 2
    assert "affine-on-the-digits-with-seed-zero" in "".join(row[:40].split(" ")[0] for row in text.splitlines())


def test_folders_above_runs_are_left_out(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    """As in `compare runs/*` after `reproduce`, whose runs are in runs/TABLE/SCALE."""
    shutil.copytree(runs / "sgd", tmp_path / "table1" / "smoke" / "sgd")
    assert main(["compare", str(tmp_path / "table1"), str(runs / "affine")]) == 0
    said = capsys.readouterr()
    assert "affine" in said.out
    assert said.err == f"liebayes: skipped, because their runs are in subfolders: {tmp_path / 'table1'}\n"
    assert main(["compare", str(tmp_path / "table1")]) == 1
    assert f"give those, such as {tmp_path / 'table1' / 'smoke' / 'sgd'}." in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text("[]")
    assert main(["compare", str(tmp_path / "sweep.json"), str(runs / "affine")]) == 0
    assert main(["compare", str(tmp_path / "sweep.json")]) == 1, "no run at all"
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(runs / "affine"), str(tmp_path / "empty")]) == 1, "neither a run nor above one"


def test_evaluate_agrees_with_training(runs: Path, capsys: Captured) -> None:
    assert main(["evaluate", str(runs / "affine"), str(runs / "sgd"), "--samples", "2", "--json"]) == 0
    for found, rule in zip(map(json.loads, capsys.readouterr().out.splitlines()), ("affine", "sgd"), strict=True):
        last = RunDirectory(runs / rule).metrics()[-1]
        assert found["run"] == str(runs / rule)
        assert {k: v for k, v in found.items() if k != "run"} == {k: v for k, v in last.items() if k[:5] in ("test_", "point")}
    assert main(["evaluate", str(runs / "affine"), "--samples", "2"]) == 0
    text = capsys.readouterr().out
    last = RunDirectory(runs / "affine").metrics()[-1]
    assert all(f"{last[key]:.4f}" in text for key in ("test_nll", "point_nll", "test_ece"))


def test_evaluate_warns_of_other_data(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    """A run on a fold has seen test images of the data set by the same name."""
    settings = TrainSettings(rule="sgd", epochs=1, output=tmp_path / "run")
    train(settings, dataset=data.load("digits").folds(5)[2])
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "'digits' has changed since" in capsys.readouterr().err


def picture(folder: Path, name: str, scale: int = 1, invert: bool = False, mode: str = "L") -> Path:
    pixels = data.load("digits").test_images[0, 0].numpy()
    pixels = numpy.kron(255 - pixels if invert else pixels, numpy.ones((scale, scale), dtype=numpy.uint8))
    Image.fromarray(pixels).convert(mode).save(folder / name)
    return folder / name


def predicted(capsys: Captured, *words: object) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["predict", *map(str, words)]) == 0
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def test_predict_takes_pictures_and_arrays(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    run, image = runs / "affine", data.load("digits").test_images[:1]
    numpy.save(tmp_path / "array.npy", image.numpy())
    torch.save(image[:, 0], tmp_path / "array.pt")
    (tmp_path / "pictures").mkdir()
    same_picture = [picture(tmp_path / "pictures", "a.png"), picture(tmp_path / "pictures", "b.png", mode="RGBA"),
                    picture(tmp_path / "pictures", "c.bmp", scale=4, mode="RGB")]  # fmt: skip
    arrays = predicted(capsys, run, tmp_path / "array.npy", tmp_path / "array.pt")
    pictures = predicted(capsys, run, tmp_path / "pictures")
    inverted = predicted(capsys, run, picture(tmp_path, "d.png", invert=True), "--invert")
    assert [entry["input"] for entry in pictures] == list(map(str, same_picture))
    assert [entry["input"] for entry in arrays] == [f"{tmp_path / 'array.npy'}[0]", f"{tmp_path / 'array.pt'}[0]"]
    assert len({json.dumps(entry["probabilities"]) for entry in [*arrays, *pictures, *inverted]}) == 1
    assert abs(sum(arrays[0]["probabilities"]) - 1) < 1e-4  # pyright: ignore
    assert predicted(capsys, run, picture(tmp_path, "e.png", invert=True))[0]["probabilities"] != arrays[0]["probabilities"]


def test_info_says_that_the_kernel_is_switched_off() -> None:
    """In a process of its own: the choice is made once."""
    environment = {**os.environ, "LIEBAYES_KERNEL": "off"}
    command = [sys.executable, "-m", "liebayes", "info"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
    assert "switched off by LIEBAYES_KERNEL=off" in said
    assert "compiler" not in said


def test_predict_says_what_it_has_resized(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["predict", str(runs / "affine"), str(picture(tmp_path, "big.png", scale=3))]) == 0
    assert capsys.readouterr().err == f"liebayes: 1 of 1 images resized to 8×8, such as {tmp_path / 'big.png'}\n"


def test_predict_writes_a_file_but_over_none(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["predict", str(runs / "affine"), str(picture(tmp_path, "a.png")), "--output", str(tmp_path / "out.jsonl")]
    assert main(words) == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["class"] in "0123456789"
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["text.png", "text.npy", "text.pt", "wrong.npy", "deep.png"])
def test_predict_refuses_what_it_cannot_read(name: str, runs: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / name
    if name == "wrong.npy":
        numpy.save(path, numpy.zeros((2, 9, 9), dtype=numpy.uint8))
    elif name == "deep.png":
        Image.fromarray(numpy.zeros((8, 8), dtype=numpy.uint16)).save(path)
    else:
        path.write_text("this is text")
    assert main(["predict", str(runs / "affine"), str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said


def test_a_closed_pipe_is_no_error(runs: Path) -> None:
    """As with `liebayes compare RUN | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        command = [sys.executable, "-m", "liebayes", "compare", str(runs / "sgd")]
        result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=100)
    assert result.stderr == b""


# Sweeps.


def test_a_sweep_is_a_table_and_resumes(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    file, output = tmp_path / "grid.json", tmp_path / "sweep"
    fixed = {"rule": "sgd", "epochs": 1, "batch_size": 128, "predictive_samples": 2}
    file.write_text(json.dumps({"settings": fixed, "grid": {"lr": [1e30, 0.001, 0.1]}}))
    assert main(["sweep", str(file), "--output", str(output)]) == 1
    said = capsys.readouterr().out
    assert "3 runs in" in said
    assert "run 3 of 3: lr-0.1" in said
    rows = json.loads((output / "sweep.json").read_text())
    assert [(row["run"], row["lr"], "failed" in row) for row in rows] == [
        ("lr-0.1", 0.1, False),
        ("lr-0.001", 0.001, False),
        ("lr-1e+30", 1e30, True),
    ], "the lowest NLL first, what failed last"
    assert rows[0]["test_nll"] == RunDirectory(output / "lr-0.1").metrics()[-1]["test_nll"]
    assert rows[0]["settings"]["batch_size"] == 128
    assert str(tmp_path) not in json.dumps(rows), "a place of this machine"
    table = (output / "sweep.md").read_text()
    assert table in said
    assert table.count("\n") == 2 + 3
    # Again, one run having been interrupted: what is finished is left alone.
    (output / "lr-0.001" / "posterior.safetensors").unlink()
    module, trained = sys.modules["liebayes.experiments.sweep"], []
    original = module.train
    monkeypatch.setattr(module, "train", lambda settings: trained.append(settings) or original(settings))
    assert main(["sweep", str(file), "--output", str(output)]) == 1
    assert [(settings.lr, settings.resume) for settings in trained] == [(1e30, True), (0.001, True)]
    rows[1]["sessions"] = 2
    assert json.loads((output / "sweep.json").read_text()) == rows
    # Interrupted while an earlier run trains, it keeps the rows of later ones.
    (output / "lr-0.001" / "posterior.safetensors").unlink()

    def interrupted(settings: TrainSettings) -> None:
        raise InterruptedRunError if settings.lr == 0.001 else DivergedRunError("again")

    monkeypatch.setattr(module, "train", interrupted)
    assert main(["sweep", str(file), "--output", str(output)]) == 130
    assert {row["run"] for row in json.loads((output / "sweep.json").read_text())} == {"lr-0.1", "lr-1e+30"}
    monkeypatch.setattr(module, "train", original)
    # Another grid on the same runs is refused.
    file.write_text(json.dumps({"settings": {**fixed, "epochs": 2}, "grid": {"lr": [0.1]}}))
    capsys.readouterr()
    assert main(["sweep", str(file), "--output", str(output)]) == 1
    assert "was trained with epochs 1, but the sweep says 2" in capsys.readouterr().err


def test_a_combination_that_is_refused_is_a_result_too(tmp_path: Path, capsys: Captured) -> None:
    file, output = tmp_path / "grid.json", tmp_path / "sweep"
    fixed = {"rule": "affine", "metric": "fisher", "epochs": 1, "batch_size": 128, "predictive_samples": 2}
    file.write_text(json.dumps({"settings": fixed, "grid": {"base": ["Uniform(0.1)", "Laplace(0.05)"]}}))
    assert main(["sweep", str(file), "--output", str(output)]) == 1
    rows = {row["run"]: row for row in json.loads((output / "sweep.json").read_text())}
    assert "no Fisher metric" in rows["base-Uniform(0.1)"]["failed"]
    assert rows["base-Laplace(0.05)"]["test_nll"] > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"lr": [1]}, "a sweep is a JSON object"),
        ({"grid": {"lr": [1]}, "settings": []}, "a sweep is a JSON object"),
        ({"grid": {}}, "the grid has no axis"),
        ({"grid": {"lr": 1}}, "must be a list of different values"),
        ({"grid": {"lr": [1, 1]}}, "must be a list of different values"),
        ({"grid": {"output": ["a"]}}, "output cannot be an axis"),
        ({"grid": {"held_out": [0, 300]}}, "held_out cannot be an axis"),
        ({"grid": {"lr": [1]}, "settings": {"lr": 1}}, "both in the settings and in the grid"),
        ({"grid": {"speed": [1]}}, "there is no setting 'speed'"),
        ({"grid": {"lr": [1, -1]}}, "--lr must be positive"),
    ],
)
def test_a_wrong_sweep(content: object, said: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "grid.json"
    file.write_text(json.dumps(content))
    assert main(["sweep", str(file), "--output", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_are_chosen_without_the_test_images(tmp_path: Path, capsys: Captured) -> None:
    file, output = tmp_path / "grid.json", tmp_path / "sweep"
    fixed = {"rule": "sgd", "epochs": 1, "batch_size": 128, "held_out": 300}
    file.write_text(json.dumps({"settings": fixed, "grid": {"lr": [0.001, 0.1]}}))
    assert main(["sweep", str(file), "--output", str(output)]) == 0
    said = capsys.readouterr().out
    assert "  held out " in said
    assert "| run | accuracy on 300 held out | NLL |" in said
    assert "  test " not in said
    found = json.loads((output / "sweep.json").read_text())[0]["test_accuracy"] * 300
    assert found == pytest.approx(round(found), abs=1e-4), "an accuracy on 300 images; the test images are 360"
    posterior, dataset, _ = open_run(output / "lr-0.1")
    assert torch.equal(dataset.test_images, data.load("digits").held_out(300).test_images)
    right = posterior.predict(dataset.normalize(dataset.test_images), 1).probabilities.argmax(1) == dataset.test_labels
    assert int(right.sum()) == round(found)
    assert main(["compare", str(output / "lr-0.1")]) == 0
    assert "1, held out" in capsys.readouterr().out
    words = ["train", "--resume", "--output", str(output / "lr-0.1")]
    assert main([*words, "--held-out", "200"]) == 1
    assert "held_out is 200 and was 300" in capsys.readouterr().err


def test_more_held_out_than_there_is(tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", "--held-out", "1437", "--output", str(tmp_path / "run")]) == 2
    assert "the number of images held out must be from 0 to 1436, not 1437" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_sweep_tells_why_it_cannot_write(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "grid.json"
    file.write_text(json.dumps({"grid": {"seed": [0, 1]}}))
    assert main(["sweep", str(file), "--output", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"liebayes: {file} cannot be written: File exists. Choose another --output.\n"


def test_a_run_of_another_process_is_left_to_it(tmp_path: Path, capsys: Captured) -> None:
    """And is in the table as soon as it has ended, not as a failure."""
    file, output = tmp_path / "grid.json", tmp_path / "sweep"
    file.write_text(json.dumps({"settings": {"rule": "sgd", "epochs": 1, "batch_size": 128}, "grid": {"seed": [0, 1]}}))
    (output / "seed-0").mkdir(parents=True)
    with RunDirectory(output / "seed-0").opened(False, 0):
        assert main(["sweep", str(file), "--output", str(output)]) == 1
    assert "seed-0: skipped. Another process is training" in capsys.readouterr().out
    assert [row["run"] for row in json.loads((output / "sweep.json").read_text())] == ["seed-1"]
    assert main(["sweep", str(file), "--output", str(output)]) == 0
    assert {row["run"] for row in json.loads((output / "sweep.json").read_text())} == {"seed-0", "seed-1"}


# From Python.


def test_a_run_is_opened_by_text_too(runs: Path) -> None:
    assert open_run(str(runs / "sgd"))[2] == open_run(runs / "sgd")[2]


def test_a_signal_in_the_last_evaluation_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is whole by then; what would come after it must not begin."""
    module = sys.modules["liebayes.experiments.train"]
    original = module.evaluate

    def interrupted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **named)

    monkeypatch.setattr(module, "evaluate", interrupted)
    settings = TrainSettings(rule="sgd", epochs=1, batch_size=128, output=tmp_path / "run")
    with pytest.raises(InterruptedRunError, match=r"Interrupted at the end: the run in .* is complete"):
        train(settings)
    assert RunDirectory(tmp_path / "run").finished(resolved(settings), of="the test")


def test_a_file_system_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"cannot be locked \(Function not implemented\)"):
        train(TrainSettings(rule="sgd", epochs=1, batch_size=128, output=tmp_path / "run"))


def test_figures_stand_at_the_epoch_they_are_of(tmp_path: Path, capsys: Captured) -> None:
    train(TrainSettings(rule="sgd", epochs=3, evaluate_every=2, batch_size=128, output=tmp_path / "run"))
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("epoch")]
    assert ["test" in text for text in lines] == [False, True, True]
    run = RunDirectory(tmp_path / "run")
    run.write_metrics([*run.metrics()[:2], {"epoch": 3, "train_loss": 0.1, "seconds": 1.0, "bounded": 0}])
    assert main(["compare", str(tmp_path / "run")]) == 0
    assert "figures of 2" in " ".join(capsys.readouterr().out.split())


def test_own_tensors_and_loaders(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    inputs = torch.randn(200, 3, generator=generator) + 3 * labels[:, None]
    four = (inputs[:150], labels[:150], inputs[150:], labels[150:])
    loaders = (DataLoader(TensorDataset(*four[:2]), 32), DataLoader(TensorDataset(*four[2:]), 32))
    found = [
        train(TrainSettings(epochs=5, output=tmp_path / str(i)), dataset=content)[-1]
        for i, content in enumerate((four, loaders))
    ]
    assert found[0]["test_accuracy"] > 0.95
    assert {k: v for k, v in found[0].items() if k != "seconds"} == {k: v for k, v in found[1].items() if k != "seconds"}
    assert RunDirectory(tmp_path / "0").settings().dataset == "tensors"
    with pytest.raises(ValueError, match=r"dataset must be a liebayes\.data\.Dataset, four tensors"):
        train(TrainSettings(output=tmp_path / "x"), dataset=inputs)  # pyright: ignore[reportArgumentType]


def test_training_follows_the_schedule(tmp_path: Path) -> None:
    lines = train(TrainSettings(rule="sgd", epochs=4, warmup_epochs=1.0, evaluate_every=3, output=tmp_path / "run"))
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert ["test_nll" in line for line in lines] == [False, False, True, True]
    rates = [line["lr"] for line in lines]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(0.1, rel=0.02)
    assert rates[-1] < 1e-4


def test_a_run_in_its_default_place_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *QUICK, "--rule", "sgd"]) == 0
    assert main(["train", "--rule", "sgd", "--resume"]) == 0, capsys.readouterr().err
    assert RunDirectory(tmp_path / "runs" / "digits-sgd-0").settings().epochs == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (x, y, x[:0], y[:0]), "0 test images and 2 classes"),
        (lambda x, y: (x, y * 0, x, y * 0), "20 test images and 1 classes"),
        (lambda x, y: (TensorDataset(x, y), TensorDataset(x, y)), r"labels of one have the shape \(\)"),
    ],
    ids=["no test", "one class", "no loader"],
)
def test_own_data_that_cannot_be_judged(change: Any, said: str, tmp_path: Path) -> None:
    inputs, labels = torch.rand(20, 4), torch.arange(20) % 2
    with pytest.raises(ValueError, match=said):
        train(TrainSettings(epochs=1, output=tmp_path / "run"), change(inputs, labels))
    assert not (tmp_path / "run").exists()


def test_every_sample_has_its_part_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def recording(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(labels))
        return torch.nn.functional.cross_entropy(logits, labels)

    monkeypatch.setattr(sys.modules["liebayes.experiments.train"], "cross_entropy", recording)
    words = ["--mc-samples", "4", "--split-batch", "--output", str(tmp_path / "run")]
    assert main(["train", *QUICK, *words]) == 0
    images = 1437
    full, last = divmod(images, 128)
    assert sizes == [32] * 4 * full + [last] * 4, "the last batch, a smaller one, is whole for every sample"


def test_the_commit_of_another_repository_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package is installed inside somebody's project."""
    from liebayes.experiments import run_directory

    package = tmp_path / "venv" / "liebayes"
    (package / "experiments").mkdir(parents=True)
    (package / "__init__.py").touch()
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "theirs"], cwd=tmp_path, check=True)
    monkeypatch.setattr(run_directory, "__file__", str(package / "experiments" / "run_directory.py"))
    assert run_directory._git_state() is None
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert (run_directory._git_state() or "").endswith("with changes")
