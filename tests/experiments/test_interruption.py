"""Runs that are killed, interrupted, or disturbed in other ways, and resumed: the same bits, or a clear refusal."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from program import ENVIRONMENT, SETTINGS, SHORT, contents, finish, liebayes, same, start, train_with_kills
from support.processes import TIMEOUT

from liebayes.cli import main
from liebayes.experiments import RunDirectory, RunError, TrainSettings, checkpoint, resume, train
from liebayes.experiments.checkpoint import CheckpointError, CheckpointWarning
from liebayes.experiments.train import OtherEnvironmentWarning

QUICK = {"epochs": 2, "evaluate_every": 2, "predictive_samples": 2, "batch_size": 64}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish("additive", folder)
    return folder


def test_a_killed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Killed once; a thousand times, and with every rule, in tests/torture."""
    hit = train_with_kills("additive", tmp_path / "run", 1, random.Random(7))
    assert len(hit) == 1, "the run ended before it could be killed"
    assert same(whole, tmp_path / "run")


def test_a_difference_of_one_bit_would_be_seen(unbroken: Path, tmp_path: Path) -> None:
    """The comparison that the other tests rest on."""
    from safetensors.torch import load_file, save_file

    other = tmp_path / "run"
    shutil.copytree(unbroken, other)
    assert same(unbroken, other)
    tensors = load_file(other / "posterior.safetensors")
    first = next(iter(tensors.values()))
    first.view(torch.int32).flatten()[0] ^= 1
    save_file(tensors, other / "posterior.safetensors")
    assert not same(unbroken, other)


