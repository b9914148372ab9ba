"""A sample in the module: parameters exchange their storage with a buffer, and get it back whatever happens.

Nothing is written into a tensor that autograd may still need. Leaving the block exchanges storages again, so that a graph
built inside must find the sample elsewhere: inside `sampled()` saved parameters are replaced by aliases of the buffer, and a
buffer that such an alias still holds is not used again. Inside `step(closure)`, where backward has run, the version of each
parameter is raised instead: a second backward through that graph is then an error of autograd, not a wrong gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class _Alias:
    """A saved parameter as it was in the block."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SampleBuffers:
    """One buffer for every parameter, holding the last sample."""

    def __init__(self) -> None:
        self.values: dict[Tensor, Tensor] = {}
        self._aliases: weakref.WeakSet[_Alias] = weakref.WeakSet()
        self.active = False

    def release(self) -> None:
        """Gives up the buffers if a graph still needs them, so that the next sample gets fresh ones."""
        if len(self._aliases):
            self.values = {}
            self._aliases = weakref.WeakSet()

    def require(self, p: Tensor) -> None:
        """Makes sure that a parameter has a buffer of its own shape, dtype and layout."""
        value = self.values.get(p)
        if value is None or value.shape != p.shape or value.dtype != p.dtype or value.device != p.device:
            self.values[p] = torch.empty_like(p, requires_grad=False)

    @contextmanager
    def in_module(self, parameters: list[Tensor], late_backward: bool) -> Iterator[None]:
        """Parameters hold the sample inside, and are exactly what they were afterwards."""
        points = [p.data for p in parameters]
        self.active = True
        try:
            for p in parameters:
                p.data = self.values[p]
            if late_backward:
                with torch.autograd.graph.saved_tensors_hooks(self._pack(parameters), _unpack):
                    yield
            else:
                yield
        finally:
            for p, point in zip(parameters, points, strict=True):
                p.data = point
            if not late_backward:
                for p in parameters:
                    torch.autograd.graph.increment_version(p)
            self.active = False

    def _pack(self, parameters: list[Tensor]):
        sampled = {id(p) for p in parameters}
        aliases = self._aliases

        def pack(tensor: Tensor) -> Tensor | _Alias:
            # A view of a parameter has its storage too, and holds on to it; only the parameter itself exchanges it.
            if id(tensor) in sampled:
                alias = _Alias(tensor.detach())
                aliases.add(alias)
                return alias
            return tensor

        return pack


def _unpack(saved: Tensor | _Alias) -> Tensor:
    return saved.tensor if isinstance(saved, _Alias) else saved


class GradientMarks:
    """Remembers the gradients of parameters, to tell later whether they have changed."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._marks = {p: self._mark(p) for p in parameters}

    @staticmethod
    def _mark(p: Tensor) -> tuple[weakref.ref[Tensor] | None, int]:
        return (None, 0) if p.grad is None else (weakref.ref(p.grad), p.grad._version)

    def changed(self, p: Tensor) -> bool:
        """Whether p has another gradient than it had, or the same tensor with other values."""
        reference, version = self._marks.get(p, (None, 0))
        if p.grad is None:
            return False
        return reference is None or reference() is not p.grad or p.grad._version != version
