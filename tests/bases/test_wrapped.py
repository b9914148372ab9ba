"""torch.distributions as bases, and a base of a user's own."""

import math
from typing import Any

import pytest
import torch
from scipy import stats
from support.user_defined import Logistic
from torch import Tensor, distributions

from liebayes.bases import from_distribution


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


CASES = [
    (distributions.Normal(number(0.5), number(2.0)), stats.norm(0.5, 2.0), 1 / 4),
    (distributions.Laplace(number(0.0), number(0.5)), stats.laplace(scale=0.5), 4.0),
    (distributions.Gumbel(number(0.0), number(1.0)), stats.gumbel_r(), 1.0),
    (distributions.StudentT(number(6.0)), stats.t(6), 7 / 9),
    (distributions.HalfNormal(number(2.0)), stats.halfnorm(scale=2.0), None),
    (distributions.Gamma(number(4.0), number(2.0)), stats.gamma(4, scale=0.5), 2.0),  # E[s²] = rate²/(shape − 2)
    (distributions.LogNormal(number(0.2), number(0.5)), stats.lognorm(0.5, scale=math.exp(0.2)), None),
    (distributions.Weibull(number(2.0), number(1.5)), stats.weibull_min(1.5, scale=2.0), None),
    (distributions.Beta(number(4.0), number(5.0)), stats.beta(4, 5), None),
]


def test_wrapping_draws_nothing_and_keeps_precision() -> None:
    state = torch.get_rng_state()
    base = from_distribution(distributions.Uniform(0.0, 1.0))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(base.score(torch.tensor([0.2, 0.7])), torch.zeros(2))
    assert base.log_prob(torch.tensor(0.3)).dtype == torch.float32


@pytest.mark.parametrize("shape", [0.1, 0.5])
def test_an_unbounded_edge_that_scalings_do_not_cross(shape: float) -> None:
    """1 + εs = k − ε for a Gamma of shape k, so that c_X = k; shifts would carry mass over the edge."""
    base = from_distribution(distributions.Gamma(number(shape), number(1.0)))
    assert base.fisher_scale == pytest.approx(shape, rel=1e-6)
    assert base.entropy == pytest.approx(float(stats.gamma(shape).entropy()), rel=1e-6)
    with pytest.raises(ValueError, match="no Fisher metric under shifts"):
        _ = base.fisher_shift


@pytest.mark.parametrize(("distribution", "reference", "shift"), CASES, ids=[type(case[0]).__name__ for case in CASES])
def test_any_univariate_distribution(distribution: distributions.Distribution, reference, shift: float | None) -> None:
    base = from_distribution(distribution)
    assert base.mean == pytest.approx(float(reference.mean()), rel=1e-7, abs=1e-8)
    assert base.variance == pytest.approx(float(reference.var()), rel=1e-7)
    assert base.entropy == pytest.approx(float(reference.entropy()), abs=1e-7)
    x = torch.from_numpy(reference.ppf([0.01, 0.3, 0.6, 0.99]))
    torch.testing.assert_close(base.log_prob(x), torch.from_numpy(reference.logpdf(x.numpy())), rtol=1e-8, atol=1e-8)
    draws = base.sample((50_000,), generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    assert stats.kstest(draws.double().numpy(), reference.cdf).pvalue > 1e-3
    if shift is not None:
        assert base.fisher_shift == pytest.approx(shift, rel=1e-6)


def test_edges_are_refused_by_name() -> None:
    for distribution in (
        distributions.Uniform(number(-1.0), number(1.0)),
        distributions.Exponential(number(1.0)),
        distributions.HalfNormal(number(1.0)),
    ):
        with pytest.raises(ValueError, match=f"{type(distribution).__name__}.*edge"):
            _ = from_distribution(distribution).fisher_shift
    with pytest.raises(ValueError, match=r"Pareto.*edge"):
        _ = from_distribution(distributions.Pareto(number(1.0), number(3.0))).fisher_scale


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        (distributions.Normal(torch.zeros(2), torch.ones(2)), "univariate"),
        (distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)), "univariate"),
        (distributions.Poisson(number(1.0)), "discrete"),
        (distributions.Normal, "takes an instance .* but got <class"),
        ("normal", "takes an instance .* but got 'normal'"),
    ],
)
def test_what_is_no_base(distribution: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_distribution(distribution)


@pytest.mark.parametrize(
    ("distribution", "fisher_scale"),
    [
        (distributions.Normal(10.0, 0.125), 2 + 80.0**2),
        (distributions.Normal(-100.0, 1.0), 2 + 100.0**2),
        (distributions.LogNormal(3.0, 0.015625), 64.0**2),
        (distributions.Gamma(2000.0, 1.0), 2000.0),
    ],
    ids=str,
)
def test_narrow_peaks_far_away(distribution: distributions.Distribution, fisher_scale: float) -> None:
    base = from_distribution(distribution)
    assert base.mean == pytest.approx(float(distribution.mean), rel=1e-6)
    assert base.variance == pytest.approx(float(distribution.variance), rel=1e-5)
    assert base.fisher_scale == pytest.approx(fisher_scale, rel=1e-8)


def test_densities_that_quadrature_does_not_see_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be integrated to 1.*closed form"):
        _ = from_distribution(distributions.Normal(1e6, 1.0)).variance

    class TwiceAsMuch(Logistic):
        def log_prob(self, x: Tensor) -> Tensor:
            return super().log_prob(x) + math.log(2)

    with pytest.raises(ValueError, match="not normalised"):
        _ = TwiceAsMuch().mean


def test_a_user_base_needs_two_methods() -> None:
    """The logistic density: variance π²/3, entropy 2, E[s²] = 1/3, E[(1 + εs)²] = (3 + π²)/9."""
    base = Logistic()
    assert base.mean == pytest.approx(0, abs=1e-10)
    assert base.variance == pytest.approx(math.pi**2 / 3, rel=1e-9)
    assert base.entropy == pytest.approx(2, rel=1e-9)
    assert base.fisher_shift == pytest.approx(1 / 3, rel=1e-9)
    assert base.fisher_scale == pytest.approx((3 + math.pi**2) / 9, rel=1e-9)
    assert base.fisher_cross == 0


def test_constants_are_computed_once() -> None:
    calls = []

    class Counting(Logistic):
        def log_prob(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().log_prob(x)

    base = Counting()
    first = base.fisher_shift
    count = len(calls)
    assert count > 0
    assert base.fisher_shift == first
    assert len(calls) == count
