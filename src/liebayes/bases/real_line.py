"""Bases on the real line, for the additive and affine groups. All but Gumbel are even."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, distributions

from .base import Base, QuantileBase, narrow, open_uniform, require_positive
from .quadrature import Support

EULER = 0.5772156649015329


@dataclass(frozen=True)
class Normal(Base):
    """N(0, scale²).

    >>> Normal(0.5).variance
    0.25
    """

    scale: float = 1.0

    private_draws = True

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale)

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        noise = torch.randn(tuple(shape), generator=generator, dtype=dtype, device=device)
        return noise if self.scale == 1 else noise.mul_(self.scale)

    def scaled(self, factor: float) -> Normal:
        return replace(self, scale=self.scale * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        return -0.5 * (x / self.scale).square() - math.log(self.scale * math.sqrt(2 * math.pi))

    def score(self, x: Tensor) -> Tensor:
        return x * (-1 / self.scale**2)

    def add_score(self, gradient: Tensor, x: Tensor, weight: float) -> Tensor:
        return gradient.add(x, alpha=-weight / self.scale**2)

    def stein_kernel(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.scale**2)

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def variance(self) -> float:
        return self.scale**2

    @property
    def entropy(self) -> float:
        return 0.5 * math.log(2 * math.pi * math.e) + math.log(self.scale)

    @property
    def fisher_shift(self) -> float:
        return 1 / self.scale**2

    @property
    def fisher_scale(self) -> float:
        return 2.0

    @property
    def fisher_cross(self) -> float:
        return 0.0

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return log_scale + 0.5 * (1 + (shift / self.scale).square()) * (-2 * log_scale).exp() - 0.5

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Normal(shift, scale * self.scale)


@dataclass(frozen=True)
class Laplace(QuantileBase):
    """The density e^(−|x|/scale) / (2·scale): heavier tails than the Normal."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale)

    def quantile(self, u: Tensor) -> Tensor:
        # Each half by the logarithm of its own distance to the edge, which is exact there.
        return self.scale * torch.where(u < 0.5, (2 * u).log(), -(2 - 2 * u).log())

    def scaled(self, factor: float) -> Laplace:
        return replace(self, scale=self.scale * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        return -x.abs() / self.scale - math.log(2 * self.scale)

    def score(self, x: Tensor) -> Tensor:
        return -x.sign() / self.scale

    def stein_kernel(self, x: Tensor) -> Tensor:
        return self.scale * (self.scale + x.abs())

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def variance(self) -> float:
        return 2 * self.scale**2

    @property
    def entropy(self) -> float:
        return 1 + math.log(2 * self.scale)

    @property
    def fisher_shift(self) -> float:
        return 1 / self.scale**2

    @property
    def fisher_scale(self) -> float:
        return 1.0

    @property
    def fisher_cross(self) -> float:
        return 0.0

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        distance = shift.abs() / self.scale
        return log_scale + ((-distance).exp() + distance) * (-log_scale).exp() - 1

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Laplace(shift, scale * self.scale)


@dataclass(frozen=True)
class Uniform(QuantileBase):
    """Uniform on [−half_width, half_width]. Its edges give it no Fisher metric: take Absorbed() or Adaptive()."""

    half_width: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, half_width=self.half_width)

    @property
    def support(self) -> Support:  # pyright: ignore[reportIncompatibleVariableOverride]
        return -self.half_width, self.half_width

    def quantile(self, u: Tensor) -> Tensor:
        return (u - 0.5) * (2 * self.half_width)

    def scaled(self, factor: float) -> Uniform:
        return replace(self, half_width=self.half_width * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        level = torch.full_like(x, -math.log(2 * self.half_width))  # two plain numbers would make a float32
        return torch.where(x.abs() <= self.half_width, level, -math.inf)

    def score(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def stein_kernel(self, x: Tensor) -> Tensor:
        return 0.5 * ((self.half_width - x) * (self.half_width + x)).clamp_min(0)

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def variance(self) -> float:
        return self.half_width**2 / 3

    @property
    def entropy(self) -> float:
        return math.log(2 * self.half_width)

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        inside = shift.abs() + self.half_width <= log_scale.exp() * self.half_width
        return torch.where(inside, log_scale, math.inf)

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Uniform(shift - scale * self.half_width, shift + scale * self.half_width)


@dataclass(frozen=True)
class Cauchy(QuantileBase):
    """The density scale / (π(x² + scale²)): no mean, no variance, the heaviest tails here."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale)

    def quantile(self, u: Tensor) -> Tensor:
        return self.scale * (math.pi * (u - 0.5)).tan()

    def scaled(self, factor: float) -> Cauchy:
        return replace(self, scale=self.scale * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        return -torch.log1p((x / self.scale).square()) - math.log(math.pi * self.scale)

    def score(self, x: Tensor) -> Tensor:
        return -2 * x / (x.square() + self.scale**2)

    @property
    def mean(self) -> float:
        raise ValueError("Cauchy has no mean. Its centre is 0; ask for samples or the density instead.")

    @property
    def variance(self) -> float:
        raise ValueError("Cauchy has no variance: E[ε²] is infinite. Use a base with lighter tails, such as StudentT(3).")

    @property
    def entropy(self) -> float:
        return math.log(4 * math.pi * self.scale)

    @property
    def fisher_shift(self) -> float:
        return 1 / (2 * self.scale**2)

    @property
    def fisher_scale(self) -> float:
        return 0.5

    @property
    def fisher_cross(self) -> float:
        return 0.0

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        scale = log_scale.exp()
        return (((1 + scale).square() + (shift / self.scale).square()) / (4 * scale)).log()

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Cauchy(shift, scale * self.scale)


@dataclass(frozen=True)
class StudentT(Base):
    """Student's t with `df` degrees of freedom: between Cauchy (df = 1) and Normal (df → ∞)."""

    df: float
    scale: float = 1.0

    private_draws = True

    def __post_init__(self) -> None:
        require_positive(self, df=self.df, scale=self.scale)

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        # Bailey's polar form (1994): exact for every df, from two uniforms, so that a generator can be given.
        radius = open_uniform(shape, generator, dtype, device)
        angle = open_uniform(shape, generator, dtype, device)
        squared = self.df * torch.expm1(radius.log() * (-2 / self.df))
        return narrow(self.scale * squared.sqrt() * (2 * math.pi * angle).cos(), dtype)

    def scaled(self, factor: float) -> StudentT:
        return replace(self, scale=self.scale * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        df = self.df
        normaliser = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi * df) - math.log(self.scale)
        return normaliser - (df + 1) / 2 * torch.log1p((x / self.scale).square() / df)

    def score(self, x: Tensor) -> Tensor:
        return -(self.df + 1) * x / (self.df * self.scale**2 + x.square())

    def stein_kernel(self, x: Tensor) -> Tensor:
        """(df·scale² + x²)/(df − 1), for df > 1. Its expectation is the variance, and so finite for df > 2 only."""
        if self.df <= 1:
            raise ValueError(f"{self} has no Stein kernel, which needs a mean: df must be above 1.")
        return (self.df * self.scale**2 + x.square()) / (self.df - 1)

    @property
    def mean(self) -> float:
        if self.df <= 1:
            raise ValueError(f"{self} has no mean: df must be above 1.")
        return 0.0

    @property
    def variance(self) -> float:
        if self.df <= 2:
            raise ValueError(f"{self} has no variance: E[ε²] is infinite for df ≤ 2. Use df above 2.")
        return self.scale**2 * self.df / (self.df - 2)

    @property
    def entropy(self) -> float:
        half = torch.tensor([(self.df + 1) / 2, self.df / 2], dtype=torch.float64)
        above, below = torch.digamma(half).tolist()
        log_beta = math.lgamma(self.df / 2) + math.lgamma(0.5) - math.lgamma((self.df + 1) / 2)
        return (self.df + 1) / 2 * (above - below) + 0.5 * math.log(self.df) + log_beta + math.log(self.scale)

    @property
    def fisher_shift(self) -> float:
        return (self.df + 1) / ((self.df + 3) * self.scale**2)

    @property
    def fisher_scale(self) -> float:
        return 2 * self.df / (self.df + 3)

    @property
    def fisher_cross(self) -> float:
        return 0.0

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.StudentT(self.df, shift, scale * self.scale)


@dataclass(frozen=True)
class Gumbel(QuantileBase):
    """The density e^(−z − e^(−z)) / scale with z = x/scale: skewed, so that its Fisher block is full."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, scale=self.scale)

    def quantile(self, u: Tensor) -> Tensor:
        return -self.scale * (-u.log()).log()

    def scaled(self, factor: float) -> Gumbel:
        return replace(self, scale=self.scale * factor)

    def log_prob(self, x: Tensor) -> Tensor:
        z = x / self.scale
        return -z - (-z).exp() - math.log(self.scale)

    def score(self, x: Tensor) -> Tensor:
        return torch.expm1(-x / self.scale) / self.scale

    def stein_kernel(self, x: Tensor) -> Tensor:
        return self.scale**2 * _unit_gumbel_kernel(x.double() / self.scale).to(x.dtype)

    @property
    def mean(self) -> float:
        return EULER * self.scale

    @property
    def variance(self) -> float:
        return math.pi**2 / 6 * self.scale**2

    @property
    def entropy(self) -> float:
        return math.log(self.scale) + EULER + 1

    @property
    def fisher_shift(self) -> float:
        return 1 / self.scale**2

    @property
    def fisher_scale(self) -> float:
        return math.pi**2 / 6 + (1 - EULER) ** 2

    @property
    def fisher_cross(self) -> float:
        return -(1 - EULER) / self.scale

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        inverse = (-log_scale).exp()
        moved = shift / self.scale * inverse
        return log_scale + EULER * (inverse - 1) + (moved + torch.lgamma(1 + inverse)).exp() - 1 - moved

    def distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Gumbel(shift, scale * self.scale)


@dataclass(frozen=True)
class Dirac(Base):
    """All mass at 0: the rule without noise. Additive with a Dirac base is gradient descent.

    For the affine groups that holds at τ = 0 only: at τ > 0 nothing stops the scale from growing by e^(ατ) a step.
    """

    private_draws = True

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    def scaled(self, factor: float) -> Dirac:
        return self

    def log_prob(self, x: Tensor) -> Tensor:
        raise ValueError("Dirac has no density. Use a Normal base with a small scale where one is needed.")

    def score(self, x: Tensor) -> Tensor:
        raise ValueError("Dirac has no density, and so no score. Use the metric Absorbed().")

    def stein_kernel(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def variance(self) -> float:
        return 0.0

    @property
    def entropy(self) -> float:
        return -math.inf

    @property
    def fisher_shift(self) -> float:
        raise ValueError("Dirac has no Fisher metric. Use the metric Absorbed(), as Sec. 4.1 does for gradient descent.")

    @property
    def fisher_scale(self) -> float:
        return self.fisher_shift

    @property
    def fisher_cross(self) -> float:
        return self.fisher_shift


def _unit_gumbel_kernel(x: Tensor) -> Tensor:
    """Stein's kernel of a unit Gumbel: (e^u·E₁(u) + log u + γ)/u with u = e^(−x) and the exponential integral E₁.

    The substitution u = e^(−t) makes it e^u/u·∫₀^u (−log v − γ)e^(−v) dv. With e^u·(E₁(u) + log u + γ) = Σ Hₙuⁿ/n!, Hₙ the
    harmonic numbers, it is Σ (Hₙ − γ + x)·uⁿ⁻¹/n!, which serves u ≤ 4; above, the continued fraction of E₁ converges fast.
    """
    u = (-x).exp()
    small, series = u.clamp_max(4), torch.zeros_like(x)
    for n in range(32, 0, -1):
        harmonic = sum(1 / k for k in range(1, n + 1))
        series = (harmonic - EULER + x) + small / (n + 1) * series
    large = u.clamp_min(4)
    fraction = large + 57
    for n in range(28, 0, -1):
        fraction = large + (2 * n - 1) - n * n / fraction
    return torch.where(u <= 4, series, (1 / fraction - x + EULER) * x.exp())
