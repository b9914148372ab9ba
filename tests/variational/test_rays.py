"""A target without finite mass is told, whatever the drift looks like near the result; a proper one, however wide, is not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine, LieGroup, LowRankAffine, Multiplicative, Positive, Product, TriangularAffine
from liebayes.rule import Convergence
from liebayes.variational.factors import make_factors
from liebayes.variational.rays import endless, level_direction


def classes(dim: int, count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and signs that a plane through the origin separates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return x, (x @ torch.randn(dim, generator=generator, dtype=torch.float64)).sign()


def logistic(theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, sign = batch
    return torch.nn.functional.softplus(-sign * (x @ theta)).sum()


def fitted(loss: Callable[..., Tensor], group: LieGroup | None = None, dim: int = 1, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lb.FitWarning)
        return lb.fit(loss, group, **({"start": torch.zeros(dim, dtype=torch.float64)} | settings))


@pytest.mark.parametrize("group", [TriangularAffine(), DiagonalAffine()], ids=str)
@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_separable_classes_with_a_flat_prior(group: LieGroup, dim: int, seed: int) -> None:
    data = classes(dim, seed=seed)
    with pytest.warns(lb.FitWarning, match=r"no finite mass.*the direction .*theta\[\d\]\. Give the direction a prior"):
        q = lb.fit(lambda t: logistic(t, data), group, start=torch.zeros(dim, dtype=torch.float64), seed=seed)
    assert q.history.converged is Convergence.UNBOUNDED


@pytest.mark.parametrize("steps", [300, 1000])
def test_however_long_the_run(steps: int) -> None:
    data = classes(3)
    q = fitted(lambda t: logistic(t, data), dim=3, steps=steps)
    assert q.history.converged is Convergence.UNBOUNDED


@pytest.mark.parametrize("group", [TriangularAffine(), DiagonalAffine()], ids=str)
@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("steps", [100, 600])
def test_separable_classes_with_a_weak_prior(group: LieGroup, dim: int, steps: int) -> None:
    """N(0, 100²) makes it proper, with means of a hundred; so does N(0, 10⁶²), where the run has not yet seen it."""
    data = classes(dim)
    for width in (100.0, 1e6):
        q = fitted(lambda t, w=width: logistic(t, data) + 0.5 * (t / w).square().sum(), group, dim, steps=steps)
        assert q.history.converged is not Convergence.UNBOUNDED, (width, q.history.verdict)


def rare_category() -> tuple[Tensor, Tensor]:
    """Three inputs whose classes overlap, and a category of four data of one class."""
    x, _ = classes(3, 200)
    chance = torch.rand(200, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sign = (torch.sigmoid(x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)) - chance).sign()
    rare = torch.arange(200) < 4
    return torch.cat([x, rare.double().unsqueeze(1)], 1), torch.where(rare, 1.0, sign)


def test_a_rare_category_without_exceptions() -> None:
    """One coefficient has no finite value, and all others have: its coordinate is named, and no other."""
    data = rare_category()
    q = fitted(lambda t: logistic(t, data), dim=4, steps=400)
    assert q.history.converged is Convergence.UNBOUNDED
    assert "+1.00·theta[3]" in q.history.verdict
    assert "theta[0]" not in q.history.verdict


@pytest.mark.parametrize("group", [TriangularAffine(), LowRankAffine(1), DiagonalAffine()], ids=str)
def test_a_rare_category_in_other_coordinates(group: LieGroup) -> None:
    """The same where its direction is none of the coordinates: gradients vanish along it at nearly all draws."""
    x, sign = rare_category()
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    q = fitted(lambda t: logistic(t, (x @ turn.mT, sign)), group, dim=4)
    assert q.history.converged is Convergence.UNBOUNDED
    place = int(turn[:, 3].abs().argmax())
    assert f"{float(turn[place, 3].abs()):.2f}·theta[{place}]" in q.history.verdict
    wide = fitted(lambda t: logistic(t, (x @ turn.mT, sign)) + 0.5 * (t / 100).square().sum(), group, dim=4, steps=800)
    assert wide.history.converged is not Convergence.UNBOUNDED


def test_the_direction_in_which_gradients_vanish() -> None:
    """At nine tenths of the draws; where they are alike in all directions, there is none."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    gradients = torch.randn(400, 5, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0, 1.0, 1e-6])
    gradients[::10, 4] = 30.0
    found = level_direction(gradients @ turn.mT)
    assert found is not None
    torch.testing.assert_close((found @ turn[:, 4]).abs(), torch.ones((), dtype=torch.float64), rtol=1e-9, atol=0)
    assert level_direction(torch.randn(400, 5, generator=generator)) is None
    assert level_direction(gradients[:30] @ turn.mT) is None  # too few to tell
    assert level_direction(gradients * math.inf) is None


