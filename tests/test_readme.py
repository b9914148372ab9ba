"""The code of the pages runs and does what the text says; files and links that are named exist; the map is complete."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pages import PAGES, ROOT, blocks, run

import liebayes as lb
from liebayes.experiments.reproduce import RECIPES, table
from liebayes.experiments.reproduce.result import read_all

ELSEWHERE = {"docs/fit.md": "tests/variational/test_fit_page.py", "docs/from-advi.md": "tests/integrations/test_from_advi.py"}
"""Pages whose examples another test runs, because it compares them with more than the text."""


def accuracy_on_digits(names: dict[str, Any]) -> float:
    """Of the posterior that an example has trained."""
    digits = names["digits"]
    posterior = names["optimizer"].posterior(names["model"])
    found = posterior.predict(digits.normalize(digits.test_images), samples=32).probabilities
    return float((found.argmax(-1) == digits.test_labels).double().mean())


def quickstart(names: dict[str, Any], folder: Path) -> None:
    assert accuracy_on_digits(names) > 0.9


def first_posterior(names: dict[str, Any], folder: Path) -> None:
    assert accuracy_on_digits(names) > 0.9
    assert (folder / "digits.safetensors").exists()
    assert torch.equal(names["again"].predict(names["images"]).probabilities, names["prediction"].probabilities)
    x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.9, 5.1])  # least squares
    slope = ((x - 1) * y).sum() / 2
    torch.testing.assert_close(names["line"].mean, torch.stack([y.mean() - slope, slope]), atol=0.02, rtol=0)


def signs_of_units(names: dict[str, Any], folder: Path) -> None:
    assert bool((names["model"][3].weight.sign() == names["signs"]).all())
    network, found = names["network"], names["prediction"].probabilities.argmax(-1)
    assert bool((network.cell.weight_hh.sign() == lb.nn.unit_signs(50, 0.8)).all())
    assert float((found == names["right"]).double().mean()) > 0.9


def learned_widths(names: dict[str, Any], folder: Path) -> None:
    found = names["posterior"].predict(names["x"]).probabilities.argmax(-1)
    assert float((found == names["y"]).double().mean()) > 0.9


def three_priors(names: dict[str, Any], folder: Path) -> None:
    assert accuracy_on_digits(names) > 0.9
    assert len(names["energies"]) == 3


def calibrated(names: dict[str, Any], folder: Path) -> None:
    assert lb.metrics.nll(names["averaged"], names["labels"]) < 0.3
    assert lb.metrics.accuracy(names["averaged"], names["labels"]) > 0.93


def unknown_digits(names: dict[str, Any], folder: Path) -> None:
    assert lb.metrics.auroc(names["seen"].entropy, names["unseen"].entropy) > 0.85


def regression(names: dict[str, Any], folder: Path) -> None:
    assert float((names["prediction"].mean - names["y"]).square().mean()) < 0.1  # the variance of y is about ½
    assert names["weights"].keys() == names["widths"].keys()
    assert math.isfinite(float(names["density"]))
    assert names["curve"].shape == names["y"].shape


def constrained_parameters(names: dict[str, Any], folder: Path) -> None:
    q = names["q"]
    torch.testing.assert_close(q.mean["weights"], torch.tensor([1.0, -2.0, 0.5]), atol=0.08, rtol=0)
    assert float(q.mean["noise"]) == pytest.approx(0.3, abs=0.04)


def own_data(names: dict[str, Any], folder: Path) -> None:
    assert "test_accuracy" in names["lines"][-1]
    assert (folder / "run-on-own-data" / "posterior.safetensors").exists()


def own_group_and_base(names: dict[str, Any], folder: Path) -> None:
    torch.testing.assert_close(names["q"].mean, torch.full((3,), 3.0), atol=0.02, rtol=0)
    assert float(names["q"].element.log_scale.exp()) == pytest.approx(0.5, rel=0.04)
    assert names["Spherical"]().at(torch.zeros(2, 2), 3.0).log_scale.shape == ()
    assert names["base"].variance == pytest.approx(math.pi**2 / 3, rel=1e-6)
    torch.testing.assert_close(names["logistic"].mean, torch.full((2,), 2.0), atol=0.03, rtol=0)
    torch.testing.assert_close(names["logistic"].variance, torch.full((2,), 0.5), atol=0, rtol=0.08)


CHECKS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "README.md": quickstart,
    "CONTRIBUTING.md": own_group_and_base,
    "docs/start.md": first_posterior,
    "docs/optimizers.md": quickstart,
    "docs/dale.md": signs_of_units,
    "docs/from-ivon.md": learned_widths,
    "docs/from-laplace.md": three_priors,
    "docs/calibration.md": calibrated,
    "docs/unknown-inputs.md": unknown_digits,
    "docs/posterior.md": regression,
    "docs/families.md": constrained_parameters,
    "docs/program.md": own_data,
}
"""What the text says of an example's outcome. A page without an entry must run without an error."""


@pytest.mark.filterwarnings("ignore")  # advice of other packages about settings that keep the examples small
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page not in ELSEWHERE])
def test_the_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(page, tmp_path)
    if page in CHECKS:
        CHECKS[page](names, tmp_path)


def test_every_page_that_is_run_elsewhere_is_named_there() -> None:
    assert set(ELSEWHERE) <= set(PAGES)
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 900


def test_the_map_has_every_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = re.findall(r"```\n(src/.*?)```", text, flags=re.DOTALL)[0]
    named = set(re.findall(r"[\w.]+\.(?:py|c|h)\b", tree)) | {"__init__.py"}
    files = {path.name for kind in ("py", "c", "h") for path in (ROOT / "src" / "liebayes").rglob(f"*.{kind}")}
    assert not files - named, "docs/architecture.md does not name these files"
    outside = {"demo.py", "dale_rnn.py", "logistic.py", "readme_tables.py", "registry.py", "matrix.py"}
    outside |= {"repository.py", "doctests.py"}  # of the site
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
