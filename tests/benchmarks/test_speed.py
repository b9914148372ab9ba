"""The machinery of benchmarks/speed: what counts as quiet, ratios and limits, the stored result. Nothing here is timed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import liebayes as lb
from liebayes import native

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from speed import by_hand, contest, parts, quiet, report
from speed.command import ROWS, SCALING, TABLE
from speed.contest import Limit, Row, judged, rotated
from speed.environment import ROOT, cpu

# Quiet or not, from a /proc of our own.


def write_proc(folder: Path, busy: int, idle: int, processes: dict[int, tuple[str, int, int, int]]) -> quiet.Look:
    """Two cores; for each process its name, parent, ticks and those of its ended children."""
    for pid, (name, parent, ticks, ended) in processes.items():
        (folder / str(pid)).mkdir(parents=True, exist_ok=True)
        numbers = [parent, *[0] * 9, ticks, 0, ended, 0, *[0] * 30]
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {' '.join(map(str, numbers))}\n")
        (folder / str(pid) / "cmdline").write_bytes(f"{name}\0--flag\0".encode())
    (folder / "self").mkdir(exist_ok=True)
    cores = "".join(f"cpu{i} {busy // 2} 0 0 {idle // 2} 0 0 0 0 0 0\n" for i in range(2))
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n{cores}intr 5\n")
    return quiet.look(folder)


@pytest.fixture
def loads(tmp_path: Path) -> tuple[quiet.Load, quiet.Load]:
    """One second in which we and a child took 0.9 cores, then another in which someone else took a whole one too."""
    ours = {10: ("us", 1, 500, 40), 11: ("child", 10, 10, 0)}
    first = write_proc(tmp_path, 1000, 1000, {**ours, 7: ("a (b) c", 1, 300, 0)})
    ours = {10: ("us", 1, 540, 60), 11: ("child", 10, 40, 0)}
    second = write_proc(tmp_path, 1092, 1108, {**ours, 7: ("a (b) c", 1, 302, 0)})
    third = write_proc(tmp_path, 1192, 1208, {**ours, 7: ("a (b) c", 1, 402, 0)})
    return quiet.between(first, second, own=10), quiet.between(second, third, own=10)


def test_our_own_processes_do_not_count(loads: tuple[quiet.Load, quiet.Load]) -> None:
    assert loads[0].cores == pytest.approx(0.02)
    assert loads[0].quiet


def test_others_are_named(loads: tuple[quiet.Load, quiet.Load], tmp_path: Path) -> None:
    assert loads[1].cores == pytest.approx(1.0)
    assert not loads[1].quiet
    message = loads[1].message(tmp_path)
    assert "1.00 cores" in message
    assert "a (b) c --flag" in message
    assert "not visible" not in message


def test_what_is_taken_by_nobody_we_see_counts_too(tmp_path: Path) -> None:
    load = quiet.between(write_proc(tmp_path, 0, 0, {}), write_proc(tmp_path, 150, 50, {}), own=10)
    assert load.cores == pytest.approx(1.5)
    assert "not visible" in load.message(tmp_path)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    assert quiet.command_of(12345, tmp_path) == "(has ended)"


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    look = quiet.look(tmp_path / "nowhere")
    assert quiet.between(look, look) == quiet.Load(0.0, {})


def test_the_real_proc() -> None:
    load = quiet.now(0.05)
    assert 0 <= load.cores <= 1.05 * (os.cpu_count() or 1)


# Contests.


class Fake:
    """A contender that takes 1, 2, 3, … seconds times a factor."""

    def __init__(self, name: str, factor: float, calls: list[str]) -> None:
        self.name, self.factor, self.calls, self.rounds = name, factor, calls, 0

    def warm_up(self, at_least: float) -> None:
        self.calls.append(f"warm {self.name}")

    def seconds(self) -> float:
        self.calls.append(self.name)
        self.rounds += 1
        return self.factor * self.rounds


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many cores others take in the next rounds; none when the list is empty."""
    coming: list[float] = []
    monkeypatch.setattr(quiet, "now", lambda *_: quiet.Load(0.0, {}))
    monkeypatch.setattr(quiet, "between", lambda *_: quiet.Load(coming.pop(0) if coming else 0.0, {}))
    return coming


def two(calls: list[str], *limits: Limit) -> Row:
    return Row("row", "work", "ours", [Fake("ours", 1.0, calls), Fake("peer", 10.0, calls)], limits)


