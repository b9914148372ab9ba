"""The Kronecker group against dense ones: L ⊗ R on the coordinates of a matrix, row by row.

X ⊗ 1 + 1 ⊗ Y is lower triangular where X and Y are, so the group is a subgroup of `TriangularAffine` on those coordinates;
its forms there are the oracle of the forms here.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles.embedding import embed, embed_vector
from scipy.linalg import expm
from support.elements import Seeded, assert_close, basis, flattened, pairing, plus, scaled
from support.registry import BASES, GROUPS, BaseCase, GroupCase
from torch.utils import _pytree as pytree

from liebayes import Absorbed, Adaptive, Family
from liebayes.bases import Cauchy, Laplace, Normal, Uniform
from liebayes.groups import Kronecker, KroneckerShift, TriangularAffine, TriangularShift
from liebayes.rule import Metric, differential, initial_state, update

KRONECKER = [case for case in GROUPS if isinstance(case.group, Kronecker)]
WITH_METRIC = [base for base in BASES if base.fisher_shift and base.fisher_scale and base.variance and not base.half_line]
every_kind = pytest.mark.parametrize("case", KRONECKER, ids=str)
LIKE = torch.zeros(2, 3, dtype=torch.float64)


def dense(X: Any) -> TriangularShift:
    """A vector of the algebra on the coordinates in a row."""
    embedded = torch.from_numpy(embed_vector(X))
    matrix = embedded[:-1, :-1]
    return TriangularShift(matrix.diagonal(), matrix.tril(-1), embedded[:-1, -1])


@every_kind
@pytest.mark.parametrize("base", WITH_METRIC, ids=str)
def test_fisher_form_is_that_of_the_triangular_group(case: GroupCase, base: BaseCase) -> None:
    directions = basis(case, LIKE)
    ours = [case.group.flat(X, base.base) for X in directions]
    theirs = [TriangularAffine().flat(dense(X), base.base) for X in directions]
    for covector, expected in zip(ours, theirs, strict=True):
        for Y in directions:
            # Sums of products of some ten numbers.
            assert float(pairing(covector, Y)) == pytest.approx(float(pairing(expected, dense(Y))), rel=1e-11, abs=1e-11)


def test_fisher_form_of_a_normal_base() -> None:
    """n(‖X‖² + tr X²) + m(‖Y‖² + tr Y²) + 4·tr X·tr Y + ‖Z‖²/σ², here with any trace of Y."""
    m, n, sigma = 2, 3, 0.6
    generator = torch.Generator().manual_seed(0)
    x, y, Z = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((m, m), (n, n), (m, n)))
    x, y = x.tril(), y.tril()
    X = KroneckerShift(x.diagonal(), x.tril(-1), y.diagonal(), y.tril(-1), Z)
    form = n * (x.square().sum() + (x @ x).trace()) + m * (y.square().sum() + (y @ y).trace())
    form = form + 4 * x.trace() * y.trace() + Z.square().sum() / sigma**2
    flat = Kronecker().flat(X, Normal(sigma))
    # The covector has lost its trace on the right, and with it tr Y·(m·c_X·mean(y) + c_X·tr X).
    lost = y.trace() * (2 * m * y.trace() / n + 2 * x.trace())
    torch.testing.assert_close(pairing(flat, X) + lost, form)


@every_kind
@pytest.mark.parametrize("base", [Cauchy(), Uniform()], ids=str)
def test_bases_without_a_metric_are_refused(case: GroupCase, base: Any) -> None:
    with pytest.raises(ValueError, match=r"Cauchy.*no variance|no finite|Uniform.*no Fisher metric"):
        case.group.sharp(case.group.identity(LIKE), base)


# The exponential map.


@pytest.mark.parametrize("size", [1e-8, 1e-3, 0.1, 1.0, 4.0])
@every_kind
def test_exp_at_every_distance(case: GroupCase, size: float) -> None:
    """Against scipy on the dense matrix; relative to the size of the step, so that its shift is exact near 0 too."""
    X = Seeded(case, LIKE, 3, size).vector()
    found, expected = embed(case.group.exp(X)), expm(embed_vector(X))
    off = ~np.eye(len(expected), dtype=bool)  # off the diagonal everything is of the order of the step
    condition = math.exp(2 * size)
    assert_allclose(found[off], expected[off], rtol=0, atol=1e-12 * size * condition * max(1.0, np.abs(expected).max()))
    assert_allclose(np.diag(found), np.diag(expected), rtol=1e-12 * condition)


def test_exp_in_single_precision() -> None:
    case = KRONECKER[0]
    for size in (1e-6, 0.3, 3.0):
        X = Seeded(case, LIKE, 3, size).vector()
        narrow = case.group.exp(pytree.tree_map(torch.Tensor.float, X))
        # 2⁻²⁴ for each of some fifty roundings, and the step's own condition number.
        assert_close(
            pytree.tree_map(torch.Tensor.double, narrow), case.group.exp(X), 50 * 2**-24 * min(1.0, size) * math.exp(size)
        )


# The gauge.


def test_a_trace_on_the_right_moves_to_the_left() -> None:
    """(X, Y) and (X + c, Y − c) are one action, and one element."""
    case = KRONECKER[0]
    X = Seeded(case, LIKE, 5).vector()
    moved = X._replace(left_log_diagonal=X.left_log_diagonal + 0.3, right_log_diagonal=X.right_log_diagonal - 0.3)
    assert_close(case.group.exp(moved), case.group.exp(X), 1e-13)


@pytest.mark.parametrize("metric", [Absorbed(), Adaptive(0.9)], ids=str)
def test_steps_keep_the_gauge(metric: Metric) -> None:
    """det R stays 1 over a run, also where a metric makes steps with a trace on the right."""
    group = Kronecker()
    like = LIKE.float()
    form = metric.on(group, Normal(), group.identity(like))
    state = initial_state(group, form, group.identity(like))
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        epsilon, gradient = torch.randn(2, 2, 3, generator=generator)
        covector = differential(group, state.element, group.act(state.element, epsilon), gradient, 0.1)
        state = update(group, form, state, covector, lr=0.02, max_step=0.2).state
    # A sum of 300 roundings of 2⁻²⁴ for each of three numbers.
    assert abs(float(state.element.right_log_diagonal.sum())) < 300 * 3 * 2**-23
    assert float(flattened(plus(state.element, group.identity(like), -1.0)).abs().max()) > 0.1


@every_kind
def test_retract_agrees_with_exp_to_second_order(case: GroupCase) -> None:
    """Differences fall as t² (a log–log slope of 2), and what is left is in the gauge."""
    draw = Seeded(case, LIKE, 4)
    g, X = draw.element(), draw.vector()

    def difference(t: float) -> float:
        step = scaled(X, t)
        return float(flattened(plus(case.group.retract(g, step), case.group.move(g, step, 1.0), -1.0)).norm())

    slope = math.log2(difference(2e-3) / difference(1e-3))
    assert slope == pytest.approx(2, abs=0.02)
    assert abs(float(case.group.retract(g, X).right_log_diagonal.sum() - g.right_log_diagonal.sum())) < 1e-14 or (
        g.left_log_diagonal.numel() == 0
    )


# Shapes.


@every_kind
def test_a_batch_is_one_after_another(case: GroupCase) -> None:
    group = case.group
    draws = [Seeded(case, LIKE, seed) for seed in range(3)]
    elements, vectors = [d.element() for d in draws], [d.vector() for d in draws]
    stack = lambda parts: pytree.tree_map(lambda *ts: torch.stack(ts), *parts)  # noqa: E731
    g, X = stack(elements), stack(vectors)
    theta = torch.randn(4, 3, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert group.event_shape(g) == (3, 2, 3)
    each = range(3)
    assert_close(group.act(g, theta), torch.stack([group.act(elements[k], theta[:, k]) for k in each], 1), 1e-13)
    back = [group.act_inverse(elements[k], theta[:, k]) for k in each]
    assert_close(group.act_inverse(g, theta), torch.stack(back, 1), 1e-12)
    assert_close(group.compose(g, X), stack([group.compose(elements[k], vectors[k]) for k in each]), 1e-13)
    assert_close(group.inverse(g), stack([group.inverse(h) for h in elements]), 1e-12)
    assert_close(group.exp(X), stack([group.exp(x) for x in vectors]), 1e-13)
    assert_close(group.retract(g, X), stack([group.retract(elements[k], vectors[k]) for k in each]), 1e-13)
    assert_close(group.adjoint(g, X), stack([group.adjoint(elements[k], vectors[k]) for k in each]), 1e-12)
    pulled = [group.pullback(elements[k], theta[:, k], theta[:, k].cos()) for k in each]
    assert_close(group.pullback(g, theta, theta.cos()), stack(pulled), 1e-12)
    base = BASES[7].base  # a Gumbel, which has a mean
    assert_close(group.flat(X, base), stack([group.flat(x, base) for x in vectors]), 1e-12)
    assert_close(group.sharp(X, base), stack([group.sharp(x, base) for x in vectors]), 1e-12)
    assert_close(group.variance(g, 2.0), stack([group.variance(h, 2.0) for h in elements]), 1e-13)
    assert_close(group.log_jacobian(g, theta), torch.stack([group.log_jacobian(h, theta) for h in elements]).sum(), 1e-13)


def test_a_convolution_is_a_matrix() -> None:
    group, shape = Kronecker(), (2, 3, 2, 2)
    case = KRONECKER[0]
    g = Seeded(case, torch.zeros(2, 12, dtype=torch.float64), 0).element()
    convolution = g._replace(shift=g.shift.reshape(shape))
    theta = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat = theta.reshape(5, 2, 12)
    assert group.event_shape(convolution) == shape
    assert_close(group.act(convolution, theta), group.act(g, flat).reshape(theta.shape), 0.0)
    ours, theirs = group.pullback(convolution, theta, theta.cos()), group.pullback(g, flat, flat.cos())
    assert_close(ours, theirs._replace(shift=theirs.shift.reshape(shape)), 1e-14)
    assert [block.shape for block in group.identity(theta[0])] == [block.shape for block in convolution]


def test_a_vector_is_the_triangular_group() -> None:
    """One column: L alone is left, and every form is that of `TriangularAffine`."""
    group, other, case = Kronecker(), TriangularAffine(), KRONECKER[0]
    like = torch.zeros(3, dtype=torch.float64)
    draw = Seeded(case, like, 2)
    g, X, base = draw.element(), draw.vector(), Laplace(0.7)

    def triangular(h: KroneckerShift) -> TriangularShift:
        return TriangularShift(h.left_log_diagonal, h.left_lower, h.shift)

    assert_close(triangular(group.sharp(X, base)), other.sharp(triangular(X), base), 1e-13)
    assert_close(triangular(group.exp(X)), other.exp(triangular(X)), 1e-11)
    q, p = Family(group, base, g), Family(other, base, triangular(g))
    theta = q.sample((4,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(q.log_prob(theta), p.log_prob(theta))
    torch.testing.assert_close(q.covariance, p.covariance)


def test_long_sides_take_a_diagonal() -> None:
    e = Kronecker(max_side=4).identity(torch.zeros(3, 5))
    assert [tuple(block.shape) for block in e] == [(3,), (3, 3), (5,), (0, 0), (3, 5)]
    e = Kronecker("diagonal", "none").identity(torch.zeros(3, 5))
    assert [tuple(block.shape) for block in e] == [(3,), (0, 0), (0,), (0, 0), (3, 5)]


def test_blocks_are_the_largest_that_divide_a_side() -> None:
    e = Kronecker(block=4).identity(torch.zeros(6, 7))
    assert [tuple(block.shape) for block in e] == [(6,), (2, 3, 3), (7,), (0, 0), (6, 7)]  # 7 is prime: blocks of 1
    e = Kronecker(block=7).identity(torch.zeros(6, 7))
    assert [tuple(block.shape) for block in e] == [(6,), (6, 6), (7,), (7, 7), (6, 7)]


def test_a_block_diagonal_factor_is_a_triangular_one_with_zeros() -> None:
    """Steps stay in the subgroup: with the curvature's own blocks, both groups move to the same element."""
    shape, generator = (4, 6), torch.Generator().manual_seed(0)
    blocks, whole = Kronecker(block=2), Kronecker()
    g = Seeded(GroupCase("", blocks, ()), torch.zeros(shape, dtype=torch.float64), 0).element()

    def dense_factors(h: KroneckerShift) -> KroneckerShift:
        left, right = h.left.matrix.tril(-1), h.right.matrix.tril(-1)
        return KroneckerShift(h.left_log_diagonal, left, h.right_log_diagonal, right, h.shift)

    W = torch.randn(shape, generator=generator, dtype=torch.float64)
    assert_close(blocks.act(g, W), whole.act(dense_factors(g), W), 1e-13)
    w = torch.randn(9, *shape, generator=generator, dtype=torch.float64)
    S = blocks.pullback_at_identity(g, w, w)
    outside = KroneckerShift(*(torch.block_diag(*x) if x.ndim == 3 else x for x in S[:-1]), S.shift)
    moved = blocks.average_precision(g, S, 0.3)
    assert_close(dense_factors(moved), whole.average_precision(dense_factors(g), outside, 0.3), 1e-12)


