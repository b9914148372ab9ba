"""Recipes, tables and verdicts of `liebayes reproduce`, without training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch

from liebayes.bases import parse
from liebayes.cli import main
from liebayes.experiments.features import feature_numbers, weight_images, window_side
from liebayes.experiments.reproduce import CURVES, RECIPES, TABLE1, TABLE2, Planned, Selection, plan
from liebayes.experiments.reproduce.claims import CLAIMS, judge, together, verdicts, welch_margin
from liebayes.experiments.reproduce.curve_picture import draw_curves
from liebayes.experiments.reproduce.curves import AXES
from liebayes.experiments.reproduce.result import identity, read_all, result_path, store
from liebayes.experiments.reproduce.rows import mean_and_error, rows
from liebayes.experiments.reproduce.run import first_images
from liebayes.experiments.reproduce.table import blocks, line, markdown, page, summary, write_tables
from liebayes.experiments.run_directory import RunError
from liebayes.experiments.settings import SettingsError
from liebayes.metrics import localisation

Captured = pytest.CaptureFixture[str]
ALL = ("paper", "published", "ours")


def planned(recipe: str, method: str, scale: Any = "paper", **more: Any) -> Planned:
    return plan(RECIPES[recipe], Selection(scale, **{"sources": ("paper",), "only": (method,), "seeds": (0,), **more}))[0]


# The settings of App. B.


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


# Results, as a table.


def result(run: Planned, accuracy: float, nll: float, ece: float, **more: Any) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "nll": nll, "ece": ece, "largest_weight": 1.0}
    numbers = {"train_images": run.experiment.images, "settings": {}, "date": "today"}
    return {**identity(run, run.settings), **figures, **numbers, **more}


def results_of(recipe: str, method: str, values: list[tuple[float, float, float]], **more: Any) -> list[dict[str, Any]]:
    runs = plan(
        RECIPES[recipe],
        Selection("desktop", ("paper",), (method,), (RECIPES[recipe].experiments[0].name,), seeds=range(len(values))),
    )
    return [result(run, *figures, **more) for run, figures in zip(runs, values, strict=True)]


def test_standard_errors() -> None:
    draws = random.Random(0)
    values = [draws.gauss(3, 2) for _ in range(7)]
    mean, error = mean_and_error(values)
    tensor = torch.tensor(values, dtype=torch.float64)
    assert mean == pytest.approx(float(tensor.mean()))
    assert error == pytest.approx(float(tensor.std() / math.sqrt(7)))


def test_an_empty_table_is_not_run_and_has_no_number_of_ours() -> None:
    for recipe in RECIPES.values():
        for experiment in recipe.experiments:
            for row in rows(recipe, experiment, "desktop", []):
                cells = line(row)
                assert cells[5:8] == ["not run"] * 3
                assert cells[-1] == "–"
                assert cells[4].startswith("0 of ")
        text = markdown(recipe, blocks(recipe, []))
        assert "not run" in text
        assert "holds" not in text.replace("does not hold", "")


def test_a_table_fills_run_by_run(tmp_path: Path) -> None:
    *found, last = results_of("table1", "additive", [(0.981, 0.08, 0.01), (0.983, 0.09, 0.02), (0.982, 0.08, 0.01)])
    for number, one in enumerate(found, 1):
        run = planned("table1", "additive", "desktop", seeds=(one["seed"],))
        assert store(result_path(tmp_path, run), one) == "stored"
        cells = line(rows(TABLE1, TABLE1.experiments[0], "desktop", read_all(tmp_path, "table1"))[0])
        assert cells[4] == f"{number} of 3"
    assert cells[5:8] == ["98.20 ± 0.10", "0.0850 ± 0.0050", "0.0150 ± 0.0050"]
    assert cells[8:11] == ["98.38 ± 0.02", "0.083 ± 0.001", "0.012 ± 0.000"]
    text = write_tables(TABLE1, tmp_path)
    assert text == (tmp_path / "table1.md").read_text()
    assert "98.20 ± 0.10" in (tmp_path / "table1.html").read_text()
    assert "| multiplicative | paper | 20 | 8 | 0 of 3 | not run | not run | not run | 98.59 ± 0.02" in text
    assert "multiplicative" in summary(TABLE1, read_all(tmp_path, "table1")).split("Not run")[1]
    store(result_path(tmp_path, planned("table1", "additive", "desktop", seeds=(last["seed"],))), last)
    assert line(rows(TABLE1, TABLE1.experiments[0], "desktop", read_all(tmp_path, "table1"))[0])[4] == "3"


def test_one_seed_has_no_error_and_another_budget_a_row_of_its_own() -> None:
    found = results_of("table1", "additive", [(0.981, 0.08, 0.01)])
    found += [result(planned("table1", "additive", "desktop", epochs=3), 0.95, 0.2, 0.03)]
    table = rows(TABLE1, TABLE1.experiments[0], "desktop", found)
    assert [(r.epochs, len(r.results)) for r in table if (r.method, r.source) == ("additive", "paper")] == [(3, 1), (20, 1)]
    assert line(table[0])[5] == "95.00"


def test_a_diverged_run_is_a_result_without_figures(tmp_path: Path) -> None:
    run = planned("table1", "multiplicative", "desktop")
    store(result_path(tmp_path, run), {**identity(run, run.settings), "failed": "The loss is not finite.", "settings": {}})
    row = next(r for r in rows(TABLE1, TABLE1.experiments[0], "desktop", read_all(tmp_path, "table1")) if r.failures)
    assert line(row)[5:8] == ["diverged"] * 3


def test_partial_data_are_named() -> None:
    found = results_of("table2", "SGD", [(0.9, 0.3, 0.05)], train_images=2000)
    row = next(r for r in rows(TABLE2, TABLE2.experiments[0], "desktop", found) if r.results)
    assert line(row)[0] == "SGD (on 2,000 of 50,000 images)"


def test_the_same_figures_leave_a_stored_result_as_it_is(tmp_path: Path) -> None:
    run, path = planned("table1", "additive", "desktop"), tmp_path / "one.json"
    one = result(run, 0.98, 0.08, 0.01)
    store(path, one)
    before = path.read_bytes()
    assert store(path, {**one, "date": "tomorrow"}) == "the same figures as stored"
    assert path.read_bytes() == before
    assert "other figures" in store(path, {**one, "nll": 0.07})
    assert json.loads(path.read_text())["nll"] == 0.07


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"experiment": "mnist-mlp", "method": "additive", "seed": 0}'])
def test_damaged_results_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "one.json").write_text(content)
    with pytest.raises(RunError, match="Remove it"):
        read_all(tmp_path, "table1")


def test_a_number_that_is_not_finite_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        store(tmp_path / "one.json", result(planned("table1", "additive", "desktop"), 0.98, math.nan, 0.01))
    assert not list(tmp_path.iterdir())


def test_pages_are_whole_and_escaped() -> None:
    found = results_of(
        "table1", "additive", [(0.98, 0.08, 0.01)], outside="fashion-mnist", auroc_entropy=0.9, auroc_confidence=0.8
    )
    parts = blocks(TABLE1, found)
    text = page(TABLE1, parts)
    assert "<script" not in text
    assert text.count("<table") == len(parts) == text.count("</table>")
    assert any(part.name == "outside-desktop" and part.lines[0][-2:] == ["0.9000", "0.8000"] for part in parts)


# Verdicts.

GOOD, BAD_FIGURES = [(0.986, 0.058, 0.006)] * 3, [(0.984, 0.083, 0.012)] * 3


def verdict_words(found: list[dict[str, Any]], recipe: str = "table1") -> dict[str, str]:
    table = rows(RECIPES[recipe], RECIPES[recipe].experiments[0], "desktop", found)
    return {f"{v.claim}: {v.pair}": v.word for v in verdicts(CLAIMS[recipe], table)}


def first(words: dict[str, str]) -> str:
    return next(word for name, word in words.items() if "at least as accurate" in name and "multiplicative against" in name)


def noisy(values: list[tuple[float, float, float]], by: float) -> list[tuple[float, float, float]]:
    return [(a + by * (k - 1), b + by * (k - 1), c + by * (k - 1)) for k, (a, b, c) in enumerate(values)]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (GOOD, BAD_FIGURES, "holds"),
        (BAD_FIGURES, GOOD, "does not hold"),
        (GOOD[:2], BAD_FIGURES, "not decided"),
        (GOOD, BAD_FIGURES[:2], "not decided"),
        (noisy(GOOD, 0.05), noisy(BAD_FIGURES, 0.05), "not decided"),
        ([(0.98, 0.058, 0.006)] * 3, BAD_FIGURES, "does not hold"),
    ],
)
def test_a_verdict_needs_three_seeds_and_two_errors(ours: Any, theirs: Any, word: str) -> None:
    found = results_of("table1", "multiplicative", ours) if ours else []
    found += results_of("table1", "additive", theirs) if theirs else []
    assert first(verdict_words(found)) == word


def test_features_are_judged_from_results() -> None:
    sparse = {"feature_gini": 0.9, "localisation": 0.4, "feature_share": 0.1}
    dense = {"feature_gini": 0.4, "localisation": 0.1, "feature_share": 0.6}
    for ours, theirs, word in ((sparse, dense, "holds"), (dense, sparse, "does not hold"), ({}, {}, "not decided")):
        found = results_of("table1", "multiplicative", GOOD, **ours) + results_of("table1", "additive", GOOD, **theirs)
        words = verdict_words(found)
        assert next(w for name, w in words.items() if "sparser" in name and "multiplicative against" in name) == word


def test_claims_of_table_2() -> None:
    found = results_of("table2", "affine Laplace", GOOD) + results_of("table2", "affine Gaussian", BAD_FIGURES)
    found += results_of("table2", "SGD", noisy(BAD_FIGURES, 0.0001))
    words = verdict_words(found, "table2")
    assert (
        words["The affine rule has lower NLL and ECE than SGD: affine Laplace against SGD (paper, 8 epochs, K = 1)"] == "holds"
    )
    heavier = "A base with heavier tails is better calibrated: affine Laplace against affine Gaussian"
    assert words[f"{heavier} (paper, 8 epochs, K = 1)"] == "holds"
    assert not [name for name in words if "affine Laplace against affine Gaussian (published" in name], "nothing of it was run"
    assert sum(word != "not decided" for word in words.values()) == 2


def test_no_verdict_over_different_data_or_settings() -> None:
    ours, theirs = results_of("table1", "multiplicative", GOOD), results_of("table1", "additive", BAD_FIGURES)
    assert first(verdict_words(ours + theirs)) == "holds"
    other = [{**one, "data": "other"} for one in theirs]
    assert set(verdict_words(ours + other).values()) == {"not decided"}
    ours[1] = {**ours[1], "settings": {"lr": 99.0}}
    assert set(verdict_words(ours + theirs).values()) == {"not decided"}


def test_stored_results_that_are_none(tmp_path: Path) -> None:
    """A copy is no other seed, a result lacks nothing, and one of an older recipe is told of."""
    one = results_of("table1", "additive", [(0.98, 0.08, 0.01)])[0]
    path = result_path(tmp_path, planned("table1", "additive", "desktop"))
    store(path, one)
    copy = path.with_name(f"{path.stem} (copy).json")
    copy.write_text(path.read_text())
    with pytest.raises(RunError, match=r"are results of the same run\. Remove one"):
        read_all(tmp_path, "table1")
    copy.write_text(json.dumps({name: value for name, value in one.items() if name != "scale"}))
    with pytest.raises(RunError, match="is not a result: scale is missing"):
        read_all(tmp_path, "table1")
    copy.write_text(json.dumps({**one, "method": "of old"}))
    with pytest.warns(UserWarning, match="methods that table1 does not have: of old"):
        write_tables(TABLE1, tmp_path)
    copy.unlink()
    store(path, {**one, "nll": None})
    assert "not finite" in write_tables(TABLE1, tmp_path)


def test_every_figure_of_a_result_is_compared(tmp_path: Path) -> None:
    path, one = tmp_path / "one.json", results_of("table1", "additive", [(0.98, 0.08, 0.01)], auroc_entropy=0.9)[0]
    store(path, one)
    assert store(path, {**one, "date": "later", "wall_seconds": 1.0}) == "the same figures as stored"
    assert "other figures" in store(path, {**one, "auroc_entropy": 0.1})
    assert json.loads(path.read_text())["auroc_entropy"] == 0.1


def test_results_of_other_methods_are_in_no_curve(tmp_path: Path) -> None:
    run = plan(CURVES, Selection("desktop", ("ours",), ("centre",)))[0]
    assert draw_curves(tmp_path, [{**result(run, 0.97, 0.1, 0.01), "method": "samples 16"}], "desktop") is None


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
        assert f"liebayes {words[0]} is for one process" in capsys.readouterr().err


def test_no_verdict_where_a_seed_diverged() -> None:
    found = results_of("table1", "additive", BAD_FIGURES) + results_of("table1", "multiplicative", GOOD)
    assert "holds" in verdict_words(found).values()
    lost = planned("table1", "multiplicative", "desktop", seeds=(3,))
    found.append({**identity(lost, lost.settings), "failed": "the loss is not finite"})
    assert set(verdict_words(found).values()) == {"not decided"}


def test_published_affine_is_compared_with_the_one_sgd() -> None:
    run = plan(TABLE2, Selection("desktop", ("published",), ("affine Gaussian",), datasets=("cifar10",), seeds=(0, 1, 2)))
    found = [result(one, *figures) for one, figures in zip(run, GOOD, strict=True)] + results_of("table2", "SGD", BAD_FIGURES)
    assert "holds" in {w for name, w in verdict_words(found, "table2").items() if "published" in name}


def test_the_smoke_scale_has_no_verdict() -> None:
    runs = plan(TABLE1, Selection("smoke", ("paper",), experiments=("mnist-mlp",), seeds=(0, 1, 2)))
    text = markdown(TABLE1, blocks(TABLE1, [result(run, 0.9, 0.1, 0.1) for run in runs]))
    assert "claims" not in text
    assert "The paper's claims" not in text


def test_the_margin_is_that_of_welch_s_test() -> None:
    a, b = [1.0, 2.0, 4.0], [3.0, 3.1, 3.3, 3.2]
    interval = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    errors = [mean_and_error(values)[1] or 0.0 for values in (a, b)]
    assert welch_margin(errors[0], 3, errors[1], 4) == pytest.approx((interval.high - interval.low) / 2, rel=1e-6)


def test_equal_methods_seldom_differ() -> None:
    draws = random.Random(0)
    verdict = [judge(*[[draws.gauss(0, 1) for _ in range(3)] for _ in range(2)], "lower") for _ in range(4000)]
    assert sum(word != "not decided" for word in verdict) / 4000 < 0.055


def test_judging() -> None:
    assert judge([0.98] * 3, [0.98] * 5, "not lower") == "holds", "means that differ by rounding"
    assert judge([1, 1, 1], [2, 2, 2], "higher") == "does not hold"
    assert judge([1, 1, 1], [1, 1, 1], "lower") == "not decided"
    assert judge([1, 1, 1], [1, 1, 1], "not lower") == "holds"
    assert judge([1, 2, 3], [1.5, 2.5, 3.5], "not lower") == "holds"
    assert judge([1, 1, 1], [1.1, 1.1, 1.1], "not lower") == "does not hold"
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "not decided"]) == "not decided"
    assert together(["not decided", "does not hold"]) == "does not hold"
    assert together([]) == "not decided"


# Features.


def test_localisation_against_a_loop() -> None:
    maps = torch.rand(5, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for window in (1, 3, 7):
        best = [
            max(float(m[y : y + window, x : x + window].sum()) for y in range(9 - window + 1) for x in range(7 - window + 1))
            for m in maps
        ]
        torch.testing.assert_close(localisation(maps, window), torch.tensor(best, dtype=torch.float64) / maps.sum((1, 2)))
    with pytest.raises(ValueError, match="from 1 to 7"):
        localisation(maps, 8)
    with pytest.raises(ValueError, match="not negative"):
        localisation(-maps, 2)


def test_feature_numbers() -> None:
    flat, dot = torch.ones(4, 3, 28, 28), torch.zeros(4, 3, 28, 28)
    dot[:, 0, 5:8, 5:8] = 1.0
    assert window_side(28) == 7
    assert feature_numbers(flat)["localisation"] == pytest.approx(feature_numbers(flat)["localisation_if_flat"])
    found = feature_numbers(dot)
    assert found["localisation"] == pytest.approx(1.0)
    assert found["carry_90_percent"] == math.ceil(0.9 * 36)
    assert weight_images(torch.nn.Linear(12, 2), (3, 2, 2)) is not None
    assert weight_images(torch.nn.Linear(12, 2), (1, 2, 2)) is None
    assert weight_images(torch.nn.Conv2d(16, 2, 3), (3, 8, 8)) is None


def test_first_images() -> None:
    from liebayes import data

    digits = data.load("digits")
    small = first_images(digits, 7, "small")
    assert (small.name, len(small.train_labels), len(small.test_labels)) == ("small", 7, 7)
    assert small.train_images.equal(digits.train_images[:7])


def test_wrong_names_say_which_there_are() -> None:
    with pytest.raises(SettingsError, match="affine Laplace"):
        plan(TABLE2, Selection(only=("affine Laplas",)))


def test_a_feature_without_weights_has_no_numbers() -> None:
    images = torch.rand(4, 1, 28, 28)
    of_features = ("localisation", "feature_share", "feature_gini")
    expected = feature_numbers(images[[0, 1, 3]])
    images[2] = 0
    found = feature_numbers(images)
    assert [found[name] for name in of_features] == pytest.approx([expected[name] for name in of_features])


def test_a_runaway_unit_changes_the_numbers_of_the_layer_only() -> None:
    images = torch.randn(100, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    before = feature_numbers(images)
    images[7] *= 1000
    after = feature_numbers(images)
    for name in ("localisation", "feature_share", "feature_gini"):
        assert after[name] == pytest.approx(before[name])
    assert after["gini"] > before["gini"] + 0.4
    # |N(0, 1)| has the Gini index √2 − 1, and 90 % of its mass above the root of e^(−x²/2) = 0.9.
    assert before["feature_gini"] == pytest.approx(math.sqrt(2) - 1, abs=0.01)
    assert before["feature_share"] == pytest.approx(math.erfc(math.sqrt(-math.log(0.9))), abs=0.01)


def test_pages_tell_all_settings_and_their_sources() -> None:
    for recipe in RECIPES.values():
        text = markdown(recipe, blocks(recipe, []))
        for experiment in recipe.experiments:
            assert f"| {experiment.where} |" in text
            for method in experiment.methods:
                told = [line for line in text.splitlines() if f"| {method.name} ({method.source}) |" in line]
                mine = [line for line in told if experiment.title in line and line.endswith(f"| {method.where} |")]
                assert len(mine) == 1
                assert all(f"{name} {value}" in mine[0] for name, value in method.settings.items())


# Results that differ from each other.


def test_outside_figures_of_some_seeds_only() -> None:
    figures = [(0.98, 0.08, 0.01), (0.98, 0.09, 0.01)]
    first, second = results_of("table1", "additive", figures)
    second |= {"outside": "fashion-mnist", "auroc_entropy": 0.9, "auroc_confidence": 0.8}
    text = markdown(TABLE1, blocks(TABLE1, [first, second]))
    assert "| additive | paper | 20 | 8 | 1 | 0.9000 | 0.8000 |" in text


def test_more_figures_and_other_data_are_stored(tmp_path: Path) -> None:
    path, one = tmp_path / "one.json", results_of("table1", "additive", [(0.98, 0.08, 0.01)])[0]
    assert store(path, one) == "stored"
    assert store(path, one) == "the same figures as stored"
    assert store(path, {**one, "settings": {**one.get("settings", {}), "split_batch": False}}) == "the same figures as stored"
    assert "other figures, settings" in store(path, {**one, "settings": {**one.get("settings", {}), "split_batch": True}})
    assert "other figures, settings" in store(path, one)
    assert "fewer figures" in store(path, {**one, "auroc_entropy": 0.9})
    assert store(path, one) == "the same figures as stored", "nothing is lost"
    assert "other figures, settings or data" in store(path, {**one, "data": "other"})


def test_seeds_of_different_settings_are_marked() -> None:
    found = results_of("table1", "additive", [(0.98, 0.08, 0.01), (0.98, 0.09, 0.01)])
    found[0]["settings"], found[1]["settings"] = {"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}
    assert "different settings" not in line(rows(TABLE1, TABLE1.experiments[0], "desktop", found)[0])[0]
    found[1]["settings"] = {"lr": 0.1, "seed": 1, "split_batch": False}
    assert "different settings" not in line(rows(TABLE1, TABLE1.experiments[0], "desktop", found)[0])[0], "its default"
    found[1]["settings"] = {"lr": 0.1, "seed": 1, "split_batch": True}
    said = line(rows(TABLE1, TABLE1.experiments[0], "desktop", found)[0])[0]
    assert "different settings" in said
    assert "part of the batch" in said
    found[1]["settings"] = {"lr": 0.2, "seed": 1}
    assert "different settings" in line(rows(TABLE1, TABLE1.experiments[0], "desktop", found)[0])[0]


def test_the_picture_of_curves_has_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from liebayes.experiments.reproduce import curve_picture

    usual, other = (plan(CURVES, Selection("desktop", ("ours",), ("centre",), mc_samples=k))[0] for k in (None, 8))
    found = [result(usual, 0.97, 0.1, 0.01), result(other, 0.99, 0.05, 0.01)]
    shown: list[Any] = []
    draw = curve_picture._figure
    monkeypatch.setattr(curve_picture, "_figure", lambda stored: shown.extend(stored) or draw(stored))
    assert draw_curves(tmp_path, found, "desktop") == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").exists()
    assert draw_curves(tmp_path, found, "smoke") is None, "nothing was measured at this scale"
    assert shown == found[:1]
