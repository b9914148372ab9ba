"""The objective for users: against the exact evidence of a linear model, and hand-made averages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Laplace, Normal
from liebayes.groups import TriangularAffine

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(50, 3, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -1.0, 0.5]) + torch.randn(50, generator=GENERATOR)
PRIOR = 2.0


def loss(output: Tensor, target: Tensor) -> Tensor:
    """−log N(y; output, 1), summed."""
    return (0.5 * (output.flatten() - target).square() + 0.5 * math.log(2 * math.pi)).sum()


def test_at_the_exact_posterior_it_is_minus_the_log_evidence() -> None:
    """A linear model with noise 1: the posterior is a Gaussian, and the bound is reached."""
    precision = X.mT @ X + PRIOR * torch.eye(3)
    mean = torch.linalg.solve(precision, X.mT @ Y)
    scale = torch.linalg.cholesky(torch.linalg.inv(precision))
    group = TriangularAffine()
    element = group.at(mean)._replace(log_diagonal=scale.diagonal().log(), lower=scale.tril(-1))

    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    q = lb.Posterior(Vector(), {"weight": lb.Family(group, Normal(), element)})
    found = q.free_energy([(X[:20], Y[:20]), (X[20:], Y[20:])], loss, prior=PRIOR, samples=400)
    covariance = torch.eye(50) + X @ X.mT / PRIOR
    evidence = torch.distributions.MultivariateNormal(torch.zeros(50), covariance).log_prob(Y)
    assert found.total == pytest.approx(-float(evidence), abs=5 * found.standard_error)
    assert 0 < found.standard_error < 0.2


@pytest.mark.parametrize("base", [Normal(0.2), Laplace(0.2)], ids=repr)
def test_the_divergence_is_that_of_samples(base: lb.bases.Base) -> None:
    model = nn.Linear(3, 1)
    q = lb.AffineBLR(model.parameters(), data_size=50, base=base).posterior(model)
    found = q.free_energy([(X, Y)], loss, prior=PRIOR)
    generator = torch.Generator().manual_seed(1)
    terms = []
    for _ in range(4000):
        weights = q.sample(generator)
        prior = sum(torch.distributions.Normal(0.0, PRIOR**-0.5).log_prob(w).sum() for w in weights.values())
        terms.append(q.log_prob(weights) - prior)
    each = torch.stack(terms)
    assert found.kl == pytest.approx(float(each.mean()), abs=5 * float(each.std()) / math.sqrt(len(each)))


@pytest.mark.parametrize("prior", [0.0, -1.0, math.nan, "1"])
def test_what_is_no_precision_is_refused(prior: float) -> None:
    model = nn.Linear(3, 1)
    q = lb.AffineBLR(model.parameters(), data_size=50).posterior(model)
    with pytest.raises(ValueError, match="prior must be the precision"):
        q.free_energy([(X, Y)], loss, prior=prior)
    with pytest.raises(ValueError, match="gave no pair"):
        q.free_energy([], loss, prior=1.0)
