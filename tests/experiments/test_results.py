"""Stored results, as tables and pictures."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_results import planned, result, results_of

from liebayes.experiments.reproduce import CURVES, RECIPES, TABLE1, TABLE2, Selection, plan
from liebayes.experiments.reproduce.curve_picture import draw_curves
from liebayes.experiments.reproduce.result import identity, read_all, result_path, store
from liebayes.experiments.reproduce.rows import mean_and_error, rows
from liebayes.experiments.reproduce.table import blocks, line, markdown, page, summary, write_tables
from liebayes.experiments.run_directory import RunError


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
