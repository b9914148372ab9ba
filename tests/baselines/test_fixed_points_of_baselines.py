"""What iVON and VOGN converge to: known Gaussians for quadratic losses, our affine rule's Gaussian for logistic regression.

Tolerances are those of Monte Carlo: a running mean with β₂ = 1 − ρ of K samples of variance v has the variance ρv/(2K).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

import liebayes as lb
from liebayes.baselines import IVON, VOGN
from liebayes.groups import DiagonalAffine

N, COPIES, RHO = 100, 400, 0.005


def settled(optimizer: Any, model: nn.Module, loss: Any, steps: int) -> tuple[Tensor, Tensor]:
    """Mean and variance after training with a step size that falls to zero, so that the mean itself has no noise left."""
    lr = optimizer.param_groups[0]["lr"]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / steps)
        optimizer.step(lambda: optimizer.zero_grad() or loss().backward())
    posterior = optimizer.posterior(model)
    (name,) = posterior.families
    return posterior.mean()[name].detach(), posterior.std()[name].square()


class Location(nn.Module):
    """Many independent copies of one unknown number."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(COPIES))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta - x


@pytest.mark.parametrize(("curvature", "prior", "damping"), [(0.5, 0.0, 0.0), (2.0, 20.0, 0.0), (2.0, 20.0, 0.5)])
def test_ivon_on_a_quadratic_loss(curvature: float, prior: float, damping: float) -> None:
    """h is the curvature c, so the Gaussian has the precision N(c + δ/N + d) and, without damping, is the exact posterior."""
    model, centre = Location(), torch.tensor(1.0)
    optimizer = IVON(model.parameters(), 0.1, data_size=N, prior=prior, damping=damping, momentum=0.9, scale_momentum=1 - RHO)
    mean, variance = settled(optimizer, model, lambda: 0.5 * curvature * model(centre).square().sum(), 1200)
    a = curvature + prior / N + damping
    best = curvature / (curvature + prior / N)
    # ĥ = cε² + c(m − x)ε/σ, and the correction adds half of ρ·Var(ĥ)/a.
    noise = 2 * curvature**2 + curvature**2 * (1 - best) ** 2 * N * a
    found = 1 / (N * variance) - prior / N - damping
    assert float(found.mean()) == pytest.approx(
        curvature + 0.5 * RHO * noise / a, abs=5 * math.sqrt(RHO * noise / 2 / COPIES) + 0.02 * curvature
    )
    assert float(mean.mean()) == pytest.approx(best, abs=0.005)


@pytest.mark.parametrize("spread", [0.3, math.sqrt(0.5)])
def test_vogn_on_a_quadratic_loss(spread: float) -> None:
    """h is E[mean(gᵢ²)] = c²(σ² + s²) for ½c(θ − xᵢ)² with data of variance s²: the curvature c only if s² = 1/c, the variance
    that this loss says its data have, and N is large."""
    model, curvature = Location(), 2.0
    x = torch.randn(N, generator=torch.Generator().manual_seed(0))
    x = 1 + spread * (x - x.mean()) / x.std(correction=0)
    optimizer = VOGN(model.parameters(), 0.02, data_size=N, prior=0.0, damping=0.1, momentum=0.9, scale_momentum=1 - RHO)

    def loss() -> Tensor:  # a mean over examples, a sum over copies
        return 0.5 * curvature * model(x[:, None]).square().mean(0).sum()

    mean, variance = settled(optimizer, model, loss, 1200)
    found = float((1 / (N * variance) - 0.1).mean())
    right = curvature**2 * (float(variance.mean()) + spread**2)
    assert found == pytest.approx(right, rel=0.01)
    assert (abs(found - curvature) < 0.05 * curvature) == (spread > 0.5)
    assert float(mean.mean()) == pytest.approx(1.0, abs=0.005)


# Logistic regression: a target that is not Gaussian.

SIZE, DIMENSION, PRIOR = 1000, 4, 1.0


def logistic_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SIZE, DIMENSION, generator=generator)
    y = torch.rand(SIZE, generator=generator) < torch.sigmoid(x @ torch.tensor([1.0, -2.0, 0.5, 0.0]))
    return x, y.float()


@pytest.fixture(scope="module")
def affine() -> tuple[Tensor, Tensor]:
    """The mean-field Gaussian of our affine rule on a Normal base."""
    x, y = logistic_data()

    def loss(theta: Tensor) -> Tensor:
        logits = x @ theta
        return (softplus(logits) - y * logits).sum() + 0.5 * PRIOR * theta.square().sum()

    q = lb.fit(loss, DiagonalAffine(), lb.bases.Normal(), torch.zeros(DIMENSION), progress=False)
    return q.mean, q.variance


@pytest.mark.parametrize("kind", [IVON, VOGN])
def test_logistic_regression_agrees_with_the_affine_rule(kind: Any, affine: tuple[Tensor, Tensor]) -> None:
    """iVON has the same optimum, the mean-field Gaussian. VOGN's squares are the curvature in expectation over labels as the
    model has them, which these are: with 1000 of them the two differ by some per cent."""
    x, y = logistic_data()
    model = nn.Linear(DIMENSION, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = kind(
        model.parameters(), 0.1, data_size=SIZE, prior=PRIOR, damping=0.0, momentum=0.9, scale_momentum=0.998,
        initial_curvature=0.1, mc_samples=2,
    )  # fmt: skip

    def loss() -> Tensor:
        return binary_cross_entropy_with_logits(model(x)[:, 0], y)

    mean, variance = settled(optimizer, model, loss, 1500)
    right_mean, right_variance = affine
    # The mean in units of the width. iVON's ĥ has a variance of about 2h², so √(ρ·2/(2·2)) = 3 % is left of it.
    assert float(((mean[0] - right_mean) / right_variance.sqrt()).abs().max()) < 0.15
    assert float((variance[0] / right_variance - 1).abs().max()) < 0.1
