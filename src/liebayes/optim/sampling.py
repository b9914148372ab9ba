"""A sample in the module: parameters exchange their storage with a buffer, and get it back whatever happens.

Nothing is written into a tensor that autograd may still need. Leaving the block exchanges storages again, so that a graph
built inside must find the sample elsewhere: inside `sampled()` saved parameters are replaced by aliases of the buffer, and a
buffer that such an alias still holds is not used again. Inside `step(closure)`, where backward has run, the version of each
parameter is raised instead: a second backward through that graph is then an error of autograd, not a wrong gradient.

FSDP gathers weights from storage of its own, which an exchange would not reach: shards exchange their contents instead.
Activation checkpointing reads parameters again in the backward pass, which then has to run inside the block.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..late_backward import Alias, aliased
from .sharding import forget_gathered_weights, local


class _Alias(Alias):
    """A saved parameter as it was in the block of a sample."""

    __slots__ = ("owner", "sample")

    def __init__(self, tensor: Tensor, owner: SampleBuffers) -> None:
        super().__init__(tensor)
        self.owner = owner
        self.sample = owner._sample

    def value(self) -> Tensor:
        owner = self.owner
        if self.sample != owner._sample and (owner.active or owner.pending):
            raise RuntimeError(
                "Backward through the sample of an earlier block while a later one waits for its gradient: the two would be "
                "mixed up. Run backward of each block before the next one begins."
            )
        return self.tensor


class SampleBuffers:
    """One buffer for every parameter, holding the last sample."""

    def __init__(self) -> None:
        self.values: dict[Tensor, Tensor] = {}
        self._places: list[Any] = []
        self._exchanges: list[tuple[Tensor, Tensor, Tensor]] = []  # parameters, their points and their samples
        self._aliases: weakref.WeakSet[_Alias] = weakref.WeakSet()
        self._sample = 0
        self.active: bool = False  # a sample is in the module
        self.pending = False  # a sample waits: its gradient is taken in step()

    def release(self) -> None:
        """Gives up the buffers if a graph still needs them, so that the next sample gets fresh ones."""
        self._sample += 1
        if len(self._aliases):
            self.forget()

    def forget(self) -> None:
        """Gives up the buffers."""
        self.values, self._places, self._exchanges = {}, [], []
        self._aliases = weakref.WeakSet()

    def require(self, parameters: list[Tensor]) -> list[Tensor]:
        """Makes sure that parameters have buffers of their own shape, dtype and layout; returns those that have new ones."""
        # Another device is another memory: that of the points is kept until the next sample, so nothing else can be there.
        places = [(id(p), p.data_ptr(), p.dtype, p.shape, p.stride()) for p in parameters]
        if places == self._places:
            return []
        known = set(self._places)
        self._places = places
        fresh = [p for p, place in zip(parameters, places, strict=True) if place not in known]
        self.values.update({p: torch.empty_like(p, requires_grad=False) for p in fresh})
        self._exchanges = [(p, p.data, self.values[p]) for p in parameters]
        return fresh

    @contextmanager
    def in_module(
        self, parameters: list[Tensor], *, late_backward: bool, again: bool = False, sharded: bool = False
    ) -> Iterator[None]:
        """Parameters hold the sample inside, and are exactly what they were afterwards."""
        shards = [(local(p.detach()), local(self.values[p])) for p in parameters] if sharded else []
        exchanges = self._exchanges
        if sharded:
            parameters, exchanges = [], []
        elif again:  # points may be elsewhere by now
            exchanges = [(p, p.data, self.values[p]) for p in parameters]
        self.active = True
        try:
            for p, _, sample in exchanges:
                p.data = sample
            _exchange(shards)
            torch.clear_autocast_cache()  # casts of other weights under the same names
            if late_backward:
                with aliased(parameters, self._alias):
                    yield
            else:
                yield
        finally:
            for p, point, _ in exchanges:
                p.data = point
            _exchange(shards)
            torch.clear_autocast_cache()
            if not late_backward:
                torch.autograd.graph.increment_version(parameters)
            self.active = False

    def _alias(self, tensor: Tensor) -> _Alias:
        made = _Alias(tensor, self)
        self._aliases.add(made)
        return made


@torch.no_grad()
def _exchange(shards: list[tuple[Tensor, Tensor]]) -> None:
    for a, b in shards:
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
    if shards:
        forget_gathered_weights()
