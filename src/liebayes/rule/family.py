"""The family q_g = π(g)q₀: a base distribution moved by a group element (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal
from torch.utils import _pytree as pytree

from ..bases import Base, Normal
from ..groups import LieGroup, Product, blocks_of, scale_of
from .history import History
from .member import Member

E = TypeVar("E")


def require_group(group: object) -> None:
    """Refuses anything that is not a group."""
    if not isinstance(group, LieGroup):
        raise ValueError(f"A group was expected, but got {group!r}. Pass an instance, such as DiagonalAffine().")


def require_base(base: object) -> None:
    """Refuses anything that is not a base, and says how to get one."""
    if isinstance(base, Base):
        return
    if isinstance(base, type):
        way = "Pass an instance, such as liebayes.bases.Normal()."
    elif isinstance(base, str):
        way = "liebayes.bases.parse turns a text into one."
    elif isinstance(base, Distribution):
        way = "liebayes.bases.from_distribution turns a univariate distribution of torch into one."
    else:
        way = "Use one of liebayes.bases."
    raise ValueError(f"A base distribution was expected, but got {base!r}. {way}")


def require_fit(group: LieGroup[Any], base: Base) -> None:
    """Refuses a base that does not live where the group acts."""
    require_base(base)
    half_line = base.support[0] >= 0
    if group.positive and not half_line:
        raise ValueError(
            f"{group} acts on positive numbers, but {base} lives on {base.support}. Use Rayleigh, Exponential or LogNormal."
        )
    if not group.positive and half_line:
        raise ValueError(
            f"{group} acts on the real line, but {base} lives on {base.support}: shifts would move its edge. "
            "Use Normal, Laplace, Uniform, Cauchy, StudentT or Gumbel, or the Multiplicative group."
        )


@dataclass(frozen=True)
class Family(Member, Generic[E]):
    """One member q_g of the orbit of q₀ under a group.

    >>> from liebayes.groups import DiagonalAffine
    >>> q = Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.tensor([1.0, 2.0]), scale=0.5))
    >>> q.mean, q.variance
    (tensor([1., 2.]), tensor([0.2500, 0.2500]))
    """

    group: LieGroup[E]
    base: Base
    element: E
    history: History | None = field(default=None, compare=False, repr=False)
    """How `liebayes.fit` found this member, if it did."""

    def __post_init__(self) -> None:
        require_fit(self.group, self.base)

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one θ."""
        return self.group.event_shape(self.element)

    @property
    def device(self) -> torch.device:
        """Where the element lives."""
        return pytree.tree_leaves(self.element)[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the element, and of its samples."""
        return pytree.tree_leaves(self.element)[0].dtype

    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """θ = g·ε with ε ~ q₀, of shape `shape + event_shape`."""
        return self.group.act(self.element, self._noise(shape, generator))

    def _noise(self, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        size = (*shape, *self.event_shape)
        return self.base.sample(size, generator=generator, dtype=self.dtype, device=self.device)

    def log_prob(self, theta: Tensor) -> Tensor:
        """log q_g(θ) = log q₀(g⁻¹·θ) − log |det ∂(g·ε)/∂ε|, one value per sample (Eq. 3)."""
        event = self.event_shape
        if not isinstance(theta, Tensor) or theta.shape[max(theta.ndim - len(event), 0) :] != event:
            came = f"the shape {tuple(theta.shape)}" if isinstance(theta, Tensor) else f"a {type(theta).__name__}"
            raise ValueError(f"log_prob needs a tensor whose last dimensions are {tuple(event)}, one θ, but got {came}.")
        epsilon = self.group.act_inverse(self.element, theta)
        return self._total(self.base.log_prob(epsilon)) - self.group.log_jacobian(self.element, epsilon)

    def _total(self, values: Tensor) -> Tensor:
        dims = len(self.event_shape)
        return values.sum(dim=tuple(range(-dims, 0))) if dims else values

    def entropy(self) -> Tensor:
        """H(q_g) = H(q₀) + E[log |det ∂(g·ε)/∂ε|]; exact for affine actions, otherwise from 1,024 fixed draws."""
        base = self.base.entropy * self.event_shape.numel()
        if self.group.affine_action:
            anywhere = blocks_of(self.element)[-1].new_ones(self.event_shape)
            return base + self.group.log_jacobian(self.element, anywhere)
        generator = torch.Generator(self.device).manual_seed(0)
        return base + self.group.log_jacobian(self.element, self._noise((1024,), generator)).mean()

    @property
    def mean(self) -> Tensor:
        """E[θ] = g·E[ε] for affine actions."""
        if not self.group.affine_action:
            raise ValueError(f"{self.group} has no closed form for the mean of its family; estimate it from samples.")
        like = pytree.tree_leaves(self.element)[-1]
        return self.group.act(self.element, like.new_full(self.event_shape, self.base.mean))

    @property
    def variance(self) -> Tensor:
        """Var(θ), coordinate by coordinate."""
        return self.group.variance(self.element, self.base.variance)

    @property
    def stddev(self) -> Tensor:
        """√Var(θ), computed from the scale: a variance leaves the float's range where the scale does not."""
        return self.group.stddev(self.element, self.base.stddev)

    @property
    def covariance(self) -> Tensor:
        """Cov(θ) as a matrix."""
        return self.group.covariance(self.element, self.base.variance)

    def kl(self, other: Family[E]) -> Tensor:
        """KL(q_g ‖ q_h) = KL(q₀ ‖ q_{g⁻¹h}), where it has a closed form."""
        if self.group != other.group or self.base != other.base:
            raise ValueError(
                f"A closed KL divergence needs one group and one base, but got {self.group} on {self.base} and "
                f"{other.group} on {other.base}. Estimate it from samples."
            )
        if hasattr(self.group, "log_scale_and_shift"):
            (own, start), (log_scale, shift) = map(self.group.log_scale_and_shift, (self.element, other.element))  # type: ignore[attr-defined]
            return self.base.kl(log_scale - own, (shift - start) * scale_of(-own)).sum()  # g⁻¹h, exact where g = h
        relative = self.group.compose(self.group.inverse(self.element), other.element)
        if isinstance(self.base, Normal) and self.group.affine_action:
            # ½(tr Σ⁻¹ + bᵀΣ⁻¹b/σ² − P + log det Σ) with (A, b) = g⁻¹h and Σ = AAᵀ: the moments of g⁻¹h's inverse.
            back = self.group.inverse(relative)
            spread = self.group.variance(back, 1.0).sum()
            origin = self.group.act(self.element, torch.zeros_like(self.mean))
            moved = self.group.act_inverse(other.element, origin) / self.base.scale  # its shift h⁻¹g·0, without cancellation
            return 0.5 * (spread + moved.square().sum() - self.event_shape.numel()) + self.group.log_jacobian(relative, moved)
        raise ValueError(f"{self.group} on {self.base} has no closed form of the KL divergence. Estimate it from samples.")

    def as_distribution(self) -> Distribution:
        """The member as a `torch.distributions` object over all coordinates, where there is one."""
        if hasattr(self.group, "log_scale_and_shift"):
            log_scale, shift = self.group.log_scale_and_shift(self.element)  # type: ignore[attr-defined]
            return Independent(self.base.distribution(log_scale.exp(), shift), len(self.event_shape))
        if isinstance(self.base, Normal) and self.group.affine_action:
            # A batch of vectors: one distribution for each.
            each = MultivariateNormal(self.mean, scale_tril=self.group.cholesky(self.element) * self.base.scale)
            return Independent(each, len(self.event_shape) - 1) if len(self.event_shape) > 1 else each
        raise ValueError(f"torch.distributions has no family for {self.group} on {self.base}.")

    def tangent(self, X: E) -> Callable[[Tensor], Tensor]:
        """The function h_X(θ) = d/dt q_{g·exp(tX)}(θ) at t = 0 of Sec. 3.4; its integral is zero.

        It is π(g) applied to the tangent at the identity (A.1): h_X = q_g · r_X(g⁻¹·θ), the r_X of `relative_tangent`.
        """

        def h(theta: Tensor) -> Tensor:
            epsilon = self.group.act_inverse(self.element, theta)
            return self.log_prob(theta).exp() * relative_tangent(self.group, self.base, X, epsilon, self.event_shape)

        return h


def relative_tangent(group: LieGroup[E], base: Base, X: E, epsilon: Tensor, event_shape: torch.Size) -> Tensor:
    """r_X(ε) = d/dt log q_{exp(tX)}(ε) = −(div(X·ε) + ⟨s(ε), X·ε⟩), one value per sample."""

    def log_density(Z: E) -> Tensor:
        back = group.inverse(group.exp(Z))
        source = group.act(back, epsilon)
        dims = tuple(range(-len(event_shape), 0))
        return group.log_jacobian(back, epsilon) + (base.log_prob(source).sum(dim=dims) if dims else base.log_prob(source))

    zero = group.zero(X)
    return torch.func.jvp(log_density, (zero,), (X,))[1]


@dataclass(frozen=True)
class ProductFamily(Member):
    """A member of the family of a `Product`: independent parts, in its structure of tuples or dictionaries."""

    group: Product
    parts: Any
    history: History | None = field(default=None, compare=False, repr=False)

    def _families(self) -> list[Family[Any] | ProductFamily]:
        return [family for _, family in self.group.split("the parts", self.parts)]

    @property
    def element(self) -> Any:
        """The group element, in the structure of the product."""
        return self.group.join([family.element for family in self._families()])

    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Any:
        """θ in the structure of the product, every part with the leading dimensions `shape`."""
        return self.group.join([family.sample(shape, generator) for family in self._families()])

    def log_prob(self, theta: Any) -> Tensor:
        """log q_g(θ), the sum over the parts."""
        terms = [family.log_prob(t) for (_, family, t) in self.group.split("θ", self.parts, theta)]
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0)

    def entropy(self) -> Tensor:
        """H(q_g), the sum over the parts."""
        return torch.stack([family.entropy() for family in self._families()]).sum(0)

    @property
    def mean(self) -> Any:
        """E[θ], part by part."""
        return self.group.join([family.mean for family in self._families()])

    @property
    def variance(self) -> Any:
        """Var(θ), part by part."""
        return self.group.join([family.variance for family in self._families()])

    @property
    def stddev(self) -> Any:
        """√Var(θ), part by part."""
        return self.group.join([family.stddev for family in self._families()])

    def kl(self, other: ProductFamily) -> Tensor:
        """KL(q_g ‖ q_h), the sum over the parts."""
        return torch.stack([a.kl(b) for _, a, b in self.group.split("the parts", self.parts, other.parts)]).sum(0)
