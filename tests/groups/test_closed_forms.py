"""Closed forms equal what `LieGroup` derives from the five methods, for every group that gives some."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.elements import CONJUGATED, Drawn, assert_close, in_the_algebra
from support.registry import GROUPS, GroupCase

from liebayes.groups import LieGroup, TriangularAffine, TriangularShift

DERIVED = (
    "act_inverse", "act_with_transpose", "velocity", "adjoint", "bracket", "pullback", "pullback_at_identity", "log_jacobian",
    "divergence", "spread",
)  # fmt: skip

CASES = [
    pytest.param(case, name, id=f"{case}-{name}")
    for case in GROUPS
    if not case.is_product
    for name in DERIVED
    if getattr(type(case.group), name) is not getattr(LieGroup, name)
]


def test_no_closed_form_is_missing() -> None:
    """Every group of the library has five or more: an empty list would pass for agreement."""
    count = Counter(str(case.id).rpartition("-")[0] for case in CASES)
    own = [str(case) for case in GROUPS if not case.is_product and type(case.group).__module__.startswith("liebayes.")]
    assert len(own) >= 7
    assert min(count[name] for name in own) >= 5, count


@pytest.mark.parametrize(("case", "name"), CASES)
@given(data=st.data())
def test_closed_form_equals_the_derived_one(case: GroupCase, name: str, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, samples = draw.element(), draw.samples()
    if name == "adjoint":
        arguments = (g, draw.vector())
    elif name == "spread":
        arguments = (g, 0.7)
    elif name == "bracket":
        arguments = (draw.vector(), draw.vector())
    elif name.startswith("pullback"):
        theta = draw.point(samples)
        at = group.identity(theta[(0,) * len(samples)]) if name == "pullback_at_identity" else g
        arguments = (at, theta, torch.cos(3 * theta))
    else:
        arguments = (g, draw.point(samples))
    closed = getattr(group, name)(*arguments)
    derived = getattr(LieGroup, name)(group, *arguments)
    if name == "act_with_transpose":
        gradient = torch.cos(3 * arguments[1])
        closed, derived = ((value, transpose(gradient)) for value, transpose in (closed, derived))
    if name == "log_jacobian":
        # One value that serves all samples is allowed where the Jacobian is the same everywhere.
        closed = closed.expand(derived.shape)
    assert_close(in_the_algebra(closed), in_the_algebra(derived), CONJUGATED)


@pytest.mark.parametrize("case", [case for case in GROUPS if not case.is_product], ids=str)
@given(data=st.data())
def test_log_jacobian_is_a_homomorphism_along_the_orbit(case: GroupCase, data: st.DataObject) -> None:
    """log |det ∂(gh·θ)/∂θ| at θ is that of h at θ plus that of g at h·θ: the chain rule."""
    draw, group = Drawn(data, case), case.group
    g, h, theta = draw.element(), draw.element(), draw.point((2,))
    whole = group.log_jacobian(group.compose(g, h), theta)
    parts = group.log_jacobian(h, theta) + group.log_jacobian(g, group.act(h, theta))
    assert_close(whole, parts, CONJUGATED)


@pytest.mark.parametrize("case", [case for case in GROUPS if case.is_product], ids=str)
@given(data=st.data())
def test_products_work_part_by_part(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, theta = draw.element(), draw.point((3,))
    pieces = [part.log_jacobian(a, t) for part, a, t in group.split("θ", g, theta)]
    assert_close(group.log_jacobian(g, theta), torch.stack(torch.broadcast_tensors(*pieces)).sum(0))
    divergences = [part.divergence(a, t) for part, a, t in group.split("θ", g, theta)]
    assert_close(group.divergence(g, theta), group.join(divergences), 0.0)


def test_steps_in_many_dimensions_are_exponentials_to_second_order() -> None:
    """Above 64 dimensions `TriangularAffine.move` takes two products: its error goes with the cube of the step."""
    generator, size = torch.Generator().manual_seed(0), 70
    group = TriangularAffine()

    def element(scale: float) -> TriangularShift:
        diagonal, shift = (scale * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
        lower = scale * torch.randn(size, size, generator=generator, dtype=torch.float64).tril(-1)
        return TriangularShift(diagonal, lower, shift)

    g, X = element(0.1), element(0.1)
    errors = []
    for t in (1e-2, 1e-3):
        exact = group.compose(g, group.exp(TriangularShift(*(t * block for block in X))))
        pairs = zip(group.move(g, X, t), exact, strict=True)
        errors.append(max(float((there - here).abs().max()) for there, here in pairs))
    assert errors[1] > 0, "the exponential map itself"
    assert errors[0] / errors[1] == pytest.approx(1000, rel=0.1)
