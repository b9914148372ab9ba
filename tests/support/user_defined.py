"""Groups and a base as a user writes them: the least the library asks for, with everything else derived.

They stand in the registry, so every law runs over them too.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from liebayes.bases import Base
from liebayes.groups import LieGroup


class Dilation(NamedTuple):
    log_scale: Tensor  # one number for all coordinates
    shift: Tensor


class IsotropicAffine(LieGroup[Dilation]):
    """θ ↦ aθ + b with a single scale a > 0 for the whole vector."""

    affine_action = True

    def identity(self, like: Tensor) -> Dilation:
        return Dilation(like.new_zeros(()), torch.zeros_like(like))

    def compose(self, g: Dilation, h: Dilation) -> Dilation:
        return Dilation(g.log_scale + h.log_scale, g.log_scale.exp() * h.shift + g.shift)

    def inverse(self, g: Dilation) -> Dilation:
        return Dilation(-g.log_scale, -(-g.log_scale).exp() * g.shift)

    def act(self, g: Dilation, theta: Tensor) -> Tensor:
        return g.log_scale.exp() * theta + g.shift

    def exp(self, X: Dilation) -> Dilation:
        x, y = X
        away = torch.where(x.abs() < 1e-5, 1.0, x)
        return Dilation(x, torch.where(x.abs() < 1e-5, 1 + x / 2 + x * x / 6, torch.expm1(away) / away) * y)

    def at(self, point: Tensor, scale: float = 1.0) -> Dilation:
        return Dilation(torch.as_tensor(scale, dtype=point.dtype).log(), point.clone())


class Rapidity(NamedTuple):
    rapidity: Tensor


class SinhShift(LieGroup[Rapidity]):
    """θ ↦ sinh(arsinh θ + g): a shift near the origin, a scaling far from it. The action is not affine."""

    elementwise = True

    def identity(self, like: Tensor) -> Rapidity:
        return Rapidity(torch.zeros_like(like))

    def compose(self, g: Rapidity, h: Rapidity) -> Rapidity:
        return Rapidity(g.rapidity + h.rapidity)

    def inverse(self, g: Rapidity) -> Rapidity:
        return Rapidity(-g.rapidity)

    def act(self, g: Rapidity, theta: Tensor) -> Tensor:
        return torch.sinh(torch.asinh(theta) + g.rapidity)

    def exp(self, X: Rapidity) -> Rapidity:
        return X

    def at(self, point: Tensor, scale: float = 1.0) -> Rapidity:
        return Rapidity(torch.asinh(point))


class PlainDiagonalAffine(LieGroup[Dilation]):
    """DiagonalAffine again, with nothing but the five methods: its metric comes from quadrature."""

    elementwise = True
    affine_action = True

    def identity(self, like: Tensor) -> Dilation:
        return Dilation(torch.zeros_like(like), torch.zeros_like(like))

    compose = IsotropicAffine.compose
    inverse = IsotropicAffine.inverse
    act = IsotropicAffine.act
    exp = IsotropicAffine.exp


class Logistic(Base):
    """The density of the logistic distribution, from its sampler and its logarithm alone."""

    def sample(self, shape, *, generator=None, dtype=None, device=None) -> Tensor:
        return torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device).clamp(1e-7, 1 - 1e-7).logit()

    def log_prob(self, x: Tensor) -> Tensor:
        return -x.abs() - 2 * torch.log1p((-x.abs()).exp())

    def __repr__(self) -> str:
        return "Logistic()"
