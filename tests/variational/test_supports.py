"""`fit` on supports: targets in the family recovered, densities of torch.distributions, moments in closed form."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, LogNormal, MultivariateNormal, Normal, Wishart

import liebayes as lb
from liebayes import groups
from liebayes.bases import Exponential, Laplace, Rayleigh


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


# Targets in the family: nothing but rounding is left.


@pytest.mark.parametrize("group", [groups.DiagonalAffine(), groups.TriangularAffine()], ids=str)
def test_log_normal_target(group: lb.groups.LieGroup) -> None:
    target = LogNormal(torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.7, 0.1], dtype=torch.float64))
    q = lb.fit(
        lambda t: -target.log_prob(t).sum(), group, start=torch.ones(2, dtype=torch.float64), supports=groups.Positive()
    )
    torch.testing.assert_close(q.mean, target.mean, rtol=1e-3, atol=0)
    torch.testing.assert_close(q.stddev, target.stddev, rtol=1e-3, atol=0)
    theta = q.sample((9,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), target.log_prob(theta).sum(-1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(q.entropy(), target.entropy().sum(), rtol=1e-3, atol=1e-3)
    assert q.history.stopped.startswith("converged")
    assert q.log_prob(torch.tensor([1.0, -1.0], dtype=torch.float64)) == -math.inf


def test_correlations_across_parts() -> None:
    """A place, a positive number and an interval, Gaussian together in the coordinates of their charts."""
    scale = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [-0.5, 0.5, 0.3]], dtype=torch.float64)
    inner = MultivariateNormal(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64), scale_tril=scale)

    def loss(theta: dict[str, Tensor]) -> Tensor:
        x, s, p = theta["x"], theta["s"], (theta["p"] + 1) / 3
        z = torch.stack([x, s.log(), p.logit()])
        return -inner.log_prob(z) + s.log() + (3 * p * (1 - p)).log()

    start = {"x": number(0.0), "s": number(1.0), "p": number(0.0)}
    q = lb.fit(loss, start=start, supports={"s": groups.Positive(), "p": groups.Interval(-1, 2)})
    assert isinstance(q, lb.JointFamily)
    torch.testing.assert_close(q.real.covariance, inner.covariance_matrix, rtol=1e-3, atol=1e-3)
    draws = inner.sample((1 << 18,))
    expected = {"x": draws[:, 0], "s": draws[:, 1].exp(), "p": 3 * draws[:, 2].sigmoid() - 1}
    for name, values in expected.items():
        error = values.std() / math.sqrt(len(values))
        assert abs(float(q.mean[name] - values.mean())) < 5 * error
        assert float(q.stddev[name] / values.std()) == pytest.approx(1, abs=0.03)  # s has heavy tails
    assert {name: part.shape for name, part in q.sample((7, 2)).items()} == {"x": (7, 2), "s": (7, 2), "p": (7, 2)}
    theta = q.sample((5,), generator=torch.Generator().manual_seed(0))
    each = torch.stack([loss({name: part[k] for name, part in theta.items()}) for k in range(5)])
    torch.testing.assert_close(q.log_prob(theta), -each, rtol=1e-3, atol=1e-3)
    assert q.kl(q) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("base", "shape"), [(Exponential(), 1.0), (Rayleigh(), 2.0)], ids=str)
def test_weibull_family(base: lb.bases.Base, shape: float) -> None:
    """θ = bεᵃ on an Exponential or Rayleigh base is a Weibull distribution of shape 1/a, or 2/a: a base of the half line,
    and the rule for an action that is not affine."""
    target = torch.distributions.Weibull(number(2.0), number(3.0))
    group = groups.Conjugated(groups.DiagonalAffine(), groups.Positive())
    q = lb.fit(lambda t: -target.log_prob(t).sum(), group, base, torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(shape / q.element.scale, torch.full((2,), 3.0, dtype=torch.float64), rtol=1e-3, atol=0)
    theta = q.sample((5,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), target.log_prob(theta).sum(-1), rtol=1e-3, atol=1e-3)


# Targets near the family.


def test_beta_like_target() -> None:
    target = Beta(number(8.0), number(4.0))
    q = lb.fit(lambda t: -target.log_prob(t), start=number(0.5), supports=groups.Interval())
    assert abs(float((q.mean - target.mean) / target.stddev)) < 0.03
    assert float(q.stddev / target.stddev) == pytest.approx(1, abs=0.03)


def test_dirichlet_like_target() -> None:
    target = Dirichlet(torch.tensor([8.0, 12.0, 20.0, 28.0], dtype=torch.float64))
    q = lb.fit(lambda t: -target.log_prob(t), start=torch.full((4,), 0.25, dtype=torch.float64), supports=groups.Simplex())
    sd = target.variance.sqrt()
    assert float(((q.mean - target.mean) / sd).abs().max()) < 0.05
    torch.testing.assert_close(q.stddev, sd, rtol=0.05, atol=0)
    torch.testing.assert_close(q.sample((3,)).sum(-1), torch.ones(3, dtype=torch.float64))


def test_wishart_target() -> None:
    scale = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    target = Wishart(number(40.0), scale / 40, validate_args=False)
    q = lb.fit(lambda t: -target.log_prob(t), start=torch.eye(2, dtype=torch.float64), supports=groups.Covariance())
    sd = target.variance.sqrt()
    assert float(((q.mean - target.mean) / sd).abs().max()) < 0.05
    torch.testing.assert_close(q.stddev, sd, rtol=0.05, atol=0)


def test_correlation_matrices() -> None:
    """LKJ(η): every correlation is Beta(η + K/2 − 1) on (−1, 1), of variance 1/(2η + K − 1)."""
    size, eta = 3, 4.0

    def loss(L: Tensor) -> Tensor:  # the density of L: Π_k L_kk^(K − k + 2η − 2)
        power = torch.arange(size - 1, -1, -1, dtype=L.dtype) + 2 * eta - 2
        return -(power * L.diagonal().log())[1:].sum()

    q = lb.fit(loss, start=torch.eye(size, dtype=torch.float64), supports=groups.CorrelationCholesky())
    L = q.sample((20_000,), generator=torch.Generator().manual_seed(0))
    rows, columns = torch.tril_indices(size, size, -1)
    correlations = (L @ L.mT)[:, rows, columns]
    torch.testing.assert_close(correlations.var(0), torch.full((3,), 0.1, dtype=torch.float64), rtol=0.05, atol=0)
    assert float(correlations.mean(0).abs().max()) < 0.01


def test_ordered_and_bounded_parts() -> None:
    """Cut points in order, of which two clusters of data say where they are; bounds on either side."""
    data = torch.tensor([-1.1, -0.9, -1.0, 1.9, 2.0, 2.1], dtype=torch.float64)

    def loss(theta: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        centres, low, high = theta
        mixture = torch.logsumexp(Normal(centres, 0.5).log_prob(data.unsqueeze(-1)), -1).sum()
        return -mixture + 2 * (low - 3) + 5 * (7 - high)

    start = torch.tensor([-0.1, 0.1], dtype=torch.float64), number(4.0), number(5.0)
    q = lb.fit(loss, start=start, supports=(groups.Ordered(), groups.LowerBounded(3.0), groups.UpperBounded(7.0)))
    centres, low, high = q.mean
    sd = 0.5 / math.sqrt(3)
    assert (centres - torch.tensor([-1.0, 2.0], dtype=torch.float64)).abs().max() < 0.15 * sd
    assert ((q.stddev[0] / sd - 1).abs() < 0.1).all()
    # Exponential distributions: the best log-normal has E[log] right, and with it the mean of the loss: E[θ] = 1/rate.
    assert float(low - 3) == pytest.approx(1 / 2, rel=0.03)
    assert float(7 - high) == pytest.approx(1 / 5, rel=0.03)


def test_regression_with_unknown_noise() -> None:
    """One full-rank fit from a plain start, the noise beside the weights, against the exact posterior."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y += 0.3 * torch.randn(100, generator=generator, dtype=torch.float64)

    def loss(theta: dict[str, Tensor]) -> Tensor:  # p(w, σ) ∝ 1/σ
        residual = (y - x @ theta["w"]) / theta["noise"]
        return 0.5 * residual.square().sum() + (len(y) + 1) * theta["noise"].log()

    start = {"w": torch.zeros(3, dtype=torch.float64), "noise": 1.0}  # of different precision: the wider one is taken
    q = lb.fit(loss, start=start, supports={"noise": groups.Positive()})
    # σ² ~ InverseGamma((n − p)/2, RSS/2), and w ~ StudentT(n − p) with covariance RSS/(n − p − 2)·(xᵀx)⁻¹.
    inverse = torch.linalg.inv(x.mT @ x)
    mean = inverse @ x.mT @ y
    rss, degrees = float((y - x @ mean).square().sum()), len(y) - 3
    sd = (inverse.diagonal() * rss / (degrees - 2)).sqrt()
    assert ((q.mean["w"] - mean) / sd).abs().max() < 0.02
    assert (q.stddev["w"] / sd - 1).abs().max() < 0.02
    a = degrees / 2
    first = math.exp(0.5 * math.log(rss / 2) + math.lgamma(a - 0.5) - math.lgamma(a))
    spread = math.sqrt(rss / 2 / (a - 1) - first**2)
    assert float(q.mean["noise"] - first) == pytest.approx(0, abs=0.02 * spread)
    assert float(q.stddev["noise"]) == pytest.approx(spread, rel=0.04)  # the best log-normal is narrower by 2.5 %
    assert q.mean["noise"].dtype == torch.float64