@every_kind
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_start(case: GroupCase, scale: float) -> None:
    point = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = Family(case.group, Normal(), case.group.at(point, scale))
    torch.testing.assert_close(q.mean, point)
    torch.testing.assert_close(q.stddev, torch.full_like(point, scale))


# The optimum of a quadratic loss.


@pytest.mark.parametrize("base", WITH_METRIC, ids=str)
def test_correlated_quadratic_loss(base: BaseCase) -> None:
    """ℓ = ½·tr(H(W − C)K(W − C)ᵀ): LLᵀ ⊗ RRᵀ·Var ε = τ·H⁻¹ ⊗ K⁻¹. Two points for each coordinate have the base's moments."""
    group, tau = Kronecker(), 0.4
    H = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    K = torch.tensor([[1.5, 0.2, 0.1], [0.2, 0.7, -0.3], [0.1, -0.3, 1.1]], dtype=torch.float64)
    C = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    L, R = (torch.linalg.cholesky(torch.linalg.inv(M)) for M in (H, K))
    unit = math.exp(float(R.diagonal().log().mean()))
    L, R = L * unit * math.sqrt(tau / base.base.variance), R / unit
    noise = torch.eye(6, dtype=torch.float64).reshape(6, 2, 3) * math.sqrt(6 * base.base.variance)
    epsilon = torch.cat([noise, -noise]) + base.base.mean
    shift = C - L @ torch.full((2, 3), base.base.mean, dtype=torch.float64) @ R.mT
    best = KroneckerShift(L.diagonal().log(), L.tril(-1), R.diagonal().log(), R.tril(-1), shift)

    def covector(g: KroneckerShift) -> torch.Tensor:
        theta = group.act(g, epsilon)
        return flattened(differential(group, g, theta, H @ (theta - C) @ K, tau))

    assert float(covector(best).abs().max()) < 1e-12
    X = scaled(Seeded(KRONECKER[0], LIKE, 0).vector(), 0.1)
    assert float(covector(group.compose(best, group.exp(X))).abs().max()) > 1e-2


