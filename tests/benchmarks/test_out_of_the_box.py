"""The out-of-the-box benchmark: grids grow past their edges, stored runs are kept, and tables report the best setting."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import out_of_the_box as benchmark
import out_of_the_box_tables as tables
import tasks

pytest.importorskip("sklearn")
pytest.importorskip("ivon")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(benchmark, "FOLDER", tmp_path)
    return tmp_path


def pretend(losses: dict[float, float], runs: list[tuple[float, int]]) -> Any:
    """A run whose NLL is a function of the step size."""

    def run(task: Any, method: str, setting: dict[str, float], seed: int) -> dict[str, Any]:
        runs.append((setting["lr"], seed))
        nll = losses.get(setting["lr"], 9.0) + 0.01 * seed
        return {
            "method": method,
            "setting": setting,
            "seed": seed,
            "code": benchmark.code(method),
            "point": {"nll": nll} if math.isfinite(nll) else None,
            "marginal": None,
            "diverged": not math.isfinite(nll),
            "step_ms": 1.0,
            "seconds": 1.0,
        }

    return run


def test_a_grid_grows_until_its_best_is_inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[float, int]] = []
    losses = {0.01: 5.0, 0.03: 4.0, 0.1: 3.0, 0.3: 2.0, 1.0: 1.0, 3.0: math.inf}
    monkeypatch.setattr(benchmark, "run", pretend(losses, runs))
    benchmark.compare("logistic", "SGD", [0, 1])
    assert runs == [(lr, 0) for lr in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)] + [(lr, 1) for lr in (0.3, 1.0, 3.0)]
    assert [row["setting"]["lr"] for row in tables.best("logistic", "SGD")] == [1.0, 1.0]
    assert "| 1.0050 ± 0.0050 |" in tables.details()
    benchmark.compare("logistic", "SGD", [0, 1])
    assert len(runs) == 9, "what is stored is not run again"
    monkeypatch.setattr(benchmark, "code", lambda method: "another version")
    benchmark.compare("logistic", "SGD", [0])
    assert len(runs) == 15
    assert {row["code"] for row in benchmark.stored("logistic")} == {"another version"}


def test_costly_tasks_repeat_the_best_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[float, int]] = []
    monkeypatch.setattr(benchmark, "run", pretend({0.3: 1.0}, runs))
    benchmark.compare("char-gpt", "SGD", [0, 1, 2])
    assert [lr for lr, seed in runs if seed] == [0.3, 0.3]
    assert "1.0100" in tables.summary(), "the mean over the seeds of the best"


def test_an_interrupted_search_is_judged_by_what_its_settings_share(folder: Path) -> None:
    """Here a second seed of a neighbour has been run, and none yet of the best."""
    run = pretend({0.1: 2.0, 0.3: 1.0}, [])
    for lr, seed in ((0.1, 0), (0.1, 1), (0.3, 0)):
        benchmark.store("logistic", run(None, "SGD", {"lr": lr}, seed))
    assert [row["setting"]["lr"] for row in tables.best("logistic", "SGD")] == [0.3]
    assert "| 1.0000* |" in tables.summary(), "0.3 is at the edge of what was tried"
    benchmark.store("logistic", run(None, "SGD", {"lr": 1.0}, 0))
    assert "| 1.0000 |" in tables.summary()


def test_every_method_trains() -> None:
    """One epoch: better than the start, and a marginal where there is a posterior."""
    task = tasks.digits_mlp(epochs=1)
    for method in benchmark.METHODS:
        row = benchmark.run(task, method, {} if method in benchmark.OURS else {"lr": 0.01}, 0)
        assert not row["diverged"]
        assert row["steps"] == task.steps
        assert (row["marginal"] is None) == (method in ("AdamW", "SGD", "Muon"))
        json.dumps(row, allow_nan=False)


def test_a_diverged_run_is_on_record() -> None:
    row = benchmark.run(tasks.diabetes(epochs=2), "SGD", {"lr": 1e6}, 0)
    assert row["diverged"]
    json.dumps(row, allow_nan=False)


def test_muon_has_the_hidden_matrices() -> None:
    def names(model: nn.Module) -> set[str]:
        hidden = benchmark.hidden_matrices(model)
        return {name for name, p in model.named_parameters() if any(p is q for q in hidden)}

    parts = {f"blocks.{k}.{part}.weight" for k in (0, 1) for part in ("qkv", "out", "wide", "narrow")}
    assert names(tasks.GPT()) == parts
    assert names(tasks.CharLSTM()) == {"lstm.weight_ih_l0", "lstm.weight_hh_l0"}
    assert not names(nn.Linear(3, 2))
    model = tasks.multilayer(4, 5, 3)
    optimizers = benchmark.muon(model, 10, {"lr": 0.01}, 0)
    trained = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(2, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
