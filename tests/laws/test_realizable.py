"""The realizable target: one test of term ①, term ②, the density and the metric together (A.1, A.2).

With ℓ = −τ log q_{g*} the objective is τ·KL(q_g ‖ q_{g*}). Its covector vanishes at g*, and its derivative along the group is
τ times the Fisher metric.
"""

from typing import Any

import pytest
import torch
from oracles.expectation import HEAVY_TAILS, QUADRATURE, rule_of
from support.elements import Seeded, assert_close, basis, flattened, pairing, plus, scaled
from support.registry import PAIRS_ON_SUPPORTS_TOO, BaseCase, GroupCase, singular
from support.user_defined import IsotropicAffine

from liebayes import Family, Fisher
from liebayes.rule import differential, differential_by_samples

TEMPERATURE = 0.7
every_pair = pytest.mark.parametrize(("group", "base"), PAIRS_ON_SUPPORTS_TOO, ids=str)


def loss_gradient(q: Family[Any], theta: torch.Tensor) -> torch.Tensor:
    """∇ℓ with ℓ = −τ log q."""
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(-TEMPERATURE * q.log_prob(theta).sum(), theta)[0]


def expected_covector(target: Family[Any], g: Any, theta: torch.Tensor, w: torch.Tensor) -> Any:
    """The differential at g, averaged over q_g: nodes of q_{g*}, weighted by q_g/q_{g*}.

    In this way the jump in the gradient of a Laplace density stays at the end of a panel when g moves.
    """
    group = target.group
    w = w * (Family(group, target.base, g).log_prob(theta) - target.log_prob(theta)).exp()
    shape = (-1, *[1] * (theta.ndim - 1))
    gradient = loss_gradient(target, theta)
    if group.affine_action:
        # The mean over samples is plain: weights go into the gradient, in which the pullback is linear.
        return differential(group, g, theta, gradient * (w * len(w)).reshape(shape), TEMPERATURE)
    pulled = group.pullback(g, theta, gradient * (w * len(w)).reshape(shape))
    epsilon = group.act(group.inverse(g), theta)
    entropy = torch.func.vmap(lambda e: group.divergence(g, e))(epsilon)
    return type(pulled)(*(c - TEMPERATURE * (w * d).sum() for c, d in zip(pulled, entropy, strict=True)))


@every_pair
def test_covector_vanishes_at_the_optimum_and_grows_with_the_metric(group: GroupCase, base: BaseCase) -> None:
    like, epsilon, w = rule_of(group, base)
    draw = Seeded(group, like, 11, 0.4)
    best = draw.element()
    target = Family(group.group, base.base, best)
    theta = group.group.act(best, epsilon)
    tolerance = QUADRATURE if base.variance else HEAVY_TAILS
    at_best = expected_covector(target, best, theta, w)
    directions = basis(group, like)
    assert max(abs(float(pairing(at_best, X))) for X in directions) < tolerance

    X, t = draw.vector(), 1e-4
    ahead, behind = (
        expected_covector(target, group.group.compose(best, group.group.exp(scaled(X, s))), theta, w) for s in (t, -t)
    )
    slope = scaled(plus(ahead, behind, -1.0), 1 / (2 * t))
    identity = group.group.identity(like)
    flat = group.group.flat(X, base.base) if singular(group, base) else Fisher().on(group.group, base.base, identity).flat(X)
    # Truncation t² times third derivatives, and the oracle's own error over t; the Gram matrix of 65,536 draws is coarse.
    bound = 3e-2 if isinstance(group.group, IsotropicAffine) else 2e-6 if base.variance else 1e-4
    for Y in directions:
        assert float(pairing(slope, Y)) == pytest.approx(TEMPERATURE * float(pairing(flat, Y)), abs=bound, rel=bound)
    assert float(flattened(slope).abs().max()) > 1e-2


@every_pair
def test_covector_by_samples_vanishes_for_every_sample(group: GroupCase, base: BaseCase) -> None:
    """In the coordinates of ε the loss is −τ log q₀, and ∇ℓ + τs is zero at each draw: no variance is left."""
    like = group.likes[1]
    e = group.group.identity(like)
    epsilon = base.base.sample((7, *like.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = Family(group.group, base.base, e)
    covector = differential_by_samples(group.group, base.base, e, epsilon, loss_gradient(target, epsilon), TEMPERATURE)
    scale = float((base.base.score(epsilon).abs() * (1 + epsilon.abs())).max())
    assert float(flattened(covector).abs().max()) <= 1e-13 * max(scale, 1.0)


@every_pair
def test_covector_by_samples_is_the_exact_one_on_average(group: GroupCase, base: BaseCase) -> None:
    """Away from the optimum the two estimates differ by samples only: their expectations agree, by quadrature."""
    like, epsilon, w = rule_of(group, base)
    e = group.group.identity(like)
    shape = (-1, *[1] * (epsilon.ndim - 1))
    weights = (w * len(w)).reshape(shape)
    gradient = torch.sin(epsilon) + 0.3
    by_samples = group.group.pullback(e, epsilon, (gradient + TEMPERATURE * base.base.score(epsilon)) * weights)
    one = differential_by_samples(group.group, base.base, e, epsilon[:3], gradient[:3], TEMPERATURE)
    assert_close(one, group.group.pullback(e, epsilon[:3], gradient[:3] + TEMPERATURE * base.base.score(epsilon[:3])))
    pulled = group.group.pullback(e, epsilon, gradient * weights)
    if group.group.affine_action:
        entropy = group.group.divergence(e, epsilon)
    else:
        each = torch.func.vmap(lambda x: group.group.divergence(e, x))(epsilon)
        entropy = type(pulled)(*((w * d).sum() for d in each))
    exact = plus(pulled, entropy, -TEMPERATURE)
    tolerance = QUADRATURE if base.variance else HEAVY_TAILS
    for X in basis(group, like):
        assert float(pairing(by_samples, X)) == pytest.approx(float(pairing(exact, X)), abs=tolerance)
