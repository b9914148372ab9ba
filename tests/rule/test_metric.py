"""The Fisher metric of every (group, smooth base) pair against a Gram matrix of its own (3.5, A.1, A.3–A.5)."""

import math
from typing import Any

import pytest
import torch
from oracles.expectation import QUADRATURE, rule_of
from support.elements import (
    ROUNDING,
    SAME_OPERATIONS,
    Seeded,
    assert_close,
    basis,
    flattened,
    pairing,
    plus,
    scaled,
)
from support.registry import BASES, GROUPS, PAIRS, BaseCase, GroupCase, singular
from support.user_defined import IsotropicAffine, PlainDiagonalAffine
from torch.utils import _pytree as pytree

from liebayes import Absorbed, Adaptive, Family, Fisher, bases
from liebayes.groups import Additive, Affine, DiagonalAffine, MatrixShift, Multiplicative, Product, TriangularAffine
from liebayes.rule import initial_state, update


@pytest.mark.parametrize("base", [bases.Uniform(1e6), bases.Uniform(1e-6), bases.Exponential(1e8)], ids=str)
def test_edges_are_found_in_any_units(base: bases.Base) -> None:
    with pytest.raises(ValueError, match="no Fisher metric under shifts"):
        Fisher().on(Additive(), base, Additive().at(torch.zeros(2)))


@pytest.mark.parametrize(("df", "refused"), [(50, False), (200, True)])
def test_a_nearly_singular_metric_is_refused(df: float, refused: bool) -> None:
    group, base = Affine(), bases.StudentT(df)
    g = group.at(torch.zeros(3))
    if not refused:
        Fisher().on(group, base, g).sharp(g)
        return
    with pytest.raises(ValueError, match=r"singular, or nearly so.*TriangularAffine"):
        Fisher().on(group, base, g)


def test_a_product_has_a_metric_for_each_part() -> None:
    group = Product(Additive(), Additive())
    with pytest.raises(ValueError, match="Every part of Product"):
        Fisher().on(group, bases.Normal(), (Additive().at(torch.zeros(2)), Additive().at(torch.zeros(2))))


INVERTIBLE = [pair for pair in PAIRS if not singular(*pair)]


def flat(group: GroupCase, base: BaseCase, g: Any, X: Any) -> Any:
    """ω(·, X), also where the metric is singular and `Fisher().on` refuses the pair."""
    return group.group.flat(X, base.base) if singular(group, base) else Fisher().on(group.group, base.base, g).flat(X)


def relative_tangents(group: GroupCase, base: bases.Base, g: Any, theta: torch.Tensor, directions: list[Any]) -> torch.Tensor:
    """r_X = d/dt log q_{g·exp(tX)}(θ), by central differences of the density: one row for each direction."""
    t, rows = 1e-5, []
    for X in directions:
        ahead, behind = (
            Family(group.group, base, group.group.compose(g, group.group.exp(scaled(X, s)))).log_prob(theta) for s in (t, -t)
        )
        rows.append((ahead - behind) / (2 * t))
    return torch.stack(rows)


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=str)
def test_metric_is_the_gram_matrix_of_the_tangents(group: GroupCase, base: BaseCase) -> None:
    """E[r_X r_Y] under q_g away from the identity, where ours is taken; by quadrature in one or two dimensions."""
    like, epsilon, w = rule_of(group, base)
    identity = group.group.identity(like)
    g = Seeded(group, like, 1, 0.5).element()
    directions = basis(group, like)
    rows = relative_tangents(group, base.base, g, group.group.act(g, epsilon), directions)
    gram = (rows * w) @ rows.mT
    covectors = [flat(group, base, identity, X) for X in directions]
    ours = torch.stack([torch.stack([pairing(covector, Y) for Y in directions]) for covector in covectors])
    # Differences of step 1e-5: 1e-10 of truncation, rounding over the step of log-densities up to 1e3 in rare tails.
    tolerance = torch.full_like(gram, 2e-6 * float(gram.abs().max()))
    if isinstance(group.group, IsotropicAffine):
        # Its metric is a mean over 65,536 draws: a CLT bound from the fourth moments.
        squares = (rows.square() * w) @ rows.square().mT
        tolerance = 5 * ((squares - gram.square()).clamp_min(0) / 65536).sqrt() + tolerance
    assert bool(((ours - gram).abs() <= tolerance).all()), f"\n{ours}\n{gram}"


@pytest.mark.parametrize(("group", "base"), INVERTIBLE, ids=str)
def test_flat_and_sharp_are_inverse(group: GroupCase, base: BaseCase) -> None:
    for seed, like in enumerate(group.likes):
        g = group.group.identity(like)
        form = Fisher().on(group.group, base.base, g)
        X = Seeded(group, like, seed).vector()
        # Rounding times the condition number of the metric, below 1e5.
        assert_close(form.sharp(form.flat(X)), X, 1e-10)
        assert_close(form.flat(form.sharp(X)), X, 1e-10)


