"""Stein's kernel: E[(ε − E[ε])·f(ε)] = E[κ(ε)·f′(ε)], every closed form against the density's own integral."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from oracles.expectation import nodes_and_weights
from scipy import stats
from support.registry import BASES, BaseCase

from liebayes.bases import Base, Cauchy, Dirac, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.bases.base import Scaled

WITH_MEAN = [case for case in BASES if not isinstance(case.base, Cauchy)]
every_base = pytest.mark.parametrize("case", WITH_MEAN, ids=str)

FUNCTIONS = {
    "identity": lambda x: x,
    "tanh": lambda x: (x - 0.2).tanh(),
    "rational": lambda x: x / (1 + x.square()),
    "bump": lambda x: (-(x - 0.7).square()).exp(),
}


def kernel(base: Base, x: float) -> float:
    return float(base.stein_kernel(torch.tensor(x, dtype=torch.float64)))


@every_base
@pytest.mark.parametrize("name", FUNCTIONS)
def test_integration_by_parts(case: BaseCase, name: str) -> None:
    """Gauss–Legendre panels with scipy's density have ten digits where f is smooth. f(ε) = ε: E[κ] is the variance."""
    if not case.variance and name in ("identity", "tanh"):
        pytest.skip("the tails of this base need a function that decays")
    if isinstance(case.base, Uniform):  # a jump, where the panels of the others would not end
        x, w = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(60))
        x, w = x * case.base.half_width, w / 2
    else:
        x, w = nodes_and_weights(case)
    value, slope = torch.func.vmap(torch.func.grad_and_value(FUNCTIONS[name]))(x)[::-1]
    left = (w * (x - float(case.scipy.mean())) * value).sum()
    assert abs(float(left)) > 1e-3
    torch.testing.assert_close((w * case.base.stein_kernel(x) * slope).sum(), left, rtol=1e-8, atol=0)
    if name == "identity":
        assert float(left) == pytest.approx(float(case.scipy.var()), rel=1e-9)


@pytest.mark.parametrize("case", [c for c in WITH_MEAN if dataclasses.is_dataclass(c.base)], ids=str)
def test_closed_forms_are_the_integral(case: BaseCase) -> None:
    """Also where a draw lies once in 1e300. Ten digits is where the default stops; a closed form in float64 has more."""
    tails = [1e-300, 1e-100, 1e-20, 1e-8, 1e-4, 0.05, 0.3]
    x = torch.from_numpy(np.concatenate([case.scipy.ppf(tails), case.scipy.isf(tails), [case.scipy.mean()]]))
    x = x[case.base.log_prob(x).isfinite() & (x.abs() < 1e20)]
    default = Base.stein_kernel(case.base, x)
    assert bool((default >= 0).all())
    torch.testing.assert_close(case.base.stein_kernel(x), default, rtol=1e-9, atol=1e-14)


@every_base
def test_narrow_dtypes_round_once(case: BaseCase) -> None:
    """κ of a float32 is κ of that number to a few units in the last place, also near 0 and in the tails.

    At an edge other than 0 (Uniform), x/half_width is rounded before the distance to the edge is taken: a unit of 1.
    """
    x = torch.from_numpy(case.scipy.ppf([1e-10, 1e-3, 0.2, 0.7, 1 - 1e-6])).float()
    exact, edge = case.base.stein_kernel(x.double()).float(), 4 * 2**-24 if isinstance(case.base, Uniform) else 0.0
    torch.testing.assert_close(case.base.stein_kernel(x), exact, rtol=8 * 2**-24, atol=edge)
    assert case.base.stein_kernel(x.reshape(5, 1)).shape == (5, 1)


def test_values_by_hand() -> None:
    x = torch.tensor([-1.5, 0.0, 2.0], dtype=torch.float64)
    for base, expected in (
        (Normal(0.5), [0.25, 0.25, 0.25]),
        (Laplace(2.0), [7.0, 4.0, 8.0]),
        (Uniform(3.0), [3.375, 4.5, 2.5]),
        (StudentT(3, 2.0), [7.125, 6.0, 8.0]),
        (Dirac(), [0.0, 0.0, 0.0]),
    ):
        torch.testing.assert_close(base.stein_kernel(x), torch.tensor(expected, dtype=torch.float64))


def test_a_law_that_is_moved_and_scaled() -> None:
    x = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(Scaled(Rayleigh(), 1.4).stein_kernel(x), Rayleigh(1.4).stein_kernel(x))
    torch.testing.assert_close(LogNormal(0.5, 1.0).stein_kernel(x), math.e**2 * LogNormal(0.5).stein_kernel(x / math.e))


def test_the_gumbel_forms_meet() -> None:
    """At u = e^(−x) = 4 the series hands over to the continued fraction."""
    edge = -math.log(4.0)
    left, right = (kernel(Gumbel(), edge + shift) for shift in (-1e-9, 1e-9))
    assert left == pytest.approx(right, rel=1e-8)


def test_outside_the_support_there_is_nothing() -> None:
    x = torch.tensor([-3.0, -1.5, 1.5, 9.0])
    assert torch.equal(Uniform(1.5).stein_kernel(x), torch.zeros(4))
    assert torch.equal(Base.stein_kernel(Uniform(1.5), x), torch.zeros(4))


@pytest.mark.parametrize("base", [Cauchy(), StudentT(1), StudentT(0.5, 2.0)], ids=str)
def test_a_kernel_needs_a_mean(base: Base) -> None:
    for ask in (base.stein_kernel, lambda x: Base.stein_kernel(base, x)):
        with pytest.raises(ValueError, match=rf"{type(base).__name__}\(.*no Stein kernel.*mean"):
            ask(torch.zeros(2))


def test_a_mixture_of_far_peaks() -> None:
    """A user's density with a gap: κ is large there, and found by quadrature from log_prob alone."""
    torch_mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.5, 0.5])),
        torch.distributions.Normal(torch.tensor([-3.0, 3.0]).double(), torch.tensor([0.5, 0.5]).double()),
    )

    class Mixture(Normal):
        def log_prob(self, x: torch.Tensor) -> torch.Tensor:
            return torch_mixture.log_prob(x)

    found = Base.stein_kernel(Mixture(), torch.zeros((), dtype=torch.float64))
    tail = 3 * (1 - stats.norm.cdf(-6)) + 0.5 * stats.norm.pdf(-6) - 3 * stats.norm.sf(6) + 0.5 * stats.norm.pdf(6)
    assert float(found) == pytest.approx(0.5 * tail / float(torch_mixture.log_prob(torch.zeros(())).exp()), rel=1e-8)
