"""The Cartesian product of Sec. 3.1 as `fit` runs it: one factor for every tensor of the parameters."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases import Base, Normal
from ..groups import Joint, LieGroup, Product, Real, TriangularAffine, blocks_of
from ..groups.joint import is_structure
from ..rule import (
    Family,
    Form,
    History,
    JointFamily,
    Metric,
    ProductFamily,
    State,
    differential,
    differential_by_samples,
    initial_state,
)
from ..rule.family import require_fit, require_group

EntropyGradient = Literal["auto", "exact", "samples"]


class Leaf(NamedTuple):
    """Where a gradient is taken."""

    leaf: Tensor
    thetas: list[Tensor]
    """θ: one tensor, or those of a chart's parts."""
    transpose: Callable[[Tensor], Tensor]
    """From the gradient at the leaf to the one in ε."""
    log_jacobian: Tensor | None
    """log |det ∂θ/∂ε|, up to what does not depend on ε."""


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
    relative: bool
    """Whether the state's element is h, or g itself: then its scales were 1, and their logarithms 0, at the start."""
    by_samples: bool
    """The entropy's gradient is taken at the samples."""
    in_pairs: bool
    """Samples come in pairs ε, −ε."""
    chart: Joint | None = None
    """Where θ lives on supports: θ = φ⁻¹(g·ε)."""
    name: str = "theta"

    @property
    def element(self) -> Any:
        """g = start·h, or h itself where it began at the start."""
        return self.group.compose(self.start, self.state.element) if self.relative else self.state.element

    @property
    def real(self) -> Family[Any]:
        """The present member of the family, in the coordinates of the chart if there is one."""
        return Family(self.group, self.base, self.element)

    @property
    def family(self) -> Family[Any] | JointFamily:
        """The present member of the family."""
        return self.real if self.chart is None else JointFamily(self.real, self.chart)

    def noise(self, steps: int, samples: int, generator: torch.Generator) -> Tensor:
        """ε for a number of steps, in whose coordinates gradients are taken."""
        like = blocks_of(self.start)[-1]
        draws = (samples + 1) // 2 if self.in_pairs else samples
        shape = (steps, draws, *self.group.event_shape(self.start))
        epsilon = self.base.sample(shape, generator=generator, dtype=like.dtype, device=like.device)
        return torch.cat([epsilon, -epsilon], 1)[:, :samples] if self.in_pairs else epsilon

    def leaf(self, g: Any, epsilon: Tensor) -> Leaf:
        """θ = g·ε, ready for a gradient: in θ itself for affine actions, whose Jacobian has a closed form, otherwise in ε.

        On supports the gradient is taken in z = φ(θ), and the loss has the chart's Jacobian with it: the same rule, since it
        is equivariant.
        """
        if self.group.affine_action:
            z, transpose = self.group.act_with_transpose(g, epsilon)
            leaf, log_jacobian = z.requires_grad_(), None
        else:
            leaf, transpose = epsilon.detach().requires_grad_(), _same
            z, log_jacobian = self.group.act(g, leaf), self.group.log_jacobian(g, leaf)
        thetas, volume = self.placed(z)
        if volume is None or log_jacobian is None:
            return Leaf(leaf, thetas, transpose, log_jacobian if volume is None else volume)
        return Leaf(leaf, thetas, transpose, volume + log_jacobian)

    def placed(self, z: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """θ at z, one tensor or those of the chart's parts, and the chart's log |det ∂θ/∂z|."""
        if self.chart is None:
            return [z], None
        return self.chart.leaves(self.chart.from_real(z)), self.chart.log_jacobian(z)

    def log_density(self, g: Any, epsilon: Tensor) -> Tensor:
        """log q₀(ε) − log |det ∂(g·ε)/∂ε| as far as the last does not depend on ε, which `leaf` has otherwise."""
        values = self.base.log_prob(epsilon)
        values = values.reshape(len(values), -1).sum(-1)
        return values - self.group.log_jacobian(g, epsilon) if self.group.affine_action else values

    def entropy_at(self, g: Any, leaf: Leaf) -> float:
        """H(q_g); what a chart adds to it, from the samples."""
        q = Family(self.group, self.base, g)
        if self.chart is None:
            return float(q.entropy())
        if not self.group.affine_action or leaf.log_jacobian is None:
            return float(JointFamily(q, self.chart).entropy())
        return float(q.entropy()) + leaf.log_jacobian.detach().mean().item()

    def start_elsewhere(self, seed: int) -> None:
        """Moves the start by one draw of its own: the family's place, and not its width."""
        generator = torch.Generator(blocks_of(self.start)[-1].device).manual_seed(seed)
        draw = self.noise(1, 1, generator)[0, 0]
        moved = self.group.compose(self.start, self.group.at(draw))
        self.start = moved
        if not self.relative:
            self.state = self.state._replace(element=moved)

    def narrow(self, scale: float) -> None:
        """g ← g·(scale), about the same centre; nothing for groups that cannot."""
        like = blocks_of(self.identity)[-1]
        centre = like.new_full(self.group.event_shape(self.start), 1.0 if self.group.positive else 0.0)
        with contextlib.suppress(ValueError):  # a group may have no `at`
            self.state = self.state._replace(element=self.group.compose(self.state.element, self.group.at(centre, scale)))

    def take(self, h: Any) -> None:
        """g ← g·h, outside the run."""
        self.state = self.state._replace(element=self.group.compose(self.state.element, h))

    def coordinate(self, block: Tensor, place: int) -> str:
        """The name of the coordinate that a number of a block is about: a row's, where the block is a matrix."""
        names, event = self.coordinates(), self.group.event_shape(self.start).numel()
        return names[place // max(block.numel() // event, 1)] if block.numel() >= event else names[0]

    def coordinates(self) -> list[str]:
        """The names of all coordinates, those of a chart where there is one."""
        if self.chart is None:
            return _entries_of(self.name, self.group.event_shape(self.start))
        return [name for part in self.chart.parts for name in _entries_of(part.name, part.real_shape)]

    def at_an_edge(self) -> str | None:
        """A coordinate that has run to where the numbers of its support end: e^z, for one, ends near e^709 in float64."""
        if self.chart is None or not self.group.affine_action:
            return None
        place = blocks_of(self.element)[-1]
        bounded = [not isinstance(part.chart, Real) for part in self.chart.parts for _ in range(part.real_shape.numel())]
        far = place.abs() > 0.8 * math.log(torch.finfo(place.dtype).max)
        found = (far & torch.tensor(bounded, device=place.device)).nonzero().flatten().tolist()
        return self.coordinates()[found[0]] if found else None

    def direction(self) -> str:
        """The direction in which the family is widest, by its three largest coordinates."""
        L = self.group.cholesky(self.element)
        if L.ndim > 2:
            return self.name
        return direction_in_words(torch.linalg.svd(L / L.abs().max()).U[:, 0], self.coordinates())

    def covector(self, epsilon: Tensor, gradient: Tensor, temperature: float) -> Any:
        """The differential at the identity, for the loss in the coordinates of ε."""
        if self.by_samples:
            return differential_by_samples(self.group, self.base, self.identity, epsilon, gradient, temperature)
        return differential(self.group, self.identity, epsilon, gradient, temperature)

    def size(self, X: Any) -> float:
        """The largest coordinate of a direction: of the logarithm of a scale, or of a shift in widths of the base."""
        blocks = blocks_of(X)
        names = getattr(X, "_fields", [""] * len(blocks))
        sizes = [float(block.abs().max()) if block.numel() else 0.0 for block in blocks]
        return max(size / self.width if name == "shift" else size for name, size in zip(names, sizes, strict=True))

    @functools.cached_property
    def width(self) -> float:
        """The standard deviation of the base, or 1 where it has none."""
        try:
            variance = self.base.variance
        except ValueError:
            return 1.0
        return math.sqrt(variance) if 0 < variance < math.inf else 1.0

    @property
    def middle(self) -> Tensor:
        """The noise at the centre of the base."""
        return blocks_of(self.start)[-1].new_full(self.group.event_shape(self.start), self.centre)

    @functools.cached_property
    def centre(self) -> float:
        """The mean of the base, or 0 where it has none."""
        try:
            return self.base.mean
        except ValueError:
            return 0.0

    def by_block(self, shift: float | None, other: float | None) -> Any:
        """A setting of the update: one number, or one for the shift and another for the other blocks."""
        if shift == other:
            return other
        names = getattr(self.start, "_fields", ())
        return type(self.start)(*(shift if name == "shift" else other for name in names))


def direction_in_words(vector: Tensor, names: list[str]) -> str:
    """A direction by its three largest coordinates."""
    vector = vector / vector.abs().max()
    vector = vector / torch.linalg.vector_norm(vector)
    largest = vector.abs().topk(min(3, len(names))).indices.tolist()
    terms = [f"{float(vector[i]):+.2f}·{names[i]}" for i in sorted(largest) if abs(vector[i]) > 0.05]
    return "the direction " + " ".join(terms)


def with_defaults(group: LieGroup[Any] | None, base: Any, start: Any, supports: Any) -> tuple[LieGroup[Any], Any, Any, Any]:
    """What is not said comes from the family to go on from, if the start is one; otherwise it is full rank on a Normal.

    A group that is given acts on a matrix row by row. Where none is, all numbers of a tensor are one vector.
    """
    if isinstance(start, (Family, ProductFamily, JointFamily)):
        real = start.real if isinstance(start, JointFamily) else start
        if group is not None and type(group) is not type(real.group):
            raise ValueError(
                f"The family to start from is of {real.group}, but group is {group}. Leave out group, or start at the mean of "
                "that family: fit(loss, group, start=q.mean), with supports as before."
            )
        group, base = group or real.group, base or (real.base if isinstance(real, Family) else _bases(real))
        start = start if isinstance(start, JointFamily) else start.element
    elif group is None and supports is None and getattr(start, "ndim", 0 if isinstance(start, float) else 1) != 1:
        supports = Real()
    return group or TriangularAffine(), base or Normal(), start, supports


def _bases(family: Family[Any] | ProductFamily) -> Any:
    if isinstance(family, Family):
        return family.base
    return family.group.join([_bases(part) for _, part in family.group.split("the parts", family.parts)])


def _entries_of(name: str, shape: torch.Size) -> list[str]:
    if not shape:
        return [name]
    return [f"{name}[{', '.join(map(str, place))}]" for place in itertools.product(*map(range, shape))]


def make_factors(
    group: LieGroup[Any],
    base: Any,
    start: Any,
    supports: Any,
    initial_scale: float,
    metric: Metric,
    entropy: EntropyGradient,
    antithetic: bool,
) -> tuple[list[Factor], Callable[[Sequence[Tensor]], Any]]:
    """The factors in a flat list, and the function that gives tensors back the structure of `start`."""
    if isinstance(group, Product):
        if supports is not None:
            raise ValueError("supports need one group over all parts, such as TriangularAffine(), not a Product.")
        if isinstance(base, Base):
            base = group.join([base for _ in group.parts])
        lists: list[list[Factor]] = []
        joins: list[Callable[[Sequence[Tensor]], Any]] = []
        pairs = zip(group.split("the base of a Product", base), group.split("the start of a Product", start), strict=True)
        for (part, part_base), (_, part_start) in pairs:
            factors, join = make_factors(part, part_base, part_start, None, initial_scale, metric, entropy, antithetic)
            lists.append(factors)
            joins.append(join)

        def unflatten(leaves: Sequence[Tensor]) -> Any:
            values, at = [], 0
            for factors, join in zip(lists, joins, strict=True):
                count = sum(1 if factor.chart is None else len(factor.chart.parts) for factor in factors)
                values.append(join(leaves[at : at + count]))
                at += count
            return group.join(values)

        return [factor for factors in lists for factor in factors], unflatten
    chart, start = _chart_and_start(start, supports)
    factor = _make_factor(group, base, start, initial_scale, metric, entropy, antithetic)
    if chart is None:
        return [factor], lambda leaves: leaves[0]
    factor.chart = chart
    return [factor], lambda leaves: chart.join(list(leaves))


def _chart_and_start(start: Any, supports: Any) -> tuple[Joint | None, Any]:
    """The chart of a start on supports or of several tensors, and that start in its coordinates."""
    if isinstance(start, JointFamily):
        if supports is not None:
            raise ValueError("The family to start from has its supports already. Leave out supports.")
        return start.chart, start.element
    if supports is None and not is_structure(start):
        return None, start
    tensors = pytree.tree_map(lambda point: _point(point, "a point or a structure of points"), start)
    leaves = pytree.tree_leaves(tensors)
    dtypes = {leaf.dtype for leaf in leaves} or {torch.get_default_dtype()}
    common = functools.reduce(torch.promote_types, dtypes)
    chart = Joint.of(pytree.tree_map(lambda leaf: leaf.to(common), tensors), supports)
    return chart, chart.to_real(pytree.tree_map(lambda leaf: leaf.to(common), tensors))


def _make_factor(
    group: LieGroup[Any],
    base: Any,
    start: Any,
    initial_scale: float,
    metric: Metric,
    entropy: EntropyGradient,
    antithetic: bool,
) -> Factor:
    require_group(group)
    require_fit(group, base)
    element = _element_at(group, base, start, initial_scale)
    like = torch.empty(group.event_shape(element), dtype=_floating(element), device=pytree.tree_leaves(element)[-1].device)
    identity = group.identity(like)
    form = metric.on(group, base, identity)
    relative = group.positive or initial_scale != 1 or not isinstance(start, Tensor)
    state = initial_state(group, form, identity if relative else element)
    pairs = antithetic and _is_even(base)
    return Factor(group, base, element, identity, form, state, relative, _by_samples(group, base, entropy), pairs)


def _element_at(group: LieGroup[Any], base: Base, start: Any, scale: float) -> Any:
    """The element whose family has its mean at the point, or its centre where there is no mean."""
    if isinstance(start, tuple) and hasattr(start, "_fields"):
        return _checked_element(group, start)
    point = _point(start, f"a point, such as torch.zeros(3), or an element of {group}")
    try:
        mean = base.mean
    except ValueError:
        mean = 1.0 if group.positive else 0.0
    if not group.positive:
        there = group.at(point, scale)
        return group.compose(there, group.at(torch.full_like(point, -mean))) if mean and group.affine_action else there
    return group.compose(group.at(point), group.inverse(group.at(torch.full_like(point, mean))))


def _point(start: Any, expected: str) -> Tensor:
    """A start as a tensor of finite real numbers."""
    try:
        point = torch.as_tensor(start).detach()
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"start must be {expected}, but got {start!r}.") from None
    if not point.dtype.is_floating_point:
        raise ValueError(f"start must hold real floating-point numbers, but has the dtype {point.dtype}. Convert it.")
    if not bool(torch.isfinite(point).all()):
        raise ValueError("start must be finite, but has infinite or NaN values. Start elsewhere.")
    return point


def _checked_element(group: LieGroup[Any], start: Any) -> Any:
    """An element given as the start, copied, if it is one of this group."""
    blocks = pytree.tree_leaves(start)
    fits = all(isinstance(block, Tensor) and block.dtype.is_floating_point for block in blocks)
    expected = group.identity(torch.empty(group.event_shape(start))) if fits else None
    if expected is None or type(start) is not type(expected):
        kind = "floating-point tensors" if expected is None else f"a {type(expected).__name__}"
        raise ValueError(
            f"start is {type(start).__name__}, but an element of {group} is {kind}. Give a point, or {group}.at(point)."
        )
    for name, block, like in zip(start._fields, start, expected, strict=True):
        if block.shape != like.shape or not bool(torch.isfinite(block).all()):
            raise ValueError(
                f"start.{name} must be finite and of shape {tuple(like.shape)}, but has the shape {tuple(block.shape)} or "
                f"values that are not finite. Give a point, or {group}.at(point)."
            )
    somewhere = torch.ones(group.event_shape(start), dtype=blocks[-1].dtype, device=blocks[-1].device)
    if not bool(torch.isfinite(group.log_jacobian(start, somewhere)).all()):
        raise ValueError(f"start has no inverse, as every element of a group must. Give a point, or {group}.at(point).")
    return pytree.tree_map(lambda block: block.detach().clone(), start)


def _same(gradient: Tensor) -> Tensor:
    return gradient


def _floating(element: Any) -> torch.dtype:
    return pytree.tree_leaves(element)[-1].dtype


def _by_samples(group: LieGroup[Any], base: Base, entropy: EntropyGradient) -> bool:
    if entropy == "exact":
        return False
    try:
        smooth = base.fisher_scale > 0 and (group.positive or base.fisher_shift > 0)
    except ValueError:
        smooth = False
    if entropy == "samples" and not smooth:
        raise ValueError(f'entropy="samples" needs a smooth base, but the density of {base} has edges. Use entropy="exact".')
    return smooth


def _is_even(base: Base) -> bool:
    """Whether ε and −ε are equally likely, judged by the density at a few draws."""
    if base.support[0] != -base.support[1]:
        return False
    draws = base.sample((64,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        return torch.allclose(base.log_prob(draws), base.log_prob(-draws), rtol=1e-9, atol=1e-9)
    except ValueError:  # no density, as of Dirac
        return False


def product_family(group: LieGroup[Any], factors: Sequence[Factor], history: History) -> Any:
    """The fitted family in the structure of the group."""
    families = iter([factor.family for factor in factors])

    def build(part: LieGroup[Any]) -> Any:
        if isinstance(part, Product):
            return ProductFamily(part, part.join([build(child) for child in part.groups]))
        return next(families)

    return replace(build(group), history=history)
