"""Graphs that outlive a block in which parameters hold other values than before and after it.

Leaving such a block gives parameters their storage back. What autograd has saved of them inside must be what they were there:
hooks replace saved parameters by aliases of that storage. Autograd asks the innermost of nested hooks only, so that the blocks
of one thread, of optimizers and of posteriors, know of each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Alias:
    """A saved parameter as it was in a block."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor.detach()

    def value(self) -> Tensor:
        """What backward asks for."""
        return self.tensor


Keep = Callable[[Tensor], Alias]


class _Open(threading.local):
    """The blocks of this thread: for the identity of a parameter, who makes its aliases."""

    def __init__(self) -> None:
        self.keepers: dict[int, Keep] = {}


_open = _Open()


@contextmanager
def aliased(parameters: Iterable[Tensor], keep: Keep = Alias) -> Iterator[None]:
    """A block whose graphs find these parameters as they are inside, whenever backward runs."""
    outer = _open.keepers
    keepers = _open.keepers = {**outer, **dict.fromkeys(map(id, parameters), keep)}

    def pack(tensor: Tensor) -> Tensor | Alias:
        # The parameter itself exchanges its storage; a view keeps it, which must not be used again before.
        keeper = keepers.get(id(tensor)) or keepers.get(id(tensor._base))
        return tensor if keeper is None else keeper(tensor)

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield
    finally:
        _open.keepers = outer


def _unpack(saved: Tensor | Alias) -> Tensor:
    return saved.value() if isinstance(saved, Alias) else saved
