"""Bases on the positive half line, for the multiplicative group (A.4)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, distributions

from .base import require_factor, require_positive
from .law import Constants, Draw, Law, ScaledLaw
from .quadrature import HALF_LINE
from .real_line import EULER


@dataclass(frozen=True)
class Rayleigh(ScaledLaw):
    """The density (x/scale²)·e^(−x²/(2·scale²)): the paper's base for magnitudes of weights."""

    scale: float = 1.0
    support = HALF_LINE

    _constants = Constants(
        1 - math.log(2) / 2 + EULER / 2,
        mean=math.sqrt(math.pi / 2),
        variance=2 - math.pi / 2,
        fisher_scale=4.0,
        fisher_shift=None,
        fisher_cross=None,
    )

    def _quantile(self, u: Tensor) -> Tensor:
        return (-2 * torch.log1p(-u)).sqrt()

    def _log_prob(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, z.clamp_max(1 / torch.finfo(z.dtype).eps).log() - 0.5 * z.square(), -math.inf)  # no ∞ − ∞

    def _score(self, z: Tensor) -> Tensor:
        return 1 / z - z

    def _kernel(self, z: Tensor) -> Tensor:
        """1 − μ(1 − erfcx(z/√2))/z with μ = √(π/2); near 0 from erfcx(y) = Σ (−y)ⁿ/Γ(n/2 + 1)."""
        dtype, z = z.dtype, z.double()
        y = z / math.sqrt(2)
        series = math.sqrt(math.pi) / 2 * sum((-1) ** n * y ** (n - 1) / math.gamma(n / 2 + 1) for n in range(2, 10))
        return torch.where(z < 0.01, series, 1 - math.sqrt(math.pi / 2) * (1 - torch.special.erfcx(y)) / z).to(dtype)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return 2 * log_scale + torch.expm1(-2 * log_scale)

    def _distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Weibull(scale * math.sqrt(2), torch.full_like(scale, 2.0))


@dataclass(frozen=True)
class Exponential(ScaledLaw):
    """The density e^(−x/scale) / scale."""

    scale: float = 1.0
    support = HALF_LINE

    _constants = Constants(1.0, mean=1.0, variance=1.0, fisher_scale=1.0, fisher_shift=None, fisher_cross=None)

    def _quantile(self, u: Tensor) -> Tensor:
        return -torch.log1p(-u)

    def _log_prob(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, -z, -math.inf)

    def _score(self, z: Tensor) -> Tensor:
        return torch.full_like(z, -1)

    def _kernel(self, z: Tensor) -> Tensor:
        return z

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return log_scale + torch.expm1(-log_scale)

    def _distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Exponential(1 / scale)


@dataclass(frozen=True)
class LogNormal(Law):
    """e^Z with Z ~ N(mu, sigma²). The multiplicative group moves mu and leaves sigma."""

    sigma: float = 1.0
    mu: float = 0.0
    support = HALF_LINE

    def __post_init__(self) -> None:
        require_positive(self, sigma=self.sigma)
        if not (isinstance(self.mu, (int, float)) and abs(self.mu) <= sys.float_info.max):
            raise ValueError(f"LogNormal needs a finite mu, but got {self.mu!r}.")

    def _draw(self, noise: Draw) -> Tensor:
        return (noise.normal() * self.sigma + self.mu).exp()

    def scaled(self, factor: float) -> LogNormal:
        require_factor(self, factor)
        return replace(self, mu=self.mu + math.log(factor))

    def log_prob(self, x: Tensor) -> Tensor:
        log = x.log()
        z = (log - self.mu) / self.sigma
        return torch.where(x > 0, -0.5 * z.square() - log - math.log(self.sigma * math.sqrt(2 * math.pi)), -math.inf)

    def score(self, x: Tensor) -> Tensor:
        return -(1 + (x.log() - self.mu) / self.sigma**2) / x

    def stein_kernel(self, x: Tensor) -> Tensor:
        """σ·x·E[ε]·(Φ(z) − Φ(z − σ))/φ(z) with z = (log x − μ)/σ, from the tail on which z lies."""
        z = (x.double().log() - self.mu) / self.sigma
        tilt = (z * self.sigma - self.sigma**2 / 2).exp()  # φ(z − σ)/φ(z)
        above = tilt * _mills(z.clamp_min(0) - self.sigma) - _mills(z.clamp_min(0))
        below = _mills(-z.clamp_max(0)) - tilt * _mills(self.sigma - z.clamp_max(0))
        return (self.sigma * self.mean * x.double() * torch.where(z > 0, above, below)).to(x.dtype)

    @property
    def mean(self) -> float:
        return self._within_floats("mean", lambda: math.exp(self.mu + self.sigma**2 / 2))

    @property
    def variance(self) -> float:
        return self._within_floats("variance", lambda: math.expm1(self.sigma**2) * math.exp(2 * self.mu + self.sigma**2))

    @property
    def stddev(self) -> float:
        return self._within_floats("standard deviation", lambda: math.sqrt(math.expm1(self.sigma**2)) * self.mean)

    def _within_floats(self, name: str, value: Callable[[], float]) -> float:
        try:
            return value()
        except OverflowError:
            raise ValueError(f"The {name} of {self} exceeds the largest float. Use samples instead.") from None

    @property
    def entropy(self) -> float:
        return self.mu + 0.5 * math.log(2 * math.pi * math.e) + math.log(self.sigma)

    @property
    def fisher_scale(self) -> float:
        return 1 / self.sigma**2

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return 0.5 * (log_scale / self.sigma).square()

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.LogNormal(self.mu + scale.log(), torch.full_like(scale, self.sigma))


def _mills(z: Tensor) -> Tensor:
    """(1 − Φ(z))/φ(z)."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(z / math.sqrt(2))