@pytest.mark.parametrize("rule", SETTINGS)
def test_every_rule_resumes_to_the_bit(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second epoch, from a checkpoint between two steps."""
    train(settings(tmp_path / "whole", rule=rule))
    with fails_at(40, monkeypatch):
        train(settings(tmp_path / "run", rule=rule, checkpoint_seconds=0.0))
    resume(tmp_path / "run")
    assert same(tmp_path / "whole", tmp_path / "run")


def test_an_interrupted_run_leaves_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Checkpoints by time are off, so that the only one within an epoch is the one for the signal."""
    output = tmp_path / "run"
    process = start("train", *SETTINGS["additive"], *SHORT, "--checkpoint-seconds", 1e6, "--output", output)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("epoch 1/4")
    process.send_signal(signal.SIGTERM)  # SIGINT is that of test_two_ranks.py
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert errors == f"Interrupted. Continue with: liebayes train --resume --output {output}\n"
    progress = checkpoint.load(output / "checkpoint.safetensors")["progress"]
    assert progress["epoch"] >= 1
    assert main(errors.split("liebayes ", 1)[1].split()) == 0
    assert same(whole, output)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """The first is answered after a step, and this step never ends."""
    code = (
        "import sys, signal, importlib; from liebayes import cli\n"
        "module = importlib.import_module('liebayes.experiments.train')\n"
        "def endless(*arguments):\n"
        "    handle = signal.getsignal(signal.SIGINT)\n"
        "    def told(*arguments): print('interrupted', flush=True); handle(*arguments)\n"
        "    signal.signal(signal.SIGINT, told)\n"
        "    print('in a step', flush=True)\n"
        "    while True: signal.pause()\n"
        "module._step = endless\n"
        f"sys.exit(cli.main(['train', '--epochs', '1', '--output', {str(tmp_path / 'run')!r}]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in a step\n"
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"  # a process that had ended would say nothing
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (130, "Interrupted.\n")


# Damaged files.


def settings(folder: Path, **more: object) -> TrainSettings:
    return TrainSettings(output=folder, **{"rule": "additive", **QUICK, **more})  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def fails_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block that a step of training ends."""
    module = sys.modules["liebayes.experiments.train"]
    taken, step = [0], module._step

    def failing(*arguments: object) -> torch.Tensor:
        taken[0] += 1
        if taken[0] == number:
            raise RuntimeError("the test stops here")
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_step", failing)
        try:
            yield
        except RuntimeError as error:
            assert str(error) == "the test stops here"  # noqa: PT017
    assert taken[0] == number


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in its second epoch, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch, fails_at(40, patch):
        train(settings(folder, checkpoint_seconds=0.0))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    train(settings(folder))
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(bytes(content))


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(5000))


def foreign(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [truncate, one_bit, random_bytes, foreign, empty]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    damage: Callable[[Path], None], stopped: Path, unbroken: Path
) -> None:
    last = stopped / "checkpoint.safetensors"
    good = checkpoint.previous(last).read_bytes()
    damage(last)
    damaged = last.read_bytes()
    with pytest.warns(CheckpointWarning, match=r"Continuing from previous-checkpoint\.safetensors"):
        resume(stopped)
    assert same(unbroken, stopped)
    assert (stopped / "damaged-checkpoint.safetensors").read_bytes() == damaged
    assert checkpoint.previous(last).read_bytes() != good  # it has moved on


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the first save after falling back, between its two renames."""
    last = stopped / "checkpoint.safetensors"
    random_bytes(last)
    good = checkpoint.load(checkpoint.previous(last))["progress"]
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == last:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.warns(CheckpointWarning), pytest.raises(KeyboardInterrupt):
        resume(stopped)
    monkeypatch.undo()
    found = checkpoint.load_last_good(last)
    assert found is not None
    assert found["progress"] == good


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_good_checkpoint_nothing_is_touched(damage: Callable[[Path], None], stopped: Path) -> None:
    for path in (stopped / "checkpoint.safetensors", stopped / "previous-checkpoint.safetensors"):
        damage(path)
    before = contents(stopped)
    with pytest.raises(CheckpointError, match="Nothing was changed; move these files away"):
        resume(stopped)
    assert contents(stopped) == before


@pytest.mark.parametrize("name", ["settings.json", "metrics.jsonl", "environment.json"])
@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"epoch": 7}', "\x00\x01"])
def test_other_damaged_files_are_named_and_left(
    name: str, text: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (name, text) in {("metrics.jsonl", ""), ("settings.json", ""), ("environment.json", '{"epoch": 7}')}:
        text = "x"
    (stopped / name).write_text(text)
    before = contents(stopped)
    capsys.readouterr()
    assert main(["train", "--resume", "--output", str(stopped)]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert str(stopped / name) in said.err
    assert contents(stopped) == before


def test_settings_that_are_not_the_run_s_are_refused(stopped: Path) -> None:
    before = contents(stopped)
    with pytest.raises(RunError, match=r"lr is 0\.5 and was 1\.4\. Resume with the same ones"):
        train(settings(stopped, resume=True, lr=0.5))
    with pytest.raises(RunError, match="holds a run already"):
        train(settings(stopped))
    assert contents(stopped) == before
    for path in stopped.glob("*checkpoint.safetensors"):  # also before the first checkpoint
        path.unlink()
    with pytest.raises(RunError, match="Resume with the same ones"):
        train(settings(stopped, resume=True, lr=0.5))


def test_a_run_begun_before_a_setting_existed_goes_on(stopped: Path, unbroken: Path) -> None:
    tree = checkpoint.load(stopped / "checkpoint.safetensors")
    del tree["settings"]["split_batch"]
    checkpoint.save(tree, stopped / "checkpoint.safetensors")
    file = stopped / "settings.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "split_batch"}))
    resume(stopped)
    assert same(stopped, unbroken)


def test_the_checkpoint_of_another_run_is_refused(stopped: Path, tmp_path: Path) -> None:
    train(settings(tmp_path / "other", seed=1))
    shutil.copy(tmp_path / "other" / "checkpoint.safetensors", stopped / "checkpoint.safetensors")
    before = contents(stopped)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors was started with other settings: seed is 0 and was 1"):
        resume(stopped)
    assert contents(stopped) == before


def test_other_data_are_refused(stopped: Path) -> None:
    from liebayes import data

    before = contents(stopped)
    with pytest.raises(RunError, match=r"The data of .* have changed"):
        resume(stopped, dataset=data.load("digits").folds(5)[1])
    assert contents(stopped) == before


def test_killed_between_the_two_renames(stopped: Path, unbroken: Path) -> None:
    last = stopped / "checkpoint.safetensors"
    last.rename(last.with_name(f".{last.name}.part"))
    resume(stopped)
    assert same(unbroken, stopped)


def test_killed_before_the_first_checkpoint(stopped: Path, unbroken: Path) -> None:
    for path in stopped.glob("*checkpoint.safetensors"):
        path.unlink()
    resume(stopped)
    assert same(unbroken, stopped)


def test_killed_before_there_was_a_run(tmp_path: Path, unbroken: Path) -> None:
    """The lock and half a file may be there; --resume has nothing to go on with, a new start is allowed."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".settings.json.part").write_text("{")
    with pytest.raises(RunError, match="holds no run"):
        resume(folder)
    train(settings(folder))
    assert same(unbroken, folder)


# Full disks, and others in the same place.


def test_a_failed_save_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save({"number": 1, "tensor": torch.arange(3)}, path)
    checkpoint.save({"number": 2, "tensor": torch.arange(3)}, path)

    def full(*arguments: object, **more: object) -> None:
        Path(str(arguments[1])).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("safetensors.torch.save_file", full)
    before = contents(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"could not be written: No space left on device\. The previous checkpoint is kept"
    ):
        checkpoint.save({"number": 3, "tensor": torch.arange(3)}, path)
    assert contents(tmp_path) == before
    assert [f.name for f in tmp_path.iterdir() if f.suffix == ".part"] == []
    assert checkpoint.load(path)["number"] == 2


def test_the_system_refuses_in_the_middle_of_a_checkpoint(stopped: Path) -> None:
    """A real failure while writing: files may not grow beyond a part of a checkpoint."""
    size = (stopped / "checkpoint.safetensors").stat().st_size
    before = {name: content for name, content in contents(stopped).items() if "checkpoint" in name}

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    result = liebayes("train", "--resume", "--output", stopped, preexec_fn=limit)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "checkpoint.safetensors could not be written" in result.stderr
    assert {name: content for name, content in contents(stopped).items() if "checkpoint" in name} == before


def test_a_full_disk_is_reported_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RunError, match=r"has 0\.5 MB free, but its checkpoints need 1\.0 MB\. Free some space"):
        train(settings(tmp_path / "run"))
    assert contents(tmp_path) == {}


def test_the_space_asked_for_is_enough(unbroken: Path, tmp_path: Path) -> None:
    """For the rule with the largest state; and not many times too much."""
    from liebayes import data
    from liebayes.experiments.defaults import resolved
    from liebayes.experiments.learner import Learner
    from liebayes.experiments.processes import Team

    train(TrainSettings(rule="multiplicative", output=tmp_path / "run", **QUICK))  # pyright: ignore[reportArgumentType]
    learner = Learner(RunDirectory(tmp_path / "run").settings(), data.load("digits"), Team())
    actual = (tmp_path / "run" / "checkpoint.safetensors").stat().st_size
    assert actual <= learner.checkpoint_size() <= 3 * actual
    assert resolved(learner.settings) == learner.settings


def test_an_unwritable_directory_is_reported() -> None:
    """The system's own folder of processes takes no directory of ours, whoever asks."""
    with pytest.raises(RunError, match=r"cannot be (made or )?written: .*Choose another --output"):
        train(settings(Path("/proc/liebayes/run")))


def test_a_directory_without_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write anywhere
    with pytest.raises(RunError, match="cannot be made or written: no permission in"):
        train(settings(tmp_path / "deep" / "run"))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_be_no_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="Choose another --output"):
            train(settings(output))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        train(settings(tmp_path / "folder"))
    assert contents(tmp_path) == {"file": b"mine", "folder/thesis.tex": b"mine"}


def test_a_second_process_is_refused(stopped: Path) -> None:
    run = RunDirectory(stopped)
    before = run.read_json("environment.json")
    process = start("train", "--resume", "--output", stopped)
    while run.read_json("environment.json") == before and process.poll() is None:  # until it has started
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        before = contents(stopped)
        with pytest.raises(RunError, match=r"Another process is training in .*\. Wait for it, or choose another --output"):
            resume(stopped)
        assert contents(stopped) == before
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0


def test_another_environment_is_reported(stopped: Path, unbroken: Path) -> None:
    run = RunDirectory(stopped)
    run.write_json("environment.json", {**run.read_json("environment.json"), "torch": "1.0"})
    with pytest.warns(OtherEnvironmentWarning, match=r"is resumed with torch .* instead of 1\.0"):
        resume(stopped)
    assert same(unbroken, stopped)


def test_the_number_of_threads_is_a_setting(tmp_path: Path) -> None:
    """And is torch's own again afterwards."""
    before = torch.get_num_threads()
    train(settings(tmp_path / "run", threads=2))
    assert RunDirectory(tmp_path / "run").read_json("environment.json")["threads"] == 2
    assert torch.get_num_threads() == before != 2
