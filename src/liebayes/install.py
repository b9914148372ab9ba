"""Puts other values into a module for a while: tensors exchange their storage with them, and get it back whatever happens.

Training and prediction both put a sample into a module this way. Storages are exchanged, not attributes, so the values are
found wherever a model keeps its parameters, in a plain list or a compiled graph too, and nothing is written into a tensor that
autograd may still need.

A graph built inside the block may be differentiated after it, when the parameters have their own storage again. Autograd must
then find the values of the block: with `keep`, saved parameters are replaced by aliases of the storage they had. Autograd asks
only the innermost of nested hooks, so the blocks of a thread know of each other.

Threads take turns: a block waits while another thread has values in the same tensors, or needs them to stay as they are. Where
threads would wait for each other, the last one is refused. A forked process ends the blocks of threads that it does not have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


class Turn:
    """A block in which no other thread exchanges any of these tensors. Blocks of one thread may be nested."""

    def __init__(self, slots: Iterable[Tensor] | Turn) -> None:
        self._ids: frozenset[int] = slots._ids if isinstance(slots, Turn) else frozenset(map(id, slots))
        self._thread: int = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        with _lock:
            while _open_blocks and (holders := self._holders()):
                self._require_an_end(holders)
                _waiting[self._thread] = self
                try:
                    _turn.wait()
                finally:
                    del _waiting[self._thread]
            _open_blocks.append(self)

    def _holders(self) -> set[int]:
        """The other threads in whose blocks these tensors are."""
        return {
            block._thread for block in _open_blocks if block._thread != self._thread and not self._ids.isdisjoint(block._ids)
        }

    def _require_an_end(self, holders: set[int]) -> None:
        """Refuses to wait for a thread that waits, perhaps through others, for this one."""
        seen: set[int] = set()
        while holders:
            thread = holders.pop()
            if thread == self._thread:
                raise RuntimeError(
                    "Threads would wait for each other: this one holds a module in a block, such as sampled(), and needs "
                    "another's, which waits for it. Open such blocks in the same order in all threads, or one after the other."
                )
            if thread not in seen and thread in _waiting:
                holders |= _waiting[thread]._holders()
            seen.add(thread)

    def __exit__(self, *_: Any) -> None:
        with _lock:
            _open_blocks.remove(self)
            if _waiting:
                _turn.notify_all()


_open_blocks: list[Turn] = []
_waiting: dict[int, Turn] = {}
_lock = threading.Lock()
_turn = threading.Condition(_lock)


class Exchange(Turn):
    """Tensors, and the values that take their place inside `with exchange.installed():`."""

    def __init__(self, slots: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        super().__init__(slots)
        self.slots = slots
        self.values = values
        self._originals: list[Tensor] = [slot.data for slot in slots]
        self._addresses: list[int] = list(map(Tensor.data_ptr, slots))
        self._holds = False

    @contextmanager
    def installed(self, keep: Keep | None = None) -> Iterator[None]:
        """The tensors hold the values inside, and afterwards exactly what they held before.

        With `keep`, graphs built inside may be differentiated later; it makes the alias of a saved parameter.
        """
        with self:
            yield from self._exchanged(keep)

    def _exchanged(self, keep: Keep | None) -> Iterator[None]:
        addresses = list(map(Tensor.data_ptr, self.slots))
        if addresses != self._addresses:  # the tensors have got new storage since, also in the block of another thread
            self._originals = [slot.data for slot in self.slots]
            self._addresses = addresses
        self._holds = True  # from here on the originals are those of now
        try:
            for slot, value in zip(self.slots, self.values, strict=True):
                slot.data = value
            torch.clear_autocast_cache()  # it holds casts of the old values under the same names
            with nullcontext() if keep is None else aliased(self.slots, keep):
                yield
        finally:
            self._restore()
            torch.clear_autocast_cache()

    def _restore(self) -> None:
        with _lock:
            blocks = _open_blocks[_open_blocks.index(self) + 1 :]
        later = [other for other in blocks if isinstance(other, Exchange) and not other._ids.isdisjoint(self._ids)]
        for slot, original in zip(self.slots, self._originals, strict=True):
            holder = next((other for other in later if id(slot) in other._ids), None) if later else None
            if holder is None:
                slot.data = original
            else:  # that block ends after this one, though it began inside it: what it restores must be the original
                place = next(i for i, other in enumerate(holder.slots) if other is slot)
                holder._originals[place] = original
        self._holds = False


def _end_blocks_of_other_threads() -> None:
    """In a forked process, which has only this thread: tensors in other threads' blocks get back what they held."""
    global _lock, _turn
    _lock = threading.Lock()  # another thread may have held it
    _turn = threading.Condition(_lock)
    _waiting.clear()
    for block in [block for block in reversed(_open_blocks) if block._thread != threading.get_ident()]:
        if isinstance(block, Exchange) and block._holds:
            block._restore()
        _open_blocks.remove(block)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_blocks_of_other_threads)


# Graphs that are differentiated after the block.


class Alias:
    """A saved parameter with the value it had in a block."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor.detach()

    def value(self) -> Tensor:
        """The value that backward gets."""
        return self.tensor


Keep = Callable[[Tensor], Alias]


class _ThreadBlocks(threading.local):
    """The blocks of this thread: for the identity of a parameter, the function that makes its aliases."""

    def __init__(self) -> None:
        self.keepers: dict[int, Keep] = {}


_blocks = _ThreadBlocks()


@contextmanager
def aliased(parameters: Iterable[Tensor], keep: Keep = Alias) -> Iterator[None]:
    """A block whose graphs find these parameters as they are inside, whenever backward runs."""
    outer = _blocks.keepers
    keepers = _blocks.keepers = {**outer, **dict.fromkeys(map(id, parameters), keep)}

    def pack(tensor: Tensor) -> Tensor | Alias:
        # A view of a parameter keeps the storage of the block; an alias tells that the storage is still in use.
        keeper = keepers.get(id(tensor)) or keepers.get(id(tensor._base))
        return tensor if keeper is None else keeper(tensor)

    def unpack(saved: Tensor | Alias) -> Tensor:
        return saved.value() if isinstance(saved, Alias) else saved

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _blocks.keepers = outer
