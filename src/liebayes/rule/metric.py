"""The metric on the Lie algebra, with flat and sharp (Sec. 3.5, A.1, A.3–A.5).

`Fisher` is the metric of the paper: constant over the group, computed once. `Absorbed` leaves its constants to the step
sizes, as the paper's experiments do. `Adaptive` is ours: the running second moment of the covector as a diagonal metric.

A metric is a setting; `metric.on(group, base, g)` is the form it takes for one group and base, checked at that moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases import Base
from ..groups import LieGroup, Product
from .family import relative_tangent

E = TypeVar("E")


class Form(ABC, Generic[E]):
    """A metric on the algebra of one group. Most have no state; an adaptive one learns from the covectors it sees."""

    def start(self, g: E) -> Any:
        """The state before the first covector."""
        return ()

    def observe(self, state: Any, covector: E) -> Any:
        """The state after one more covector."""
        return state

    @abstractmethod
    def sharp(self, covector: E, state: Any = ()) -> E:
        """ξ♯: the direction of steepest ascent of a covector."""

    @abstractmethod
    def flat(self, X: E, state: Any = ()) -> E:
        """X♭ = ω(·, X), the inverse of `sharp`."""


class Metric(ABC):
    """A choice of metric."""

    @abstractmethod
    def on(self, group: LieGroup[E], base: Base, g: E) -> Form[E]:
        """The metric for a group and base, in the shapes of g. A pair without one is refused."""


def require_metric(metric: object) -> None:
    """Refuses anything that is not a metric."""
    if not isinstance(metric, Metric):
        raise ValueError(f"metric must be an instance, Absorbed(), Fisher() or Adaptive(), but got {metric!r}.")


# The constants left to the step size.


@dataclass(frozen=True)
class Absorbed(Metric):
    """The Euclidean metric on the algebra: the Fisher constants are part of the step sizes, one for each block.

    This is what the paper's experiments use. Like `Adaptive`, it works for bases without a Fisher metric (Uniform, Dirac).
    """

    def on(self, group: LieGroup[E], base: Base, g: E) -> Form[E]:
        return _Euclidean()


class _Euclidean(Form[E]):
    def sharp(self, covector: E, state: Any = ()) -> E:
        return covector

    def flat(self, X: E, state: Any = ()) -> E:
        return X


# The Fisher metric.


@dataclass(frozen=True)
class Fisher(Metric):
    """ω(h_X, h_Y) = E[r_X(ε) r_Y(ε)], with r_X the relative tangent at the identity (A.1).

    In closed form for the groups of this library, by quadrature for other elementwise groups, and otherwise a Gram matrix
    over `samples` draws of the base.
    """

    samples: int = 65536

    def on(self, group: LieGroup[E], base: Base, g: E) -> Form[E]:
        if isinstance(group, Product):
            raise ValueError(f"Every part of {group} has its own metric: ask for the metric of each group on its base.")
        try:
            group.sharp(group.zero(g), base)  # refuses what has no metric, before any step is taken
        except NotImplementedError:
            return _block_by_quadrature(group, base, g) if group.elementwise else _gram(group, base, g, self.samples)
        return _ClosedFisher(group, base)


@dataclass(frozen=True)
class _ClosedFisher(Form[E]):
    group: LieGroup[E]
    base: Base

    def sharp(self, covector: E, state: Any = ()) -> E:
        return self.group.sharp(covector, self.base)

    def flat(self, X: E, state: Any = ()) -> E:
        return self.group.flat(X, self.base)


@dataclass(frozen=True)
class _MatrixFisher(Form[E]):
    """A matrix, and how it acts on the algebra: on the blocks of each coordinate, or on all numbers."""

    apply: Callable[[Tensor, Any], Any]
    matrix: Tensor
    inverse: Tensor

    def sharp(self, covector: E, state: Any = ()) -> E:
        return self.apply(self.inverse, covector)

    def flat(self, X: E, state: Any = ()) -> E:
        return self.apply(self.matrix, X)


def _on_blocks(matrix: Tensor, X: E) -> E:
    blocks, spec = pytree.tree_flatten(X)
    stacked = torch.stack(blocks, -1)
    return pytree.tree_unflatten(list((stacked @ matrix.to(stacked)).unbind(-1)), spec)


def _on_all(matrix: Tensor, X: E) -> E:
    blocks, spec = pytree.tree_flatten(X)
    vector = matrix.to(blocks[0]) @ torch.cat([block.reshape(-1) for block in blocks])
    pieces = vector.split([block.numel() for block in blocks])
    return pytree.tree_unflatten([p.view_as(b) for p, b in zip(pieces, blocks, strict=True)], spec)


def _block_by_quadrature(group: LieGroup[E], base: Base, g: E) -> Form[E]:
    # Coordinates do not mix, so one coordinate is enough.
    scalar = pytree.tree_map(lambda block: torch.zeros((), dtype=torch.float64), g)
    directions = _basis(scalar)
    for X in directions:
        base.require_no_flux(f"{group}", partial(group.velocity, X))

    def product(X: E, Y: E) -> float:
        def integrand(x: Tensor) -> Tensor:
            scalars = torch.Size(())
            return relative_tangent(group, base, X, x, scalars) * relative_tangent(group, base, Y, x, scalars)

        return base.expectation(integrand)

    matrix = torch.tensor([[product(X, Y) for Y in directions] for X in directions], dtype=torch.float64)
    return _MatrixFisher(_on_blocks, matrix, _invert(matrix, directions, group, base))


def _gram(group: LieGroup[E], base: Base, g: E, samples: int) -> Form[E]:
    directions = _basis(pytree.tree_map(lambda block: block.to(torch.float64), g))
    if len(directions) > 4096:
        raise ValueError(
            f"The Fisher metric of {group} is a matrix over {len(directions)} directions, too many to invert. "
            "Give the group closed `flat` and `sharp`, or use the metric Absorbed() or Adaptive()."
        )
    event = group.event_shape(g)
    base.require_no_flux(f"{group}", (lambda x: x) if group.positive else torch.ones_like)  # mass flowing over an edge
    generator = torch.Generator().manual_seed(0)
    epsilon = base.sample((samples, *event), generator=generator, dtype=torch.float64)
    rows = torch.stack([relative_tangent(group, base, X, epsilon, event) for X in directions])
    matrix = rows @ rows.mT / samples
    return _MatrixFisher(_on_all, matrix, _invert(matrix, directions, group, base))


def _basis(g: E) -> list[E]:
    """The unit vectors of the algebra in the shapes of g."""
    blocks, spec = pytree.tree_flatten(g)
    vectors = []
    for which, block in enumerate(blocks):
        for index in range(block.numel()):
            unit = [torch.zeros_like(other) for other in blocks]
            unit[which].view(-1)[index] = 1.0
            vectors.append(pytree.tree_unflatten(unit, spec))
    return vectors


def _invert(matrix: Tensor, directions: list[E], group: LieGroup[E], base: Base) -> Tensor:
    # Blocks may have different units (a shift goes with the base's width): compare them at unit length.
    length = matrix.diagonal().sqrt().clamp_min(1e-150)
    if bool(torch.isfinite(matrix).all()):
        values, vectors = torch.linalg.eigh(matrix / torch.outer(length, length))
        singular, null = float(values[0]) < 1e-4, (vectors[:, 0] / length).tolist()
    else:
        singular, null = True, (~torch.isfinite(matrix.diagonal())).double().tolist()
    if singular:
        total = pytree.tree_map(lambda *parts: sum(c * p for c, p in zip(null, parts, strict=True)), *directions)
        raise ValueError(
            f"The Fisher metric of {group} on {base} is singular: it vanishes in the direction {total}, "
            "along which the group leaves the base unchanged. Use a group without it, or the metric Absorbed()."
        )
    return torch.linalg.inv(matrix)


# The adaptive metric.


class SecondMoment(NamedTuple):
    """The state of `Adaptive`: a running mean of squared covectors, and the sum of its weights."""

    mean: Any
    weight: float


@dataclass(frozen=True)
class Adaptive(Metric):
    """v ← βv + (1 − β)·covector², and covector♯ = covector/√v: every coordinate moves by its signal-to-noise ratio.

    The covector lives in the algebra, in the units of the posterior itself, so one step size suits all coordinates, and one
    or two samples are enough where constant metrics need many.
    """

    beta: float = 0.999
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError(f"Adaptive needs 0 ≤ beta < 1, but got {self.beta}.")

    def on(self, group: LieGroup[E], base: Base, g: E) -> Form[E]:
        return _AdaptiveForm(self.beta, self.epsilon)


@dataclass(frozen=True)
class _AdaptiveForm(Form[E]):
    beta: float
    epsilon: float

    def start(self, g: E) -> SecondMoment:
        return SecondMoment(pytree.tree_map(torch.zeros_like, g), 0.0)

    def observe(self, state: SecondMoment, covector: E) -> SecondMoment:
        mean = pytree.tree_map(lambda v, c: torch.lerp(v, c.square(), 1 - self.beta), state.mean, covector)
        return SecondMoment(mean, self.beta * state.weight + (1 - self.beta))

    def _root(self, state: SecondMoment) -> Any:
        # Dividing by the sum of the weights removes the bias of the zero start.
        weight = max(state.weight, 1e-30)
        return pytree.tree_map(lambda v: (v / weight).sqrt() + self.epsilon, state.mean)

    def sharp(self, covector: E, state: Any = ()) -> E:
        return pytree.tree_map(torch.div, covector, self._root(state))

    def flat(self, X: E, state: Any = ()) -> E:
        return pytree.tree_map(torch.mul, X, self._root(state))
