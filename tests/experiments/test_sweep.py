"""Sweeps over grids of settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, open_run
from liebayes.experiments.train import DivergedRunError, InterruptedRunError

Captured = pytest.CaptureFixture[str]


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
