"""The campaigns of `make torture`, a few cases of each; and what they have found, by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support import damage
from support.damage import in_words

import liebayes as lb
from liebayes.experiments import checkpoint
from liebayes.experiments.checkpoint import CheckpointError
from liebayes.experiments.run_directory import RunDirectory, RunError
from liebayes.experiments.settings import SettingsError, TrainSettings, read_json
from liebayes.experiments.train import resume, train

TORTURE = Path(__file__).parents[1] / "torture"
QUICK: dict[str, Any] = {"rule": "additive", "epochs": 2, "batch_size": 512, "predictive_samples": 1, "checkpoint_seconds": 0}


@pytest.fixture(scope="module")
def torture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torture_main", TORTURE / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module  # pyright: ignore[reportReturnType]
    sys.path[:] = before


CASE = """
from collections import Counter
UNIT, GOAL = "cases", 5
class Campaign:
    def __init__(self, folder): pass
    def case(self, number):
        assert number != 2 or FIXED, "the second is broken"
        return Counter({"cases": 1})
FIXED = False
"""


def test_cases_are_counted_and_failures_repeated(
    torture: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two invocations: the count goes on, and what failed before is tried again."""
    (tmp_path / "torture_few.py").write_text(CASE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torture, "CAMPAIGNS", ("few",))
    words = ["few", "--results", str(tmp_path)]
    assert torture.main(words) == 1
    known = json.loads((tmp_path / "few.json").read_text())
    assert (known["counts"], known["cases"], known["failed"], known["mended"]) == ({"cases": 5}, 6, 1, 0)
    assert "the second is broken" in known["failures"][0]["error"]
    assert known["sessions"][0]["versions"].keys() >= {"python", "torch"}
    monkeypatch.setattr(sys.modules["torture_few"], "FIXED", True)
    assert torture.main(words) == 0
    known = json.loads((tmp_path / "few.json").read_text())
    assert (known["cases"], known["failed"], known["mended"], known["failures"]) == (6, 1, 1, [])
    assert torture.main([*words, "--cases", "0", "3"]) == 0  # of older code
    known = json.loads((tmp_path / "few.json").read_text())
    assert (known["cases"], known["counts"], known["sessions"][-1]["asked"]) == (6, {"cases": 8}, [0, 3])


def test_a_case_of_steps(torture: ModuleType, tmp_path: Path) -> None:
    steps = importlib.import_module("torture_steps")
    rules = len(steps.RULES)
    assert steps.Campaign(tmp_path).case(4, 40)["steps"] == 80
    assert steps.Campaign(tmp_path).case(rules + 4, 40)["steps"] == 44  # bfloat16, in which the kernel has no part
    counted = sum(steps.Campaign(tmp_path).case(case * rules, 40)["steps"] for case in (0, 1))
    assert counted * rules * steps.STEPS == steps.GOAL * 40


# What the campaigns have found.


def test_a_run_killed_before_its_settings_were_written_starts_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(TrainSettings(**QUICK, output=run))
    for path in run.iterdir():
        if path.name not in (".lock", "environment.json", "metrics.jsonl"):
            path.unlink()
    train(TrainSettings(**QUICK, output=run))
    (run / "settings.json").unlink()
    (run / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match="is not empty and holds no run"):  # there is a posterior
        train(TrainSettings(**QUICK, output=run))


def test_files_of_others_are_no_start_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        train(TrainSettings(**QUICK, output=tmp_path))
    assert (tmp_path / "metrics.jsonl").read_text() == "mine"


@pytest.mark.parametrize("number", [10**400, -(10**400)])
@pytest.mark.parametrize("name", ["lr", "epochs", "seed"])
def test_integers_beyond_all_bounds_are_refused(name: str, number: int) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be a number of at most 128 bits, but has 1329"):
        TrainSettings.from_json({name: number})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"lr": ' + "1" * 5000 + "}", "\ud800".encode("utf-8", "surrogatepass")])
