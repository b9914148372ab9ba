"""The command line: errors of one line, help, and settings from files and runs."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings
from liebayes.experiments.command_line import arguments_of
from liebayes.experiments.commands import COMMANDS
from liebayes.experiments.defaults import DATASETS, RULES, default_text, resolved
from liebayes.experiments.settings import SettingsError

Captured = pytest.CaptureFixture[str]
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
    "train --model vgg": "--model must be mlp, lenet, resnet20 or package.module:function",
    "train --base Gauss(1)": "the names are Cauchy",
    "train --base=": "'' is not a base",
    "train --base Rayleigh(1)": "acts on the real line",
    "train --model lenet": "too small",
    "train --dataset mnits": "did you mean 'mnist'",
    "train --dataset mine": "own data are a table (.csv, .parquet), arrays (.npz) or a folder of images",
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
    "train --initial-threshold -1": "--initial-threshold -1.0 is for --model resnet20",
    "train --schedule cubic": "cosine",
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


@pytest.mark.parametrize("change", [{"rule": "afine"}, {"metric": "fischer"}, {"signs": "plus_minus"}])
def test_values_that_do_not_exist_are_refused_from_python_too(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(change))} must be"):
        resolved(TrainSettings(**change))


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
