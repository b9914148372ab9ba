"""Recipes of `liebayes reproduce`: the settings of App. B, and the runs that are planned."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from stored_results import planned

from liebayes.bases import parse
from liebayes.cli import main
from liebayes.experiments.reproduce import CURVES, RECIPES, TABLE1, TABLE2, Planned, Selection, plan
from liebayes.experiments.reproduce.curves import AXES
from liebayes.experiments.reproduce.run import first_images
from liebayes.experiments.run_directory import RunError
from liebayes.experiments.settings import SettingsError

Captured = pytest.CaptureFixture[str]
ALL = ("paper", "published", "ours", "short")


def test_settings_of_b1() -> None:
    additive, multiplicative = (planned("table1", m).settings for m in ("additive", "multiplicative"))
    for settings in (additive, multiplicative):
        assert (settings.epochs, settings.warmup_epochs, settings.batch_size, settings.mc_samples) == (60, 5, 50, 32)
        assert (settings.momentum, settings.prior_precision, settings.metric) == (0.9, 250, "absorbed")
        assert settings.predictive_samples == 32
    assert (additive.lr, parse(additive.base or "").variance) == (0.01, pytest.approx(0.001))
    assert (multiplicative.lr, multiplicative.temperature) == (50, 0.005)
    assert (multiplicative.base, multiplicative.signs) == ("Rayleigh(1.0)", "plus-minus")
    cnn = planned("table1", "multiplicative", experiments=("cifar10-cnn",)).settings
    assert (cnn.lr, cnn.temperature, cnn.prior_precision, cnn.mc_samples, cnn.batch_size) == (100, 0.001, 2, 10, 100)
    assert (cnn.epochs, cnn.augment, additive.augment) == (180, True, False)


def test_settings_of_b2() -> None:
    hyper = {"affine Laplace": (1, 0.8, 0.999), "additive uniform": (0.1, 0.8, None), "SGD": (0.1, 0.8, None),
             "iVON": (0.5, 0.8, 0.999), "VOGN": (0.002, 0.95, 0.999)}  # fmt: skip
    for method, (lr, momentum, scale_momentum) in hyper.items():
        s = planned("table2", method).settings
        assert (s.lr, s.momentum, s.scale_momentum) == (lr, momentum, scale_momentum)
        assert (s.epochs, s.warmup_epochs, s.batch_size, s.mc_samples, s.prior_precision) == (180, 0, 200, 1, 100)
    deviations = {"Gaussian": 0.005, "Laplace": 0.005 * math.sqrt(2), "uniform": 0.0025 / math.sqrt(3)}
    for name, deviation in deviations.items():
        assert parse(planned("table2", f"affine {name}").settings.base or "").variance == pytest.approx(deviation**2)
    assert (planned("table2", "iVON").settings.damping, planned("table2", "VOGN").settings.damping) == (1.0, 0.01)


def test_published_settings_are_the_same_decay_with_four_times_the_data() -> None:
    s = planned("table2", "affine Gaussian", sources=("published",)).settings
    assert (s.prior_precision or 0) / 200_000 == 25 / 50_000
    assert (s.temperature or 0) / 200_000 == 1 / 50_000
    assert (s.lr, s.scale_lr) == (1.0, 0.05)


def test_short_settings_differ_in_what_makes_methods_different() -> None:
    """Network, data, augmentation, prior, batches, schedule and budget are the same for all."""
    runs = plan(TABLE2, Selection("desktop", ("short",), seeds=(0,)))
    assert {run.method.name for run in runs} >= set(TABLE2.experiments[0].printed)
    own = {"rule", "curvature", "base", "lr", "scale_lr", "scale_momentum", "temperature", "metric", "max_step", "damping",
           "initial_curvature", "compile", "output"}  # fmt: skip
    shared = [{k: v for k, v in run.settings.to_json().items() if k not in own} for run in runs]
    assert all(settings == shared[0] for settings in shared)
    assert (shared[0]["epochs"], shared[0]["schedule"], shared[0]["warmup_epochs"]) == (24, "linear", pytest.approx(24 / 5))
    assert (shared[0]["initial_threshold"], shared[0]["batch_size"], shared[0]["prior_precision"]) == (-1.0, 50, 100.0)


def test_other_recipes_have_none_of_the_new_settings() -> None:
    for recipe in RECIPES.values():
        for run in plan(recipe, Selection("desktop", ("paper", "published", "ours"))):
            settings = run.settings
            assert (settings.schedule, settings.precision, settings.initial_threshold) == ("cosine", "float32", 0.0)


def test_step_sizes_are_the_best_of_their_sweep() -> None:
    """A sweep is judged by its NLL on held-out training images; the recipe must have its choice."""
    root = Path(__file__).parents[2]
    rates = {run.method.name.split()[0].lower(): run.settings.lr for run in plan(TABLE2, Selection("desktop", ("short",)))}
    for rule, rate in rates.items():
        stored = root / "results" / "short" / f"resnet20-{rule}.json"
        if not stored.exists():  # not run yet; nor is any row with this step size
            assert not list((root / "results" / "table2").glob(f"*-short_{rule}*.json"))
            continue
        rows = json.loads(stored.read_text())
        grid = json.loads((root / "benchmarks" / "short" / f"resnet20-{rule}.json").read_text())["grid"]["lr"]
        assert sorted(row["lr"] for row in rows) == sorted(grid)
        assert all(row["settings"]["held_out"] for row in rows if "failed" not in row)
        assert min(rows, key=lambda row: row.get("test_nll", math.inf))["lr"] == rate


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
@pytest.mark.parametrize("scale", ["paper", "desktop", "smoke"])
def test_every_run_has_settings_that_fit_together(recipe: Any, scale: Any) -> None:
    runs = plan(recipe, Selection(scale, ALL))
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.settings.seed == run.seed and run.method.where and run.experiment.where for run in runs)
    assert {name for e in recipe.experiments for name in e.printed} <= {run.method.name for run in runs}


def test_a_scale_only_shortens() -> None:
    for paper, desktop in zip(
        plan(TABLE1, Selection("paper", ALL, seeds=(0,))), plan(TABLE1, Selection("desktop", ALL, seeds=(0,))), strict=True
    ):
        a, b = paper.settings.to_json(), desktop.settings.to_json()
        changed = {name for name in a if a[name] != b[name]}
        assert changed <= {"epochs", "mc_samples", "split_batch", "warmup_epochs", "evaluate_every", "compile", "output"}
        assert b["epochs"] <= a["epochs"]
        assert b["mc_samples"] <= a["mc_samples"]
        assert b["warmup_epochs"] / b["epochs"] == pytest.approx(a["warmup_epochs"] / a["epochs"], abs=1e-6)


def test_samples_that_do_not_divide_the_batch_see_all_of_it() -> None:
    for samples, split in ((4, True), (8, False), (None, True)):
        runs = plan(TABLE1, Selection("desktop", ("paper",), experiments=("cifar10-cnn",), seeds=(0,), mc_samples=samples))
        assert [run.settings.split_batch for run in runs] == [split, split]


def test_seeds_of_the_desktop_scale() -> None:
    runs = plan(TABLE2, Selection("desktop", ("paper",), datasets=("cifar10",)))
    seeds = {name: sum(run.method.name == name for run in runs) for name in TABLE2.experiments[0].printed}
    assert {name for name, number in seeds.items() if number == 3} == {"SGD", "iVON", "affine Gaussian", "affine Laplace"}
    assert set(seeds.values()) == {1, 3}
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


def test_a_point_of_a_curve_changes_one_setting() -> None:
    runs = plan(CURVES, Selection("desktop", ("ours",)))
    centre = runs[0].settings.to_json()
    of_methods = {run.method.name: run.settings.to_json() for run in runs}
    for axis in AXES:
        for value in axis.values:
            settings = of_methods[axis.method(value)]
            assert settings[axis.setting] == value
            changed = {name for name in settings if settings[name] != centre[name]}
            assert changed - {"output", "evaluate_every"} <= {axis.setting}
    assert sum(len(axis.others) for axis in AXES) + 1 == len(runs)


def test_a_budget_of_ones_own_is_another_run() -> None:
    usual, other = planned("table1", "additive", "desktop"), planned("table1", "additive", "desktop", epochs=3, mc_samples=5)
    assert (other.settings.epochs, other.settings.mc_samples) == (3, 5)
    assert other.name != usual.name
    assert "--epochs 3 --mc-samples 5" in other.command
    assert planned("table1", "SGD", "desktop", sources=("ours",), mc_samples=5).settings.mc_samples == 1


def test_the_command_of_a_run_plans_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    from liebayes.experiments.reproduce import command

    seen: list[Planned] = []
    monkeypatch.setattr(command, "execute", lambda recipe, runs, *rest: seen.extend(runs) or 0)
    monkeypatch.setattr(command, "write_tables", lambda *rest: "")
    for run in plan(TABLE2, Selection("desktop", ALL, seeds=(2,), mc_samples=3)):
        seen.clear()
        assert main(shlex.split(run.command)[1:]) == 0
        assert seen == [run]


BAD = {
    "reproduce table3": "table1",
    "reproduce table1 --only affine": "is none of additive, multiplicative",
    "reproduce table2 --datasets mnist": "is none of cifar10",
    "reproduce table1 --experiments mlp": "is none of mnist-mlp",
    "reproduce table1 --seeds -1": "--seeds must be at least 0",
    "reproduce table1 --epochs 0": "--epochs must be at least 1",
    "reproduce table1 --mc-samples 0": "--mc-samples must be at least 1",
    "reproduce table1 --settings published --datasets cifar10": "no run of table1 matches",
    "reproduce table1 --scale huge": "desktop",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_is_one_line(text: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(text.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert BAD[text] in said
    assert not list(tmp_path.iterdir())


def test_filters_need_finished_runs(capsys: Captured, tmp_path: Path) -> None:
    assert main(["reproduce", "figure-filters", "--output", str(tmp_path), "--results", str(tmp_path / "results")]) == 1
    assert "no finished pair" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["figure1", "figure1c", "filters"])
def test_a_picture_tells_why_it_cannot_be_written(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from liebayes.experiments.reproduce import dale, figure1, filters

    (tmp_path / "file").write_text("mine")
    results = tmp_path / "file" / "results"
    monkeypatch.setattr(filters, "side_of", lambda *rest: None)
    draws = {
        "figure1": lambda: figure1.draw_figure1(results),
        "figure1c": lambda: dale.draw_figure1c(results, "figure1c", 1),
        "filters": lambda: filters.draw_filters([], [tmp_path], tmp_path, results, 0, None),
    }
    with pytest.raises(RunError, match=r"cannot be written: Not a directory\. Choose another --results\."):
        draws[what]()


def test_missing_data_are_not_run(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: object, **more: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    words = ["--scale", "smoke", "--only", "SGD", "--data-dir", str(tmp_path / "data"), "--output", str(tmp_path / "runs")]
    assert main(["reproduce", "table1", *words, "--results", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().out
    assert "not run. MNIST: there is no" in said
    assert not list((tmp_path / "results").glob("table1/*.json"))


@pytest.mark.parametrize("words", [["figure1", "--only", "SGD"], ["table1", "--image", "3"], ["figure-filters", "--collect"]])
def test_options_that_mean_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words]) == 2
    assert f"{words[1]} has no meaning for {words[0]}" in capsys.readouterr().err


def test_many_runs_are_for_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["reproduce", "table1"], ["sweep", str(tmp_path / "grid.json"), "--output", str(tmp_path / "out")]):
        assert main(words) == 2
        assert f"liebayes {words[0]} runs in one process" in capsys.readouterr().err


def test_first_images() -> None:
    from liebayes import data

    digits = data.load("digits")
    small = first_images(digits, 7, "small")
    assert (small.name, len(small.train_labels), len(small.test_labels)) == ("small", 7, 7)
    assert small.train_images.equal(digits.train_images[:7])


def test_wrong_names_say_which_there_are() -> None:
    with pytest.raises(SettingsError, match="affine Laplace"):
        plan(TABLE2, Selection(only=("affine Laplas",)))
