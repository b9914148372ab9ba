"""`average_precision`: A⁻² as a mean of what it was and of a precision in its coordinates, in every group that has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine, Kronecker, LieGroup, TriangularAffine

GROUPS: list[LieGroup[Any]] = [
    DiagonalAffine(), TriangularAffine(), Kronecker(), Kronecker(right="diagonal"), Kronecker(block=2),
]  # fmt: skip


def dense(group: LieGroup[Any], g: Any) -> Tensor:
    """The matrix A of θ = Aε + b, by its action on unit vectors."""
    shape = group.event_shape(g)
    zero = group.act(g, torch.zeros(shape, dtype=torch.float64))
    units = torch.eye(shape.numel(), dtype=torch.float64).reshape(-1, *shape)
    return torch.stack([(group.act(g, unit) - zero).flatten() for unit in units], -1)


def random_element(group: LieGroup[Any], shape: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(3)
    like = torch.zeros(shape, dtype=torch.float64)
    X = group.zero(group.at(like))
    noise = type(X)(*(0.3 * torch.randn(b.shape, generator=generator, dtype=torch.float64) for b in X))
    masked = noise._replace(**{n: getattr(noise, n).tril(-1) for n in noise._fields if "lower" in n})
    return group.exp(masked)


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=repr)
def test_the_precision_is_averaged(group: LieGroup[Any]) -> None:
    """A′A′ᵀ = A·((1 − ρ) + ρS)⁻¹·Aᵀ, with S from the covector by its definition: ⟨U, X⟩ = tr(SX) for X of the algebra."""
    g, rate = random_element(group, (4,)), 0.4
    w = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    U = group.pullback_at_identity(g, w, w)
    S = w.mT @ w / 5
    S = torch.diag(S.diagonal()) if group.elementwise else S
    A, moved = dense(group, g), dense(group, group.average_precision(g, U, rate))
    expected = A @ torch.linalg.inv((1 - rate) * torch.eye(4, dtype=torch.float64) + rate * S) @ A.mT
    torch.testing.assert_close(moved @ moved.mT, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("group", GROUPS, ids=repr)
def test_to_first_order_it_is_a_natural_gradient_step(group: LieGroup[Any]) -> None:
    """On a Normal base: the difference to exp(−ρ·sharp(U − divergence)) falls with ρ². For Kronecker where S has mean 1."""
    shape = (4,) if isinstance(group, TriangularAffine) else (3, 4)
    g = random_element(group, shape)
    w = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = w / w.square().mean().sqrt()
    U = group.pullback_at_identity(g, w, w)
    U = U._replace(shift=torch.zeros_like(U.shift))
    slope = type(U)(*(u - d for u, d in zip(U, group.divergence(g, w[0]), strict=True)))
    X = group.sharp(slope, Normal())

    def difference(rate: float) -> float:
        return float((dense(group, group.average_precision(g, U, rate)) - dense(group, group.move(g, X, -rate))).norm())

    assert difference(1e-3) / difference(5e-4) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("group", GROUPS, ids=repr)
def test_the_units_precision_changes_nothing(group: LieGroup[Any]) -> None:
    g = random_element(group, (4,) if isinstance(group, TriangularAffine) else (3, 4))
    unit = group.divergence(g, g.shift)
    moved = group.average_precision(g, unit, 0.7)
    torch.testing.assert_close(dense(group, moved), dense(group, g), rtol=1e-12, atol=1e-12)


def test_kronecker_keeps_its_gauge() -> None:
    group = Kronecker()
    g = random_element(group, (3, 4))
    w = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = group.average_precision(g, group.pullback_at_identity(g, w, w), 0.3)
    assert float(moved.right_log_diagonal.sum()) == pytest.approx(0.0, abs=1e-12)
