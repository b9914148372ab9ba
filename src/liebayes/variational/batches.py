"""Batches of the data: Σ over all N data, estimated from n of them times N/n."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Batches:
    """The data n at a time, every pass in a new order; what is left over at the end of a pass is left out of it.

    `loss(θ, batch)` is a sum over the batch. Times N/n its expectation over batches is the sum over all data.
    """

    def __init__(self, data: Any, size: int | None, seed: int) -> None:
        data = pytree.tree_map(lambda leaf: torch.as_tensor(leaf) if hasattr(leaf, "__array__") else leaf, data)
        leaves = pytree.tree_leaves(data)
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
            hint = " Give its `tensors`." if hasattr(data, "tensors") else ""
            raise ValueError(f"data must be a tensor, or tuples or dictionaries of them, but got {type(data).__name__}.{hint}")
        lengths = sorted({len(leaf) for leaf in leaves})
        if len(lengths) > 1:
            raise ValueError(f"All tensors of data must have the same first dimension, but have {lengths}.")
        self.count: int = lengths[0]
        if size is not None and not 1 <= size <= self.count:
            raise ValueError(f"batch_size must be from 1 to the number of data, {self.count}, but got {size}.")
        self.size: int = self.count if size is None else size
        self._data = data
        self._present = data
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.int64)

    def next(self) -> None:
        """Goes on to the next batch."""
        if self.size == self.count:
            return
        if len(self._order) < self.size:
            self._order = torch.randperm(self.count, generator=self._generator)
        chosen, self._order = self._order[: self.size], self._order[self.size :]
        self._present = pytree.tree_map(lambda leaf: leaf[chosen.to(leaf.device)], self._data)

    def estimate(self, loss: Callable[[Any, Any], Tensor]) -> Callable[[Any], Tensor]:
        """θ ↦ N/n·loss(θ, batch) at the present batch."""
        weight = self.count / self.size
        return lambda theta: weight * loss(theta, self._present)
