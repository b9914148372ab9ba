"""The Gauss–Newton covector and its level: where they are exact, how they move, and what they do with little or bad data."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from oracles.expectation import QUADRATURE, nodes_and_weights, plane
from support.elements import CONJUGATED, SAME_OPERATIONS, Seeded, assert_close, basis, flattened, pairing, plus
from support.registry import BASES, GROUPS, BaseCase, GroupCase
from support.user_defined import SinhShift

from liebayes import Fisher
from liebayes.bases import Base, Cauchy, Gumbel, Laplace, Normal, StudentT, Uniform
from liebayes.groups import DiagonalAffine, Kronecker, TriangularAffine, map_blocks
from liebayes.rule import (
    Level,
    gauss_newton,
    gaussian_prior,
    initial_level,
    initial_state,
    observe,
    ratio,
    traces,
    update,
)

WITH_KERNEL = [case for case in BASES if case.variance and not case.half_line]
AFFINE = [case for case in GROUPS if isinstance(case.group, (DiagonalAffine, TriangularAffine, Kronecker))]
every_base = pytest.mark.parametrize("base", WITH_KERNEL, ids=str)
every_group = pytest.mark.parametrize("case", AFFINE, ids=str)


def has_closed_kernel(case: BaseCase) -> bool:
    """Whether Stein's kernel does not come from quadrature."""
    return type(case.base).__module__ in ("liebayes.bases.real_line", "liebayes.bases.half_line")


def line(case: BaseCase) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights for one coordinate; a density with edges needs a rule between them."""
    if not isinstance(case.base, Uniform):
        return nodes_and_weights(case)
    x, w = np.polynomial.legendre.leggauss(60)
    return torch.from_numpy(x * case.base.support[1]), torch.from_numpy(w / 2)


def two(case: BaseCase) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for two coordinates, (points, 2)."""
    if not isinstance(case.base, Uniform):
        return plane(case)
    x, w = line(case)
    return torch.cartesian_prod(x, x), torch.outer(w, w).reshape(-1)


def linear_part(case: GroupCase, like: torch.Tensor) -> list[Any]:
    """The directions of the algebra that move no origin."""
    return [X for X in basis(case, like) if float(X.shift.abs().max()) == 0]


# Exactness.


