"""Closed-form optima: where the covector must vanish, and gradient descent as the rule without noise."""

import math

import pytest
import torch
from oracles.expectation import nodes_and_weights, plane
from scipy import stats
from support.elements import flattened
from support.registry import SMOOTH, BaseCase

from liebayes import Absorbed
from liebayes.bases import Dirac, Exponential, Rayleigh
from liebayes.groups import (
    Additive,
    Affine,
    DiagonalAffine,
    LogScale,
    MatrixShift,
    Multiplicative,
    ScaleShift,
    TriangularAffine,
)
from liebayes.rule import differential, initial_state, update

ON_THE_LINE = [case for case in SMOOTH if case.variance and not case.half_line]


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("base", ON_THE_LINE, ids=str)
def test_quadratic_loss(base: BaseCase) -> None:
    """ℓ = ½h(θ − m)²: the mean b + A·E[ε] at m, and A² = τ/(h·Var ε)."""
    h, m, tau = 3.0, 0.7, 0.4
    group = DiagonalAffine()
    scale = math.sqrt(tau / (h * base.base.variance))
    best = ScaleShift(number(math.log(scale)), number(m - scale * base.base.mean))
    epsilon, w = nodes_and_weights(base)
    weights = w * len(w)

    def covector(g: ScaleShift) -> torch.Tensor:
        theta = group.act(g, epsilon)
        return flattened(differential(group, g, theta, h * (theta - m) * weights, tau))

    assert float(covector(best).abs().max()) < 1e-8
    wider = best._replace(log_scale=best.log_scale + 0.1)
    assert float(covector(wider)[0]) > 1e-2  # and it points the right way


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize("base", ON_THE_LINE, ids=str)
def test_correlated_quadratic_loss(group: Affine | TriangularAffine, base: BaseCase) -> None:
    """ℓ = ½(θ − m)ᵀH(θ − m): AAᵀ·Var ε = τH⁻¹."""
    tau, m = 0.4, torch.tensor([0.7, -0.2], dtype=torch.float64)
    H = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    L = torch.linalg.cholesky(tau * torch.linalg.inv(H) / base.base.variance)
    shift = m - L.sum(-1) * base.base.mean
    if isinstance(group, Affine):
        best = MatrixShift(L, shift)
    else:
        best = group.at(shift)._replace(log_diagonal=L.diagonal().log(), lower=L.tril(-1))
    epsilon, w = plane(base)
    theta = group.act(best, epsilon)
    covector = differential(group, best, theta, (theta - m) @ H * (w * len(w))[:, None], tau)
    assert float(flattened(covector).abs().max()) < 1e-8


def test_exponential_base() -> None:
    """ℓ = λθ − (k − 1)log θ at τ = 1: g* = k/λ; and without the logarithm g* = τ/λ."""
    group = Multiplicative()
    epsilon, w = nodes_and_weights(BaseCase("", Exponential(), stats.expon()))
    rate, k = 2.5, 3.0
    g = LogScale(number(k / rate).log())
    theta = group.act(g, epsilon)
    covector = differential(group, g, theta, (rate - (k - 1) / theta) * w * len(w), 1.0)
    assert abs(float(covector.log_scale)) < 1e-9
    g = LogScale(number(0.3 / rate).log())
    covector = differential(group, g, group.act(g, epsilon), rate * w * len(w), 0.3)
    assert abs(float(covector.log_scale)) < 1e-9


def test_rayleigh_base() -> None:
    """ℓ = ½λθ² − log θ at τ = 1: g*² = 1/λ."""
    group = Multiplicative()
    epsilon, w = nodes_and_weights(BaseCase("", Rayleigh(), stats.rayleigh()))
    rate = 2.5
    for factor, vanishes in ((1.0, True), (1.1, False)):
        g = LogScale(number(factor / math.sqrt(rate)).log())
        theta = group.act(g, epsilon)
        covector = differential(group, g, theta, (rate * theta - 1 / theta) * w * len(w), 1.0)
        assert (abs(float(covector.log_scale)) < 1e-9) == vanishes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_additive_with_a_dirac_base_is_gradient_descent(dtype: torch.dtype, momentum: float) -> None:
    """Bit for bit, with momentum as well, over a whole run."""
    group, lr = Additive(), 0.03
    start = torch.linspace(-2, 2, 7, dtype=dtype)
    weight = torch.nn.Parameter(start.clone())
    form = Absorbed().on(group, Dirac(), group.at(start))
    state = initial_state(group, form, group.at(start))
    buffer = torch.zeros_like(start)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return (theta.square() * 0.7 + torch.cos(theta)).sum()

    for _ in range(50):
        (gradient,) = torch.autograd.grad(loss(weight), weight)
        with torch.no_grad():
            buffer = torch.lerp(buffer, gradient, 1 - momentum) if momentum else gradient
            weight.add_(buffer, alpha=-lr)
        noise = Dirac().sample((1, 7), dtype=dtype)
        theta = group.act(state.element, noise).requires_grad_()
        (each,) = torch.autograd.grad(loss(theta), theta)
        covector = differential(group, state.element, theta.detach(), each, 0.5)  # the temperature is of no matter
        state = update(group, form, state, covector, lr=lr, momentum=momentum).state
    assert torch.equal(state.element.shift, weight.detach())


def test_diagonal_affine_with_a_dirac_base_grows_by_the_temperature() -> None:
    """Only at τ = 0 is it gradient descent: at τ > 0 the scale grows by e^(ατ) a step."""
    group, lr = DiagonalAffine(), 0.1
    for tau in (0.0, 0.5):
        g = group.at(torch.tensor([1.0, -2.0], dtype=torch.float64))
        form = Absorbed().on(group, Dirac(), g)
        theta = group.act(g, Dirac().sample((1, 2), dtype=torch.float64))
        covector = differential(group, g, theta, 2 * theta, tau)
        moved = update(group, form, initial_state(group, form, g), covector, lr=lr).state.element
        torch.testing.assert_close(moved.log_scale, torch.full((2,), lr * tau, dtype=torch.float64))
        factor = math.expm1(lr * tau) / (lr * tau) if tau else 1.0
        torch.testing.assert_close(moved.shift, g.shift * (1 - 2 * lr * factor))
