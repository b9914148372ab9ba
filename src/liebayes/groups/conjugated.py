"""Any group on any support, carried over by a chart φ: g·θ = φ⁻¹(g·φ(θ)) (Sec. 3.1; not in the paper).

The action is not affine, so term ② keeps its Jacobian: with J = log |det ∂φ⁻¹/∂z| and z = φ(θ),

    log |det ∂(g·θ)/∂θ| = J(g·z) + log |det ∂(g·z)/∂z| − J(z).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree

from .charts import Chart, Positive
from .lie_group import LieGroup

E = TypeVar("E")


class Conjugated(LieGroup[E]):
    """φ⁻¹ ∘ G ∘ φ: the elements, products and exponentials of G, acting on the support of a chart.

    On positive numbers it acts on the bases of the half line: `DiagonalAffine` on `Exponential` or `Rayleigh` is the Weibull
    family, on `LogNormal` the log-normal family with a learned width. `liebayes.fit` carries bases over as well, so it works
    on any support: `fit(..., supports=...)`.

    >>> import torch
    >>> from liebayes.groups import DiagonalAffine
    >>> group = Conjugated(DiagonalAffine(), Positive())
    >>> g = DiagonalAffine().at(torch.tensor(3.0).log(), scale=2.0)
    >>> round(float(group.act(g, torch.tensor(5.0))))  # θ ↦ 3θ²
    75
    """

    def __init__(self, group: LieGroup[E], chart: Chart) -> None:
        if not isinstance(group, LieGroup) or group.positive:
            raise ValueError(f"A chart carries over groups of the real line, such as TriangularAffine(), but got {group!r}.")
        if not isinstance(chart, Chart):
            raise ValueError(f"A chart was expected, such as Positive(), but got {chart!r}.")
        self.group = group
        self.chart = chart

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return isinstance(self.chart, Positive)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return self.group.elementwise and self.chart.real_rank == 0

    def identity(self, like: Any) -> E:
        return self.group.identity(pytree.tree_leaves(like)[0].new_zeros(self.chart.real_shape(like)))

    def compose(self, g: E, h: E) -> E:
        return self.group.compose(g, h)

    def inverse(self, g: E) -> E:
        return self.group.inverse(g)

    def act(self, g: E, theta: Any) -> Any:
        return self.chart.from_real(self.group.act(g, self.chart.to_real(theta)))

    def act_inverse(self, g: E, theta: Any) -> Any:
        return self.chart.from_real(self.group.act_inverse(g, self.chart.to_real(theta)))

    def exp(self, X: E) -> E:
        return self.group.exp(X)

    def move(self, g: E, X: E, t: float) -> E:
        return self.group.move(g, X, t)

    def at(self, point: Any, scale: float = 1.0) -> E:
        return self.group.at(self.chart.to_real(point), scale)

    def event_shape(self, g: E) -> Any:
        return self.chart.event_shape(self.group.event_shape(g))

    # Closed forms.

    def adjoint(self, g: E, X: E) -> E:
        return self.group.adjoint(g, X)

    def bracket(self, X: E, Y: E) -> E:
        return self.group.bracket(X, Y)

    def log_jacobian(self, g: E, theta: Any) -> Tensor:
        z, dims = self.chart.to_real(theta), len(self.group.event_shape(g))
        moved = log_volume(self.chart, self.group.act(g, z), dims)
        return moved + self.group.log_jacobian(g, z) - log_volume(self.chart, z, dims)


def log_volume(chart: Chart, z: Tensor, dims: int) -> Tensor:
    """J(z) for z whose last `dims` dimensions are one point."""
    values = chart.log_jacobian(z)
    rest = dims - chart.real_rank
    return values.sum(tuple(range(-rest, 0))) if rest else values
