"""Which numbers are worked on together: many small tensors at once, large ones in pieces that stay in the cache.

The rule's functions work on flat tensors of any length. Small parameters are gathered into one; a large one is cut, so that
no temporary is larger than a bucket. The order of elements is that of memory, so that channels-last tensors need no copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..distributed import is_sharded, local

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
