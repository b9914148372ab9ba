"""Fifty random `kill -9` in training on the digits, over all rules: every run ends with the same bits.

`make torture` runs it, and keeps the figures in results/torture/kill.json.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "experiments"))
from program import SETTINGS, finish, same, train_with_kills  # noqa: E402

KILLS = 50
RUNS = 12
"""Runs that the kills are spread over: about four a run."""


def test_fifty_kills(tmp_path: Path) -> None:
    chance, began = random.Random(1234), time.monotonic()
    for rule in SETTINGS:
        finish(rule, tmp_path / f"whole-{rule}")
    rules = list(SETTINGS)
    kills: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    while len(kills) < KILLS:
        number = len(runs)
        rule = rules[number % len(rules)]
        wanted = min(-(-KILLS // RUNS), KILLS - len(kills))
        hit = train_with_kills(rule, tmp_path / f"run-{number}", wanted, chance)
        identical = same(tmp_path / f"whole-{rule}", tmp_path / f"run-{number}")
        runs.append({"rule": rule, "kills": len(hit), "identical": identical})
        kills += hit
        if number > 4 * RUNS:
            pytest.fail("the runs end before they can be killed")
    result = {
        "kills": len(kills),
        "runs": len(runs),
        "identical": sum(run["identical"] for run in runs),
        "kills_while_writing": sum(kill["while_writing"] for kill in kills),
        "kills_by_epochs_done": {str(n): sum(kill["epochs_done"] == n for kill in kills) for n in range(5)},
        "kills_by_rule": {rule: sum(kill["rule"] == rule for kill in kills) for rule in rules},
        "seconds": round(time.monotonic() - began),
    }
    folder = ROOT / "results" / "torture"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kill.json").write_text(json.dumps(result, indent=2) + "\n")
    assert all(run["identical"] for run in runs), runs
    assert all(result["kills_by_rule"].values())
