"""One family over several tensors on their supports: q_g of ℝᵖ, carried over by a chart.

θ = φ⁻¹(g·ε): the family of the group φ⁻¹∘G∘φ (`groups.Conjugated`) on the base carried over by the same chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..bases import Base, Normal
from ..groups import Conjugated, Real
from ..groups.joint import Joint, Part
from .family import Family
from .history import History
from .member import Member

DRAWS = 1 << 14
"""The number of draws for moments without a closed form. The standard error of a mean is then 0.8 % of a standard deviation,
that of a standard deviation 0.6 % for tails like those of a Normal."""


@dataclass(frozen=True)
class JointFamily(Member):
    """A member of the family on supports: one posterior over all parts, in the structure of the start.

    >>> from liebayes.groups import DiagonalAffine, Positive
    >>> chart = Joint.of(torch.tensor(1.0), Positive())
    >>> q = JointFamily(Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.tensor([0.0]), 0.5)), chart)
    >>> q.mean, q.log_prob(torch.tensor(1.0))  # LogNormal(0, 0.5)
    (tensor(1.1331), tensor(-0.2258))
    """

    real: Family[Any]
    """The family in the coordinates z = φ(θ): its `covariance` has the correlations between the parts."""
    chart: Joint
    history: History | None = field(default=None, compare=False, repr=False)
    """How `liebayes.fit` found this member, if it did."""

    @property
    def group(self) -> Conjugated[Any]:
        """φ⁻¹∘G∘φ, which acts on θ."""
        return Conjugated(self.real.group, self.chart)

    @property
    def base(self) -> Base:
        """The base in the coordinates of the chart."""
        return self.real.base

    @property
    def element(self) -> Any:
        """The group element."""
        return self.real.element

    @property
    def event_shape(self) -> Any:
        """The shape of one θ, part by part."""
        return self.chart.event_shape(self.real.event_shape)

    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Any:
        """θ in the structure of the start, every part with the leading dimensions `shape`."""
        return self.chart.from_real(self.real.sample(shape, generator))

    def log_prob(self, theta: Any) -> Tensor:
        """log q(θ), one value per sample; −∞ off the support. `Chart.log_jacobian` says which volume this is a density of."""
        inside = self.chart.contains(theta)
        z = self.chart.to_real(theta)
        z = torch.where(inside.unsqueeze(-1), z, 0.0)
        return torch.where(inside, self.real.log_prob(z) - self.chart.log_jacobian(z), -torch.inf)

    def entropy(self) -> Tensor:
        """H(q) = H(z) + E[log |det ∂θ/∂z|], the last term from fixed draws."""
        return self.real.entropy() + self.chart.log_jacobian(self._draws).mean()

    @property
    def mean(self) -> Any:
        """E[θ], part by part: in closed form where each number of a Normal has its own chart, otherwise from `DRAWS` draws."""
        return self.chart.join([mean for mean, _ in self._moments])

    @property
    def variance(self) -> Any:
        """Var(θ), elementwise; in closed form where `mean` is."""
        return self.chart.join([variance for _, variance in self._moments])

    @property
    def stddev(self) -> Any:
        """√Var(θ)."""
        return self.chart.join([variance.sqrt() for _, variance in self._moments])

    def kl(self, other: JointFamily) -> Tensor:
        """KL(q ‖ q′), where the families have a closed form; a chart does not change it."""
        if self.chart != other.chart:
            raise ValueError(f"A closed KL divergence needs one chart, but got {self.chart} and {other.chart}.")
        return self.real.kl(other.real)

    @cached_property
    def _draws(self) -> Tensor:
        generator = torch.Generator(self.real.device).manual_seed(0)
        if not (isinstance(self.real.base, Normal) and self.real.group.affine_action):
            return self.real.sample((DRAWS,), generator)
        half = self.real.sample((DRAWS // 2,), generator)
        return torch.cat([half, 2 * self.real.mean - half])  # so that functions linear in z are exact

    @cached_property
    def _moments(self) -> list[tuple[Tensor, Tensor]]:
        try:
            mean, stddev = self.real.mean, self.real.stddev
        except ValueError:  # a base without them, or a group whose action is not affine
            mean = stddev = None
        found: list[tuple[Tensor, Tensor]] = []
        at = 0
        for part in self.chart.parts:
            here = slice(at, at + part.real_shape.numel())
            at = here.stop
            closed = None if mean is None or stddev is None else self._closed(part, mean[here], stddev[here])
            found.append(self._from_draws(part, here) if closed is None else closed)
        return found

    def _closed(self, part: Part, mean: Tensor, stddev: Tensor) -> tuple[Tensor, Tensor] | None:
        if not isinstance(self.real.base, Normal) and part.chart != Real():
            return None
        return part.chart.normal_moments(mean.reshape(part.real_shape), stddev.reshape(part.real_shape))

    def _from_draws(self, part: Part, here: slice) -> tuple[Tensor, Tensor]:
        theta = part.chart.from_real(self._draws[:, here].reshape(-1, *part.real_shape))
        return theta.mean(0), theta.var(0)
