"""A posterior as the next prior: data in two parts give the posterior of all of them, where the family holds it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.tolerances import roundings
from torch import nn

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine
from liebayes.groups.diagonal_affine import ScaleShift
from liebayes.rule import Family


def small_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("curvature", ["samples", "gauss-newton"])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_gaussian_about_zero_is_a_precision(curvature: Any, temperature: float) -> None:
    """−τ·log N(θ; 0, τ/δ) is ½δθ² but for a constant: training with either prior is the same, widths included."""
    precision, ends = 9.0, []
    start = math.sqrt(temperature / precision)
    for by_posterior in (True, False):
        model, x = small_network(0), torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
        centre = {name: ScaleShift(torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
        families = {name: Family(DiagonalAffine(), Normal(start), element) for name, element in centre.items()}
        prior: Any = lb.Posterior(model, families, temperature=temperature) if by_posterior else precision
        optimizer = lb.LieGroupBLR(
            model.parameters(), DiagonalAffine(), Normal(start), 0.1, data_size=40, prior=prior, temperature=temperature,
            curvature=curvature, noise="torch",
        )  # fmt: skip
        for _ in range(6):
            with optimizer.sampled():
                (model(x) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(optimizer.posterior(model))
    for name, width in ends[0].std().items():
        torch.testing.assert_close(width, ends[1].std()[name], **roundings(6 * 32))  # in six steps
        torch.testing.assert_close(ends[0].point()[name], ends[1].point()[name], **roundings(6 * 32, size=0.1))
        assert not torch.allclose(width, torch.full_like(width, start), rtol=1e-3)  # widths have moved


def test_gauss_newton_widths_know_every_weight_s_prior() -> None:
    """A loss that says nothing leaves the prior as it is: each weight has its own mean and width."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    family = Family(DiagonalAffine(), Normal(), ScaleShift(torch.randn(2, 3), torch.randn(2, 3)))
    prior = lb.Posterior(model, {"weight": family})
    with torch.no_grad():
        model.weight.copy_(family.element.shift)
    optimizer = lb.LieGroupBLR(
        model.parameters(), DiagonalAffine(), Normal(), 0.1, data_size=5, prior=prior, curvature="gauss-newton"
    )
    for _ in range(20):
        with optimizer.sampled():
            (0 * model.weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = optimizer.posterior(model)
    torch.testing.assert_close(found.point()["weight"], family.mean)
    torch.testing.assert_close(found.std()["weight"], family.stddev)


def test_training_starts_with_the_prior_s_widths_around_the_weights() -> None:
    model = small_network(0)
    first = lb.AffineBLR(model.parameters(), data_size=50, base=Normal(0.3), start_width=None).posterior(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    second = lb.AffineBLR(model.parameters(), data_size=7, prior=first, start_width=None).posterior(model)
    for name, p in model.named_parameters():
        torch.testing.assert_close(second.std()[name], torch.full_like(p, 0.3))
        assert torch.equal(second.point()[name], p.detach())


def test_weights_that_the_prior_leaves_open_start_narrow() -> None:
    """At the prior's own width they would be noise to the others: a weight starts at the narrower of the two."""
    model = nn.Linear(4, 3)
    families = {
        name: Family(lb.groups.DiagonalAffine(), Normal(), ScaleShift(torch.full_like(p, 1e-4).log(), p.detach().clone()))
        for name, p in model.named_parameters()
    }
    families["weight"].element.log_scale[0] = 0.0  # one unit that nothing is known of
    prior = lb.Posterior(model, families)
    found = lb.AffineBLR(model.parameters(), data_size=7, prior=prior, start_width=0.01).posterior(model).std()["weight"]
    size = model.weight.detach().square().mean().sqrt()
    torch.testing.assert_close(found[0], (0.01 * size).expand(4))
    torch.testing.assert_close(found[1:], torch.full((2, 4), 1e-4))


def test_the_gradient_is_that_of_the_density() -> None:
    """One step at temperature 0 from a zero loss moves along ∇log q, whatever the base."""
    for base, score in ((Normal(0.5), lambda z: z / 0.25), (lb.bases.Laplace(0.5), lambda z: z.sign() / 0.5)):
        model = nn.Linear(2, 2, bias=False)
        first = lb.AffineBLR(model.parameters(), data_size=10, base=base, temperature=1.0, start_width=None).posterior(model)
        centre = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.add_(torch.tensor([[1.0, -2.0], [0.5, 1.5]]))
        start = model.weight.detach().clone()
        optimizer = lb.AdditiveBLR(model.parameters(), lr=0.1, data_size=10, base=lb.bases.Dirac(), momentum=0.0, prior=first)
        with optimizer.sampled():
            (0 * model.weight.sum()).backward()
        optimizer.step()
        torch.testing.assert_close(model.weight.detach(), start - 0.1 * score(start - centre) / 10)


def test_a_checkpoint_knows_its_prior() -> None:
    model = small_network(0)
    first = lb.AffineBLR(model.parameters(), data_size=50).posterior(model)
    optimizer = lb.AffineBLR(model.parameters(), data_size=50, prior=first)
    with optimizer.sampled():
        model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    lb.AffineBLR(model.parameters(), data_size=50, prior=first).load_state_dict(saved)
    other = first.centred_at({name: value + 1 for name, value in first.point().items()})
    with pytest.raises(ValueError, match="written with prior 'posterior "):
        lb.AffineBLR(model.parameters(), data_size=50, prior=other).load_state_dict(saved)


def test_what_is_no_prior_is_refused() -> None:
    model = small_network(0)
    first = lb.AffineBLR(model.parameters(), data_size=50).posterior(model)
    with pytest.raises(ValueError, match=r"number 0 of shape .* but the posterior has no such parameter.*named_parameters"):
        lb.AffineBLR(small_network(1).parameters(), data_size=50, prior=first)
    with pytest.raises(ValueError, match=r"of shape \(1,\) is .* but the posterior has .* of shape \(.*group of their own"):
        lb.AffineBLR([(name, nn.Parameter(torch.ones(1))) for name in first.families], data_size=50, prior=first)
    with pytest.raises(ValueError, match="pruned posterior"):
        lb.AffineBLR(model.parameters(), data_size=50, prior=first.pruned(0.5))
    with pytest.raises(ValueError, match="temperature 0"):
        lb.AffineBLR(model.parameters(), data_size=50, prior=lb.AdditiveBLR(model.parameters(), data_size=5).posterior(model))
    with pytest.raises(ValueError, match="a width for every weight"):
        lb.KroneckerBLR(model.parameters(), data_size=50, prior=first)
    with pytest.raises(ValueError, match="prior must be a number"):
        lb.baselines.IVON(model.parameters(), data_size=50, prior=first)  # pyright: ignore[reportArgumentType]
    assert math.isfinite(float(first.log_prob(first.sample())))
