"""The Cartesian product of groups (Sec. 3.1): each part acts on its own part of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .lie_group import LieGroup

Parts = tuple[Any, ...] | dict[str, Any]


class Product(LieGroup[Any]):
    """G₁ × G₂ × …, acting on tuples or dictionaries of parameters; its elements have the same structure.

    >>> from liebayes.groups import Additive, Multiplicative
    >>> Product(Additive(), Multiplicative())
    Product(Additive(), Multiplicative())
    >>> Product(weights=Additive(), noise=Multiplicative())
    Product(weights=Additive(), noise=Multiplicative())
    """

    def __init__(
        self,
        *parts: LieGroup[Any] | Sequence[LieGroup[Any]] | Mapping[str, LieGroup[Any]],
        **named: LieGroup[Any],
    ) -> None:
        if len(parts) == 1 and not named and not isinstance(parts[0], LieGroup):
            only = parts[0]
            self.parts: Parts = dict(only) if isinstance(only, Mapping) else tuple(only)
        elif parts and named:
            raise ValueError("Product takes groups by position or by name, not both.")
        else:
            self.parts = dict(named) if named else tuple(parts)
        if not self.parts:
            raise ValueError("Product needs at least one group.")
        for part in self.groups:
            if not isinstance(part, LieGroup):
                raise ValueError(f"Product takes groups, but got {part!r}. Pass instances, such as Additive().")

    @property
    def groups(self) -> list[LieGroup[Any]]:
        """The parts in a list."""
        return list(self.parts.values()) if isinstance(self.parts, dict) else list(self.parts)

    def split(self, what: str, *structures: Any) -> list[tuple[Any, ...]]:
        """The parts of each structure, aligned with the groups; a structure that does not fit is refused."""
        rows = []
        for structure in structures:
            if isinstance(self.parts, dict):
                if not isinstance(structure, Mapping) or set(structure) != set(self.parts):
                    got = sorted(structure) if isinstance(structure, Mapping) else type(structure).__name__
                    raise ValueError(f"{what} must be a dictionary with the keys {sorted(self.parts)}, but got {got}.")
                rows.append([structure[key] for key in self.parts])
            else:
                if not isinstance(structure, (tuple, list)) or len(structure) != len(self.parts):
                    got = f"{len(structure)} parts" if isinstance(structure, (tuple, list)) else type(structure).__name__
                    raise ValueError(f"{what} must be a tuple of {len(self.parts)} parts, one for each group, but got {got}.")
                rows.append(list(structure))
        return list(zip(self.groups, *rows, strict=True))

    def join(self, values: list[Any]) -> Any:
        """The inverse of `split`: values in the structure of the groups."""
        return dict(zip(self.parts, values, strict=True)) if isinstance(self.parts, dict) else tuple(values)

    def identity(self, like: Any) -> Any:
        return self.join([part.identity(x) for part, x in self.split("like", like)])

    def compose(self, g: Any, h: Any) -> Any:
        return self.join([part.compose(a, b) for part, a, b in self.split("an element", g, h)])

    def inverse(self, g: Any) -> Any:
        return self.join([part.inverse(a) for part, a in self.split("an element", g)])

    def act(self, g: Any, theta: Any) -> Any:
        return self.join([part.act(a, t) for part, a, t in self.split("θ", g, theta)])

    def exp(self, X: Any) -> Any:
        return self.join([part.exp(x) for part, x in self.split("a vector", X)])

    def at(self, point: Any, scale: float = 1.0) -> Any:
        return self.join([part.at(p, scale) for part, p in self.split("a point", point)])

    def event_shape(self, g: Any) -> Any:
        return self.join([part.event_shape(a) for part, a in self.split("an element", g)])

    # Every derived quantity of a product is that of its parts.

    def velocity(self, X: Any, theta: Any) -> Any:
        return self.join([part.velocity(x, t) for part, x, t in self.split("θ", X, theta)])

    def adjoint(self, g: Any, X: Any) -> Any:
        return self.join([part.adjoint(a, x) for part, a, x in self.split("an element", g, X)])

    def bracket(self, X: Any, Y: Any) -> Any:
        return self.join([part.bracket(x, y) for part, x, y in self.split("a vector", X, Y)])

    def pullback(self, g: Any, theta: Any, gradient: Any) -> Any:
        return self.join([part.pullback(a, t, d) for part, a, t, d in self.split("θ", g, theta, gradient)])

    def log_jacobian(self, g: Any, theta: Any) -> Tensor:
        terms: list[Tensor] = [part.log_jacobian(a, t) for part, a, t in self.split("θ", g, theta)]
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0)

    def divergence(self, g: Any, epsilon: Any) -> Any:
        return self.join([part.divergence(a, e) for part, a, e in self.split("ε", g, epsilon)])

    def __repr__(self) -> str:
        if isinstance(self.parts, dict):
            return f"Product({', '.join(f'{key}={part}' for key, part in self.parts.items())})"
        return f"Product({', '.join(map(repr, self.parts))})"
