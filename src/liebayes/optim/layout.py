"""How a group element lives in a parameter and its state.

Between steps a parameter holds one point of its posterior, and the point is part of the element, not a copy: additive and
affine groups have their shift in the parameter itself; the multiplicative group has g·E[ε] there. So editing a parameter
moves the posterior with it, and nothing is stored twice.

Logarithms of scales start at 0: the initial width belongs to the base. The multiplicative element is p/E[ε] times e^r, where
the logarithm r keeps what rounding p has lost; a parameter narrower than float32 keeps its shift's remainder likewise.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..bases import Base
from ..groups import LieGroup, LogScale


def working_dtype(p: Tensor) -> torch.dtype:
    """The precision of states and formulas: float32, or the parameter's own if that is wider."""
    return torch.float32 if p.dtype.itemsize < 4 else p.dtype


class Layout(ABC):
    """The place of an element. `state` maps names to tensors, all in the working precision."""

    @abstractmethod
    def start(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of an element whose point is the parameter as it is."""

    @abstractmethod
    def element(self, point: Tensor, state: dict[str, Tensor]) -> Any:
        """The element the rule works on."""

    @abstractmethod
    def store(self, point: Tensor, element: Any, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter's new value, rounded to its dtype, and the new state."""

    def sample(self, group: LieGroup[Any], point: Tensor, element: Any, epsilon: Tensor) -> Tensor:
        """θ = g·ε."""
        return group.act(element, epsilon)

    @abstractmethod
    def family_element(self, point: Tensor, state: dict[str, Tensor]) -> Any:
        """The element g itself, for the posterior."""


class ShiftLayout(Layout):
    """Groups whose elements have a shift: it is the parameter."""

    def __init__(self, group: LieGroup[Any], narrow: bool) -> None:
        self.group = group
        self.narrow = narrow
        self.shift: str = group.shift_block
        self.type: Any = type(group.at(torch.ones(1)))

    def start(self, parameter: Tensor) -> dict[str, Tensor]:
        element = self.group.at(parameter)
        blocks = dict(zip(element._fields, element, strict=True))
        blocks.pop(self.shift)
        if self.narrow:
            blocks["remainder"] = torch.zeros_like(parameter)
        return blocks

    def element(self, point: Tensor, state: dict[str, Tensor]) -> Any:
        shift = point + state["remainder"] if self.narrow else point
        return self.type(**{name: shift if name == self.shift else state[name] for name in self.type._fields})

    def store(self, point: Tensor, element: Any, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        blocks = dict(zip(element._fields, element, strict=True))
        shift = blocks.pop(self.shift)
        rounded = shift.to(dtype)
        if self.narrow:
            blocks["remainder"] = shift - rounded.to(shift.dtype)
        return rounded, blocks

    def family_element(self, point: Tensor, state: dict[str, Tensor]) -> Any:
        return self.element(point, state)


class ScaleLayout(Layout):
    """The multiplicative group: the parameter is the mean g·E[ε], or g where the base has no mean."""

    def __init__(self, base: Base) -> None:
        self.mean: float = 1.0
        with contextlib.suppress(ValueError):  # a base without a mean
            self.mean = base.mean

    def start(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"remainder": torch.zeros_like(parameter)}

    def element(self, point: Tensor, state: dict[str, Tensor]) -> LogScale:
        # By left-equivariance the rule may work on e^r alone; p/E[ε] comes in when a sample is drawn.
        return LogScale(state["remainder"])

    def sample(self, group: LieGroup[Any], point: Tensor, element: Any, epsilon: Tensor) -> Tensor:
        return group.act(element, epsilon * (point / self.mean))

    def store(self, point: Tensor, element: Any, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        limits = torch.finfo(dtype)
        moved = element.scale * point
        rounded = moved.clamp(limits.tiny, limits.max).to(dtype)
        change = (rounded.to(point.dtype) - point) / point
        small = torch.log1p(change)  # exact where a step is small; far below −½ it has no digits left
        taken = torch.where(change.abs() > 0.5, rounded.to(point.dtype).log() - point.log(), small)
        return rounded, {"remainder": element.log_scale - taken}

    def family_element(self, point: Tensor, state: dict[str, Tensor]) -> LogScale:
        return LogScale((point / self.mean).log() + state["remainder"])


def layout_for(group: LieGroup[Any], base: Base, dtype: torch.dtype) -> Layout:
    """The layout of a group, by the blocks of its elements."""
    try:
        return _known_layout(group, base, dtype)
    except TypeError:  # a base of the user's that cannot be hashed
        return _make_layout(group, base, dtype)


def _make_layout(group: LieGroup[Any], base: Base, dtype: torch.dtype) -> Layout:
    fields = getattr(group.at(torch.ones(1)), "_fields", ())
    if group.shift_block in fields:
        return ShiftLayout(group, narrow=dtype.itemsize < 4)
    if group.positive and fields == ("log_scale",):
        return ScaleLayout(base)
    raise ValueError(
        f"{group} has elements with the blocks {fields}. An optimizer needs a block `{group.shift_block}`, which is the "
        "parameter itself, or a positive group with the one block `log_scale`. Use liebayes.fit for other groups."
    )


_known_layout = lru_cache(maxsize=256)(_make_layout)