@pytest.mark.parametrize(("group", "base"), INVERTIBLE, ids=str)
def test_metric_is_symmetric_and_positive(group: GroupCase, base: BaseCase) -> None:
    like = group.likes[1]
    form = Fisher().on(group.group, base.base, group.group.identity(like))
    draw = Seeded(group, like, 3)
    X, Y = draw.vector(), draw.vector()
    assert float(pairing(form.flat(X), Y)) == pytest.approx(float(pairing(form.flat(Y), X)), rel=ROUNDING, abs=ROUNDING)
    assert float(pairing(form.flat(X), X)) > 0


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize("base", [bases.Gumbel(), bases.Gumbel(0.6), bases.Laplace(0.5)], ids=str)
def test_matrix_groups_against_monte_carlo(group: Affine | TriangularAffine, base: bases.Base) -> None:
    """Three dimensions, away from the identity, for a base with a mean: every pair of directions within its CLT bound."""
    case = next(c for c in GROUPS if c.group == group)
    like = torch.zeros(3, dtype=torch.float64)
    g = Seeded(case, like, 2).element()
    directions = basis(case, like)
    count = 200_000
    theta = Family(group, base, g).sample((count,), torch.Generator().manual_seed(0))
    rows = relative_tangents(case, base, g, theta, directions)
    gram = rows @ rows.mT / count
    spread = ((rows.square() @ rows.square().mT / count - gram.square()) / count).sqrt()
    ours = torch.stack([torch.stack([pairing(group.flat(X, base), Y) for Y in directions]) for X in directions])
    # A hundred and more entries at once: six standard errors.
    assert float(((ours - gram).abs() / (6 * spread + 1e-9)).max()) < 1


def test_gumbel_couples_scale_and_shift() -> None:
    """The numbers of the issue, through flat: 1.82368 and 1 on the diagonal, −0.42278 off it."""
    group = DiagonalAffine()
    one = torch.ones((), dtype=torch.float64)
    e = group.identity(one)
    form = Fisher().on(group, bases.Gumbel(1), e)
    scale, shift = form.flat(e._replace(log_scale=one)), form.flat(e._replace(shift=one))
    matrix = [float(scale.log_scale), float(scale.shift), float(shift.log_scale), float(shift.shift)]
    assert matrix == pytest.approx([1.82368, -0.42278, -0.42278, 1.0], abs=5e-6)  # as many digits as are printed


def test_quadrature_block_equals_the_closed_one() -> None:
    """A user's copy of DiagonalAffine meets the same metric by quadrature, whatever the width of the base."""
    like = torch.zeros(2, dtype=torch.float64)
    for base in (
        bases.Normal(),
        bases.Normal(1e-3),
        bases.Normal(1e3),
        bases.Gumbel(0.7),
        bases.Cauchy(2.0),
        bases.StudentT(4, 0.5),
    ):
        plain, closed = PlainDiagonalAffine(), DiagonalAffine()
        form = Fisher().on(plain, base, plain.identity(like))
        X = Seeded(next(case for case in GROUPS if case.group == plain), like, 0).vector()
        theirs = closed.flat(closed.identity(like)._replace(log_scale=X.log_scale, shift=X.shift), base)
        torch.testing.assert_close(tuple(form.flat(X)), tuple(theirs), rtol=10 * QUADRATURE, atol=QUADRATURE)


# What has no metric.


@pytest.mark.parametrize("base", [bases.Normal(), bases.Normal(0.3)], ids=str)
def test_rotations_of_a_normal_are_refused(base: bases.Base) -> None:
    group = Affine()
    with pytest.raises(ValueError, match=r"singular.*rotations.*TriangularAffine"):
        Fisher().on(group, base, group.identity(torch.zeros(3)))
    Fisher().on(group, base, group.identity(torch.zeros(1)))  # one dimension has no rotations


