"""The affine groups against their matrices in GL(P + 1), the oracle of A.5."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from oracles.embedding import embed, embed_point, embed_vector
from scipy.linalg import expm
from support.elements import CONJUGATED, ROUNDING, Drawn
from support.registry import GROUPS, GroupCase

from liebayes.groups import Affine, DiagonalAffine, MatrixShift, ScaleShift, TriangularAffine, TriangularShift, expm1_ratio
from liebayes.groups.exponential import scale_of

embedded_groups = pytest.mark.parametrize("case", [case for case in GROUPS if case.embeds], ids=str)
data = st.data()


def assert_same(actual: np.ndarray, expected: np.ndarray, tolerance: float = ROUNDING) -> None:
    assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, float(np.abs(expected).max())))


@embedded_groups
@given(data=data)
def test_compose_inverse_and_act_match_matrices(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, h, theta = draw.element(), draw.element(), draw.point()
    assert_same(embed(group.compose(g, h)), embed(g) @ embed(h))
    assert_same(embed(group.inverse(g)), np.linalg.inv(embed(g)))
    assert_same(embed_point(group.act(g, theta)), embed(g) @ embed_point(theta))


@embedded_groups
@given(data=data)
def test_adjoint_bracket_and_velocity_match_matrices(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    g, X, Y, theta = draw.element(), draw.vector(), draw.vector(), draw.point()
    G, x, y = embed(g), embed_vector(X), embed_vector(Y)
    assert_same(embed_vector(group.adjoint(g, X)), G @ x @ np.linalg.inv(G), CONJUGATED)
    assert_same(embed_vector(group.bracket(X, Y)), x @ y - y @ x)
    assert_same(embed_point(group.velocity(X, theta))[:-1], (x @ embed_point(theta))[:-1])


@embedded_groups
@given(data=data)
def test_exp_matches_the_matrix_exponential(case: GroupCase, data: st.DataObject) -> None:
    draw, group = Drawn(data, case), case.group
    X = draw.vector()
    assert_same(embed(group.exp(X)), expm(embed_vector(X)), case.exp_tolerance)


@pytest.mark.parametrize("group", [Affine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize("size", [1e-7, 1e-3, 0.2, 1.0, 3.0])
def test_exp_against_torch(group: Affine | TriangularAffine, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64) * size
    y = torch.randn(4, 3, generator=generator, dtype=torch.float64) * size
    if isinstance(group, TriangularAffine):
        x = x.tril()
        A, b = (lambda g: (g.matrix, g.shift))(group.exp(TriangularShift(x.diagonal(dim1=-2, dim2=-1), x.tril(-1), y)))
    else:
        A, b = group.exp(MatrixShift(x, y))
    expected = torch.zeros(4, 4, 4, dtype=torch.float64)
    expected[:, :3, :3], expected[:, :3, 3] = x, y
    expected = torch.linalg.matrix_exp(expected)
    # Scaling and squaring: rounding times the size of X and of exp(X), some thousand times 1.1e-16.
    torch.testing.assert_close(A, expected[:, :3, :3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(b, expected[:, :3, 3], rtol=1e-12, atol=1e-12)


def test_bracket_of_the_paper() -> None:
    """A.5: [(X₁, y₁), (X₂, y₂)] = (0, X₁y₂ − X₂y₁)."""
    X1, y1, X2, y2 = torch.tensor([[2.0, -1.0], [0.5, 3.0], [-1.0, 4.0], [7.0, 0.25]]).unbind(0)
    x, y = DiagonalAffine().bracket(ScaleShift(X1, y1), ScaleShift(X2, y2))
    assert torch.equal(x, torch.zeros(2))
    assert torch.equal(y, torch.tensor([2 * 7.0 - (-1) * 0.5, -1 * 0.25 - 4 * 3.0]))


def test_adjoint_of_the_paper() -> None:
    """A.5: Ad_(A, b)(X, y) = (X, Ay − Xb)."""
    g = ScaleShift(torch.tensor([2.0]).log(), torch.tensor([3.0]))
    x, y = DiagonalAffine().adjoint(g, ScaleShift(torch.tensor([0.5]), torch.tensor([5.0])))
    torch.testing.assert_close((x, y), (torch.tensor([0.5]), torch.tensor([2 * 5 - 0.5 * 3.0])))


def test_composition_of_the_paper() -> None:
    """A.5: (A₁, b₁)(A₂, b₂) = (A₁A₂, A₁b₂ + b₁)."""
    g = ScaleShift(torch.tensor([2.0]).log(), torch.tensor([3.0]))
    h = ScaleShift(torch.tensor([5.0]).log(), torch.tensor([7.0]))
    gh = DiagonalAffine().compose(g, h)
    torch.testing.assert_close((gh.scale, gh.shift), (torch.tensor([10.0]), torch.tensor([2 * 7 + 3.0])))


@pytest.mark.parametrize("differentiable", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expm1_ratio_is_accurate_everywhere(dtype: torch.dtype, differentiable: bool) -> None:
    """Exact to a few units in the last place on both sides of its series, at zero and far away."""
    size = torch.logspace(-12, 1.5, 4001, dtype=torch.float64)
    x = torch.cat([-size, torch.zeros(1), size]).to(dtype)
    wide = x.double()
    series = 1 + wide / 2 + wide**2 / 6 + wide**3 / 24 + wide**4 / 120
    exact = torch.where(wide.abs() < 1e-2, series, torch.expm1(wide) / torch.where(wide == 0, 1.0, wide))
    # The series of the test is cut at x⁵/720, which is below float64's rounding up to 1e-3 only.
    tolerance = 4 * torch.finfo(dtype).eps + 1e-12
    torch.testing.assert_close(expm1_ratio(x, differentiable).double(), exact, rtol=tolerance, atol=0)


def test_expm1_ratio_has_a_derivative_at_zero() -> None:
    x = torch.tensor([0.0, 1e-6, -1e-6, 1e-3], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(expm1_ratio(x).sum(), x)
    torch.testing.assert_close(slope, 0.5 + x.detach() / 3 + x.detach() ** 2 / 8, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_scales_are_positive_and_finite(dtype: torch.dtype) -> None:
    scale = scale_of(torch.tensor([-1e30, -1e4, -1.0, 0.0, 1.0, 1e4, 1e30], dtype=dtype))
    assert bool((scale > 0).all())
    assert bool(torch.isfinite(scale).all())
    assert bool((scale.diff() >= 0).all())
    assert float(scale[3]) == 1
