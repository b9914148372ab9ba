"""The family q_g = π(g)q₀: density, entropy, moments, KL divergence and tangents (3.2, A.1, A.4, A.5)."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from oracles.embedding import embed
from oracles.expectation import HEAVY_TAILS, QUADRATURE, rule_of
from scipy import stats
from support.elements import DIFFERENCED, ROUNDING, Seeded, assert_close, plus, scaled
from support.registry import BASES, GROUPS, PAIRS, BaseCase, GroupCase
from support.user_defined import Logistic, SinhShift
from torch import distributions

from liebayes import Family, ProductFamily
from liebayes.bases import Cauchy, Exponential, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform, Wrapped
from liebayes.groups import (
    Additive,
    Affine,
    DiagonalAffine,
    MatrixShift,
    Multiplicative,
    Product,
    ScaleShift,
    TriangularAffine,
    TriangularShift,
)

FAMILIES = [(g, b) for g in GROUPS if not g.is_product for b in BASES if b.half_line == g.group.positive]
AFFINE = [(g, b) for g, b in FAMILIES if g.embeds]


def names(value: Any) -> str:
    return str(value)


def family(group: GroupCase, base: BaseCase, like: torch.Tensor, seed: int = 0) -> Family[Any]:
    return Family(group.group, base.base, Seeded(group, like, seed, 0.5).element())


# Density.


@pytest.mark.parametrize(("group", "base"), AFFINE, ids=names)
def test_density_is_the_moved_one(group: GroupCase, base: BaseCase) -> None:
    """Eq. 3 with the matrix (A, b) of g: log q₀(A⁻¹(θ − b)) − log |det A|, q₀ by scipy."""
    for like in group.likes:
        q = family(group, base, like)
        theta = q.sample((5,), torch.Generator().manual_seed(0))
        G = embed(q.element)
        A, b = G[:-1, :-1], G[:-1, -1]
        epsilon = np.linalg.solve(A, (theta.reshape(5, -1).numpy() - b).T).T
        expected = base.scipy.logpdf(epsilon).sum(1) - np.linalg.slogdet(A)[1]
        # Condition numbers up to e⁴ in A⁻¹(θ − b), and slopes of log q₀ up to 1e3.
        torch.testing.assert_close(q.log_prob(theta), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
        assert q.log_prob(theta[0]).shape == ()


@pytest.mark.parametrize(("group", "base"), [p for p in FAMILIES if p[0].group.elementwise], ids=names)
def test_density_integrates_to_one_and_draws_follow_it(group: GroupCase, base: BaseCase) -> None:
    q = family(group, base, torch.zeros((), dtype=torch.float64), 1)
    edges = base.scipy.ppf(np.linspace(0, 1, 20_001)[1:-1])
    theta = q.group.act(q.element, torch.from_numpy(np.unique(edges)))  # a grid on which no cell holds much
    middle = q.log_prob(theta[:-1] + theta.diff() / 2).exp() * theta.diff()
    # The grid leaves out two tails of 1/20,000; cells of the midpoint rule are that small too.
    assert float(middle.sum()) == pytest.approx(1, abs=1e-3)
    draws = q.sample((100_000,), torch.Generator().manual_seed(3))
    cdf = np.append(0.0, middle.cumsum(0).numpy())
    assert stats.kstest(draws.numpy(), lambda x: np.interp(x, theta.numpy(), cdf, 0, 1)).pvalue > 1e-3


def test_density_of_known_families() -> None:
    theta = torch.tensor([0.3, 1.7], dtype=torch.float64)
    one, two = torch.tensor(1.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    at = DiagonalAffine().at(one.expand(2), 2.0)
    known = [
        (Family(Additive(), Normal(2.0), Additive().at(one.expand(2))), distributions.Normal(one, two)),
        (Family(DiagonalAffine(), Normal(), at), distributions.Normal(one, two)),
        (Family(DiagonalAffine(), Laplace(), at), distributions.Laplace(one, two)),
        (Family(DiagonalAffine(), Cauchy(), at), distributions.Cauchy(one, two)),
        (Family(DiagonalAffine(), Gumbel(), at), distributions.Gumbel(one, two)),
        (Family(DiagonalAffine(), StudentT(3), at), distributions.StudentT(3, one, two)),
        (Family(Multiplicative(), Exponential(), Multiplicative().at(two.expand(2))), distributions.Exponential(1 / two)),
        (
            Family(Multiplicative(), LogNormal(0.5, 0.2), Multiplicative().at(two.expand(2))),
            distributions.LogNormal(two.log() + 0.2, 0.5),
        ),
    ]
    for q, expected in known:
        torch.testing.assert_close(q.log_prob(theta), expected.log_prob(theta).sum())


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
def test_density_of_correlated_gaussians(group: Affine | TriangularAffine) -> None:
    case = next(c for c in GROUPS if c.group == group)
    q = Family(group, Normal(1.3), Seeded(case, torch.zeros(3, dtype=torch.float64), 4).element())
    expected = distributions.MultivariateNormal(q.mean, q.covariance)
    theta = q.sample((6,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), expected.log_prob(theta))
    torch.testing.assert_close(q.entropy(), expected.entropy())


@pytest.mark.parametrize("group", [Additive(), DiagonalAffine(), TriangularAffine(), Affine()], ids=str)
@pytest.mark.parametrize("shape", [(2,), (3, 2), (), (5, 1)], ids=str)
def test_points_of_another_shape_have_no_density(group: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"last dimensions are \(3,\), one θ, but got the shape {re.escape(str(shape))}"):
        Family(group, Normal(), group.at(torch.ones(3))).log_prob(torch.ones(shape))


def test_a_point_outside_the_support_has_no_density() -> None:
    q = Family(Multiplicative(), Rayleigh(), Multiplicative().at(torch.ones(2)))
    assert q.log_prob(torch.tensor([1.0, -1.0])) == -math.inf


# Entropy and moments.


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=names)
def test_entropy_is_minus_the_expected_log_density(group: GroupCase, base: BaseCase) -> None:
    like, epsilon, w = rule_of(group, base)
    q = family(group, base, like, 2)
    expected = -(w * q.log_prob(group.group.act(q.element, epsilon))).sum()
    # E[log q] of heavy tails loses log(x)/x beyond the last node; 1,024 draws estimate an action that is not affine.
    tolerance = 1e-5 if not base.variance else 1e-8
    if not group.group.affine_action:
        torch.manual_seed(0)
        jacobian = group.group.log_jacobian(q.element, epsilon)
        spread = float((w * jacobian.square()).sum() - (w * jacobian).sum().square())
        tolerance = 5 * math.sqrt(spread / 1024)
    assert float(q.entropy()) == pytest.approx(float(expected), abs=tolerance)


@pytest.mark.parametrize(("group", "base"), [p for p in PAIRS if p[1].variance and p[0].embeds], ids=names)
def test_mean_and_variance(group: GroupCase, base: BaseCase) -> None:
    like, epsilon, w = rule_of(group, base)
    q = family(group, base, like, 3)
    theta = group.group.act(q.element, epsilon)
    weights = w.reshape(-1, *[1] * like.ndim)
    mean = (weights * theta).sum(0)
    tolerance = 10 * QUADRATURE  # second moments up to 1e3
    torch.testing.assert_close(q.mean, mean, rtol=tolerance, atol=tolerance)
    if type(group.group).__module__.endswith("user_defined"):
        with pytest.raises(ValueError, match="estimate it from samples"):
            _ = q.variance
        return
    variance = q.variance
    centred = theta - mean
    torch.testing.assert_close(variance, (weights * centred.square()).sum(0), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(q.stddev.square(), variance)
    if like.ndim == 1:
        torch.testing.assert_close(q.covariance, (w[:, None] * centred).mT @ centred, rtol=tolerance, atol=tolerance)


def test_covariance_of_the_diagonal_groups_is_diagonal() -> None:
    q = Family(DiagonalAffine(), Laplace(), DiagonalAffine().at(torch.tensor([0.0, 1.0]), 2.0))
    torch.testing.assert_close(q.covariance, 8.0 * torch.eye(2))


def test_a_base_without_a_mean_says_so() -> None:
    q = Family(DiagonalAffine(), Cauchy(), DiagonalAffine().at(torch.zeros(2)))
    with pytest.raises(ValueError, match="Cauchy has no mean"):
        _ = q.mean
    with pytest.raises(ValueError, match="Cauchy has no variance"):
        _ = q.variance


def test_a_base_must_live_where_the_group_acts() -> None:
    with pytest.raises(ValueError, match="positive numbers"):
        Family(Multiplicative(), Normal(), Multiplicative().at(torch.ones(2)))
    with pytest.raises(ValueError, match="real line"):
        Family(DiagonalAffine(), Rayleigh(), DiagonalAffine().at(torch.ones(2)))


# KL divergence.


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=names)
def test_kl_is_an_expectation(group: GroupCase, base: BaseCase) -> None:
    like, epsilon, w = rule_of(group, base)
    q = family(group, base, like, 4)
    # KL may be infinite or slow in the tails; a near neighbour of q keeps it finite.
    p = Family(q.group, q.base, q.group.compose(q.element, q.group.exp(Seeded(group, like, 5, 0.1).vector())))
    named = not type(group.group).__module__.endswith("user_defined")
    closed_base = not isinstance(base.base, (StudentT, Logistic, Wrapped))
    if not (named and closed_base and (group.group.elementwise or isinstance(base.base, Normal))):
        with pytest.raises(ValueError, match="stimate it from samples"):
            q.kl(p)
        return
    closed = float(q.kl(p))
    theta = q.group.act(q.element, epsilon)
    difference = q.log_prob(theta) - p.log_prob(theta)
    # A kink of p may lie inside a panel (Laplace); elsewhere the rule is exact.
    tolerance = 1e-4 if isinstance(base.base, Laplace) else 1e-7
    assert closed == pytest.approx(float((w * difference).sum()), abs=tolerance)
    assert float(q.kl(q)) == pytest.approx(0, abs=ROUNDING)


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
def test_kl_of_gaussians_is_that_of_torch(group: Affine | TriangularAffine) -> None:
    case = next(c for c in GROUPS if c.group == group)
    like = torch.zeros(3, dtype=torch.float64)
    q, p = (Family(group, Normal(1.3), Seeded(case, like, seed).element()) for seed in (6, 7))
    expected = distributions.kl_divergence(
        distributions.MultivariateNormal(q.mean, q.covariance), distributions.MultivariateNormal(p.mean, p.covariance)
    )
    torch.testing.assert_close(q.kl(p), expected)


def test_kl_to_itself_is_zero() -> None:
    """Exactly: a Uniform that is a rounding error wider than another has an infinite KL divergence to it."""
    torch.manual_seed(0)
    element = ScaleShift(torch.randn(100), 100 * torch.randn(100))
    for base in (Uniform(0.3), Normal(), Laplace(2.0)):
        q = Family(DiagonalAffine(), base, element)
        assert float(q.kl(q)) == 0.0


def test_kl_needs_one_family() -> None:
    g = DiagonalAffine().at(torch.zeros(2))
    with pytest.raises(ValueError, match="one group and one base"):
        Family(DiagonalAffine(), Normal(), g).kl(Family(DiagonalAffine(), Laplace(), g))


# Tangents.


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=names)
def test_tangent_is_the_derivative_of_the_density(group: GroupCase, base: BaseCase) -> None:
    """h_X(θ) = d/dt q_{g·exp(tX)}(θ) by central differences, for every group and smooth base."""
    like, *_ = rule_of(group, base)
    draw, t = Seeded(group, like, 8, 0.5), 1e-5
    g, X = draw.element(), draw.vector()
    q = Family(group.group, base.base, g)
    theta = q.sample((64,), torch.Generator().manual_seed(0))
    ahead, behind = (Family(group.group, base.base, group.group.compose(g, group.group.exp(scaled(X, s)))) for s in (t, -t))
    slope = (ahead.log_prob(theta).exp() - behind.log_prob(theta).exp()) / (2 * t)
    # Central differences: t² times a third derivative, which grows with powers of ε in the tails.
    torch.testing.assert_close(q.tangent(X)(theta), slope, rtol=1e-6, atol=DIFFERENCED)


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=names)
def test_tangent_has_zero_integral_and_is_linear(group: GroupCase, base: BaseCase) -> None:
    like, epsilon, w = rule_of(group, base)
    draw = Seeded(group, like, 9, 0.5)
    q = Family(group.group, base.base, draw.element())
    X, Y = draw.vector(), draw.vector()
    theta = group.group.act(q.element, epsilon)
    relative = q.tangent(X)(theta) / q.log_prob(theta).exp()
    assert float((w * relative.abs()).sum()) > 1e-3
    assert float((w * relative).sum()) == pytest.approx(0, abs=QUADRATURE if base.variance else HEAVY_TAILS)
    theta = theta[:: max(1, len(theta) // 50)]
    assert_close(q.tangent(plus(X, Y, 2.0))(theta), q.tangent(X)(theta) + 2 * q.tangent(Y)(theta))


@pytest.mark.parametrize("base", [b for b in BASES if b.half_line and b.fisher_scale], ids=str)
def test_tangent_of_the_multiplicative_lemma(base: BaseCase) -> None:
    """A.4: h_i(θ) = −q_g(θ)(1 + ε_i q̃₀′(ε_i)/q̃₀(ε_i)) with ε = θ/g."""
    g = Multiplicative().at(torch.tensor([0.5, 2.0], dtype=torch.float64))
    q = Family(Multiplicative(), base.base, g)
    theta = torch.tensor([[0.4, 1.0], [1.2, 5.0]], dtype=torch.float64)
    epsilon = theta / g.scale
    for i in range(2):
        X = g._replace(log_scale=torch.eye(2, dtype=torch.float64)[i])
        ratio = epsilon[:, i] * base.base.score(epsilon[:, i])
        torch.testing.assert_close(q.tangent(X)(theta), -q.log_prob(theta).exp() * (1 + ratio))


@pytest.mark.parametrize("base", [b for b in BASES if not b.half_line and b.fisher_scale], ids=str)
def test_tangents_of_the_affine_lemma(base: BaseCase) -> None:
    """A.5: h^X_i = −π(g)(q₀ + δ_i q₀) and h^y_i = −π(g)∂_i q₀, with π(g)f = f(A⁻¹(θ − b))/|A|."""
    group = DiagonalAffine()
    g = group.at(torch.tensor([0.5, -1.0], dtype=torch.float64), 2.0)
    q = Family(group, base.base, g)
    theta = torch.tensor([[0.4, 1.0], [-1.2, 3.0]], dtype=torch.float64)
    epsilon = (theta - g.shift) / g.scale
    q0 = base.base.log_prob(epsilon).exp().prod(-1)
    zero = torch.zeros(2, dtype=torch.float64)
    for i in range(2):
        unit = torch.eye(2, dtype=torch.float64)[i]
        partial = q0 * base.base.score(epsilon[:, i])  # ∂_i q₀
        h_X = -(q0 + epsilon[:, i] * partial) / g.scale.prod()
        h_y = -partial / g.scale.prod()
        torch.testing.assert_close(q.tangent(g._replace(log_scale=unit, shift=zero))(theta), h_X)
        torch.testing.assert_close(q.tangent(g._replace(log_scale=zero, shift=unit))(theta), h_y)


# Numerics.


NAMED = [case for case in GROUPS if not (case.is_product or type(case.group).__module__.endswith("user_defined"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-25, 1e20])
@pytest.mark.parametrize("case", [c for c in NAMED if not isinstance(c.group, Additive)], ids=str)
def test_the_standard_deviation_of_tiny_and_huge_members(case: GroupCase, scale: float, dtype: torch.dtype) -> None:
    """Variances of 1e-50 and 1e40 are no float32. An exponential of log(scale) has |log scale|·eps of error."""
    base = Rayleigh(0.3) if case.group.positive else Laplace(0.3)
    point = torch.full((3,), scale, dtype=dtype)
    g = case.group.at(point) if case.group.positive else case.group.at(torch.zeros_like(point), scale)
    q = Family(case.group, base, g)
    expected = torch.full((3,), scale * base.stddev, dtype=dtype)
    torch.testing.assert_close(q.stddev, expected, rtol=80 * torch.finfo(dtype).eps, atol=0)


def test_the_standard_deviation_of_correlated_members() -> None:
    """Rows of lengths 5, 13 and 25, at a size whose squares are 0 in float32; also through a base of such a size."""
    matrix = torch.tensor([[3.0, 4.0, 0.0], [5.0, 0.0, 12.0], [0.0, 7.0, 24.0]])
    q = Family(Affine(), Normal(0.5), MatrixShift(matrix * 1e-30, torch.zeros(3)))
    torch.testing.assert_close(q.stddev, torch.tensor([2.5e-30, 6.5e-30, 12.5e-30]), rtol=1e-6, atol=0)
    for base in (Normal(1e-200), Rayleigh(1e-200), LogNormal(0.5, -460.0), StudentT(3, 1e-200)):
        assert 1e-201 < base.stddev < 1e-198


@pytest.mark.parametrize("case", NAMED, ids=str)
@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1.0, 1e30, 1e38])
def test_a_member_of_any_size_has_no_divergence_from_itself(case: GroupCase, scale: float) -> None:
    """0 exactly where KL is in closed form coordinate by coordinate; for matrices, which are inverted, P roundings."""
    point = torch.full((3,), scale)
    g = case.group.at(point) if case.group.positive else case.group.at(torch.ones(3), scale)
    q = Family(case.group, Rayleigh() if case.group.positive else Normal(), g)
    assert abs(float(q.kl(q))) <= (0.0 if case.group.elementwise else 3 * torch.finfo(torch.float32).eps)



@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine(), Affine()], ids=str)
def test_the_density_of_a_narrow_member_far_from_the_origin(group: Any) -> None:
    """A⁻¹θ − A⁻¹b would lose all digits of A⁻¹(θ − b) in float32."""
    q = Family(group, Normal(), group.at(torch.full((200,), 3.3), 1e-7))
    expected = float(distributions.Normal(0.0, 1e-7).log_prob(torch.tensor(0.0))) * 200
    assert float(q.log_prob(q.mean)) == pytest.approx(expected, rel=200 * torch.finfo(torch.float32).eps)  # a sum of 200


@pytest.mark.parametrize("log_diagonal", [-6.9, -8.2, -10.0])
def test_the_distribution_of_a_correlated_member_keeps_its_digits(log_diagonal: float) -> None:
    """Of LLᵀ, factored again, none would be left in float32."""
    element = TriangularShift(torch.full((2,), log_diagonal), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.zeros(2))
    for group, g in ((TriangularAffine(), element), (Affine(), MatrixShift(-element.matrix, element.shift))):
        q = Family(group, Normal(0.5), g)
        exact = Family(group, Normal(0.5), type(g)(*(block.double() for block in g)))
        theta = exact.sample((5,), torch.Generator().manual_seed(0))
        # θ itself is rounded to 6e-8, which is up to 1e-3 of the narrow direction's width of e^(−10), and enters squared.
        torch.testing.assert_close(
            q.as_distribution().log_prob(theta.float()).double(), exact.log_prob(theta), rtol=1e-2, atol=1e-2
        )
        torch.testing.assert_close(exact.as_distribution().log_prob(theta), exact.log_prob(theta))


def test_an_entropy_from_draws_is_always_the_same() -> None:
    q = Family(SinhShift(), Normal(), SinhShift().identity(torch.zeros(3)))
    q = Family(SinhShift(), Normal(), SinhShift().exp(type(q.element)(torch.ones(3))))
    state = torch.get_rng_state()
    assert torch.equal(q.entropy(), q.entropy())
    assert torch.equal(torch.get_rng_state(), state)


def test_one_number_has_no_covariance_matrix() -> None:
    with pytest.raises(ValueError, match="single number has a variance"):
        _ = Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.tensor(1.0))).covariance


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine(), Affine()], ids=str)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_start_has_a_positive_scale(group: Any, scale: float) -> None:
    with pytest.raises(ValueError, match="scale of a start must be positive and finite"):
        group.at(torch.zeros(2), scale)


# Products.


def test_a_product_is_independent_parts() -> None:
    group = Product(rate=Multiplicative(), place=TriangularAffine())
    parts = {
        "rate": Family(Multiplicative(), Rayleigh(), Multiplicative().at(torch.tensor([2.0, 3.0]))),
        "place": Family(TriangularAffine(), Normal(), TriangularAffine().at(torch.tensor([1.0, 0.0, -1.0]), 0.5)),
    }
    q = ProductFamily(group, parts)
    theta = q.sample((4,), torch.Generator().manual_seed(0))
    assert {key: tuple(value.shape) for key, value in theta.items()} == {"rate": (4, 2), "place": (4, 3)}
    expected = parts["rate"].log_prob(theta["rate"]) + parts["place"].log_prob(theta["place"])
    torch.testing.assert_close(q.log_prob(theta), expected)
    torch.testing.assert_close(q.entropy(), parts["rate"].entropy() + parts["place"].entropy())
    torch.testing.assert_close(q.mean["rate"], parts["rate"].mean)
    torch.testing.assert_close(q.variance["place"], torch.full((3,), 0.25))
    torch.testing.assert_close(q.stddev["place"], torch.full((3,), 0.5))
    other = ProductFamily(
        group,
        {
            "rate": Family(Multiplicative(), Rayleigh(), Multiplicative().at(torch.ones(2))),
            "place": Family(TriangularAffine(), Normal(), TriangularAffine().at(torch.zeros(3))),
        },
    )
    apart = [parts[name].kl(other.parts[name]) for name in parts]
    assert min(map(float, apart)) > 0.1
    torch.testing.assert_close(q.kl(other), sum(apart))
    torch.testing.assert_close(q.element["rate"].scale, torch.tensor([2.0, 3.0]))


def test_a_generator_fixes_the_draws_of_a_family() -> None:
    q = Family(DiagonalAffine(), Uniform(), DiagonalAffine().at(torch.zeros(3, dtype=torch.float64)))
    first, again = (q.sample((2,), torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.dtype == torch.float64
    assert torch.equal(first, again)