def test_json_that_python_cannot_read_is_refused(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match="is not valid JSON"):
        read_json(path)
    with pytest.raises(RunError, match="is damaged"):
        RunDirectory(tmp_path).read_json("settings.json")


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no settings": lambda tree: tree.pop("settings"),
    "no model": lambda tree: tree.update(model=None),
    "another model": lambda tree: tree["model"].popitem(),
    "no optimizer": lambda tree: tree.pop("optimizer"),
    "progress as a list": lambda tree: tree.update(progress=[1]),
    "an epoch before the first": lambda tree: tree["progress"].update(epoch=-1),
    "an epoch after the last": lambda tree: tree["progress"].update(epoch=10**30),
    "no number of batches": lambda tree: tree["progress"].update(batch="1"),
    "a loss of NaN": lambda tree: tree["progress"].update(loss_sum=float("nan")),
    "lines of other epochs": lambda tree: tree["progress"].update(lines=[{"epoch": 7}]),
    "lines of nothing": lambda tree: tree["progress"].update(lines=[None, 3]),
    "a line without numbers": lambda tree: tree["progress"]["lines"][0].update(train_loss=tree["model"]),
    "more than is known": lambda tree: tree["progress"].update(end_epoch=None),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("forged") / "run"
    train(TrainSettings(**QUICK, output=run))
    return run


@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_checkpoints_are_refused(kind: str, stopped: Path) -> None:
    """Their checksum is right."""
    path = stopped / "checkpoint.safetensors"
    good = path.read_bytes()
    tree = checkpoint.load(path)
    FORGERIES[kind](tree)
    checkpoint.save(tree, path)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is not a checkpoint of this run: .*Put a good copy there"):
        resume(stopped)
    path.write_bytes(good)