@pytest.mark.parametrize("group", [TriangularAffine(), DiagonalAffine()], ids=str)
def test_a_line_without_mass_of_its_own(group: LieGroup) -> None:
    """x ~ N(0, s²) with s of Cauchy's: on the line x = 0, where this starts, the density is level in log s, on no other."""

    def loss(t: dict[str, Tensor]) -> Tensor:
        return 0.5 * (t["x"] / t["s"]).square() + t["s"].log() + t["s"].square().log1p()

    one = torch.ones((), dtype=torch.float64)
    with lb.Fit(loss, group, start={"s": one, "x": 0 * one}, supports={"s": Positive()}, initial_scale=1e-4) as run:
        assert run._examine().endless is None
    q = fitted(loss, group, start={"s": one, "x": 0 * one}, supports={"s": Positive()}, steps=300)
    assert q.history.converged is not Convergence.UNBOUNDED


@pytest.mark.parametrize(("power", "proper"), [(0.4, False), (0.6, True), (1.0, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tails_decide(power: float, proper: bool, dtype: torch.dtype) -> None:
    """∫(1 + θ²)^(−p) dθ is finite for p > ½ alone; at p = 1 it is Cauchy's."""
    factors, _ = make_factors(
        TriangularAffine(), Normal(), torch.zeros(2, dtype=dtype), None, 1.0, lb.Fisher(), "auto", True
    )  # fmt: skip
    found = endless(factors, lambda points: power * (1 + points[0].square()).log().sum(-1))
    assert (found is None) is proper
    assert proper or "theta[0]" in str(found)


def test_values_that_are_no_numbers_speak_against_a_ray() -> None:
    factors, _ = make_factors(
        DiagonalAffine(), Normal(), torch.zeros(1, dtype=torch.float64), None, 1.0, lb.Fisher(), "auto", True
    )  # fmt: skip
    assert endless(factors, lambda points: 0 * points[0].sum(-1)) is not None
    for value in (math.nan, math.inf):
        assert endless(factors, lambda points, v=value: torch.where(points[0].abs() > 1e3, v, 0.0).sum(-1)) is None


def test_on_supports_the_jacobian_counts() -> None:
    """1/s is level in log s, and e^(−s)/s to the left; e^(−1/s)/s² and e^(−s) have finite mass."""

    def ray(loss: Callable[[Tensor], Tensor]) -> str | None:
        start = {"s": torch.ones(()), "b": torch.zeros(())}
        with lb.Fit(
            lambda t: loss(t["s"]) + t["b"].square(), start=start, supports={"s": Positive()}, initial_scale=0.01
        ) as run:
            return run._examine().endless

    assert ray(lambda s: s.log()) == "the direction +1.00·s"
    assert ray(lambda s: s.log() + s) == "the direction -1.00·s"
    assert ray(lambda s: 2 * s.log() + 1 / s) is None
    assert ray(lambda s: s) is None


def test_a_batch_that_is_separable_is_not_the_data() -> None:
    """Each datum by itself is separable."""
    x, _ = classes(1, 40)
    sign = torch.where(torch.arange(40) % 3 == 0, -1.0, 1.0).double() * x[:, 0].sign()
    for size in (1, 8, 40):
        q = fitted(logistic, data=(x, sign), batch_size=size, steps=300, lr=0.05)
        assert q.history.converged is not Convergence.UNBOUNDED, size
    q = fitted(logistic, data=classes(1, 40), batch_size=8, steps=300, lr=0.05)
    assert q.history.converged is Convergence.UNBOUNDED


def test_a_long_way_to_go_is_none_without_end() -> None:
    """The loss falls all along the ray: that is no level."""
    q = fitted(lambda t: 0.5 * (t - 1e7).square().sum(), dim=2, steps=30)
    assert q.history.converged is Convergence.MOVING


def test_a_loss_that_fails_far_out() -> None:
    def loss(t: Tensor) -> Tensor:
        if float(t.detach().abs().max()) > 100:
            raise RuntimeError("no solution here")
        return 0.5 * t.square().sum()

    q = fitted(loss, vectorize=False, steps=200)
    assert q.history.converged is Convergence.CONVERGED


def test_parts_of_a_product() -> None:
    """The direction goes through both parts; a part that does not act by shifts has no rays."""
    data = classes(3)
    start = {"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    group = Product(a=DiagonalAffine(), b=TriangularAffine())
    q = fitted(lambda t: logistic(torch.cat([t["a"], t["b"]]), data), group, start=start, steps=600)
    assert q.history.converged is Convergence.UNBOUNDED
    start = {"a": torch.ones(1), "b": torch.zeros(2)}
    mixed = Product(a=Multiplicative(), b=DiagonalAffine())
    bases = {"a": lb.bases.Rayleigh(), "b": Normal()}
    q = fitted(lambda t: t["a"].sum() + t["b"].square().sum(), mixed, base=bases, start=start, steps=300)
    assert q.history.converged is not Convergence.UNBOUNDED