def features(like: torch.Tensor, data: int) -> torch.Tensor:
    return torch.randn(data, *like.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@every_base
@every_group
def test_it_is_exact_for_a_linear_gaussian_model(case: GroupCase, base: BaseCase) -> None:
    """y_i = ⟨a_i, θ⟩ + noise, ℓ the mean of ½(y_i − ⟨a_i, θ⟩)²/s² over n data: with labels drawn at θ, c = n is exact.

    There w is the noise's alone: −Aᵀ Σ a_i η_i/(n s²). The covector is linear in κ and quadratic in η, so one node serves all
    coordinates, and signs ±s are normal noise. The exact covector is that of fixed labels, at their best fit: linear in ε.
    """
    group, like, n, s = case.group, torch.zeros(2, 3, dtype=torch.float64), 3, 0.7
    if isinstance(group, TriangularAffine):
        like = torch.zeros(4, dtype=torch.float64)
    g, e = Seeded(case, like, 0).element(), group.identity(like)
    a = features(like, n)
    dims = (1,) * like.ndim

    x, weights = line(base)
    found: Any = group.zero(e)
    for signs in itertools.product((s, -s), repeat=n):
        eta = torch.tensor(signs, dtype=torch.float64).reshape(-1, *dims)
        w = group.act_with_transpose(g, torch.zeros_like(like))[1](-(a * eta).sum(0) / (n * s * s))
        # Each sample weighs w·count: the linear part is bilinear, and the mean of w over signs is 0 with or without weights.
        root = (weights * len(x)).sqrt().reshape(-1, *dims)
        covector = gauss_newton(group, base.base, e, x.reshape(-1, *dims).expand(-1, *like.shape), w * root, float(n))
        found = plus(found, covector, 1 / 2**n)

    P, spread = like.numel(), math.sqrt(like.numel() * base.base.variance)
    points = torch.eye(P, dtype=torch.float64).reshape(P, *like.shape) * spread
    epsilon = torch.cat([points, -points]) + base.base.mean
    theta = group.act(g, epsilon)
    mean = group.act(g, torch.full_like(like, base.base.mean))
    residuals = ((theta - mean).unsqueeze(1) * a).flatten(2).sum(-1)  # y_i = ⟨a_i, E[θ]⟩
    gradient = torch.einsum("ki,i...->k...", residuals, a) / (n * s * s)
    exact = group.pullback(g, theta, gradient)

    for X in linear_part(case, like):
        # Quadrature of κ to ten digits, sums of a hundred products.
        assert float(pairing(found, X)) == pytest.approx(float(pairing(exact, X)), rel=1e-7, abs=1e-8)
    assert float(flattened(exact).abs().max()) > 0.1


@pytest.mark.parametrize("base", [b for b in WITH_KERNEL if isinstance(b.base, (Normal, Laplace, Uniform, StudentT))], ids=str)
@every_group
def test_it_is_exact_for_logistic_regression(case: GroupCase, base: BaseCase) -> None:
    """Labels drawn from the model at θ: E[∇ℓ∇ℓᵀ] is the Hessian there, which now depends on ε, and κ weighs it rightly."""
    group, like, n = case.group, torch.zeros(2, dtype=torch.float64), 2
    g, e = Seeded(case, like, 0, 0.5).element(), group.identity(like)
    a = features(like, n)
    epsilon, weights = two(base)
    theta, transpose = group.act_with_transpose(g, epsilon)
    p = torch.sigmoid(theta @ a.mT)  # (points, n)

    found: Any = group.zero(e)
    for labels in itertools.product((0.0, 1.0), repeat=n):
        y = torch.tensor(labels, dtype=torch.float64)
        chance = torch.where(y > 0, p, 1 - p).prod(-1)
        w = transpose((p - y) @ a / n) * (chance * weights * len(weights)).sqrt().unsqueeze(-1)
        found = plus(found, gauss_newton(group, base.base, e, epsilon, w, float(n)))

    fixed = torch.tensor([0.0, 1.0], dtype=torch.float64)
    w = transpose((p - fixed) @ a / n) * (weights * len(weights)).unsqueeze(-1)
    exact = group.pullback_at_identity(e, epsilon, w)
    for X in linear_part(case, like):
        # κ by quadrature to ten digits, and the oracle's rule.
        assert float(pairing(found, X)) == pytest.approx(float(pairing(exact, X)), rel=10 * QUADRATURE, abs=QUADRATURE)
    assert float(flattened(exact).abs().max()) > 0.02


@pytest.mark.parametrize(
    ("case", "base"),
    # A kernel by quadrature takes seconds in the plane; the group does not matter to it.
    [(g, b) for b in WITH_KERNEL if b.fisher_shift for g in (AFFINE if has_closed_kernel(b) else AFFINE[:1])],
    ids=str,
)
def test_it_vanishes_at_a_realizable_optimum(case: GroupCase, base: BaseCase) -> None:
    """ℓ = −τ·log q_g*: w = −τ·s(ε), the level makes the traces equal, and every other entry is E[s]·E[κs] = 0."""
    group, tau = case.group, 0.7
    epsilon, weights = line(base) if group.elementwise else two(base)
    epsilon = epsilon.reshape(len(weights), -1)
    like = torch.zeros(epsilon.shape[-1], dtype=torch.float64)
    e = group.identity(like)
    w = -tau * base.base.score(epsilon)
    root = (weights * len(weights)).sqrt().unsqueeze(-1)
    exact, _ = traces(base.base, epsilon, w * root.square(), len(weights))
    _, squares = traces(base.base, epsilon, w * root, len(weights))
    c = float(exact / squares)
    each = gauss_newton(group, base.base, e, epsilon, w * root, c)
    if base.base.mean:  # the mean's part is linear in w, and its expectation μ·E[w] = 0
        zero = epsilon * 0 + base.base.mean
        each = plus(each, group.pullback_at_identity(e, zero, w * root), -1.0)
        each = plus(each, group.pullback_at_identity(e, zero, w * root.square()))
    covector = plus(each, group.divergence(e, epsilon), -tau)
    for X in linear_part(case, like):
        assert abs(float(pairing(covector, X))) < 1e-7
    assert abs(float(pairing(plus(each, group.divergence(e, epsilon), -2 * tau), linear_part(case, like)[0]))) > 0.1


@every_base
@every_group
def test_the_shift_keeps_its_own(case: GroupCase, base: BaseCase) -> None:
    draw = Seeded(case, case.likes[1], 0)
    epsilon, w = draw.point((5,)), draw.point((5,))
    e = case.group.identity(draw.like)
    epsilon = base.base.sample(epsilon.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(gauss_newton(case.group, base.base, e, epsilon, w, 3.0).shift, w.mean(0), SAME_OPERATIONS)


def test_diagonal_triangular_and_kronecker_by_hand() -> None:
    """κ·A²·ĝ²; tril(w(κw)ᵀ); tril(ŴŴᵀ) and tril(ŴᵀŴ)."""
    generator = torch.Generator().manual_seed(0)
    W, epsilon = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)
    base, kernel = Laplace(0.8), 0.8**2 + 0.8 * epsilon.abs()
    diagonal = gauss_newton(DiagonalAffine(), base, DiagonalAffine().identity(W), epsilon, W, 2.0)
    torch.testing.assert_close(diagonal.log_scale, 2 * kernel * W.square())
    triangular = gauss_newton(TriangularAffine(), base, TriangularAffine().identity(W[0]), epsilon[0], W[0], 2.0)
    torch.testing.assert_close(triangular.lower, (2 * torch.outer(W[0], kernel[0] * W[0])).tril(-1))
    kronecker = gauss_newton(Kronecker(), Normal(0.5), Kronecker().identity(W), epsilon, W, 4.0)
    torch.testing.assert_close(kronecker.left_lower, (W @ W.mT).tril(-1))
    torch.testing.assert_close(kronecker.right_lower, (W.mT @ W).tril(-1))
    columns = W.square().sum(0)
    torch.testing.assert_close(kronecker.right_log_diagonal, columns - columns.mean())


# The prior.


@every_base
@every_group
def test_the_prior_needs_no_samples(case: GroupCase, base: BaseCase) -> None:
    """Two points for each coordinate have the moments of the base, which is all a quadratic sees."""
    group, like, precision, centre = case.group, case.likes[1], 2.5, 0.3
    g, e = Seeded(case, like, 1).element(), group.identity(like)
    P = like.numel()
    points = torch.eye(P, dtype=torch.float64).reshape(P, *like.shape) * math.sqrt(P * base.base.variance)
    theta = group.act(g, torch.cat([points, -points]) + base.base.mean)
    expected = group.pullback(g, theta, precision * (theta - centre))
    assert_close(gaussian_prior(group, base.base, g, e, precision, centre), expected, CONJUGATED)


# Left-equivariance.


@every_group
@pytest.mark.parametrize("base", [Normal(0.8), Gumbel()], ids=str)
def test_a_run_moves_with_its_problem(case: GroupCase, base: Base) -> None:
    """As in tests/laws, with this covector, its level included: all it takes are ε and w, which do not move."""
    group, like = case.group, case.likes[1]
    draw = Seeded(case, like, 5, 0.3)
    g, h = draw.element(), draw.element()
    inverse = group.inverse(h)

    def run(start: Any, back: Any) -> list[Any]:
        form, level, e = Fisher().on(group, base, start), initial_level(1, torch.float64), group.identity(like)
        state, path = initial_state(group, form, start), [start]
        for step in range(12):
            epsilon = base.sample((2, *like.shape), generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            theta, transpose = group.act_with_transpose(state.element, epsilon)
            leaf = theta.clone().requires_grad_()
            point = (leaf if back is None else group.act(back, leaf)).flatten(1)
            loss = (point - 0.5).square().sum() + torch.sin(point.sum(-1)).sum()
            w = transpose(torch.autograd.grad(loss, leaf)[0])
            level = observe(level, *(t.reshape(1) for t in traces(base, epsilon, w, 2)), 0.9, 2)
            covector = gauss_newton(group, base, e, epsilon, w, ratio(level))
            covector = map_blocks(lambda c, d: c - 0.3 * d, covector, group.divergence(e, epsilon))
            state = update(group, form, state, covector, lr=0.05, momentum=0.5, max_step=0.2).state
            path.append(state.element)
        return path

    original, moved = run(g, None), run(group.compose(h, g), inverse)
    # Rounding of some 1e-15 a step, magnified by the loss's curvature.
    for ours, theirs in zip(moved, original, strict=True):
        assert_close(ours, group.compose(h, theirs), 1e-9)
    assert float(flattened(plus(original[-1], original[0], -1.0)).abs().max()) > 0.05


# The level.


def test_it_finds_the_batch_size() -> None:
    """Well-specified regression near its optimum with a narrow posterior: c = n, from the gradients of batches alone."""
    n, P, N, steps = 8, 40, 4000, 1500
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, P, generator=generator, dtype=torch.float64)
    y = torch.randn(N, generator=generator, dtype=torch.float64)  # the best θ is 0 up to 1/√N
    base, scale = Laplace(), 0.02
    level = initial_level(1, torch.float64)
    for step in range(steps):
        epsilon = base.sample((P,), generator=generator, dtype=torch.float64)
        rows = torch.randint(N, (n,), generator=generator)
        w = scale * x[rows].mT @ (x[rows] @ (scale * epsilon) - y[rows]) / n
        level = observe(level, *(t.reshape(1) for t in traces(base, epsilon, w)), 1 - 1 / (step + 1))
    assert level.draws == pytest.approx(steps)
    # By its own account: s = 1/√(K·b). The spread of θ adds 2·P·scale² = 3 % to the squares, and lowers c as much.
    deviation = float((level.draws * level.squares).rsqrt())
    assert deviation < 0.15 * n
    assert float(ratio(level)) == pytest.approx(n, abs=4 * deviation + 0.06 * n)


def known(exact: list[float], squares: list[float], draws: float) -> Level:
    return Level(torch.tensor(exact, dtype=torch.float64), torch.tensor(squares, dtype=torch.float64), 1.0, 1 / draws)


def test_small_tensors_borrow_and_large_ones_speak_for_themselves() -> None:
    """Three tensors: the model's level is 2, a large one's 3, and that of a small one is noise of −2."""
    c = ratio(known([1800.0, 300.0, -2e-5], [950.0, 100.0, 1e-5], 100.0))
    pooled = 2100 / 1050
    assert float(c[1]) == pytest.approx(3.0, rel=1e-3)
    assert float(c[2]) == pytest.approx(pooled, rel=0.01)
    alone = ratio(known([-2e-5], [1e-5], 100.0))
    assert float(alone) > 0


@pytest.mark.parametrize(
    ("exact", "squares"),
    [
        ([-5.0, 1.0], [1.0, 2.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e30, 1.0], [1e-30, 1.0]),
        ([-1e9, -1.0], [1e-3, 1e-20]),
        ([0.0], [1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_positive_and_finite_whatever_came(exact: list[float], squares: list[float], dtype: torch.dtype) -> None:
    for draws in (1.0, 1e4):
        level = known(exact, squares, draws)
        c = ratio(level._replace(exact=level.exact.to(dtype), squares=level.squares.to(dtype)))
        assert bool((torch.isfinite(c) & (c > 0)).all()), c
        assert float(c.max() / c.min()) <= 64 * (1 + 1e-5)
    assert bool((ratio(initial_level(2)) == 1).all())


def test_the_mean_of_a_positive_normal() -> None:
    """Against scipy, on both sides of the asymptotic series; it is 0.798·s at 0, and m far above."""
    from scipy import stats

    from liebayes.rule.curvature import _positive_mean

    for z in (-50.0, -12.0, -10.001, -9.999, -3.0, 0.0, 2.0, 40.0):
        expected = stats.truncnorm(-z, math.inf, loc=z).mean() if z > -12 else (1 / -z) * (1 - 2 / z**2 + 10 / z**4)
        assert _positive_mean(2 * z, 2.0) == pytest.approx(2 * expected, rel=1e-3)


def test_a_step_that_is_not_finite_is_passed_over() -> None:
    level = observe(initial_level(2, torch.float64), torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0]), 0.5)
    after = observe(level, torch.tensor([math.nan, 3.0]), torch.tensor([1.0, 1.0]), 0.5)
    torch.testing.assert_close(after.exact / after.weight, torch.tensor([2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(after.squares / after.weight, torch.tensor([1.0, 1.0], dtype=torch.float64))


def test_running_means_have_no_bias_at_the_start() -> None:
    level = initial_level(1, torch.float64)
    for value in (4.0, 1.0, 1.0):
        level = observe(level, torch.tensor([value]), torch.tensor([2 * value]), 0.9)
    expected = (0.81 * 4 + 0.9 + 1) / (0.81 + 0.9 + 1)
    assert float(level.exact / level.weight) == pytest.approx(expected)
    assert float(level.squares / level.weight) == pytest.approx(2 * expected)
    assert level.draws == pytest.approx((0.81 + 0.9 + 1) ** 2 / (0.81**2 + 0.9**2 + 1))


# What has none.


def test_what_has_no_such_covector_is_refused() -> None:
    one = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs an affine action"):
        gauss_newton(SinhShift(), Normal(), SinhShift().identity(one), one, one, 1.0)
    with pytest.raises(ValueError, match=r"Cauchy.*Stein kernel"):
        gauss_newton(DiagonalAffine(), Cauchy(), DiagonalAffine().identity(one), one, one, 1.0)
