"""The Cartesian product of Sec. 3.1 as `fit` runs it: one factor for every tensor of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases import Base
from ..groups import LieGroup, Product
from ..rule import Family, Form, History, Metric, ProductFamily, State, differential, differential_by_samples, initial_state
from ..rule.family import require_fit

EntropyGradient = Literal["auto", "exact", "samples"]


@dataclass
class Factor:
    """A group, a base and an element, with what the rule remembers of them.

    The element is kept relative to its start, g = start·h: logarithms of scales begin at 0, and tiny steps add up in float32.
    """

    group: LieGroup[Any]
    base: Base
    start: Any
    identity: Any
    form: Form[Any]
    state: State
    by_samples: bool

    @property
    def element(self) -> Any:
        """g = start·h."""
        return self.group.compose(self.start, self.state.element)

    @property
    def family(self) -> Family[Any]:
        """The present member of the family."""
        return Family(self.group, self.base, self.element)

    def noise(self, samples: int, generator: torch.Generator) -> Tensor:
        """ε, in whose coordinates gradients are taken."""
        like = pytree.tree_leaves(self.start)[-1]
        shape = (samples, *self.group.event_shape(self.start))
        return self.base.sample(shape, generator=generator, dtype=like.dtype, device=like.device).requires_grad_()

    def covector(self, epsilon: Tensor, gradient: Tensor, temperature: float) -> Any:
        """The differential at the identity, for the loss in the coordinates of ε."""
        if self.by_samples:
            return differential_by_samples(self.group, self.base, self.identity, epsilon, gradient, temperature)
        return differential(self.group, self.identity, epsilon, gradient, temperature)

    def rates(self, lr: float, scale_lr: float) -> Any:
        """One step size, or one for the shift and another for the other blocks."""
        if lr == scale_lr:
            return lr
        names = getattr(self.start, "_fields", ())
        return type(self.start)(*(lr if name == "shift" else scale_lr for name in names))


def make_factors(
    group: LieGroup[Any], base: Any, start: Any, initial_scale: float, metric: Metric, entropy: EntropyGradient
) -> tuple[list[Factor], Callable[[Sequence[Tensor]], Any]]:
    """The factors in a flat list, and the function that gives tensors back the structure of `start`."""
    if isinstance(group, Product):
        if isinstance(base, Base):
            base = group.join([base for _ in group.parts])
        lists: list[list[Factor]] = []
        joins: list[Callable[[Sequence[Tensor]], Any]] = []
        for part, part_base, part_start in group.split("base and start of a Product", base, start):
            factors, join = make_factors(part, part_base, part_start, initial_scale, metric, entropy)
            lists.append(factors)
            joins.append(join)

        def unflatten(leaves: Sequence[Tensor]) -> Any:
            values, at = [], 0
            for factors, join in zip(lists, joins, strict=True):
                values.append(join(leaves[at : at + len(factors)]))
                at += len(factors)
            return group.join(values)

        return [factor for factors in lists for factor in factors], unflatten
    return [_make_factor(group, base, start, initial_scale, metric, entropy)], lambda leaves: leaves[0]


def _make_factor(
    group: LieGroup[Any], base: Any, start: Any, initial_scale: float, metric: Metric, entropy: EntropyGradient
) -> Factor:
    if not isinstance(group, LieGroup):
        raise ValueError(f"A group was expected, but got {group!r}. Pass an instance, such as DiagonalAffine().")
    require_fit(group, base)
    element = _element_at(group, base, start, initial_scale)
    like = torch.empty(group.event_shape(element), dtype=_floating(element), device=pytree.tree_leaves(element)[-1].device)
    identity = group.identity(like)
    form = metric.on(group, base, identity)
    return Factor(group, base, element, identity, form, initial_state(group, form, identity), _by_samples(base, entropy))


def _element_at(group: LieGroup[Any], base: Base, start: Any, scale: float) -> Any:
    """The element whose family has its mean at the point, or its centre where there is no mean."""
    if isinstance(start, tuple) and hasattr(start, "_fields"):
        return pytree.tree_map(lambda block: block.detach().clone(), start)  # an element already
    if isinstance(start, Mapping) or (isinstance(start, (tuple, list)) and any(isinstance(s, Tensor) for s in start)):
        raise ValueError(f"start has several tensors, but {group} acts on one. Give a Product with a group for each.")
    point = torch.as_tensor(start).detach()
    if not point.dtype.is_floating_point:
        raise ValueError(f"start must hold real floating-point numbers, but has the dtype {point.dtype}.")
    if not bool(torch.isfinite(point).all()):
        raise ValueError("start must be finite, but has infinite or NaN values.")
    if not group.positive:
        return group.at(point, scale)
    try:
        mean = base.mean
    except ValueError:
        mean = 1.0
    return group.compose(group.at(point), group.inverse(group.at(torch.full_like(point, mean))))


def _floating(element: Any) -> torch.dtype:
    return pytree.tree_leaves(element)[-1].dtype


def _by_samples(base: Base, entropy: EntropyGradient) -> bool:
    if entropy == "exact":
        return False
    try:
        smooth = base.fisher_scale > 0
    except ValueError:
        smooth = False
    if entropy == "samples" and not smooth:
        raise ValueError(f'entropy="samples" needs a smooth base, but the density of {base} has edges. Use entropy="exact".')
    return smooth


def product_family(group: LieGroup[Any], factors: Sequence[Factor], history: History) -> Any:
    """The fitted family in the structure of the group."""
    families = iter([factor.family for factor in factors])

    def build(part: LieGroup[Any]) -> Any:
        if isinstance(part, Product):
            return ProductFamily(part, part.join([build(child) for child in part.groups]))
        return next(families)

    return replace(build(group), history=history)