def test_rotations_of_a_normal_have_no_length() -> None:
    group = Affine()
    rotation = MatrixShift(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    assert float(pairing(group.flat(rotation, bases.Normal(0.3)), rotation)) == pytest.approx(0, abs=ROUNDING)
    assert float(pairing(group.flat(rotation, bases.Laplace()), rotation)) > 1


class HiddenRotations(Affine):
    """The affine group as a user would write it, without closed metric."""

    def flat(self, X: MatrixShift, base: bases.Base) -> MatrixShift:
        raise NotImplementedError

    def sharp(self, covector: MatrixShift, base: bases.Base) -> MatrixShift:
        raise NotImplementedError


def test_a_singular_gram_matrix_names_the_direction() -> None:
    group = HiddenRotations()
    e = group.identity(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="singular: it vanishes in the direction") as error:
        Fisher().on(group, bases.Normal(), e)
    assert "MatrixShift" in str(error.value)
    form, closed = Fisher().on(group, bases.Gumbel(), e), Fisher().on(Affine(), bases.Gumbel(), e)
    X = Seeded(GROUPS[3], torch.zeros(2, dtype=torch.float64), 0).vector()
    error = flattened(plus(form.flat(X), closed.flat(X), -1.0)).abs().max()
    assert float(error) < 0.1 * float(flattened(closed.flat(X)).abs().max())


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize("base", [bases.Cauchy(), bases.StudentT(2), bases.StudentT(1.5)], ids=str)
def test_matrix_groups_need_a_variance(group: Affine | TriangularAffine, base: bases.Base) -> None:
    with pytest.raises(ValueError, match=r"no variance"):
        Fisher().on(group, base, group.identity(torch.zeros(2)))


@pytest.mark.parametrize(
    ("group", "base"),
    [
        (Additive(), bases.Uniform()),
        (DiagonalAffine(), bases.Uniform(0.5)),
        (TriangularAffine(), bases.Uniform()),
        (Affine(), bases.Uniform()),
        (PlainDiagonalAffine(), bases.Uniform()),
        (IsotropicAffine(), bases.Uniform()),
        (Additive(), bases.Exponential()),
        (DiagonalAffine(), bases.Exponential()),
        (PlainDiagonalAffine(), bases.Exponential()),
        (Multiplicative(), bases.from_distribution(torch.distributions.Uniform(0.0, 1.0))),
    ],
    ids=str,
)
def test_edges_are_refused_by_name(group: Any, base: bases.Base) -> None:
    with pytest.raises(ValueError, match=r"(Uniform|Exponential).*no Fisher metric.*edge.*Absorbed"):
        Fisher().on(group, base, group.identity(torch.zeros(2)))


def test_rayleigh_is_refused_under_shifts() -> None:
    with pytest.raises(ValueError, match=r"Rayleigh.*no finite"):
        Fisher().on(Additive(), bases.Rayleigh(), Additive().identity(torch.zeros(2)))


def test_dirac_is_refused() -> None:
    with pytest.raises(ValueError, match="Dirac has no Fisher metric"):
        Fisher().on(Additive(), bases.Dirac(), Additive().identity(torch.zeros(2)))


# The other metrics.


@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_absorbed_is_the_identity(case: GroupCase) -> None:
    for base in (bases.Uniform(), bases.Dirac()):
        form = Absorbed().on(case.group, base, case.group.identity(case.likes[0]))
        X = Seeded(case, case.likes[0], 0).vector()
        assert_close(form.sharp(X), X, 0.0)
        assert_close(form.flat(X), X, 0.0)


@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_adaptive_divides_by_the_root_mean_square(case: GroupCase) -> None:
    """After n covectors c₁…c_n: v = Σ β^(n−k)c_k² / Σ β^(n−k), and c♯ = c/√v."""
    like, beta = case.likes[0], 0.9
    group = case.group
    form = Adaptive(beta).on(group, bases.Normal(), group.identity(like))
    draw = Seeded(case, like, 1)
    covectors = [pytree.tree_map(lambda x: x + 3, draw.vector()) for _ in range(5)]
    state = form.start(group.identity(like))
    for covector in covectors:
        state = form.observe(state, covector)
    weights = [beta ** (4 - k) for k in range(5)]
    total = pytree.tree_map(lambda *cs: sum(w * c * c for w, c in zip(weights, cs, strict=True)) / sum(weights), *covectors)
    expected = pytree.tree_map(lambda c, v: c / v.sqrt(), covectors[-1], total)
    assert_close(form.sharp(covectors[-1], state), expected)
    assert_close(form.flat(form.sharp(covectors[0], state), state), covectors[0], SAME_OPERATIONS)


def test_adaptive_moves_by_the_step_size_at_first() -> None:
    group = Multiplicative()
    g = group.identity(torch.zeros(3, dtype=torch.float64))
    form = Adaptive().on(group, bases.Rayleigh(), g)
    covector = g._replace(log_scale=torch.tensor([1e-8, -5.0, 1e6], dtype=torch.float64))
    taken = update(group, form, initial_state(group, form, g), covector, lr=0.03)
    torch.testing.assert_close(taken.state.element.log_scale, -0.03 * covector.log_scale.sign(), rtol=1e-3, atol=0)


def test_adaptive_leaves_a_coordinate_without_gradient() -> None:
    group = Multiplicative()
    g = group.identity(torch.zeros(2))
    form = Adaptive().on(group, bases.Rayleigh(), g)
    taken = update(group, form, initial_state(group, form, g), group.zero(g), lr=0.1)
    assert torch.equal(taken.state.element.log_scale, torch.zeros(2))


@pytest.mark.parametrize("beta", [-0.1, 1.0, math.nan])
def test_a_bad_beta_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        Adaptive(beta)


def test_every_smooth_base_is_covered() -> None:
    """The pairs are made by a rule; this says what must come out of it."""
    pairs = {(str(g), str(b)) for g, b in PAIRS}
    assert ("Affine", "Gumbel(0.7)") in pairs
    assert ("TriangularAffine", "Normal") in pairs
    assert ("Multiplicative", "Rayleigh") in pairs
    assert ("SinhShift", "Normal(0.6)") in pairs
    assert {g for g, _ in pairs} == {g.name for g in GROUPS if not g.is_product}
    assert len({b for _, b in pairs}) == len([b for b in BASES if b.fisher_scale])
