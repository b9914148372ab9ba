"""`liebayes shift`: trained runs on corrupted test images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from liebayes import data
from liebayes.cli import main
from liebayes.data import CORRUPTIONS, SEVERITIES, corrupted
from liebayes.experiments import open_run
from liebayes.experiments.shift import figure, write_shift
from liebayes.metrics import classification_metrics

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of two rules on small pictures of two colours, one rule with two seeds."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 2
    pictures = torch.randint(0, 120, (120, 3, 8, 8), generator=generator)
    pictures[:, 0] += 100 * labels[:, None, None]
    small = data.from_tensors(
        pictures[:80].to(torch.uint8), labels[:80], pictures[80:].to(torch.uint8), labels[80:], name="two-colours"
    )
    data.register("two-colours", lambda data_dir, download: small, replace=True)
    folder = tmp_path_factory.mktemp("shift")
    for name, rule in (("sgd-0", "sgd"), ("affine-0", "affine"), ("affine-1", "affine")):
        words = ["--dataset", "two-colours", "--epochs", "3", "--batch-size", "20", "--predictive-samples", "2"]
        words += ["--rule", rule, "--seed", name.rpartition("-")[2]]
        assert main(["train", *words, "--output", str(folder / name)]) == 0
    yield folder
    data.unregister("two-colours")


def shift(runs: Path, output: Path, *names: str, words: tuple[str, ...] = ("--samples", "4")) -> int:
    return main(["shift", *(str(runs / name) for name in names), "--output", str(output), *words])


def test_results_table_and_picture(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    assert shift(runs, tmp_path, "sgd-0", "affine-0", "affine-1") == 0
    stored = json.loads((tmp_path / "affine-1.json").read_text())
    assert set(stored["corrupted"]) == set(CORRUPTIONS)
    assert all(len(levels) == len(SEVERITIES) for levels in stored["corrupted"].values())
    assert str(runs) not in json.dumps(stored), "a place of this machine"
    posterior, dataset, _ = open_run(runs / "affine-1")
    images = dataset.normalize(corrupted(dataset.test_images, "contrast", 2))
    wanted = classification_metrics(posterior.predict(images, 4).probabilities, dataset.test_labels)
    assert stored["corrupted"]["contrast"][1]["nll"] == pytest.approx(wanted["nll"], rel=1e-5)
    text = (tmp_path / "shift.md").read_text()
    assert "| sgd | 1 |" in text
    assert "| affine | 2 |" in text
    with Image.open(tmp_path / "shift.png") as picture:
        assert picture.width > 2 * picture.height
    capsys.readouterr()
    assert shift(runs, tmp_path, "sgd-0") == 0
    assert "sgd-0: measured before" in capsys.readouterr().out
    methods = write_shift(tmp_path)
    mean = sum(stored["corrupted"][kind][4]["ece"] for kind in CORRUPTIONS) / 5
    assert figure(methods["affine"], "ece", 5)[1] == pytest.approx(mean)
    assert figure(methods["affine"], "ece", 5, "blur")[1] == stored["corrupted"]["blur"][4]["ece"]


def test_unlike_results_are_not_mixed(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    assert shift(runs, tmp_path, "sgd-0", words=("--images", "10")) == 0
    assert shift(runs, tmp_path, "affine-0", words=("--images", "20", "--samples", "2")) == 2
    assert "choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--images", "41"), "from 1 to the 40 test images"), (("--samples", "0"), "--samples must be at least 1")],
)
def test_bad_numbers(words: tuple[str, ...], said: str, runs: Path, tmp_path: Path, capsys: Captured) -> None:
    assert shift(runs, tmp_path / "out", "sgd-0", words=words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_folders(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(runs / "sgd-0", tmp_path / "other" / "sgd-0")
    assert main(["shift", str(runs / "sgd-0"), str(tmp_path / "other" / "sgd-0"), "--output", str(tmp_path / "out")]) == 2
    assert "two runs are called sgd-0" in capsys.readouterr().err
    (tmp_path / "sgd-0.json").write_text("{}")
    assert shift(runs, tmp_path, "sgd-0") == 1
    assert "is not a result of `liebayes shift`" in capsys.readouterr().err
