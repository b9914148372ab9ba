"""What evaluate, predict, compare and info print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from support.processes import TIMEOUT

from liebayes import data, native
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, train

Captured = pytest.CaptureFixture[str]


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


def edited(run: Path, copy: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a run, with changes to its last line of metrics.jsonl."""
    shutil.copytree(run, copy)
    *lines, last = map(json.loads, (copy / "metrics.jsonl").read_text().splitlines())
    change(last)
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*lines, last)))
    return copy


@pytest.mark.parametrize("name", ["test_nll", "point_nll", "seconds", "test_ece", "train_loss"])
@pytest.mark.parametrize("value", ["x", None, [], 10**400], ids=lambda value: repr(value)[:4])
def test_figures_that_are_no_numbers_are_named(name: str, value: Any, runs: Path, tmp_path: Path, capsys: Captured) -> None:
    run = edited(runs / "affine", tmp_path / "run", lambda last: last.update({name: value}))
    for words in (["compare", str(run)], ["report", str(run), "--output", str(tmp_path / "page.html")]):
        assert main(words) == 1
        assert f"metrics.jsonl is damaged: epoch 1 has no number as its {name}." in capsys.readouterr().err


def test_a_run_without_its_last_figures_is_no_finished_one(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    run = edited(runs / "affine", tmp_path / "out" / "seed-0", lambda last: last.pop("test_nll"))
    grid = {"settings": {"rule": "affine", "epochs": 1, "batch_size": 128, "predictive_samples": 2}, "grid": {"seed": [0]}}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    for words in (["report", str(run), "--output", str(tmp_path / "page.html")],
                  ["sweep", str(tmp_path / "grid.json"), "--output", str(run.parent)]):  # fmt: skip
        assert main(words) == 1
        assert "metrics.jsonl lacks the end of the run: train --resume writes it again." in capsys.readouterr().err
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "resumed": 3}))
    assert main(["train", "--resume", "--output", str(run)]) == 0
    assert len(RunDirectory(run).read_json("environment.json")["resumed"]) == 1
    assert "test_nll" in RunDirectory(run).finished_metrics()[-1]


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
    assert abs(sum(arrays[0]["probabilities"].values()) - 1) < 1e-4  # pyright: ignore
    assert predicted(capsys, run, picture(tmp_path, "e.png", invert=True))[0]["probabilities"] != arrays[0]["probabilities"]


def test_info_says_that_the_kernel_is_switched_off(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("LIEBAYES_KERNEL", "off")
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)  # the choice is made once
    assert main(["info"]) == 0
    said = capsys.readouterr().out
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
        result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=TIMEOUT)
    assert result.stderr == b""
