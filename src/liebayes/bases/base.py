"""The base distribution q₀ (Sec. 3.2): independent coordinates, each with the same univariate density.

A new base implements `sample` and `log_prob`, and sets its `support` if that is not the whole real line. Its score follows by
automatic differentiation, its moments and Fisher constants by quadrature. The bases of the library have closed forms, which
are tested against those.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from .quadrature import REAL_LINE, Support, integrate, resolving_step, stein_kernel


class Base(ABC):
    """A univariate distribution, used independently for every coordinate of θ."""

    support: Support = REAL_LINE

    private_draws: ClassVar[bool] = False
    """`sample` with a generator touches nothing but that generator, so that it may run in another thread."""

    @abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Independent draws ε of the given shape."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """log q₀(x), elementwise."""

    def score(self, x: Tensor) -> Tensor:
        """s(x) = d/dx log q₀(x), elementwise."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            total = self.log_prob(leaf).sum()
            return torch.autograd.grad(total, leaf)[0] if total.requires_grad else torch.zeros_like(x)

    def add_score(self, gradient: Tensor, x: Tensor, weight: float) -> Tensor:
        """gradient + weight·s(x)."""
        return gradient.add(self.score(x), alpha=weight)

    def stein_kernel(self, x: Tensor) -> Tensor:
        """κ(x) = q₀(x)⁻¹ ∫ₓ^∞ (t − E[ε])·q₀(t) dt, elementwise; by quadrature, or in closed form.

        Integration by parts: E[(ε − E[ε])·f(ε)] = E[κ(ε)·f′(ε)] for every smooth f; with f(ε) = ε, E[κ(ε)] = Var(ε).
        """
        try:
            mean = self.mean
        except ValueError as error:
            raise ValueError(
                f"{self} has no Stein kernel, which needs a mean. Use a base with lighter tails, such as StudentT(3)."
            ) from error
        return stein_kernel(self.log_prob, mean, self.support, x)

    # Moments. A base without one raises an error that says so.

    @property
    def mean(self) -> float:
        """E[ε]."""
        return self._once("mean", lambda: self.expectation(lambda x: x))

    @property
    def variance(self) -> float:
        """Var(ε)."""
        return self._once("variance", lambda: self.expectation(lambda x: (x - self.mean).square()))

    @property
    def stddev(self) -> float:
        """√Var(ε)."""
        return math.sqrt(self.variance)

    @property
    def entropy(self) -> float:
        """H(q₀) = −E[log q₀(ε)]."""
        return self._once("entropy", lambda: -self.expectation(self.log_prob))

    # The Fisher constants of A.3–A.5. They are the whole metric of the elementwise groups.

    @property
    def fisher_shift(self) -> float:
        """c_y = E[s²], the information about a shift."""

        def compute() -> float:
            self.require_no_flux("shifts", torch.ones_like)
            return self.expectation(lambda x: self.score(x).square())

        return self._once("Fisher information under shifts", compute)

    @property
    def fisher_scale(self) -> float:
        """c_X = E[(1 + εs)²], the information about a scale (A.5; Alg. 3 prints it without the density)."""

        def compute() -> float:
            self.require_no_flux("scalings", lambda x: x)
            return self.expectation(lambda x: (1 + x * self.score(x)).square())

        return self._once("Fisher information under scalings", compute)

    @property
    def fisher_cross(self) -> float:
        """B = E[(1 + εs)s], which vanishes for even bases."""

        def compute() -> float:
            size = math.sqrt(self.fisher_scale * self.fisher_shift)
            cross = self.expectation(lambda x: (1 + x * self.score(x)) * self.score(x))
            return 0.0 if abs(cross) < 1e-9 * size else cross

        return self._once("Fisher information between shifts and scalings", compute)

    def __repr__(self) -> str:
        """The type and its public attributes: the text that names the base in files."""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if not k.startswith('_'))})"

    @property
    def _notes(self) -> dict[str, Any]:
        """Results of quadrature, kept in vars() so that frozen dataclasses can have them too."""
        return vars(self).setdefault("_found", {})

    def _once(self, what: str, compute: Callable[[], float]) -> float:
        notes = self._notes
        if what not in notes:
            notes[what] = compute()
        if not math.isfinite(notes[what]):
            raise ValueError(f"{self} has no finite {what}.")
        return notes[what]

    def expectation(self, f: Callable[[Tensor], Tensor]) -> float:
        """E[f(ε)] by quadrature; infinite where it does not converge."""
        notes = self._notes
        if "quadrature step" not in notes:
            notes["quadrature step"] = resolving_step(lambda x: self.log_prob(x).exp(), self.support)
        if notes["quadrature step"] is None:
            raise ValueError(
                f"The density of {self} cannot be integrated to 1: it is not normalised, or too narrow for its place. Give "
                "the base its moments and Fisher constants in closed form, or centre it near 0 with a width near 1: groups "
                "move it."
            )

        def integrand(x: Tensor) -> Tensor:
            density = self.log_prob(x).exp()
            inside = density > 0
            safe = torch.where(inside, x, torch.ones_like(x))
            return torch.where(inside, f(safe) * density, 0.0)

        return integrate(integrand, self.support, notes["quadrature step"])

    def distribution(self, scale: Tensor, shift: Tensor) -> Distribution:
        """The distribution of scale·ε + shift as `torch.distributions` has it."""
        raise ValueError(f"torch.distributions has no family for {self} moved and scaled.")

    def scaled(self, factor: float) -> Base:
        """The base of factor·ε."""
        require_factor(self, factor)
        return self if factor == 1 else Scaled(self, factor)

    def kl(self, log_scale: Tensor, shift: Tensor) -> Tensor:
        """KL(q₀ ‖ π(A, b)q₀) for every pair of a scale and a shift, where it has a closed form."""
        raise ValueError(
            f"{self} has no closed form for the KL divergence between two members of its family. "
            "Estimate it from samples: (q.log_prob(θ) − p.log_prob(θ)).mean() with θ from q."
        )

    def require_no_flux(self, what: str, velocity: Callable[[Tensor], Tensor]) -> None:
        """Refuses a density that does not vanish at its edge where the group carries mass over that edge.

        No score sees such a jump: quadrature would return a number, and it would be wrong.
        """
        for edge, inward in ((self.support[0], 1.0), (self.support[1], -1.0)):
            if math.isinf(edge):
                continue
            # The flux falls towards an edge that it vanishes at, like a power of the distance as a rule; scales play no part.
            near, far = (1e-280, 1e-10) if edge == 0 else (abs(edge) * 1e-13, abs(edge) * 1e-6)
            places = edge + inward * torch.tensor([near, far], dtype=torch.float64)
            flux, before = (self.log_prob(places).exp() * velocity(places).abs()).tolist()
            if flux > 0.5 * before:
                raise ValueError(
                    f"{self} has no Fisher metric under {what}: its density does not vanish at its edge {edge:g}. "
                    "Use the metric Absorbed() or Adaptive(), or a base that is smooth on the whole line."
                )


