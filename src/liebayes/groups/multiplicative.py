"""The multiplicative group (ℝ_{>0}^P, ×): g·θ = gθ on positive θ (Sec. 4.2, A.4, Alg. 2).

An element is stored as its logarithm: composing is adding, tiny steps add up, and a scale reaches neither 0 nor infinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .exponential import scale_of
from .lie_group import LieGroup, average_over_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class LogScale(NamedTuple):
    """An element of the multiplicative group as log g, or a vector of its algebra."""

    log_scale: Tensor

    @property
    def scale(self) -> Tensor:
        """g itself: positive and finite."""
        return scale_of(self.log_scale)


class Multiplicative(LieGroup[LogScale]):
    """Scalings of positive parameters: magnitudes of weights whose signs are fixed, rates, standard deviations.

    >>> group = Multiplicative()
    >>> group.act(group.at(torch.tensor([3.0])), torch.tensor([2.0]))
    tensor([6.])
    """

    positive = True
    elementwise = True
    affine_action = True

    def identity(self, like: Tensor) -> LogScale:
        return LogScale(torch.zeros_like(like))

    def compose(self, g: LogScale, h: LogScale) -> LogScale:
        return LogScale(g.log_scale + h.log_scale)

    def inverse(self, g: LogScale) -> LogScale:
        return LogScale(-g.log_scale)

    def act(self, g: LogScale, theta: Tensor) -> Tensor:
        return g.scale * theta

    def exp(self, X: LogScale) -> LogScale:
        return X

    def at(self, point: Tensor, scale: float = 1.0) -> LogScale:
        if not bool((point > 0).all()):
            raise ValueError(
                f"Multiplicative acts on positive numbers, but the point has a value of {float(point.min()):g}. "
                "Give a positive point. liebayes.nn.plus_minus, dale or fixed_sign give a network with weights of both signs "
                "positive magnitudes."
            )
        return LogScale(point.log())

    # Closed forms.

    def adjoint(self, g: LogScale, X: LogScale) -> LogScale:
        return X

    def bracket(self, X: LogScale, Y: LogScale) -> LogScale:
        return self.zero(X)

    def pullback(self, g: LogScale, theta: Tensor, gradient: Tensor) -> LogScale:
        return LogScale(average_over_samples(theta * gradient, g.log_scale.shape))

    def act_with_transpose(self, g: LogScale, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        scale = g.scale
        return scale * epsilon, lambda gradient: gradient * scale

    def log_jacobian(self, g: LogScale, theta: Tensor) -> Tensor:
        return g.log_scale.sum()

    def divergence(self, g: LogScale, epsilon: Tensor) -> LogScale:
        return LogScale(torch.ones_like(g.log_scale))

    def flat(self, X: LogScale, base: Base) -> LogScale:
        return LogScale(X.log_scale * base.fisher_scale)

    def sharp(self, covector: LogScale, base: Base) -> LogScale:
        return LogScale(covector.log_scale / base.fisher_scale)

    def log_scale_and_shift(self, g: LogScale) -> tuple[Tensor, Tensor]:
        """The element as log A and b of θ = Aε + b."""
        return g.log_scale, torch.zeros_like(g.log_scale)

    def variance(self, g: LogScale, variance: float) -> Tensor:
        return g.scale.square() * variance

    def spread(self, g: LogScale, variance: float) -> LogScale:
        return LogScale(self.variance(g, variance))

    def stddev(self, g: LogScale, stddev: float) -> Tensor:
        return g.scale * stddev
