"""Training from Python: own data, schedules, signals, and runs that fail."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, open_run, train
from liebayes.experiments.defaults import resolved
from liebayes.experiments.settings import SettingsError
from liebayes.experiments.train import DivergedRunError, InterruptedRunError

Captured = pytest.CaptureFixture[str]
QUICK = ["--epochs", "1", "--batch-size", "128", "--predictive-samples", "2"]


def test_a_loss_that_diverges_is_a_failure(tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", "--rule", "sgd", "--lr", "1e30", *QUICK, "--output", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == (
        "liebayes: The loss or its gradient is not finite in epoch 1: try a lower --lr. The last checkpoint is kept.\n"
    )


def test_predictions_that_are_not_finite_are_a_failure(tmp_path: Path) -> None:
    """The last step of an epoch leaves weights of 1e37, whose sums overflow: no loss is taken after it."""
    images = 1437
    steps = {"lr": 3e38, "momentum": 0.0, "prior_precision": float(images), "batch_size": images, "warmup_epochs": 0.0}
    settings = TrainSettings(rule="additive", epochs=1, output=tmp_path / "run", **steps)
    with pytest.raises(DivergedRunError, match="not finite"):
        train(settings)


def test_augmentation_is_that_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="digits has no augmentation"):
        train(TrainSettings(augment=True, output=tmp_path / "none"))
    own = dataclasses.replace(data.load("digits"), name="own", augmentation=data.Augmentation(1, False))
    train(TrainSettings(rule="sgd", epochs=1, output=tmp_path / "own"), own)
    assert RunDirectory(tmp_path / "own").settings().augment is True
    train(TrainSettings(rule="sgd", epochs=1, augment=False, output=tmp_path / "plain"), own)
    assert RunDirectory(tmp_path / "plain").settings().augment is False


def test_a_run_is_opened_by_text_too(runs: Path) -> None:
    assert open_run(str(runs / "sgd"))[2] == open_run(runs / "sgd")[2]


def test_a_signal_in_the_last_evaluation_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(sys.modules["liebayes.experiments.tasks"], "cross_entropy", recording)
    words = ["--mc-samples", "4", "--split-batch", "--output", str(tmp_path / "run")]
    assert main(["train", *QUICK, *words]) == 0
    images = 1437
    full, last = divmod(images, 128)
    assert sizes == [32] * 4 * full + [last] * 4, "the last batch, a smaller one, is whole for every sample"


def test_the_commit_of_another_repository_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