# Structures, settings and errors.


def test_several_real_tensors_are_one_vector() -> None:
    """Without supports too: correlations across tensors, which a Product does not have."""
    precision = torch.tensor([[2.0, 1.2], [1.2, 1.0]], dtype=torch.float64)

    def loss(theta: Any) -> Tensor:
        z = torch.cat([part.reshape(-1) for part in theta])
        return 0.5 * z @ precision @ z

    q = lb.fit(loss, groups.TriangularAffine(), lb.bases.Normal(), (number(1.0), torch.ones(1, dtype=torch.float64)))
    torch.testing.assert_close(q.real.covariance, torch.linalg.inv(precision), rtol=1e-3, atol=1e-3)
    assert [part.shape for part in q.mean] == [(), (1,)]


def test_going_on_from_a_family() -> None:
    target = LogNormal(number(1.0), number(0.7))
    loss = lambda theta: -target.log_prob(theta["s"])  # noqa: E731
    first = lb.fit(loss, start={"s": number(1.0)}, supports={"s": groups.Positive()}, steps=30)
    second = lb.fit(loss, start=first)
    assert second.chart == first.chart
    assert float(second.mean["s"]) == pytest.approx(float(target.mean), rel=1e-3)
    plain = lb.fit(lambda t: (t - 1).square().sum(), groups.DiagonalAffine(), Laplace(), torch.zeros(2), steps=5)
    onwards = lb.fit(lambda t: (t - 1).square().sum(), start=plain, steps=1, lr=1e-9)
    assert (onwards.group, onwards.base) == (groups.DiagonalAffine(), Laplace())
    torch.testing.assert_close(onwards.mean, plain.mean)
    product = groups.Product(a=groups.DiagonalAffine(), b=groups.Multiplicative())
    bases = {"a": Laplace(), "b": Rayleigh()}
    both = lambda t: (t["a"] - 1).square().sum() + (t["b"] - 1).square().sum()  # noqa: E731
    pair = lb.fit(both, product, bases, {"a": torch.zeros(2), "b": torch.ones(1)}, steps=5)
    again = lb.fit(both, start=pair, steps=1, lr=1e-9)
    torch.testing.assert_close(again.mean, pair.mean, rtol=1e-5, atol=1e-6)
    assert {name: part.base for name, part in again.parts.items()} == bases


