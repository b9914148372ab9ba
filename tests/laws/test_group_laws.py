"""The laws of a group, its action and its exponential map, for every group (Sec. 3.1, 3.3)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.elements import (
    CONJUGATED,
    DIFFERENCED,
    SAME_OPERATIONS,
    Drawn,
    assert_close,
    flattened,
    pairing,
    plus,
    scaled,
)
from support.registry import ON_SUPPORTS_TOO, GroupCase
from torch.utils import _pytree as pytree

every_group = pytest.mark.parametrize("case", ON_SUPPORTS_TOO, ids=str)
data = st.data()


@every_group
@given(data=data)
def test_composition_is_associative(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, h, k = draw.element(), draw.element(), draw.element()
    assert_close(group.compose(group.compose(g, h), k), group.compose(g, group.compose(h, k)))


@every_group
@given(data=data)
def test_identity_is_neutral(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, e = draw.element(), group.identity(draw.like)
    assert_close(group.compose(g, e), g, 0.0)
    assert_close(group.compose(e, g), g, 0.0)
    theta = draw.point(draw.samples())
    assert_close(group.act(e, theta), theta, case.rounding)


@every_group
@given(data=data)
def test_inverse_undoes(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, e = draw.element(), group.identity(draw.like)
    assert_close(group.compose(g, group.inverse(g)), e)
    assert_close(group.compose(group.inverse(g), g), e)


@every_group
@given(data=data)
def test_action_follows_composition(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, h, theta = draw.element(), draw.element(), draw.point(draw.samples())
    assert_close(group.act(group.compose(g, h), theta), group.act(g, group.act(h, theta)))
    assert_close(group.act(group.inverse(g), group.act(g, theta)), theta)


@every_group
@given(data=data)
def test_samples_are_moved_one_by_one(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, theta = draw.element(), draw.point((3,))
    moved = group.act(g, theta)
    for k in range(3):
        one = group.act(g, pytree.tree_map(lambda t, k=k: t[k], theta))
        assert_close(pytree.tree_map(lambda t, k=k: t[k], moved), one, SAME_OPERATIONS)


@every_group
@given(data=data)
def test_exp_is_a_one_parameter_subgroup(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    X, s, t = draw.vector(), draw.number(-1, 1), draw.number(-1, 1)
    together = group.exp(scaled(X, s + t))
    assert_close(group.compose(group.exp(scaled(X, s)), group.exp(scaled(X, t))), together, case.exp_tolerance)
    assert_close(group.inverse(group.exp(X)), group.exp(scaled(X, -1.0)), case.exp_tolerance)
    assert_close(group.exp(scaled(X, 0.0)), group.identity(draw.like), 0.0)


@every_group
@given(data=data)
def test_exp_leaves_the_identity_along_its_vector(case: GroupCase, data: st.DataObject) -> None:
    """d exp(0) = id: exp(tX) = e + tX up to t²|X|², seen at t = 1e-7, where a wrong factor is 1e7 times the tolerance."""
    draw, group = Drawn(data, case), case.group
    X, e, t = draw.vector(), group.identity(draw.like), 1e-7
    size = float(flattened(X).norm())
    moved = plus(group.exp(scaled(X, t)), e, -1.0)
    error = flattened(plus(moved, X, -t)).abs().max()
    assert float(error) <= t * t * size * (1 + size) + 4e-16


@every_group
@given(data=data)
def test_move_is_composition_with_exp(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, X, t = draw.element(), draw.vector(), draw.data.draw(st.sampled_from([1.0, -0.3, 1e-7, 0.0]))
    assert_close(group.move(g, X, t), group.compose(g, group.exp(scaled(X, t))), SAME_OPERATIONS)


@every_group
@given(data=data)
def test_retract_is_a_step_in_the_group(case: GroupCase, data: st.DataObject) -> None:
    """It starts along its vector, up to t²|X|² as exp does, and left multiplication takes it along."""
    draw, group = Drawn(data, case), case.group
    g, h, X, e, t = draw.element(), draw.element(), draw.vector(), group.identity(draw.like), 1e-7
    size = float(flattened(X).norm())
    error = flattened(plus(plus(group.retract(e, scaled(X, t)), e, -1.0), X, -t)).abs().max()
    assert float(error) <= t * t * size * (1 + size) + 4e-16
    assert_close(group.retract(group.compose(h, g), X), group.compose(h, group.retract(g, X)))


@every_group
@given(data=data)
def test_velocity_is_the_derivative_of_the_action(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    X, theta, t = draw.vector(), draw.point(draw.samples()), 1e-5
    ahead, behind = group.act(group.exp(scaled(X, t)), theta), group.act(group.exp(scaled(X, -t)), theta)
    slope = pytree.tree_map(lambda a, b: (a - b) / (2 * t), ahead, behind)
    assert_close(group.velocity(X, theta), slope, DIFFERENCED)


@every_group
@given(data=data)
def test_adjoint_is_a_homomorphism(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, h, X = draw.element(), draw.element(), draw.vector()
    assert_close(group.adjoint(group.compose(g, h), X), group.adjoint(g, group.adjoint(h, X)), CONJUGATED)


@every_group
@given(data=data)
def test_adjoint_conjugates_exp(case: GroupCase, data: st.DataObject) -> None:
    """exp(Ad_g X) = g·exp(X)·g⁻¹, the defining property."""
    draw, group = Drawn(data, case), case.group
    g, X = draw.element(), draw.vector()
    conjugate = group.compose(group.compose(g, group.exp(X)), group.inverse(g))
    assert_close(group.exp(group.adjoint(g, X)), conjugate, 100 * case.exp_tolerance)


@every_group
@given(data=data)
def test_adjoint_and_bracket_are_linear(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, X, Y, c = draw.element(), draw.vector(), draw.vector(), draw.number(-2, 2)
    mixed = plus(X, Y, c)
    assert_close(group.adjoint(g, mixed), plus(group.adjoint(g, X), group.adjoint(g, Y), c))
    assert_close(group.bracket(mixed, Y), plus(group.bracket(X, Y), group.bracket(Y, Y), c))


@every_group
@given(data=data)
def test_bracket_is_antisymmetric_and_obeys_jacobi(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    X, Y, Z = draw.vector(), draw.vector(), draw.vector()
    bracket = group.bracket
    zero = group.zero(X)
    assert_close(plus(bracket(X, Y), bracket(Y, X)), zero)
    jacobi = plus(plus(bracket(X, bracket(Y, Z)), bracket(Y, bracket(Z, X))), bracket(Z, bracket(X, Y)))
    assert_close(jacobi, zero)


@every_group
@given(data=data)
def test_bracket_is_the_derivative_of_the_adjoint(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    X, Y, t = draw.vector(), draw.vector(), 1e-5
    ahead, behind = group.adjoint(group.exp(scaled(X, t)), Y), group.adjoint(group.exp(scaled(X, -t)), Y)
    assert_close(group.bracket(X, Y), scaled(plus(ahead, behind, -1.0), 1 / (2 * t)), DIFFERENCED)


@every_group
@given(data=data)
def test_pullback_is_the_adjoint_velocity_against_the_gradient(case: GroupCase, data: st.DataObject) -> None:
    """Term ① as the paper writes it: ⟨∇ℓ(θ), Ad_g(X)·θ⟩, averaged over samples."""
    draw, group = Drawn(data, case), case.group
    samples = draw.samples()
    g, X, theta = draw.element(), draw.vector(), draw.point(samples)
    gradient = pytree.tree_map(torch.cos, theta)
    velocity = group.velocity(group.adjoint(g, X), theta)
    expected = pairing(gradient, velocity) / torch.Size(samples).numel()
    assert_close(pairing(group.pullback(g, theta, gradient), X), expected, CONJUGATED)


@every_group
def test_identity_and_zero_keep_dtype_and_shape(case: GroupCase) -> None:
    for dtype in (torch.float32, torch.float64):
        for like in case.likes:
            like = pytree.tree_map(lambda t, dtype=dtype: t.to(dtype), like)
            e = case.group.identity(like)
            assert {block.dtype for block in pytree.tree_leaves(e)} == {dtype}
            assert float(flattened(case.group.zero(e)).abs().max()) == 0
            shapes = pytree.tree_leaves(case.group.event_shape(e), is_leaf=lambda s: isinstance(s, torch.Size))
            assert shapes == [t.shape for t in pytree.tree_leaves(like)]
