"""The interface of a Lie group, and what can be derived from it (Sec. 3.1, 3.3, 3.4).

A group is a small stateless object. Its elements, and the vectors of its Lie algebra, are NamedTuples of tensors with the
same fields, chosen so that `exp` has the identity as its derivative at zero. A new group implements five methods,

    identity, compose, inverse, act, exp,

and gets the rest by automatic differentiation: the adjoint, the bracket, the pullback of a gradient (term ①), the divergence
(term ②) and the log-Jacobian. Closed forms override these where they exist, and are tested against them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree

from .blocks import blocks_of, map_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base

E = TypeVar("E")


class LieGroup(ABC, Generic[E]):
    """A Lie group G with an action on parameters θ.

    Elements broadcast like tensors: `act` takes θ with any number of leading sample dimensions.
    """

    positive: ClassVar[bool] = False
    """The group acts on positive numbers only; otherwise on the whole real line."""

    elementwise: ClassVar[bool] = False
    """The group acts on each coordinate of θ separately, so the Fisher metric is one small block, the same for all of them."""

    affine_action: ClassVar[bool] = False
    """θ ↦ g·θ is affine, so means move with g and the Jacobian is the same at every θ."""

    shift_block: ClassVar[str] = "shift"
    """The block of an element that translates θ, if the group has one. In an optimizer it has its own step size and momentum,
    and is what the module holds between steps."""

    # The group (Sec. 3.1) and its exponential map (Sec. 3.3).

    @abstractmethod
    def identity(self, like: Tensor) -> E:
        """The element with `act(identity, θ) = θ`, for θ of the shape, dtype and device of `like`."""

    @abstractmethod
    def compose(self, g: E, h: E) -> E:
        """The product gh: `act(compose(g, h), θ) = act(g, act(h, θ))`."""

    @abstractmethod
    def inverse(self, g: E) -> E:
        """`compose(g, inverse(g)) = identity`."""

    @abstractmethod
    def act(self, g: E, theta: Tensor) -> Tensor:
        """g·θ."""

    @abstractmethod
    def exp(self, X: E) -> E:
        """`exp((s + t)X) = compose(exp(sX), exp(tX))`, and `d/dt exp(tX) = X` at t = 0."""

    def act_inverse(self, g: E, theta: Tensor) -> Tensor:
        """g⁻¹·θ. Groups with shifts subtract these first, since far from the origin digits would be lost otherwise."""
        return self.act(self.inverse(g), theta)

    def move(self, g: E, X: E, t: float) -> E:
        """g·exp(tX)."""
        return self.compose(g, self.exp(X if t == 1 else map_blocks(lambda x: x * t, X)))

    def retract(self, g: E, X: E) -> E:
        """g·r(X) with r(X) in the group and r(X) = exp(X) up to second order: a cheaper step where exp is expensive."""
        return self.move(g, X, 1.0)

    def at(self, point: Tensor, scale: float = 1.0) -> E:
        """The element that maps the origin (0, or 1 for a positive group) to `point`, and a unit length to `scale`."""
        raise ValueError(
            f"{type(self).__name__} does not say which element belongs to a point. "
            "Implement `at(point, scale)` on the group, or start from an element instead of a point."
        )

    def event_shape(self, g: E) -> torch.Size:
        """The shape of the θ on which g acts: that of the element's last block, unless the group overrides this."""
        return blocks_of(g)[-1].shape

    # What follows from the five methods (Sec. 3.4).

    def zero(self, g: E) -> E:
        """The zero of the Lie algebra, in the shapes of g."""
        return pytree.tree_map(torch.zeros_like, g)

    def velocity(self, X: E, theta: Tensor) -> Tensor:
        """X·θ = d/dt exp(tX)·θ at t = 0."""
        zero = self.zero(X)
        return jvp(lambda Z: self.act(self.exp(Z), theta), (zero,), (X,))[1]

    def adjoint(self, g: E, X: E) -> E:
        """Ad_g(X) = d/dt g exp(tX) g⁻¹ at t = 0."""
        inverse = self.inverse(g)
        zero = self.zero(X)
        return jvp(lambda Z: self.compose(self.compose(g, self.exp(Z)), inverse), (zero,), (X,))[1]

    def bracket(self, X: E, Y: E) -> E:
        """[X, Y] = d/dt Ad_exp(tX)(Y) at t = 0; the commutator XY − YX of a matrix group."""
        zero = self.zero(X)
        return jvp(lambda Z: self.adjoint(self.exp(Z), Y), (zero,), (X,))[1]

    def pullback(self, g: E, theta: Tensor, gradient: Tensor) -> E:
        """Term ①: the covector X ↦ ⟨∇ℓ(θ), Ad_g(X)·θ⟩, averaged over the leading sample dimensions of θ."""
        epsilon = self.act_inverse(g, theta)
        samples = gradient.numel() / max(self.event_shape(g).numel(), 1)

        def linear(X: E) -> Tensor:
            return (gradient * self.act(self.compose(g, self.exp(X)), epsilon)).sum() / samples

        return grad(linear)(self.zero(g))

    def act_with_transpose(self, g: E, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """g·ε, and ∇ℓ ↦ (∂(g·ε)/∂ε)ᵀ∇ℓ, from the gradient of ℓ at g·ε to that of ε ↦ ℓ(g·ε)."""
        found = vjp(lambda e: self.act(g, e), epsilon)
        return found[0], lambda gradient: found[1](gradient)[0]

    def linear(self, g: E) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """v ↦ Av and v ↦ Aᵀv, for an affine action Aε + b."""
        shift: Tensor = getattr(g, self.shift_block)
        centred = g._replace(**{self.shift_block: torch.zeros_like(shift)})  # type: ignore[attr-defined]  # Av + b − b would round
        return partial(self.act, centred), lambda v: self.act_with_transpose(g, torch.zeros_like(v))[1](v)

    def pullback_at_identity(self, e: E, epsilon: Tensor, gradient: Tensor) -> E:
        """`pullback(e, ε, gradient)` at the identity e: the transpose of `velocity`, X ↦ ⟨gradient, X·ε⟩."""
        return self.pullback(e, epsilon, gradient)

    def log_jacobian(self, g: E, theta: Tensor) -> Tensor:
        """log |det ∂(g·θ)/∂θ|, one value per sample; a single one where it does not depend on θ."""
        event = self.event_shape(g)

        def one(point: Tensor) -> Tensor:
            jacobian = jacrev(lambda t: self.act(g, t.reshape(event)).reshape(-1))(point)
            return torch.linalg.slogdet(jacobian).logabsdet

        if self.affine_action:
            return one(theta.new_ones(event.numel()))
        batch = theta.shape[: theta.ndim - len(event)]
        return vmap(one)(theta.reshape(-1, event.numel())).reshape(batch)

    def divergence(self, g: E, epsilon: Tensor) -> E:
        """Minus term ②: the covector of the entropy, X ↦ d/dt E[log |det ∂(g·exp(tX)·ε)/∂ε|] at t = 0.

        For affine actions this is the trace of X, as in the paper. The paper drops the t-dependence of g's own Jacobian,
        which actions that are not affine have; this expression keeps it.
        """

        def entropy(X: E) -> Tensor:
            return self.log_jacobian(self.compose(g, self.exp(X)), epsilon).mean()

        return grad(entropy)(self.zero(g))

    # The Fisher form on the Lie algebra (Sec. 3.5, A.1), where it has a closed form.

    def flat(self, X: E, base: Base) -> E:
        """The covector ω(·, X) of the Fisher metric. For groups without a closed form `liebayes.rule.metric` computes it."""
        raise NotImplementedError

    def sharp(self, covector: E, base: Base) -> E:
        """The inverse of `flat`: the direction of steepest ascent. A singular metric raises an error."""
        raise NotImplementedError

    # The family's second moments, for actions that are affine in θ.

    def variance(self, g: E, variance: float) -> Tensor:
        """Var(g·ε) coordinate by coordinate, for independent coordinates of ε with the given variance."""
        raise ValueError(
            f"{type(self).__name__} has no closed form for the variance of its family; estimate it from samples."
        )

    def stddev(self, g: E, stddev: float) -> Tensor:
        """The same for standard deviations. Closed forms avoid squares, which leave the float's range early."""
        return self.variance(g, 1.0).sqrt() * stddev

    def spread(self, g: E, variance: float) -> E:
        """The covector of ½·Σ Var(g·ε): X ↦ variance·⟨A, AX⟩, which is E of the pullback of ½‖θ − E[θ]‖²."""

        def half(X: E) -> Tensor:
            return 0.5 * self.variance(self.compose(g, self.exp(X)), variance).sum()

        return grad(half)(self.zero(g))

    def average_precision(self, g: E, curvature: E, rate: float) -> E:
        """g with the precision (1 − rate)·1 + rate·S in its own coordinates; the shift stays.

        S is the symmetric matrix with `curvature` as its lower part, a covector of the linear part in units of the entropy's:
        S = 1 leaves g unchanged. To first order this is a step of length `rate` along the natural gradient on a Normal base;
        it stays in the group for every positive S, however large, and needs no bound.
        """
        raise ValueError(
            f"{type(self).__name__} has no average of precisions. Use DiagonalAffine, TriangularAffine or Kronecker."
        )

    def covariance(self, g: E, variance: float) -> Tensor:
        """Cov(g·ε) as a matrix over the last dimension of θ."""
        each = self.variance(g, variance)
        if each.ndim == 0:
            raise ValueError("A single number has a variance, but no covariance matrix.")
        return torch.diag_embed(each)

    def cholesky(self, g: E) -> Tensor:
        """The lower triangular L with Cov(g·ε) = LLᵀ for independent coordinates of ε with variance 1."""
        return torch.linalg.cholesky(self.covariance(g, 1.0))

    def __repr__(self) -> str:
        """The type and its public attributes: the text that names the group in files."""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if not k.startswith('_'))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))


def require_positive_scale(scale: float) -> None:
    """Refuses a scale that is not positive and finite."""
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"The scale of a start must be positive and finite, but is {scale}.")


def average_over_samples(x: Tensor, shape: torch.Size) -> Tensor:
    """The mean of x over the leading dimensions that `shape` does not have."""
    extra = x.ndim - len(shape)
    if extra == 0:
        return x
    if extra == 1:
        return x.sum(0).div_(x.shape[0])
    # A third of the time of torch's mean over a leading dimension.
    return x.sum(dim=tuple(range(extra))).div_(x.shape[:extra].numel())
