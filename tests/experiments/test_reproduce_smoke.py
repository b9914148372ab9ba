"""Each recipe from end to end at the smoke scale, on real data where there are some."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.registry import WHOLE_GRID

from liebayes import data
from liebayes.cli import main
from liebayes.experiments import RunDirectory
from liebayes.experiments.reproduce import RECIPES, TABLE1, Selection, plan
from liebayes.optim import LieGroupBLR

Captured = pytest.CaptureFixture[str]
FIELDS = {
    "model", "dataset", "method", "base", "seed", "epochs", "settings", "accuracy", "nll", "ece", "largest_weight", "command",
    "liebayes", "python", "torch", "git", "threads", "processor", "wall_seconds", "step_seconds", "date", "train_images",
}  # fmt: skip


def reproduce(folder: Path, what: str, *words: str, real: Path | None = None, scale: str = "smoke") -> int:
    places = ["--output", str(folder / "runs"), "--results", str(folder / "results")]
    places += [] if real is None else ["--data-dir", str(real)]
    return main(["reproduce", what, "--scale", scale, *words, *places])


def stored(folder: Path, what: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "results" / what).glob("*.json"))]


def needs(real: Path, *names: str) -> None:
    for name in names:
        try:
            data.load(name, real, download=False)
        except data.MissingDataError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def table1(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 1 on MNIST, with settings from everywhere."""
    needs(real_data, "mnist")
    folder = tmp_path_factory.mktemp("table1")
    words = ["--experiments", "mnist-mlp", "--settings", "paper", "published", "ours"]
    assert reproduce(folder, "table1", *words, real=real_data) == 0
    return folder


def test_results_of_table_1(table1: Path) -> None:
    found = stored(table1, "table1")
    assert {(r["method"], r["settings_from"]) for r in found} == {
        ("additive", "paper"), ("multiplicative", "paper"), ("additive", "published"), ("multiplicative", "published"),
        ("additive Adaptive", "ours"), ("multiplicative Adaptive", "ours"), ("multiplicative Adaptive tuned", "ours"),
        ("multiplicative tenth of R", "ours"), ("SGD", "ours"),
    }  # fmt: skip
    for result in found:
        assert set(result) >= FIELDS
        assert 0 <= result["accuracy"] <= 1
        assert 0 <= result["localisation"] <= 1
        assert result["weights"] == 784 * 1024
        assert str(table1) not in json.dumps(result), "a place of this machine"
    text = (table1 / "results" / "table1.md").read_text()
    assert "| multiplicative | published | 1 | 2 | 1 |" in text
    assert "CIFAR-10, MLP, smoke scale" in text
    assert "not run" in text


def test_finished_runs_are_left_as_they_are(table1: Path, real_data: Path, capsys: Captured) -> None:
    times = {path: path.stat().st_mtime_ns for path in table1.rglob("*") if path.suffix in (".json", ".safetensors")}
    assert reproduce(table1, "table1", "--experiments", "mnist-mlp", real=real_data) == 0
    assert "epoch" not in capsys.readouterr().out.split("# Table 1")[0]
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_lost_results_are_collected_again(table1: Path, real_data: Path, capsys: Captured) -> None:
    before = stored(table1, "table1")
    for path in (table1 / "results" / "table1").glob("*paper*.json"):
        path.unlink()
    words = ["--experiments", "mnist-mlp", "cifar10-mlp", "--settings", "paper", "published", "ours", "--collect"]
    assert reproduce(table1, "table1", *words, real=real_data) == 0
    assert "epoch 1/1" not in capsys.readouterr().out
    assert stored(table1, "table1") == before


def test_the_stored_command_gives_the_same_figures(table1: Path, real_data: Path, tmp_path: Path, capsys: Captured) -> None:
    import shlex

    chosen = next(r for r in stored(table1, "table1") if r["method"] == "multiplicative" and r["settings_from"] == "paper")
    words = shlex.split(chosen["command"])
    assert words[:2] == ["liebayes", "reproduce"]
    assert (
        main([*words[1:], "--output", str(tmp_path), "--results", str(table1 / "results"), "--data-dir", str(real_data)]) == 0
    )
    assert "the same figures as stored" in capsys.readouterr().out