def test_history_has_the_entropy_on_the_support() -> None:
    q = lb.fit(
        lambda t: t.log(), start=number(1.0), supports=groups.Positive(), samples=4096, steps=1, lr=1e-9, temperature=0.5
    )  # log-normal at (0, 1)
    normal = 0.5 * math.log(2 * math.pi * math.e)
    assert q.history.entropy == pytest.approx([normal], abs=1e-9)  # pairs make E[log θ] exact
    assert q.history.objective == pytest.approx([-0.5 * normal], abs=1e-9)


def test_moments_of_other_bases_come_from_draws() -> None:
    family = lb.Family(
        groups.DiagonalAffine(), Laplace(), groups.DiagonalAffine().at(torch.tensor([0.2], dtype=torch.float64), 0.1)
    )
    q = lb.JointFamily(family, groups.Joint.of(number(1.0), groups.Positive()))
    # E[e^(m + sε)] = e^m/(1 − s²) for Laplace noise.
    mean, second = math.exp(0.2) / (1 - 0.01), math.exp(0.4) / (1 - 0.04)
    sd = math.sqrt(second - mean**2)
    assert float(q.mean) == pytest.approx(mean, abs=4 * sd / 128)  # four standard errors of 2¹⁴ draws
    assert float(q.stddev) == pytest.approx(sd, rel=0.05)


def test_refusals() -> None:
    bowl = lambda t: t.square().sum()  # noqa: E731
    with pytest.raises(ValueError, match="must lie among positive numbers, but is -1"):
        lb.fit(bowl, start=torch.tensor(-1.0), supports=groups.Positive())
    with pytest.raises(ValueError, match="not with a Product"):
        lb.fit(bowl, groups.Product(groups.DiagonalAffine()), start=(torch.ones(1),), supports=(groups.Positive(),))
    with pytest.raises(ValueError, match="start must be"):
        lb.fit(bowl)
    with pytest.raises(ValueError, match="floating-point"):
        lb.fit(bowl, start={"a": torch.arange(3)})
    q = lb.fit(lambda t: t.log().square(), start=number(1.0), supports=groups.Positive(), steps=3)
    with pytest.raises(ValueError, match="Leave out supports"):
        lb.fit(bowl, start=q, supports=groups.Positive())
