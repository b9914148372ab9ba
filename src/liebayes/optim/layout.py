"""Where the rule's numbers are stored: elements in parameters and states, parameters in buckets.

**Elements.** Between steps a parameter holds one point of its posterior, and the point is part of the element, not a copy:
additive and affine groups have their shift in the parameter itself; the multiplicative group has g·E[ε] there. So editing a
parameter moves the posterior with it, and nothing is stored twice. The multiplicative element is p/E[ε] times e^r, where the
logarithm r keeps what rounding p has lost; a parameter narrower than float32 keeps its shift's remainder likewise.

**Buckets.** The rule's functions work on flat tensors of any length. Small parameters are gathered into one; a large one is
cut, so that no temporary is larger than a bucket. The order of numbers is that of memory: channels-last tensors need no copy.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..bases import Base
from ..distributed import is_sharded, local
from ..groups import LieGroup, LogScale


def working_dtype(p: Tensor) -> torch.dtype:
    """The precision of states and formulas: float32, or the parameter's own if that is wider."""
    return torch.float32 if p.dtype.itemsize < 4 else p.dtype


class Layout(ABC):
    """The place of an element. `state` maps names to tensors, all in the working precision."""

    @abstractmethod
    def start(self, parameter: Tensor, width: float = 1.0) -> dict[str, Tensor]:
        """The state of an element whose point is the parameter as it is, and whose scale is `width`."""

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

    def start(self, parameter: Tensor, width: float = 1.0) -> dict[str, Tensor]:
        element = self.group.at(parameter, width)
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

    def start(self, parameter: Tensor, width: float = 1.0) -> dict[str, Tensor]:
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
    except TypeError:  # a user's base that cannot be hashed
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


# Buckets.

SIZE = 1 << 18
"""How many numbers a bucket holds: a megabyte of float32."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that are worked on together, or the elements [start, stop) of one large parameter.

    Of sharded parameters these are the elements of this rank.

    The methods take lists of tensors laid out like the parameters: their states, gradients, samples, or themselves.
    """

    parameters: list[Tensor]
    start: int = 0
    stop: int | None = None
    flat: bool = True
    """Whether elements stand for themselves. Matrix groups work on a parameter in its own shape."""

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The shape of each parameter's share."""
        if not self.flat:
            return [tuple(self.parameters[0].shape)]
        if self.stop is not None:
            return [(self.stop - self.start,)]
        return [(local(p).numel(),) for p in self.parameters]

    def read(self, tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
        """The bucket's elements. A view of the tensors where there is nothing to copy."""
        if not self.flat:
            return tensors[0].to(dtype)
        if self.stop is not None:
            return _flat(tensors[0], self.parameters[0])[self.start : self.stop].to(dtype)
        parts = [_flat(t, p) for t, p in zip(tensors, self.parameters, strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(dtype)

    def write(self, values: Tensor, tensors: list[Tensor]) -> None:
        """The inverse of `read`."""
        if not self.flat:
            tensors[0].copy_(values)
        elif self.stop is not None:
            flat = _flat(tensors[0], self.parameters[0])
            flat[self.start : self.stop].copy_(values)
            if flat.data_ptr() != tensors[0].data_ptr():  # a copy: the tensor has other strides than the parameter
                tensors[0].copy_(in_memory_order(flat, self.parameters[0]))
        else:
            parts = values.split([size for (size,) in self.sizes])
            values_of_each = [in_memory_order(part, local(p)) for part, p in zip(parts, self.parameters, strict=True)]
            torch._foreach_copy_([local(t) for t in tensors], values_of_each)  # pyright: ignore[reportPrivateImportUsage]


def buckets(parameters: list[Tensor], *, flat: bool, together: bool) -> Iterator[Bucket]:
    """Splits parameters, in their order, into buckets; tensors that are sharded or not dense stay whole."""
    pending: list[Tensor] = []
    size = 0
    for p in parameters:
        count = p.numel()
        if count == 0:
            continue
        if not flat:
            yield Bucket([p], flat=False)
            continue
        if pending and (not together or size + count > SIZE):
            yield Bucket(pending)
            pending, size = [], 0
        if count <= SIZE or is_sharded(p) or not is_dense(p):
            pending.append(p)
            size += count
        else:
            for start in range(0, count, SIZE):
                yield Bucket([p], start, min(start + SIZE, count))
    if pending:
        yield Bucket(pending)


def _flat(t: Tensor, like: Tensor) -> Tensor:
    t, like = local(t), local(like)
    return t.reshape(-1) if like.is_contiguous() else t.permute(_memory_order(like)).reshape(-1)


def in_memory_order(values: Tensor, like: Tensor) -> Tensor:
    """Flat values in the shape of a tensor, in the order of its memory."""
    if like.is_contiguous():
        return values.view(like.shape)
    order = _memory_order(like)
    return values.view([like.shape[d] for d in order]).permute(sorted(range(like.ndim), key=order.__getitem__))


def _memory_order(p: Tensor) -> list[int]:
    return sorted(range(p.ndim), key=lambda d: -p.stride(d))


def is_dense(p: Tensor) -> bool:
    """Whether elements fill their memory in some order, without gaps."""
    return p.is_contiguous() or p.permute(_memory_order(p)).is_contiguous()