def test_pictures_of_filters(table1: Path, real_data: Path) -> None:
    assert reproduce(table1, "figure-filters", "--image", "3", real=real_data) == 0
    text = (table1 / "results" / "figure-filters.md").read_text()
    names = sorted(path.name for path in (table1 / "results").glob("filters-*.png"))
    assert len(names) == 2
    assert all(f"]({name})" in text for name in names)
    with Image.open(table1 / "results" / names[0]) as picture:
        assert picture.width > 2 * picture.height
    numbers = next(r for r in stored(table1, "table1") if r["method"] == "additive" and r["settings_from"] == "paper")
    assert f"{numbers['carry_90_percent']:,}" in text


def test_pictures_that_are_there_stay_on_the_page(table1: Path, real_data: Path) -> None:
    page = table1 / "results" / "figure-filters.md"
    assert reproduce(table1, "figure-filters", "--settings", "published", real=real_data) == 0
    published = {line for line in page.read_text().splitlines() if "-published-" in line}
    assert reproduce(table1, "figure-filters", "--settings", "paper", real=real_data) == 0
    lines = page.read_text().splitlines()
    assert len(published) == 2
    assert published <= set(lines)
    assert sum("-paper-" in line for line in lines) == 2


def test_pictures_of_chosen_runs(table1: Path, real_data: Path, capsys: Captured) -> None:
    runs = sorted(str(path.parent) for path in (table1 / "runs").rglob("posterior.safetensors"))[:3]
    assert reproduce(table1, "figure-filters", "--runs", *runs, real=real_data) == 0
    assert (table1 / "results" / "filters.png").exists()
    assert reproduce(table1, "figure-filters", "--image", "200", real=real_data) == 2
    assert "0 to 199" in capsys.readouterr().err


