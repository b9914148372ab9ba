"""Bases on the real line, for the additive and affine groups. All but Gumbel are even.

Every class has the formulas of its standard law, in z = x/scale; `ScaledLaw` applies the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, distributions

from .law import Constants, Draw, Law, ScaledLaw
from .quadrature import Support

EULER = 0.5772156649015329


@dataclass(frozen=True)
class Normal(ScaledLaw):
    """N(0, scale²).

    >>> Normal(0.5).variance
    0.25
    """

    scale: float = 1.0

    _located = distributions.Normal
    _constants = Constants(0.5 * math.log(2 * math.pi * math.e), variance=1.0, fisher_scale=2.0, fisher_shift=1.0)

    def _standard_draw(self, noise: Draw) -> Tensor:
        return noise.normal()

    def _log_prob(self, z: Tensor) -> Tensor:
        return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)

    def _score(self, z: Tensor) -> Tensor:
        return -z

    def add_score(self, gradient: Tensor, x: Tensor, weight: float) -> Tensor:
        return gradient.add(x, alpha=-weight / self.scale**2)  # one pass over memory

    def _kernel(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return log_scale + 0.5 * (1 + shift.square()) * (-2 * log_scale).exp() - 0.5


@dataclass(frozen=True)
class Laplace(ScaledLaw):
    """The density e^(−|x|/scale) / (2·scale): heavier tails than the Normal."""

    scale: float = 1.0

    _located = distributions.Laplace
    _constants = Constants(1 + math.log(2), variance=2.0, fisher_scale=1.0, fisher_shift=1.0)

    def _quantile(self, u: Tensor) -> Tensor:
        # Each half by the logarithm of its own distance to the edge, which is exact there.
        return torch.where(u < 0.5, (2 * u).log(), -(2 - 2 * u).log())

    def _log_prob(self, z: Tensor) -> Tensor:
        return -z.abs() - math.log(2)

    def _score(self, z: Tensor) -> Tensor:
        return -z.sign()

    def _kernel(self, z: Tensor) -> Tensor:
        return 1 + z.abs()

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        distance = shift.abs()
        return log_scale + ((-distance).exp() + distance) * (-log_scale).exp() - 1


@dataclass(frozen=True)
class Uniform(ScaledLaw):
    """Uniform on [−half_width, half_width]. Its edges leave it without a Fisher metric: use Absorbed() or Adaptive()."""

    half_width: float = 1.0

    _scale_field = "half_width"
    _constants = Constants(math.log(2), variance=1 / 3, fisher_scale=None, fisher_shift=None, fisher_cross=None)

    @property
    def support(self) -> Support:  # pyright: ignore[reportIncompatibleVariableOverride]
        return -self.half_width, self.half_width

    def _quantile(self, u: Tensor) -> Tensor:
        return 2 * (u - 0.5)

    def _log_prob(self, z: Tensor) -> Tensor:
        level = torch.full_like(z, -math.log(2))  # two plain numbers would make a float32
        return torch.where(z.abs() <= 1, level, -math.inf)

    def _score(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def _kernel(self, z: Tensor) -> Tensor:
        return 0.5 * ((1 - z) * (1 + z)).clamp_min(0)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        return torch.where(shift.abs() + 1 <= log_scale.exp(), log_scale, math.inf)

    def _distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.Uniform(shift - scale, shift + scale)


@dataclass(frozen=True)
class Cauchy(ScaledLaw):
    """The density scale / (π(x² + scale²)): no mean, no variance, the heaviest tails here."""

    scale: float = 1.0

    _located = distributions.Cauchy
    _constants = Constants(
        math.log(4 * math.pi),
        mean="Cauchy has no mean. Its centre is 0; ask for samples or the density instead.",
        variance="Cauchy has no variance: E[ε²] is infinite. Use a base with lighter tails, such as StudentT(3).",
        fisher_scale=0.5,
        fisher_shift=0.5,
    )

    def _quantile(self, u: Tensor) -> Tensor:
        return (math.pi * (u - 0.5)).tan()

    def _log_prob(self, z: Tensor) -> Tensor:
        return -torch.log1p(z.square()) - math.log(math.pi)

    def _score(self, z: Tensor) -> Tensor:
        return -2 * z / (z.square() + 1)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        scale = log_scale.exp()
        return (((1 + scale).square() + shift.square()) / (4 * scale)).log()


@dataclass(frozen=True)
class StudentT(ScaledLaw):
    """Student's t with `df` degrees of freedom: between Cauchy (df = 1) and Normal (df → ∞)."""

    df: float
    scale: float = 1.0

    @property
    def _constants(self) -> Constants:  # pyright: ignore[reportIncompatibleVariableOverride]
        df = self.df
        above, below = torch.digamma(torch.tensor([(df + 1) / 2, df / 2], dtype=torch.float64)).tolist()
        return Constants(
            (df + 1) / 2 * (above - below) - self._log_normaliser,
            mean=0.0 if df > 1 else f"{self} has no mean: df must be above 1.",
            variance=df / (df - 2) if df > 2 else f"{self} has no variance: E[ε²] is infinite for df ≤ 2. Use df above 2.",
            fisher_scale=2 * df / (df + 3),
            fisher_shift=(df + 1) / (df + 3),
        )

    @property
    def _log_normaliser(self) -> float:
        return math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(math.pi * self.df)

    def _draw(self, noise: Draw) -> Tensor:
        # Bailey's polar form (1994): exact for every df, from two uniforms, so that a generator can be given.
        radius, angle = noise.uniform(), noise.uniform()
        squared = self.df * torch.expm1(radius.log() * (-2 / self.df))
        return self.scale * squared.sqrt() * (2 * math.pi * angle).cos()

    def _log_prob(self, z: Tensor) -> Tensor:
        return self._log_normaliser - (self.df + 1) / 2 * torch.log1p(z.square() / self.df)

    def _score(self, z: Tensor) -> Tensor:
        return -(self.df + 1) * z / (self.df + z.square())

    def _kernel(self, z: Tensor) -> Tensor:
        """(df + z²)/(df − 1), for df > 1. Its expectation is the variance, and so finite for df > 2 only."""
        return (self.df + z.square()) / (self.df - 1)

    def _distribution(self, scale: Tensor, shift: Tensor) -> distributions.Distribution:
        return distributions.StudentT(self.df, shift, scale)


