"""The bases of the library: ε = scale·Z with Z of a standard law.

A law has the formulas of Z; `ScaledLaw` applies the scale, here and nowhere else:

    log q₀(x) = log q_Z(x/scale) − log scale,    s(x) = s_Z(x/scale)/scale,    κ(x) = scale²·κ_Z(x/scale).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from .base import Base, require_factor, require_positive
from .quadrature import stein_kernel

L = TypeVar("L", bound="ScaledLaw")


class Draw(NamedTuple):
    """The arguments of `sample`."""

    shape: tuple[int, ...]
    generator: torch.Generator | None
    dtype: torch.dtype | None
    device: torch.device | str | None

    def normal(self) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(self.shape, generator=self.generator, dtype=self.dtype, device=self.device)

    def uniform(self) -> Tensor:
        """Uniform on the open interval (0, 1): neither 0 nor 1, so that logarithms stay finite and positive draws positive.

        Narrow dtypes are drawn in float32, and rounded after the law's transformation.
        """
        wide = torch.float64 if (self.dtype or torch.get_default_dtype()) == torch.float64 else torch.float32
        # torch.rand gives multiples of 2⁻²⁴ (2⁻⁵³) below 1; half of that step stands in for 0.
        smallest = 2.0**-25 if wide == torch.float32 else 2.0**-54
        return torch.rand(self.shape, generator=self.generator, dtype=wide, device=self.device).clamp_min(smallest)


class Law(Base):
    """A base whose draws come from torch's normal or uniform numbers alone."""

    private_draws = True

    @abstractmethod
    def _draw(self, noise: Draw) -> Tensor:
        """ε, in any floating dtype."""

    def sample(
        self, shape: Sequence[int], *, generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None, device: torch.device | str | None = None,
    ) -> Tensor:  # fmt: skip
        drawn = self._draw(Draw(tuple(shape), generator, dtype, device))
        return drawn.to(torch.get_default_dtype() if dtype is None else dtype)


class Constants(NamedTuple):
    """Constants of a standard law. A text in place of one says why it does not exist; None leaves it to quadrature."""

    entropy: float
    variance: float | str
    fisher_scale: float | None
    fisher_shift: float | None
    fisher_cross: float | None = 0.0
    mean: float | str = 0.0


@dataclass(frozen=True)
class ScaledLaw(Law):
    """scale·Z for Z of a standard law. Subclasses are frozen dataclasses of positive numbers, one of them the scale."""

    _scale_field: ClassVar[str] = "scale"
    _constants: ClassVar[Constants]
    _located: ClassVar[Callable[[Tensor, Tensor], Distribution]]
    """torch's class of the law, of a shift and a scale; or see `_distribution`."""

    # The standard law.

    def _quantile(self, u: Tensor) -> Tensor:
        """The inverse of Z's distribution function, for u in the open interval (0, 1)."""
        raise NotImplementedError

    def _standard_draw(self, noise: Draw) -> Tensor:
        return self._quantile(noise.uniform())

    @abstractmethod
    def _log_prob(self, z: Tensor) -> Tensor: ...

    @abstractmethod
    def _score(self, z: Tensor) -> Tensor: ...

    def _kernel(self, z: Tensor) -> Tensor:
        support = self.support[0] / self._scale, self.support[1] / self._scale
        return stein_kernel(self._log_prob, self.mean / self._scale, support, z)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return super().kl(log_scale, shift)

    def _distribution(self, scale: Tensor, shift: Tensor) -> Distribution:
        """scale·Z + shift."""
        return self._located(shift, scale)

    # The scale.

    def __post_init__(self) -> None:
        require_positive(self, **{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def _scale(self) -> float:
        return getattr(self, self._scale_field)

    def _standard(self, x: Tensor) -> Tensor:
        return x if self._scale == 1 else x / self._scale

    def _draw(self, noise: Draw) -> Tensor:
        z = self._standard_draw(noise)
        return z if self._scale == 1 else z.mul_(self._scale)

    def scaled(self: L, factor: float) -> L:
        require_factor(self, factor)
        changed: dict[str, Any] = {self._scale_field: self._scale * factor}
        return replace(self, **changed)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._log_prob(self._standard(x)) - math.log(self._scale)

    def score(self, x: Tensor) -> Tensor:
        return self._score(self._standard(x)) / self._scale

    def stein_kernel(self, x: Tensor) -> Tensor:
        if isinstance(self._constants.mean, str):
            return super().stein_kernel(x)  # which refuses
        return self._kernel(self._standard(x)) * self._scale**2

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return self._kl(log_scale, self._standard(shift))

    def distribution(self, scale: Tensor, shift: Tensor) -> Distribution:
        return self._distribution(scale * self._scale, shift)

    @property
    def mean(self) -> float:
        return _known(self._constants.mean) * self._scale

    @property
    def variance(self) -> float:
        return _known(self._constants.variance) * self._scale**2

    @property
    def stddev(self) -> float:
        return math.sqrt(_known(self._constants.variance)) * self._scale

    @property
    def entropy(self) -> float:
        return self._constants.entropy + math.log(self._scale)

    @property
    def fisher_shift(self) -> float:
        constant = self._constants.fisher_shift
        return super().fisher_shift if constant is None else constant / self._scale**2

    @property
    def fisher_scale(self) -> float:
        constant = self._constants.fisher_scale
        return super().fisher_scale if constant is None else constant

    @property
    def fisher_cross(self) -> float:
        constant = self._constants.fisher_cross
        return super().fisher_cross if constant is None else constant / self._scale


def _known(moment: float | str) -> float:
    if isinstance(moment, str):
        raise ValueError(moment)
    return moment