def test_a_half_finished_table_goes_on(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The second run ends in its third step; the same command finishes both, as if nothing had happened."""
    needs(real_data, "mnist")
    module = sys.modules["liebayes.experiments.train"]
    step = module._step
    words = ["--experiments", "mnist-mlp", "--only", "additive", "SGD", "--settings", "paper", "ours"]
    taken: list[int] = []

    def failing(*arguments: Any) -> torch.Tensor:
        taken.append(1)
        if len(taken) == 7:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(module, "_step", failing)
    assert reproduce(tmp_path, "table1", *words, real=real_data) == 130
    monkeypatch.undo()
    assert [r["method"] for r in stored(tmp_path, "table1")] == ["additive"]
    assert "| SGD | ours | 1 | 1 | 0 of 1 | not run |" in (tmp_path / "results" / "table1.md").read_text()
    capsys.readouterr()
    assert reproduce(tmp_path, "table1", *words, real=real_data) == 0
    assert "run 1 of 2" not in capsys.readouterr().out
    assert reproduce(tmp_path / "whole", "table1", *words, real=real_data) == 0
    for one, other in zip(stored(tmp_path, "table1"), stored(tmp_path / "whole", "table1"), strict=True):
        assert {k: one[k] for k in ("method", "accuracy", "nll", "ece")} == {
            k: other[k] for k in ("method", "accuracy", "nll", "ece")
        }


def test_a_run_with_other_settings_is_not_touched(table1: Path, real_data: Path, capsys: Captured) -> None:
    path = next((table1 / "runs").rglob("sgd_ours*/settings.json"))
    before = path.read_text()
    path.write_text(before.replace('"lr": 0.05', '"lr": 0.06'))
    try:
        assert reproduce(table1, "table1", "--experiments", "mnist-mlp", "--only", "SGD", real=real_data) == 1
        assert "was trained with lr 0.06, but the recipe says 0.05" in capsys.readouterr().err
    finally:
        path.write_text(before)


def test_a_run_that_another_process_trains_is_left_to_it(real_data: Path, tmp_path: Path, capsys: Captured) -> None:
    needs(real_data, "mnist")
    run = plan(TABLE1, Selection("smoke", ("ours",), ("SGD",)))[0].directory(tmp_path / "runs")
    with RunDirectory(run).opened(resume=False, checkpoint_size=0):
        assert reproduce(tmp_path, "table1", "--experiments", "mnist-mlp", "--only", "SGD", real=real_data) == 1
    assert "not run. Another process is training in" in capsys.readouterr().out
    assert not stored(tmp_path, "table1")


def test_a_loss_that_is_not_finite_is_a_result(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    needs(real_data, "mnist")
    module = sys.modules["liebayes.experiments.train"]
    monkeypatch.setattr(module, "_step", lambda *arguments: torch.tensor(float("nan")))
    assert reproduce(tmp_path, "table1", "--experiments", "mnist-mlp", "--only", "SGD", real=real_data) == 0
    assert "not finite" in stored(tmp_path, "table1")[0]["failed"]
    assert "| SGD | ours | 1 | 1 | 0 of 1 | diverged | diverged | diverged |" in capsys.readouterr().out
    assert reproduce(tmp_path, "table1", "--experiments", "mnist-mlp", "--only", "SGD", real=real_data) == 0
    assert "run 1 of 1" not in capsys.readouterr().out, "it would only diverge again"


def test_a_gradient_that_is_not_finite_does_not_stop_the_table(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(real_data, "mnist")
    module = sys.modules["liebayes.experiments.train"]
    step = module._step

    def failing(optimizer: Any, *arguments: Any) -> torch.Tensor:
        for p in optimizer.param_groups[0]["params"] if isinstance(optimizer, LieGroupBLR) else []:
            with torch.no_grad():
                p.fill_(float("inf"))
        return step(optimizer, *arguments)

    monkeypatch.setattr(module, "_step", failing)
    words = ["--experiments", "mnist-mlp", "--only", "additive", "SGD", "--settings", "paper", "ours"]
    assert reproduce(tmp_path, "table1", *words, real=real_data) == 0
    found = {r["method"]: r for r in stored(tmp_path, "table1")}
    assert "not finite" in found["additive"]["failed"]
    assert "accuracy" in found["SGD"]


IMAGES = [
    ("cifar10", "table1", "cifar10-mlp", ("additive",)),
    ("cifar10", "table1", "cifar10-cnn", ("additive", "multiplicative")),  # a pair, for the filters
    ("cifar10", "table2", "cifar10-resnet20", ("iVON",)),
    ("cifar10", "table2", "cifar10-resnet20-short", ("VOGN",)),
    ("cifar100", "table2", "cifar100-resnet20", ("affine Laplace",)),
    ("tinyimagenet", "table2", "tinyimagenet-resnet20", ("SGD",)),
]
"""One method of each experiment. That the settings of all of them fit together is in test_recipes.py; they all run in the cell
`grid` of `make test-matrix`."""


@pytest.mark.filterwarnings("ignore::liebayes.data.errors.IncompleteDataWarning")  # parts of the data will do
@pytest.mark.parametrize(("dataset", "what", "experiment", "only"), IMAGES, ids=[case[2] for case in IMAGES])
def test_colour_images(dataset: str, what: str, experiment: str, only: Sequence[str], real_data: Path, tmp_path: Path) -> None:
    needs(real_data, dataset)
    only = () if WHOLE_GRID else only
    everything = ["--settings", "paper", "published", "ours", "short", "--experiments", experiment]
    assert reproduce(tmp_path, what, *everything, *(["--only", *only] if only else []), real=real_data) == 0
    found = stored(tmp_path, what)
    asked = {
        (method.name, method.source)
        for e in RECIPES[what].experiments
        if e.name == experiment
        for method in e.methods
        if not only or method.name in only
    }
    assert {(r["method"], r["settings_from"]) for r in found} == asked
    assert all(set(result) >= FIELDS and result["base"] for result in found)
    if experiment == "cifar10-cnn":
        assert reproduce(tmp_path, "figure-filters", "--experiments", experiment, real=real_data) == 0
        assert list((tmp_path / "results").glob(f"filters-{experiment}-*.png"))


def test_curves(real_data: Path, tmp_path: Path, capsys: Captured) -> None:
    needs(real_data, "mnist")
    names = ("centre", "samples 4", "temperature 0.6")
    assert reproduce(tmp_path, "curves", "--only", *names, real=real_data) == 0
    assert "regulariser 250 | ours | 1 | 1 | 0 of 1 | not run" in capsys.readouterr().out
    assert {r["method"] for r in stored(tmp_path, "curves")} == set(names)
    with Image.open(tmp_path / "results" / "curves-smoke.png") as picture:
        assert picture.width > 1000


def test_figure_1(tmp_path: Path) -> None:
    before = torch.get_default_dtype(), torch.get_rng_state()
    assert main(["reproduce", "figure1", "--scale", "smoke", "--results", str(tmp_path)]) == 0
    for name in ("figure1.png", "figure1c-smoke.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 1000
    assert torch.get_default_dtype() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