def test_everyone_in_every_round_and_nobody_always_first(busy: list[float]) -> None:
    calls: list[str] = []
    row = two(calls)
    assert contest.run([row], 3, anyway=False) == [0.0] * 3
    assert calls == ["warm ours", "warm peer", "ours", "peer", "peer", "ours", "ours", "peer"]
    assert row.result()["figures"]["peer"] == {"median": 20.0, "min": 10.0, "max": 30.0, "rounds": [10.0, 20.0, 30.0]}


def test_disturbed_rounds_are_run_again(busy: list[float]) -> None:
    busy += [0.0, 1.0, 0.0]
    row = two([])
    assert contest.run([row], 3, anyway=False) == [0.0] * 3
    assert row.figures["ours"] == [1.0, 3.0, 4.0]


def test_too_many_disturbed_rounds_end_it(busy: list[float]) -> None:
    busy += [1.0, 0.0, 1.5]
    with pytest.raises(quiet.BusyError, match=r"1\.50 cores"):
        contest.run([two([])], 2, anyway=False)


def test_anyway(busy: list[float]) -> None:
    busy += [1.0, 1.5]
    assert contest.run([two([])], 2, anyway=True) == [1.0, 1.5]


def test_limits(busy: list[float]) -> None:
    limits = [Limit("times", 0.1, "peer"), Limit("faster", 11.0, "peer"), Limit("value", 1.5), Limit("times", 1.0, "absent")]
    row = two([], *limits)
    contest.run([row], 3, anyway=False)
    found = [(entry["ratio"], entry["held"]) for entry in row.result()["limits"]]
    assert found == [(pytest.approx(0.1), True), (10.0, False), (2.0, False), (None, None)]


