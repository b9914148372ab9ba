"""The additive group (ℝ^P, +): g·θ = θ + g (Sec. 4.1, A.3, Alg. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .lie_group import LieGroup, average_over_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class Shift(NamedTuple):
    """An element of the additive group, or a vector of its algebra."""

    shift: Tensor


class Additive(LieGroup[Shift]):
    """Translations. The family keeps the shape and the width of its base; only its location is learned.

    >>> group = Additive()
    >>> group.act(Shift(torch.tensor([1.0])), torch.tensor([2.0]))
    tensor([3.])
    """

    elementwise = True
    affine_action = True

    def identity(self, like: Tensor) -> Shift:
        return Shift(torch.zeros_like(like))

    def compose(self, g: Shift, h: Shift) -> Shift:
        return Shift(g.shift + h.shift)

    def inverse(self, g: Shift) -> Shift:
        return Shift(-g.shift)

    def act(self, g: Shift, theta: Tensor) -> Tensor:
        return theta + g.shift

    def exp(self, X: Shift) -> Shift:
        # A.3 displays g + exp(−αE); the exponential map of this group is the identity, so the step is g − αE.
        return X

    def move(self, g: Shift, X: Shift, t: float) -> Shift:
        return Shift(torch.add(g.shift, X.shift, alpha=t))  # rounded once, as in gradient descent

    def at(self, point: Tensor, scale: float = 1.0) -> Shift:
        return Shift(point.clone())

    # Closed forms.

    def adjoint(self, g: Shift, X: Shift) -> Shift:
        return X

    def bracket(self, X: Shift, Y: Shift) -> Shift:
        return self.zero(X)

    def pullback(self, g: Shift, theta: Tensor, gradient: Tensor) -> Shift:
        return Shift(average_over_samples(gradient, g.shift.shape))

    def act_with_transpose(self, g: Shift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return epsilon + g.shift, lambda gradient: gradient

    def log_jacobian(self, g: Shift, theta: Tensor) -> Tensor:
        return g.shift.new_zeros(())

    def divergence(self, g: Shift, epsilon: Tensor) -> Shift:
        return self.zero(g)

    def flat(self, X: Shift, base: Base) -> Shift:
        return Shift(X.shift * base.fisher_shift)

    def sharp(self, covector: Shift, base: Base) -> Shift:
        return Shift(covector.shift / base.fisher_shift)

    def log_scale_and_shift(self, g: Shift) -> tuple[Tensor, Tensor]:
        """The element as log A and b of θ = Aε + b."""
        return torch.zeros_like(g.shift), g.shift

    def variance(self, g: Shift, variance: float) -> Tensor:
        return torch.full_like(g.shift, variance)

    def stddev(self, g: Shift, stddev: float) -> Tensor:
        return torch.full_like(g.shift, stddev)