def test_kl_divergence_is_that_of_multivariate_normals() -> None:
    q, p = (Family(Kronecker(), Normal(1.3), Seeded(KRONECKER[0], LIKE, seed).element()) for seed in (0, 1))
    q_dense, p_dense = (
        torch.distributions.MultivariateNormal(G[:-1, -1], 1.69 * G[:-1, :-1] @ G[:-1, :-1].mT)
        for G in (torch.from_numpy(embed(q.element)), torch.from_numpy(embed(p.element)))
    )
    torch.testing.assert_close(q.kl(p), torch.distributions.kl_divergence(q_dense, p_dense))


# Bad input.


def test_what_is_no_kronecker_group_is_refused() -> None:
    with pytest.raises(ValueError, match="left factor must be one of 'triangular', 'diagonal', 'none', but got 'full'"):
        Kronecker("full")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Additive"):
        Kronecker("none", "none")
    with pytest.raises(ValueError, match="max_side"):
        Kronecker(max_side=-1)
    with pytest.raises(ValueError, match="block, the most rows of a triangular block, must be an integer ≥ 1 or None"):
        Kronecker(block=0)
    with pytest.raises(ValueError, match="got a scalar"):
        Kronecker().at(torch.tensor(1.0))
    with pytest.raises(ValueError, match="LLᵀ ⊗ RRᵀ"):
        _ = Family(Kronecker(), Normal(), Kronecker().at(torch.zeros(2, 2))).covariance


def test_files_know_it_by_its_text() -> None:
    assert repr(Kronecker("diagonal")) == "Kronecker(left='diagonal', right='triangular', max_side=1024, block=None)"
    assert Kronecker("diagonal") == Kronecker("diagonal") != Kronecker()
