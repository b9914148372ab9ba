"""The free-energy benchmark's references and errors of widths, against the closed form of a linear regression."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import free_energy as benchmark

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine, ScaleShift


def test_references_are_the_exact_optima_of_a_regression() -> None:
    """With the precision H = XᵀX + 1, the best Gaussian is the posterior, the best diagonal one has the precisions H_ii."""
    problem = benchmark.regression()
    x, y = problem.inputs.double(), problem.targets.double()
    H = x.T @ x + torch.eye(20, dtype=torch.float64)
    mean = torch.linalg.solve(H, x.T @ y)
    least = 0.5 * (y - x @ mean).square().sum() + 0.5 * mean.square().sum()
    # E_q[½(θ − m)ᵀH(θ − m)] = ½·20 for both, less the entropy, and the prior's constant: log 2π cancels.
    exact = {"full": least + 0.5 * H.logdet(), "diagonal": least + 0.5 * H.diagonal().log().sum()}
    widths = {"full": torch.linalg.inv(H).diagonal().sqrt(), "diagonal": H.diagonal().rsqrt()}
    # ½zᵀHz has the variance ½·tr((HΣ)²), and is averaged over DRAWS.
    scaled = H / H.diagonal()
    variance = {"full": 10.0, "diagonal": 0.5 * (scaled @ scaled).trace().item()}
    found = benchmark.references(problem)
    assert set(found) == set(exact)
    for family, one in found.items():
        bound = 5 * math.sqrt(variance[family] / benchmark.DRAWS) + 0.05  # and what `fit` leaves, 20 widths 5 % off: 20·0.05²
        assert one["free_energy"] == pytest.approx(exact[family].item(), abs=bound)
        torch.testing.assert_close(torch.tensor(one["log_sd"]).double(), widths[family].log(), atol=0.05, rtol=0)


def test_the_error_of_widths() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    element = ScaleShift(torch.tensor([[0.0, 1.0, 2.0]]), torch.zeros(1, 3))
    posterior = lb.Posterior(model, {"weight": lb.Family(DiagonalAffine(), Normal(), element)})
    assert benchmark.log_sd_error(posterior, [0.0, 1.0, 5.0]) == pytest.approx(math.sqrt(3), rel=1e-6)


def test_the_picture_is_drawn_from_what_is_stored(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    benchmark.picture(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    problems = json.loads(benchmark.RESULT.read_text())["problems"]
    assert set(benchmark.PANELS) <= set(problems)
