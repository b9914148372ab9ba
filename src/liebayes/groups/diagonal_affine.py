"""The diagonal affine group: g = (A, b), g·θ = Aθ + b with A diagonal and positive (Sec. 4.3, A.5, Alg. 3).

A is kept as its logarithm, as in the multiplicative group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .exponential import expm1_ratio, scale_of
from .lie_group import LieGroup, average_over_samples, require_positive_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class ScaleShift(NamedTuple):
    """An element (log A, b) of the diagonal affine group, or a vector (X, y) of its algebra."""

    log_scale: Tensor
    shift: Tensor

    @property
    def scale(self) -> Tensor:
        """A itself: positive and finite."""
        return scale_of(self.log_scale)


class DiagonalAffine(LieGroup[ScaleShift]):
    """A location and a width for every coordinate: mean-field variational inference on any base.

    >>> group = DiagonalAffine()
    >>> group.act(group.at(torch.tensor([1.0]), scale=2.0), torch.tensor([3.0]))
    tensor([7.])
    """

    elementwise = True
    affine_action = True

    def identity(self, like: Tensor) -> ScaleShift:
        return ScaleShift(torch.zeros_like(like), torch.zeros_like(like))

    def compose(self, g: ScaleShift, h: ScaleShift) -> ScaleShift:
        return ScaleShift(g.log_scale + h.log_scale, torch.addcmul(g.shift, g.scale, h.shift))

    def inverse(self, g: ScaleShift) -> ScaleShift:
        return ScaleShift(-g.log_scale, -g.shift * scale_of(-g.log_scale))

    def act(self, g: ScaleShift, theta: Tensor) -> Tensor:
        return torch.addcmul(g.shift, g.scale, theta)

    def act_inverse(self, g: ScaleShift, theta: Tensor) -> Tensor:
        return (theta - g.shift) * scale_of(-g.log_scale)

    def exp(self, X: ScaleShift) -> ScaleShift:
        x, y = X
        return ScaleShift(x, expm1_ratio(x) * y)

    def move(self, g: ScaleShift, X: ScaleShift, t: float) -> ScaleShift:
        x, y = X if t == 1 else (X.log_scale * t, X.shift * t)
        moved = torch.addcmul(g.shift, g.scale, expm1_ratio(x, differentiable=False).mul_(y))
        return ScaleShift(g.log_scale + x, moved)

    def at(self, point: Tensor, scale: float = 1.0) -> ScaleShift:
        require_positive_scale(scale)
        return ScaleShift(torch.full_like(point, math.log(scale)), point.clone())

    # Closed forms.

    def adjoint(self, g: ScaleShift, X: ScaleShift) -> ScaleShift:
        x, y = X
        return ScaleShift(x, g.scale * y - x * g.shift)

    def bracket(self, X: ScaleShift, Y: ScaleShift) -> ScaleShift:
        x1, y1 = X
        x2, y2 = Y
        return ScaleShift(torch.zeros_like(x1), x1 * y2 - x2 * y1)

    def pullback(self, g: ScaleShift, theta: Tensor, gradient: Tensor) -> ScaleShift:
        shape = g.shift.shape
        U = average_over_samples((theta - g.shift) * gradient, shape)
        V = g.scale * average_over_samples(gradient, shape)
        return ScaleShift(U, V)

    def pullback_at_identity(self, e: ScaleShift, epsilon: Tensor, gradient: Tensor) -> ScaleShift:
        shape = e.shift.shape
        return ScaleShift(average_over_samples(epsilon * gradient, shape), average_over_samples(gradient, shape))

    def act_with_transpose(self, g: ScaleShift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        scale = g.scale
        return torch.addcmul(g.shift, scale, epsilon), lambda gradient: gradient * scale

    def log_jacobian(self, g: ScaleShift, theta: Tensor) -> Tensor:
        return g.log_scale.sum()

    def divergence(self, g: ScaleShift, epsilon: Tensor) -> ScaleShift:
        return ScaleShift(torch.ones_like(g.log_scale), torch.zeros_like(g.shift))

    def flat(self, X: ScaleShift, base: Base) -> ScaleShift:
        x, y = X
        c_X, B, c_y = base.fisher_scale, base.fisher_cross, base.fisher_shift
        return ScaleShift(c_X * x + B * y, B * x + c_y * y)

    def sharp(self, covector: ScaleShift, base: Base) -> ScaleShift:
        U, V = covector
        c_X, B, c_y = base.fisher_scale, base.fisher_cross, base.fisher_shift
        if B == 0:  # an even base: Alg. 3 as printed
            return ScaleShift(U / c_X, V if c_y == 1 else V / c_y)
        determinant = c_X * c_y - B * B
        return ScaleShift((c_y * U - B * V) / determinant, (c_X * V - B * U) / determinant)

    def average_precision(self, g: ScaleShift, curvature: ScaleShift, rate: float) -> ScaleShift:
        return ScaleShift(g.log_scale - 0.5 * torch.log1p(rate * (curvature.log_scale - 1)), g.shift)

    def log_scale_and_shift(self, g: ScaleShift) -> tuple[Tensor, Tensor]:
        """The element as log A and b of θ = Aε + b."""
        return g.log_scale, g.shift

    def variance(self, g: ScaleShift, variance: float) -> Tensor:
        return g.scale.square() * variance

    def spread(self, g: ScaleShift, variance: float) -> ScaleShift:
        return ScaleShift(self.variance(g, variance), torch.zeros_like(g.shift))

    def stddev(self, g: ScaleShift, stddev: float) -> Tensor:
        return g.scale * stddev
