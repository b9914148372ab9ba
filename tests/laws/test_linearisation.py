"""The BLR is the linearisation of the Lie-group rule (4.2, A.6): the two differ by O(α²), a log–log slope of 2."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from liebayes import Absorbed, Fisher
from liebayes.bases import Exponential, Normal, Rayleigh
from liebayes.groups import DiagonalAffine, LogScale, Multiplicative, ScaleShift
from liebayes.rule import Form, exponential_step, gaussian_step, initial_state, rayleigh_step, update

RATES = [2.0**-k for k in range(6, 13)]


def number(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slope(difference: Callable[[float], float]) -> float:
    return float(np.polyfit(np.log(RATES), [math.log(difference(rate)) for rate in RATES], 1)[0])


# Diagonal Gaussians: ℓ(θ) = ¼θ⁴ + cθ has closed expectations under N(m, s²).

LINEAR = number(0.3, -1.2)


def gaussian_moments(m: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[∂ℓ], E[∂²ℓ] and E[(θ − m)∂ℓ] for ∂ℓ = θ³ + c."""
    gradient = m**3 + 3 * m * variance + LINEAR
    hessian = 3 * (m.square() + variance)
    return gradient, hessian, variance * hessian  # the last by Stein's identity, as A.6 uses it


def gaussian_difference(form: Form[ScaleShift], lr: float | ScaleShift, blr_lr: float, temperature: float) -> float:
    group = DiagonalAffine()
    g = ScaleShift(number(0.8, 1.3).log(), number(0.5, -0.4))
    gradient, hessian, outer = gaussian_moments(g.shift, g.scale.square())
    covector = ScaleShift(outer - temperature, g.scale * gradient)  # Alg. 3 with exact expectations
    ours = update(group, form, initial_state(group, form, g), covector, lr=lr).state.element
    mean, precision = gaussian_step(g.shift, g.scale**-2, gradient, hessian, blr_lr, temperature)
    error = torch.stack([ours.shift - mean, ours.scale**-2 - precision]).abs()
    assert float(error.min()) > 0
    return float(error.max())


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_gaussian_with_the_fisher_metric(temperature: float) -> None:
    """With c_X = 2 and c_y = 1 in the metric, both rules have the same step size."""
    form = Fisher().on(DiagonalAffine(), Normal(), DiagonalAffine().identity(LINEAR))
    assert slope(lambda a: gaussian_difference(form, a, a, temperature)) == pytest.approx(2, abs=0.1)


def test_gaussian_of_the_appendix() -> None:
    """A.6 as printed: the constants absorbed, c_X/c_y = 2 on the shift, and the BLR at twice the step size."""
    form = Absorbed().on(DiagonalAffine(), Normal(), DiagonalAffine().identity(LINEAR))
    ratio = Normal().fisher_scale / Normal().fisher_shift
    assert ratio == 2

    def difference(rate: float) -> float:
        return gaussian_difference(form, ScaleShift(rate, ratio * rate), 2 * rate, 1.0)  # type: ignore[arg-type]

    assert slope(difference) == pytest.approx(2, abs=0.1)


def test_the_slope_sees_a_wrong_factor() -> None:
    form = Absorbed().on(DiagonalAffine(), Normal(), DiagonalAffine().identity(LINEAR))
    assert slope(lambda a: gaussian_difference(form, a, a, 1.0)) == pytest.approx(1, abs=0.1)


# Positive families: ℓ(θ) = θ³/3 + cθ, whose E[θ∂ℓ] = E[θ³] + c·E[θ] is closed.


def multiplicative_step(
    base: Exponential | Rayleigh, metric: Fisher | Absorbed, g: Tensor, outer: Tensor, lr: float
) -> Tensor:
    group = Multiplicative()
    element = LogScale(g.log())
    form = metric.on(group, base, element)
    return update(group, form, initial_state(group, form, element), LogScale(outer - 1.0), lr=lr).state.element.scale


def test_exponential_of_the_appendix() -> None:
    """A.6: λ = 1/g, E[θ³] = 6g³; the Fisher constant is 1."""
    g = number(0.5, 0.9)
    outer = 6 * g**3 + 0.4 * g

    def difference(rate: float) -> float:
        ours = 1 / multiplicative_step(Exponential(), Fisher(), g, outer, rate)
        return float((ours - exponential_step(1 / g, outer, rate)).abs().max())

    assert slope(difference) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("metric", [Absorbed(), Fisher()], ids=str)
def test_rayleigh(metric: Fisher | Absorbed) -> None:
    """4.2: λ = 1/g², α′ = 4α with the constant absorbed, α′ = α with the Fisher constant 4 in the metric."""
    g = number(0.5, 0.9)
    outer = 3 * math.sqrt(math.pi / 2) * g**3 + 0.4 * math.sqrt(math.pi / 2) * g
    factor = 4 if isinstance(metric, Absorbed) else 1

    def difference(rate: float) -> float:
        ours = multiplicative_step(Rayleigh(), metric, g, outer, rate) ** -2
        return float((ours - rayleigh_step(g**-2, outer, factor * rate)).abs().max())

    assert slope(difference) == pytest.approx(2, abs=0.1)


# The BLR itself, from its definition: λ ← λ − α·F⁻¹∇_λ(E_q[ℓ] − τH), the gradient by differences.


@pytest.mark.parametrize(
    ("step", "moment", "information", "entropy"),
    [
        (exponential_step, lambda rate: 2 / rate**3 + 0.4 / rate, lambda rate: 1 / rate**2, lambda rate: 1 - rate.log()),
        (
            rayleigh_step,
            lambda rate: (math.sqrt(math.pi / 2)) * (rate**-1.5 + 0.4 * rate**-0.5),
            lambda rate: 1 / rate**2,
            lambda rate: -0.5 * rate.log(),
        ),
    ],
    ids=["exponential", "rayleigh"],
)
def test_the_reference_is_the_natural_gradient(
    step: Callable, moment: Callable, information: Callable, entropy: Callable
) -> None:
    rate, tau = number(1.7).requires_grad_(), 0.6
    (gradient,) = torch.autograd.grad((moment(rate) - tau * entropy(rate)).sum(), rate)
    expected = rate - 0.01 * gradient / information(rate)
    # E[θ∂ℓ] by scaling: dE_λ[ℓ]/dλ = −E[θ∂ℓ]/λ for the exponential, and half of that for the Rayleigh family.
    (slope_of_loss,) = torch.autograd.grad(moment(rate).sum(), rate)
    outer = -slope_of_loss * rate * (1 if step is exponential_step else 2)
    torch.testing.assert_close(step(rate, outer, 0.01, tau), expected)


def test_the_gaussian_reference_leaves_the_manifold() -> None:
    """Fig. 1(b): a straight step makes the precision negative where the Lie-group step cannot."""
    mean, precision = gaussian_step(number(0.0), number(1.0), number(0.0), number(-3.0), lr=0.5)
    assert float(precision) < 0
    assert float(mean) == 0
    group = DiagonalAffine()
    g = group.identity(number(0.0))
    form = Fisher().on(group, Normal(), g)
    covector = ScaleShift(number(-3.0 - 1.0), number(0.0))
    assert float(update(group, form, initial_state(group, form, g), covector, lr=0.5).state.element.scale) > 0
