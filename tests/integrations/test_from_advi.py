"""docs/from-advi.md: five programs for one posterior. Those of packages that are missing are skipped (CONTRIBUTING.md)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pages import ROOT, blocks, run

PAGE = "docs/from-advi.md"
LR = 0.01
"""Adam's step size in the blocks of NumPyro and PyMC."""

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations inside other packages


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's first block leaves behind."""
    return run(PAGE, tmp_path_factory.mktemp("page"), which=slice(1))


def run_block_with(package: str, names: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The block that imports a package, run with a copy of the names of the first block."""
    [place] = [number for number, block in enumerate(blocks(PAGE)) if f"import {package}" in block.code]
    return run(PAGE, folder, dict(names), slice(place, place + 1))


def test_pyro(ours: dict[str, Any], tmp_path: Path) -> None:
    """The loss by hand and the model are the same problem."""
    names = run_block_with("pyro", ours, tmp_path)
    for a, b in zip(ours["q"].element, names["same"].element, strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def require_the_same_gaussian(ours: dict[str, Any], mean: Any, spread: Any, z: Any) -> None:
    """Draws of their Gaussian in the coordinates (mean, log spread, z) have the moments of ours, within 5 standard errors.

    In units of the width σ, their parameters hover about the optimum: with the gradient x/σ + noise of size 1, Adam's steps
    x ← x − lr·(x/σ + noise) have the variance lr·σ/2. The moments of draws have an error of their own. Ours comes from steps
    that average, and is smaller than either.
    """
    columns = [np.asarray(x, dtype=np.float64).reshape(4000, -1) for x in (mean, np.log(spread), z)]
    draws = np.concatenate(columns, 1)
    centre, width = ours["q"].real.mean.numpy(), ours["q"].real.stddev.numpy()
    error = np.sqrt(LR / (2 * width) + 1 / len(draws))
    assert (np.abs(draws.mean(0) - centre) / width < 5 * error).all()
    assert (np.abs(draws.std(0) / width - 1) < 5 * error).all()


def test_numpyro(ours: dict[str, Any], tmp_path: Path) -> None:
    draws = run_block_with("numpyro", ours, tmp_path)["draws"]
    require_the_same_gaussian(ours, draws["mean"], draws["spread"], draws["z"])


def test_pymc(ours: dict[str, Any], tmp_path: Path) -> None:
    draws = run_block_with("pymc", ours, tmp_path)["samples"].posterior
    require_the_same_gaussian(ours, *(draws[name].to_numpy()[0] for name in ("mean", "spread", "z")))


def test_stan(ours: dict[str, Any]) -> None:
    """PyStan compiles the program; its density of (mean, log spread, z) is e^(−loss)·spread, up to a constant factor."""
    stan = pytest.importorskip("stan")
    [program] = re.findall(r"^```stan\n(.*?)^```", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    data = {name: ours[name].tolist() for name in ("y", "error")}
    model = stan.build(program, data=data, random_seed=0)
    points = torch.randn(20, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    differences = []
    for u in points:
        loss = ours["loss"]({"mean": u[0], "spread": u[1].exp(), "z": u[2:]})
        differences.append(model.log_prob(u.tolist()) - float(u[1] - loss))
    assert np.ptp(differences) < 1e-10