@dataclass(frozen=True)
class Gumbel(ScaledLaw):
    """The density e^(−z − e^(−z)) / scale with z = x/scale: skewed, so that its Fisher block is full."""

    scale: float = 1.0

    _located = distributions.Gumbel
    _constants = Constants(
        EULER + 1,
        mean=EULER,
        variance=math.pi**2 / 6,
        fisher_scale=math.pi**2 / 6 + (1 - EULER) ** 2,
        fisher_shift=1.0,
        fisher_cross=EULER - 1,
    )

    def _quantile(self, u: Tensor) -> Tensor:
        return -(-u.log()).log()

    def _log_prob(self, z: Tensor) -> Tensor:
        return -z.clamp_min(-1 / torch.finfo(z.dtype).eps) - (-z).exp()  # no ∞ − ∞ at −∞

    def _score(self, z: Tensor) -> Tensor:
        return torch.expm1(-z)

    def _kernel(self, z: Tensor) -> Tensor:
        """(e^u·E₁(u) + log u + γ)/u with u = e^(−z) and the exponential integral E₁.

        The substitution u = e^(−t) makes κ the integral e^u/u·∫₀^u (−log v − γ)e^(−v) dv. Since e^u·(E₁(u) + log u + γ) is
        Σ Hₙuⁿ/n! with the harmonic numbers Hₙ, κ is Σ (Hₙ − γ + z)·uⁿ⁻¹/n!, which serves u ≤ 4; above, the continued
        fraction of E₁ converges fast.
        """
        dtype, z = z.dtype, z.double()
        u = (-z).exp()
        small, series = u.clamp_max(4), torch.zeros_like(z)
        for n in range(32, 0, -1):
            harmonic = sum(1 / k for k in range(1, n + 1))
            series = (harmonic - EULER + z) + small / (n + 1) * series
        large = u.clamp_min(4)
        fraction = large + 57
        for n in range(28, 0, -1):
            fraction = large + (2 * n - 1) - n * n / fraction
        return torch.where(u <= 4, series, (1 / fraction - z + EULER) * z.exp()).to(dtype)

    def _kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        inverse = (-log_scale).exp()
        moved = shift * inverse
        return log_scale + EULER * (inverse - 1) + (moved + torch.lgamma(1 + inverse)).exp() - 1 - moved


@dataclass(frozen=True)
class Dirac(Law):
    """All mass at 0: the rule without noise. Additive with a Dirac base is gradient descent.

    For the affine groups that holds at τ = 0 only: at τ > 0 nothing stops the scale from growing by e^(ατ) a step.
    """

    def _draw(self, noise: Draw) -> Tensor:
        return torch.zeros(noise.shape, dtype=noise.dtype, device=noise.device)

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
