"""The rules ivon, vogn and ivon-opt of `liebayes train`. That they resume to the bit is in tests/experiments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from liebayes.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ivon")
    folder = tmp_path_factory.mktemp("baselines")
    for rule in ("ivon", "vogn", "ivon-opt"):
        words = ["--rule", rule, "--epochs", "5", "--evaluate-every", "5", "--predictive-samples", "8"]
        assert main(["train", *words, "--output", str(folder / rule)]) == 0
    return folder


@pytest.mark.parametrize("rule", ["ivon", "vogn", "ivon-opt"])
def test_a_run(folder: Path, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads((folder / rule / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["test_accuracy"] > 0.95
    assert last["test_nll"] < 0.2
    with safe_open(str(folder / rule / "posterior.safetensors"), framework="pt") as file:
        families = json.loads(file.metadata()["liebayes"])["families"]
    kinds = {(entry["group"], entry["base"].split("(")[0]) for entry in families.values()}
    assert kinds == {("DiagonalAffine()", "Normal")}
    assert main(["evaluate", str(folder / rule), "--samples", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_nll"] == pytest.approx(last["test_nll"], rel=1e-5)


def test_a_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *(str(folder / rule) for rule in ("ivon", "vogn", "ivon-opt"))]) == 0
    assert "vogn" in capsys.readouterr().out


REFUSED = {
    "--rule ivon --damping -1": "--damping must be zero or positive, but is -1",
    "--rule ivon --base Normal(1)": "--base Normal(1) has no meaning for --rule ivon",
    "--rule vogn --temperature 0.5": "--temperature 0.5 has no meaning for --rule vogn",
    "--rule affine --damping 1": "--damping 1.0 has no meaning for --rule affine",
    "--rule sgd --initial-curvature 1": "--initial-curvature 1.0 has no meaning for --rule sgd",
    "--rule ivon-opt --damping 1": "--damping 1.0 has no meaning for --rule ivon-opt",
    "--rule vogn --compile": "--rule vogn hooks into every layer",
    "--rule ivon --damping 0 --initial-curvature 0 --prior-precision 0": "The precision would start at 0",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words.split(), "--output", str(tmp_path / "run")]) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_ivon_opt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ivon", None)
    assert main(["train", "--rule", "ivon-opt", "--output", str(tmp_path / "run")]) == 1
    assert "pip install ivon-opt" in capsys.readouterr().err
