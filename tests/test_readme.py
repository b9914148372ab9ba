"""The code of README.md and CONTRIBUTING.md runs and does what the text says; files and links that are named exist."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from liebayes.experiments.reproduce import RECIPES, table
from liebayes.experiments.reproduce.result import read_all

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/paper-notes.md", "docs/reproduce.md", "docs/speed.md"]


def run(page: str, which: int) -> dict[str, Any]:
    """The names that a page's Python block leaves behind."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)[which]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, f"{page}, block {which}", "exec"), names)
    return names


def test_training_a_posterior() -> None:
    names = run("README.md", 0)
    accuracy = (names["prediction"].probabilities.argmax(-1) == names["digits"].test_labels).double().mean()
    assert float(accuracy) > 0.9


def test_a_network_with_dales_law() -> None:
    names = run("README.md", 1)
    assert bool((names["model"][3].weight.sign() == names["signs"]).all())
    posterior, digits = names["optimizer"].posterior(names["model"]), names["digits"]
    found = posterior.predict(digits.normalize(digits.test_images), samples=32).probabilities
    assert float((found.argmax(-1) == digits.test_labels).double().mean()) > 0.9


def test_variational_inference(capsys: pytest.CaptureFixture[str]) -> None:
    q = run("README.md", 2)["q"]
    torch.testing.assert_close(q.mean["weights"], torch.tensor([1.0, -2.0, 0.5]), atol=0.08, rtol=0)
    assert float(q.mean["noise"]) == pytest.approx(0.3, abs=0.04)
    assert capsys.readouterr().out


def test_a_group_of_your_own() -> None:
    names = run("CONTRIBUTING.md", 0)
    torch.testing.assert_close(names["q"].mean, torch.full((3,), 3.0), atol=0.02, rtol=0)
    assert float(names["q"].element.log_scale.exp()) == pytest.approx(0.5, rel=0.04)
    assert names["Spherical"]().at(torch.zeros(2, 2), 3.0).log_scale.shape == ()


def test_a_base_of_your_own() -> None:
    names = run("CONTRIBUTING.md", 1)
    assert names["base"].variance == pytest.approx(math.pi**2 / 3, rel=1e-6)
    torch.testing.assert_close(names["q"].mean, torch.full((2,), 2.0), atol=0.03, rtol=0)
    torch.testing.assert_close(names["q"].variance, torch.full((2,), 0.5), atol=0, rtol=0.08)


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w/.-]+)`", text)  # from the root
    linked = re.findall(r"\]\((?!http)([\w/.-]+)\)", text)  # from the page
    assert not [name for name in named if not (ROOT / name).exists()]
    assert not [name for name in linked if not ((ROOT / page).parent / name).exists()]


def test_tables_are_those_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from readme_tables import PAGES as WITH_TABLES
    from readme_tables import with_tables

    for page, tables in WITH_TABLES.items():
        text = (ROOT / page).read_text()
        assert with_tables(text, tables) == text


@pytest.mark.parametrize("name", RECIPES)
def test_pages_of_results_are_those_of_the_stored_results(name: str) -> None:
    recipe = RECIPES[name]
    parts = table.blocks(recipe, read_all(ROOT / "results", name))
    assert (ROOT / "results" / f"{name}.md").read_text() == table.markdown(recipe, parts)
