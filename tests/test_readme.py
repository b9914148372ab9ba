"""The code of the pages runs and does what the text says; files and links that are named exist; the map is complete."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from liebayes.experiments.reproduce import RECIPES, table
from liebayes.experiments.reproduce.result import read_all

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]


def run(page: str, which: int = 0) -> dict[str, Any]:
    """The names that a page's Python block leaves behind."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)[which]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, f"{page}, block {which}", "exec"), names)
    return names


def accuracy_on_digits(names: dict[str, Any]) -> float:
    """Of the posterior that a block has trained."""
    digits = names["digits"]
    posterior = names["optimizer"].posterior(names["model"])
    found = posterior.predict(digits.normalize(digits.test_images), samples=32).probabilities
    return float((found.argmax(-1) == digits.test_labels).double().mean())


def test_quickstart() -> None:
    assert accuracy_on_digits(run("README.md")) > 0.9


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 900


def test_training_with_a_closure() -> None:
    assert accuracy_on_digits(run("docs/optimizers.md", 0)) > 0.9


def test_a_network_with_dales_law() -> None:
    names = run("docs/optimizers.md", 1)
    assert bool((names["model"][3].weight.sign() == names["signs"]).all())
    assert accuracy_on_digits(names) > 0.9


def test_a_posterior_for_regression() -> None:
    names = run("docs/posterior.md")
    assert float((names["prediction"].mean - names["y"]).square().mean()) < 0.1  # the variance of y is about ½
    assert names["weights"].keys() == names["widths"].keys()
    assert math.isfinite(float(names["density"]))
    assert names["curve"].shape == names["y"].shape


def test_variational_inference(capsys: pytest.CaptureFixture[str]) -> None:
    q = run("docs/families.md")["q"]
    torch.testing.assert_close(q.mean["weights"], torch.tensor([1.0, -2.0, 0.5]), atol=0.08, rtol=0)
    assert float(q.mean["noise"]) == pytest.approx(0.3, abs=0.04)
    assert capsys.readouterr().out


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "test_accuracy" in run("docs/program.md")["lines"][-1]
    assert (tmp_path / "run-on-own-data" / "posterior.safetensors").exists()


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


def test_the_map_has_every_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = re.findall(r"```\n(src/.*?)```", text, flags=re.DOTALL)[0]
    named = set(re.findall(r"[\w.]+\.(?:py|c|h)\b", tree)) | {"__init__.py"}
    files = {path.name for kind in ("py", "c", "h") for path in (ROOT / "src" / "liebayes").rglob(f"*.{kind}")}
    assert not files - named, "docs/architecture.md does not name these files"
    outside = {"demo.py", "logistic.py", "readme_tables.py", "registry.py", "matrix.py"}
    assert not named - files - outside, "docs/architecture.md names files that do not exist"


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w/.-]+)`", text)  # from the root
    linked = re.findall(r"\]\((?!http)([\w/.-]+)(?:#[\w-]+)?\)", text)  # from the page
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
