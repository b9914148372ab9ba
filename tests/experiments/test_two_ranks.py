"""Data-parallel runs as torchrun starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from program import ENVIRONMENT, command, same
from support.processes import TIMEOUT, free_port, two_ranks

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, checkpoint
from liebayes.experiments.defaults import resolved
from liebayes.experiments.learner import Learner
from liebayes.experiments.processes import Team
from liebayes.experiments.settings import SettingsError

WORDS = ["--rule", "affine", "--epochs", "2", "--predictive-samples", "4"]


def torchrun(*words: object) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port(), "-m", "liebayes"]
    command = [sys.executable, *launcher, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes."""
    output = tmp_path_factory.mktemp("ranks") / "two"
    process = torchrun("train", *WORDS, "--output", output)
    out, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    assert out.count("epoch 2/2") == 1, "one rank writes"
    return output


def test_two_processes_learn_as_well_as_one(two: Path, tmp_path: Path) -> None:
    assert main(["train", *WORDS, "--output", str(tmp_path / "one")]) == 0
    ours, theirs = (RunDirectory(path).metrics()[-1] for path in (two, tmp_path / "one"))
    assert abs(ours["test_accuracy"] - theirs["test_accuracy"]) < 0.03
    assert abs(ours["train_loss"] - theirs["train_loss"]) < 0.1
    assert RunDirectory(two).read_json("environment.json")["processes"] == 2


def test_checkpoints_move_between_one_and_two_processes(two: Path, tmp_path: Path) -> None:
    """Interrupted with two processes after the first epoch, resumed with one, and then with two again."""
    output = tmp_path / "run"
    process = torchrun("train", *WORDS, "--epochs", 3, "--checkpoint-seconds", 1e6, "--output", output)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("epoch 1/3")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert errors.count(f"Interrupted. Continue with: liebayes train --resume --output {output}") == 1
    first = checkpoint.load(output / "checkpoint.safetensors")["progress"]
    assert first["epoch"] >= 1
    assert main(["train", "--resume", "--output", str(output)]) == 0
    lines = RunDirectory(output).metrics()
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["test_accuracy"] > 0.9
    # From one to two: the last epoch again.
    os.replace(output / "previous-checkpoint.safetensors", output / "checkpoint.safetensors")
    (output / "posterior.safetensors").unlink()
    assert [done.returncode for done in two_ranks(*command("train", "--resume", "--output", output))] == [0, 0]
    assert (output / "posterior.safetensors").exists()
    resumed = RunDirectory(output).read_json("environment.json")["resumed"]
    assert [session["processes"] for session in resumed] == [1, 2]


def test_two_processes_resume_to_the_bit(two: Path, tmp_path: Path) -> None:
    """From the checkpoint after the first epoch."""
    output = tmp_path / "run"
    output.mkdir()
    for name in ("settings.json", "environment.json"):
        (output / name).write_bytes((two / name).read_bytes())
    (output / "checkpoint.safetensors").write_bytes((two / "previous-checkpoint.safetensors").read_bytes())
    assert [done.returncode for done in two_ranks(*command("train", "--resume", "--output", output))] == [0, 0]
    assert same(two, output)


def test_all_ranks_end_when_the_first_refuses(two: Path) -> None:
    ranks = two_ranks(*command("train", *WORDS, "--output", two))
    assert 0 not in [done.returncode for done in ranks]
    errors = "".join(done.stderr for done in ranks)
    assert errors.count("liebayes: ") == errors.count(f"liebayes: {two} holds a run already.") == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": 33}, "must be a positive multiple of world_size 2"),
        ({"batch_size": 36, "mc_samples": 4, "split_batch": True}, "18 images of 1437, for each of 2 processes, do not split"),
    ],
    ids=["size", "parts"],
)
def test_a_batch_is_shared_by_the_ranks(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Learner(resolved(TrainSettings(rule="affine", **settings)), data.load("digits"), Team(0, 2))