@dataclass(frozen=True)
class Scaled(Base):
    """factor·ε for ε of another base; what `Base.scaled` gives where a base has no scale of its own."""

    base: Base
    factor: float

    def __post_init__(self) -> None:
        require_positive(self, factor=self.factor)

    @property
    def support(self) -> Support:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.support[0] * self.factor, self.base.support[1] * self.factor

    def sample(self, shape: Sequence[int], **how: Any) -> Tensor:
        return self.base.sample(shape, **how) * self.factor

    def log_prob(self, x: Tensor) -> Tensor:
        return self.base.log_prob(x / self.factor) - math.log(self.factor)

    def stein_kernel(self, x: Tensor) -> Tensor:
        return self.factor**2 * self.base.stein_kernel(x / self.factor)


def is_positive(value: Any) -> bool:
    """Whether a value is a positive number of Python's or numpy's that a float holds."""
    long = isinstance(value, int) and value.bit_length() > 1000
    return isinstance(value, numbers.Real) and not long and 0 < float(value) < math.inf


def require_factor(base: object, value: Any, name: str = "factor") -> None:
    """Refuses anything but a positive number."""
    if not is_positive(value):
        raise ValueError(f"{type(base).__name__} needs a positive, finite {name}, but got {value!r}.")


def require_positive(base: object, **values: float) -> None:
    """The check of every scale, once, at construction."""
    for name, value in values.items():
        require_factor(base, value, name)
        if not isinstance(value, (int, float)):  # numpy's, whose text no file would be read by
            object.__setattr__(base, name, float(value))
