"""Charts against torch.distributions' transforms, Jacobians by automatic differentiation, and points next to the edges."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import transforms
from torch.func import jacrev, vmap

from liebayes import groups

CHARTS: list[tuple[groups.Chart, int]] = [
    (groups.Real(), 3),
    (groups.Positive(), 3),
    (groups.LowerBounded(-2.0), 3),
    (groups.UpperBounded(5.0), 3),
    (groups.Interval(-1, 2), 3),
    (groups.Interval(), 3),
    (groups.Simplex(), 1),
    (groups.Simplex(), 4),
    (groups.Ordered(), 1),
    (groups.Ordered(), 4),
    (groups.CorrelationCholesky(), 1),
    (groups.CorrelationCholesky(), 6),
    (groups.Covariance(), 1),
    (groups.Covariance(), 6),
]
"""Charts, and how many real numbers their points are made of."""

every_chart = pytest.mark.parametrize(("chart", "size"), CHARTS, ids=str)


def points(size: int, spread: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return spread * torch.randn(50, size, generator=torch.Generator().manual_seed(0), dtype=dtype)


def free(chart: groups.Chart, theta: Tensor) -> Tensor:
    """The numbers of θ that determine it."""
    if isinstance(chart, groups.Simplex):
        return theta[..., :-1]
    if isinstance(chart, (groups.CorrelationCholesky, groups.Covariance)):
        size = theta.shape[-1]
        rows, columns = torch.tril_indices(size, size, 0 if isinstance(chart, groups.Covariance) else -1)
        return theta[..., rows, columns]
    return theta


@every_chart
def test_there_and_back(chart: groups.Chart, size: int) -> None:
    z = points(size)
    theta = chart.from_real(z)
    assert bool(chart.contains(theta).all())
    assert chart.real_shape(theta) == z.shape
    assert chart.event_shape(z.shape) == theta.shape
    # Rounding, magnified where a difference of points is small against them: e^-3 of a bound of 5.
    torch.testing.assert_close(chart.to_real(theta), z, rtol=1e-12, atol=1e-12)


@every_chart
def test_log_jacobian_is_that_of_the_free_numbers(chart: groups.Chart, size: int) -> None:
    z = points(size)
    jacobian = vmap(jacrev(lambda x: free(chart, chart.from_real(x))))(z)
    values = chart.log_jacobian(z)
    values = values.sum(-1) if chart.real_rank == 0 else values
    torch.testing.assert_close(values, torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-11, atol=1e-11)


def exponential_from(origin: float, sign: float) -> transforms.Transform:
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(origin, sign)])


@pytest.mark.parametrize(
    ("chart", "transform", "size"),
    [
        (groups.Positive(), transforms.ExpTransform(), 3),
        (groups.Interval(), transforms.SigmoidTransform(), 3),
        (
            groups.LowerBounded(2.0),
            transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(2.0, 1.0)]),
            3,
        ),
        (
            groups.UpperBounded(2.0),
            transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(2.0, -1.0)]),
            3,
        ),
        (groups.Simplex(), transforms.StickBreakingTransform(), 4),
        (groups.CorrelationCholesky(), transforms.CorrCholeskyTransform(), 6),
    ],
    ids=str,
)
def test_transforms_of_torch(chart: groups.Chart, transform: transforms.Transform, size: int) -> None:
    z = points(size)
    theta = transform(z)
    torch.testing.assert_close(chart.from_real(z), theta, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(chart.log_jacobian(z), transform.log_abs_det_jacobian(z, theta), rtol=1e-10, atol=1e-11)


@every_chart
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_puts_no_point_on_an_edge(chart: groups.Chart, size: int, dtype: torch.dtype) -> None:
    """Widths of 60: the distance to an edge is below the last digit, and still not zero."""
    if isinstance(chart, (groups.Covariance, groups.CorrelationCholesky, groups.Simplex, groups.Ordered)):
        # Sums of many scales lose the small ones; the Jacobian stays what it is.
        z = points(size, 10.0, dtype)
        assert bool(torch.isfinite(chart.log_jacobian(z)).all())
        assert bool(torch.isfinite(chart.from_real(z)).all())
        return
    z = points(size, 60.0, dtype)
    theta = chart.from_real(z)
    assert bool(chart.contains(theta).all())
    assert bool(torch.isfinite(chart.to_real(theta)).all())
    assert bool(torch.isfinite(chart.log_jacobian(z)).all())


def test_gradients_reach_far_points_of_the_simplex() -> None:
    """torch's stick-breaking clips its sigmoid, and with it the gradient; the logarithms here go on."""
    z = torch.tensor([40.0, -40.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(groups.Simplex().log_jacobian(z), z)
    # log |J| = Σ log θ_k + log(1 − σ_k): −2 for a share that takes all, and for the next 1, of a stick as short as −40.
    torch.testing.assert_close(slope, torch.tensor([-2.0, 1.0], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "chart",
    [groups.Real(), groups.Positive(), groups.LowerBounded(-2.0), groups.UpperBounded(5.0), groups.Interval(-1, 2)],
    ids=str,
)
def test_moments_of_normal_numbers(chart: groups.Chart) -> None:
    """Against Gauss–Hermite quadrature of numpy with 200 nodes."""
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    x, w = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    mean = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    stddev = torch.tensor([0.1, 1.0, 1.5], dtype=torch.float64)
    values = chart.from_real(mean[:, None] + stddev[:, None] * x)
    expected = (w * values).sum(-1)
    variance = (w * (values - expected[:, None]).square()).sum(-1)
    found = chart.normal_moments(mean, stddev)
    assert found is not None
    # Gauss–Hermite sees the poles of the logistic curve at distance π/1.5.
    torch.testing.assert_close(found[0], expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found[1], variance, rtol=1e-6, atol=1e-7)


def test_positive_numbers_are_multiplied() -> None:
    """On logarithms shifts are scalings: the multiplicative group of Sec. 4.2."""
    theta, factor = torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.1])
    moved = groups.Conjugated(groups.Additive(), groups.Positive()).act(groups.Additive().at(factor.log()), theta)
    torch.testing.assert_close(moved, groups.Multiplicative().act(groups.Multiplicative().at(factor), theta))


# Several tensors.


def start() -> dict[str, Any]:
    return {"w": torch.ones(2, 3), "pair": (torch.tensor(2.0), torch.full((2, 3), 1 / 3)), "C": torch.eye(2)}


SUPPORTS = {"pair": (groups.Positive(), groups.Simplex()), "C": groups.Covariance()}


def test_joint_is_the_charts_one_after_another() -> None:
    chart = groups.Joint.of(start(), SUPPORTS)
    assert [part.name for part in chart.parts] == ["w", "pair.0", "pair.1", "C"]
    z = torch.randn(5, 6 + 1 + 4 + 3, generator=torch.Generator().manual_seed(0))
    theta = chart.from_real(z)
    assert theta["w"].shape == (5, 2, 3)
    assert isinstance(theta["pair"], tuple)
    assert theta["pair"][1].shape == (5, 2, 3)
    torch.testing.assert_close(theta["pair"][0], z[:, 6].exp())
    torch.testing.assert_close(theta["pair"][1], groups.Simplex().from_real(z[:, 7:11].reshape(5, 2, 2)))
    torch.testing.assert_close(theta["C"], groups.Covariance().from_real(z[:, 11:]))
    torch.testing.assert_close(chart.to_real(theta), z, rtol=1e-5, atol=1e-5)
    simplices = groups.Simplex().log_jacobian(z[:, 7:11].reshape(5, 2, 2)).sum(-1)
    torch.testing.assert_close(chart.log_jacobian(z), z[:, 6] + simplices + groups.Covariance().log_jacobian(z[:, 11:]))
    assert chart.contains(theta).shape == (5,)
    theta["pair"][0][3] = -1.0
    assert chart.contains(theta).tolist() == [True, True, True, False, True]
    assert chart == groups.Joint.of(start(), SUPPORTS)
    assert chart != groups.Joint.of(start(), {"C": groups.Covariance()})


def test_joint_acts_through_any_group() -> None:
    group = groups.Conjugated(groups.TriangularAffine(), groups.Joint.of(start(), SUPPORTS))
    g = group.at(start())
    origin = group.act_inverse(g, start())
    torch.testing.assert_close(group.act(g, origin)["C"], torch.eye(2))
    assert group.event_shape(g)["pair"][1] == (2, 3)


@pytest.mark.parametrize(
    ("supports", "words"),
    [
        ({"x": groups.Positive()}, r"supports has \['x'\], but start has \['C', 'pair', 'w'\]"),
        ({"w": groups.Positive}, "The support of w must be a chart, such as Positive"),
        ({"w": {"a": groups.Positive()}}, "w is one tensor and has one support"),
        ({"pair": (groups.Positive(),)}, "supports must be like start"),
        ({"w": groups.Interval(0, 1)}, "The start of w must lie among numbers between 0 and 1, but is 1, 1"),
        ({"w": groups.Simplex()}, "The start of w must lie among vectors of positive numbers that sum to 1"),
        ({"w": groups.Covariance()}, r"symmetric positive definite matrices, but got the shape \(2, 3\)"),
        ({"w": groups.Ordered()}, "increasing order"),
    ],
)
def test_supports_that_do_not_fit(supports: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        groups.Joint.of(start(), supports)


def test_points_that_do_not_fit() -> None:
    chart = groups.Joint.of(start(), SUPPORTS)
    with pytest.raises(ValueError, match="must be a dictionary with the keys"):
        chart.to_real({"w": torch.ones(2, 3)})
    with pytest.raises(ValueError, match=r"w must be a tensor whose last dimensions are \(2, 3\), but got the shape \(3, 2\)"):
        chart.to_real(start() | {"w": torch.ones(3, 2)})


def test_charts_that_make_no_sense() -> None:
    for wrong in (lambda: groups.Interval(1, 1), lambda: groups.Interval(0, math.inf), lambda: groups.LowerBounded(math.nan)):
        with pytest.raises(ValueError, match="needs"):
            wrong()
    with pytest.raises(ValueError, match="groups of the real line"):
        groups.Conjugated(groups.Multiplicative(), groups.Positive())
    with pytest.raises(ValueError, match="A chart was expected"):
        groups.Conjugated(groups.DiagonalAffine(), groups.Positive)  # type: ignore[arg-type]