def test_rotated() -> None:
    assert [rotated("abc", i) for i in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert rotated([], 3) == []


def test_cells(busy: list[float]) -> None:
    row = two([], Limit("times", 4.0, "peer"), Limit("faster", 30.0, "peer"))
    contest.run([row], 1, anyway=False)
    assert report.cells(row.result()) == [
        ["work"], ["peer 10 s"], ["1 s"], ["0.1 ×", "10 ×"], ["≤ 4 × peer", "≥ 30 × faster than peer"], ["yes", "no"],
    ]  # fmt: skip


def test_cpu() -> None:
    text = "processor : 0\nmodel name\t: A Processor\nflags\t\t: fpu sse4_2 avx2 avx512f fma mmx\n\nmodel name : Another\n"
    assert cpu(text) == ("A Processor", ["avx2", "avx512f", "fma", "sse4_2"])
    assert cpu("") == ("", [])


# What is written by hand is the same rule.


def test_additive_by_hand() -> None:
    """Without noise to tell them apart, the loop and the optimizer take the same steps."""
    model, mine = (lb.nn.mlp((1, 2, 2), 3, hidden=(5,)) for _ in range(2))
    mine.load_state_dict(model.state_dict())
    images, labels = torch.randn(6, 1, 2, 2), torch.arange(6) % 3
    step = by_hand.additive(mine, images, labels, samples=2, deviation=0.0, lr=0.1, momentum=0.9, decay=0.25)
    optimizer = lb.AdditiveBLR(
        model.parameters(), lr=0.1, data_size=4, prior=1.0, mc_samples=2, base=lb.bases.Dirac(), parallel=False
    )
    for _ in range(3):
        step()
        take_step(model, optimizer, images, labels)
    for p, q in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_multiplicative_by_hand() -> None:
    """The same law of steps: over many samples both take the same one, but for the error of the mean."""
    torch.manual_seed(0)
    model = lb.nn.plus_minus(lb.nn.mlp((1, 2, 2), 3, hidden=(3,)), offset=0.2)
    mine = lb.nn.plus_minus(lb.nn.mlp((1, 2, 2), 3, hidden=(3,)), offset=0.2)
    mine.load_state_dict(model.state_dict())
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    images, labels = torch.randn(6, 1, 2, 2), torch.arange(6) % 3
    shared: dict[str, Any] = {"lr": 1.0, "momentum": 0.0, "max_step": 0.2}
    by_hand.multiplicative(mine, images, labels, samples=1500, decay=0.05, temperature=0.01, **shared)()
    optimizer = lb.MultiplicativeBLR(
        model.parameters(), data_size=20, prior=1.0, temperature=0.2, metric=lb.Absorbed(), mc_samples=1500, parallel=False,
        **shared,
    )  # fmt: skip
    take_step(model, optimizer, images, labels)
    steps = [torch.nn.utils.parameters_to_vector(m.parameters()).detach().div(start).log() for m in (mine, model)]
    assert steps[1].abs().max() > 0.1
    torch.testing.assert_close(*steps, atol=0.02, rtol=0)


def take_step(model: torch.nn.Module, optimizer: lb.LieGroupBLR, images: torch.Tensor, labels: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    optimizer.step(closure)


def test_prediction_by_hand() -> None:
    model = lb.nn.mlp((1, 2, 2), 3, hidden=(3,))
    points = [p.detach().clone() for p in model.parameters()]
    images = torch.randn(5, 1, 2, 2)
    expected = model(images).softmax(-1)
    found = by_hand.prediction(model, points, [torch.zeros_like(p) for p in points], images.split(2), 3)()
    torch.testing.assert_close(found, expected)


# The command.


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(lb.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "benchmarks/speed", *words]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def check(result: dict[str, Any]) -> None:
    """What a stored table must have."""
    where = result["environment"]
    assert {"cpu", "cpu_flags", "cores", "torch", "torch_threads", "kernel", "commit", "date", "liebayes"} <= set(where)
    assert isinstance(result["quiet"], bool)
    assert [row["key"] for row in result["rows"]] == list(ROWS)
    assert len(result["cores_taken_by_others"]) == result["rounds"]
    for row in result["rows"]:
        assert row["ours"] in row["figures"]
        for found in row["figures"].values():
            assert len(found["rounds"]) == (1 if row["key"] == "memory" else result["rounds"])
            assert all(math.isfinite(value) and value > 0 for value in found["rounds"])
            assert found["min"] <= found["median"] <= found["max"]
        for limit in row["limits"]:
            assert judged(Limit(limit["kind"], limit["bound"], limit["peer"]), row["figures"], row["ours"]) == limit


def test_the_table_in_tiny(tmp_path: Path) -> None:
    done = command("--sizes", "tiny", "--anyway", "--output", str(tmp_path / "speed.json"))
    assert done.returncode == 0, done.stderr
    assert "ivon-opt" in done.stdout
    result = json.loads((tmp_path / "speed.json").read_text())
    check(result)
    assert result["quiet"] is False
    assert "not measured on a quiet machine" in report.markdown(result).lower()


def test_the_scaling_in_tiny(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = command("--scaling", "--sizes", "tiny", "--anyway", "--output", str(tmp_path / "scaling.json"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "scaling.json").read_text())
    assert [point["count"] for point in result["parameters"]] == [1_000, 10_000]
    assert set(result["samples"][0]["figures"]) == {"threads", "loop"}
    assert set(result["ranks"][0]["figures"]) == {"1 rank", "2 ranks"}
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_the_parts_in_tiny(tmp_path: Path) -> None:
    if not native.available():
        pytest.skip("the parts are those of the kernel's path")
    done = command("--parts", "--sizes", "tiny", "--anyway", "--output", str(tmp_path / "parts.json"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "parts.json").read_text())
    assert [row["key"] for row in result["rows"]] == list(parts.ROWS)
    table = report.parts_markdown(result)
    assert table in done.stdout
    for row in result["rows"]:
        assert row["figures"][row["ours"]]["median"] > 0
        assert all(f"| {row['work']} | {name} |" in table for name in row["figures"])
    assert table.count("100%") >= len(result["rows"])


def test_the_parts_need_the_kernel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from speed import command as command_module

    monkeypatch.setattr(sys, "argv", ["speed", "--parts", "--anyway"])
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.raises(SystemExit):
        command_module.main(None)
    assert "there is none" in capsys.readouterr().err


def test_quick_stores_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from speed import command as command_module

    monkeypatch.setattr(sys, "argv", ["speed", "--quick", "--anyway"])
    monkeypatch.setattr(quiet, "now", lambda *_: quiet.Load(0.0, {}))
    monkeypatch.setattr(command_module, "table", lambda *_: {"rounds": 1, "cores_taken_by_others": [0.0], "rows": []})
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: pytest.fail("--quick has written a file"))
    assert command_module.main(None) == 0


def test_refuses_when_others_take_the_cores(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from speed import command as command_module

    monkeypatch.setattr(sys, "argv", ["speed"])
    monkeypatch.setattr(quiet, "now", lambda *_: quiet.Load(1.2, {}))
    assert command_module.main(None) == 1
    assert "1.20 cores" in capsys.readouterr().err


# The stored results.


def test_the_stored_table() -> None:
    if not TABLE.exists():
        pytest.skip("not measured yet")
    result = json.loads(TABLE.read_text())
    check(result)
    assert result["sizes"] == "full"


def test_the_stored_scaling() -> None:
    if not SCALING.exists():
        pytest.skip("not measured yet")
    result = json.loads(SCALING.read_text())
    assert {"parameters", "samples", "ranks", "environment", "quiet"} <= set(result)
    assert [point["count"] for point in result["samples"]] == [1, 2, 4, 8, 16, 32, 64]