@pytest.mark.parametrize("tree", ["[1]", "1", '{"pairs": 3}', '{"tensor": []}', "{}", "[" * 100_000])
def test_trees_that_are_none_are_refused(tree: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    metadata = {"format": checkpoint.FORMAT, "tree": tree, "checksum": checkpoint._checksum(tree, {"x": torch.ones(1)})}
    save_file({"x": torch.ones(1)}, tmp_path / "c", metadata=metadata)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        checkpoint.load(tmp_path / "c")


HUGE = 10**400
NORMAL = lb.Family(lb.groups.DiagonalAffine(), lb.bases.Normal(), lb.groups.DiagonalAffine().at(torch.zeros(2)))
CALLS: dict[str, Callable[[], Any]] = {
    "no bound": lambda: lb.groups.Interval(None, None),  # pyright: ignore[reportArgumentType]
    "no sizes": lambda: lb.nn.mlp(hidden=None),  # pyright: ignore[reportArgumentType]
    "huge sizes": lambda: lb.nn.mlp(hidden=(HUGE,)),
    "no shape": lambda: lb.nn.resnet20(shape=None),  # pyright: ignore[reportArgumentType]
    "no channels": lambda: lb.nn.FilterResponseNorm(None),  # pyright: ignore[reportArgumentType]
    "a threshold beyond float32": lambda: lb.nn.FilterResponseNorm(3, initial_threshold=-1e96),
    "no pair": lambda: lb.nn.gaussian_loss((), torch.ones(1)),  # pyright: ignore[reportArgumentType]
    "three parts": lambda: lb.nn.gaussian_loss((torch.ones(1),) * 3, torch.ones(1)),  # pyright: ignore[reportArgumentType]
    "no count": lambda: lb.nn.unit_signs(()),  # pyright: ignore[reportArgumentType]
    "scores as a matrix": lambda: lb.metrics.auroc_replicates(torch.ones(2, 2), torch.ones(2)),
    "no scores": lambda: lb.metrics.auroc_replicates(torch.ones(0), torch.ones(2)),
    "a factor of nothing": lambda: lb.bases.Laplace().scaled(None),  # pyright: ignore[reportArgumentType]
    "a negative factor": lambda: lb.bases.LogNormal().scaled(-1.0),
    "huge degrees of freedom": lambda: lb.bases.StudentT(HUGE),
    "a huge location": lambda: lb.bases.LogNormal(1.0, HUGE),
    "a gain of text": lambda: lb.nn.mlp(gain="x"),  # pyright: ignore[reportArgumentType]
    "a negative gain": lambda: lb.nn.mlp(gain=-1.0),
    "no draws": lambda: NORMAL.summary(0),
    "draws of text": lambda: NORMAL.diagnose(torch.sum, "x"),  # pyright: ignore[reportArgumentType]
    "a temperature of nothing": lambda: NORMAL.diagnose(torch.sum, temperature=None),  # pyright: ignore[reportArgumentType]
    "a huge seed": lambda: NORMAL.diagnose(torch.sum, seed=HUGE),
    "no means": lambda: lb.nn.GaussianOutput(torch.nn.Linear(1, 1), mean=None),  # pyright: ignore[reportArgumentType]
    "negative targets": lambda: lb.nn.GaussianOutput(torch.nn.Linear(1, 1), targets=-1),
    "targets of text": lambda: lb.nn.gaussian_loss((torch.ones(1),) * 2, "x"),  # pyright: ignore[reportArgumentType]
    "single numbers": lambda: lb.nn.gaussian_loss((torch.tensor(1.0),) * 2, torch.tensor(1.0)),
    "truths": lambda: lb.nn.gaussian_loss((torch.tensor([True]),) * 2, torch.tensor([True])),
    "settings of text": lambda: lb.nn.parameter_groups(torch.nn.Linear(1, 1), "x", {}),  # pyright: ignore[reportArgumentType]
    "layers as a truth": lambda: lb.nn.dale(torch.nn.Linear(2, 2), input_layers=True),  # pyright: ignore[reportArgumentType]
    "an offset beyond float32": lambda: lb.nn.plus_minus(torch.nn.Linear(2, 2), offset=1e200),
    "a fit's step beyond floats": lambda: lb.fit(torch.sum, start=torch.zeros(1), lr=HUGE),
    "a fit's step of text": lambda: lb.fit(torch.sum, start=torch.zeros(1), lr="x"),  # pyright: ignore[reportArgumentType]
    "no levels": lambda: lb.metrics.quantile_calibration(*[torch.ones(2)] * 3, levels=None),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("kind", CALLS)
def test_arguments_of_the_wrong_kind_are_refused_in_words(kind: str) -> None:
    with pytest.raises(ValueError, match=r"must (be|have)|needs a (positive, )?finite") as caught:
        CALLS[kind]()
    assert in_words(caught.value)


EDITED = """
def refuse(on_purpose):
    if on_purpose:
        raise ValueError("a sentence for the user")
    int("x" * 30)
"""


def test_an_error_in_words_is_known_when_its_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody edits the source while a campaign runs."""
    path = tmp_path / "edited.py"
    path.write_text(EDITED)
    monkeypatch.setattr(damage, "PACKAGE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    refuse = importlib.import_module("edited").refuse
    path.write_text("\n\n" + path.read_text())
    for on_purpose in (True, False):
        with pytest.raises(ValueError, match=r"sentence|invalid literal") as caught:
            refuse(on_purpose)
        assert in_words(caught.value) == on_purpose


def test_numbers_of_other_kinds_are_taken() -> None:
    assert lb.bases.Laplace().scaled(np.float32(2)) == lb.bases.Laplace(2.0)  # pyright: ignore[reportArgumentType]
    assert lb.nn.fixed_sign(torch.nn.Linear(2, 2), smallest=10**30)


def test_noise_drawn_ahead_is_that_of_the_steps(torture: ModuleType) -> None:
    ahead = importlib.import_module("torture_steps").Ahead()
    for step in (0, 999, 1000):
        place: dict[str, Any] = {"seed": 5 << 33 | 7, "tensor": 2, "step": step, "stream": 1}
        for base in (lb.bases.Normal(0.3), lb.bases.Rayleigh()):
            assert torch.equal(ahead(base, 64, **place), lb.bases.philox.draw(base, 64, **place))
