"""A worker's own sample in place of the parameters, in whatever torch functions a closure calls.

Threads share a module, so none of them can put its sample there. Each has a leaf tensor for every parameter instead, and a
function mode of its own thread that hands torch the leaf where the closure hands it the parameter. Reading and clearing
`.grad` are such functions too: a closure that clips or clears gradients works on its worker's.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_here = threading.local()


class Leaves:
    """A leaf tensor for every parameter, in its layout."""

    def __init__(self) -> None:
        self.of: dict[Tensor, Tensor] = {}
        self.values: dict[Tensor, Tensor] = {}
        """The same memory outside of autograd, to write samples into; writing raises the version of the leaves."""

    def fit(self, parameters: list[Tensor]) -> None:
        """Makes sure that there is a leaf for every one of these parameters and for no other."""
        leaves: dict[Tensor, Tensor] = {}
        for p in parameters:
            leaf = self.of.get(p)
            if leaf is None or leaf.shape != p.shape or leaf.dtype != p.dtype or leaf.stride() != p.stride():
                leaf = torch.empty_like(p, requires_grad=False).requires_grad_()
            leaves[p] = leaf
        self.of = leaves
        self.values = {p: leaf.detach() for p, leaf in leaves.items()}

    @property
    def gradients(self) -> dict[Tensor, Tensor]:
        """The gradients that have come."""
        return {p: leaf.grad for p, leaf in self.of.items() if leaf.grad is not None}

    def clear(self, set_to_none: bool = True) -> None:
        """What `zero_grad` does, for the leaves."""
        with torch._C.DisableTorchFunction():
            for leaf in self.of.values():
                if set_to_none or leaf.grad is None:
                    leaf.grad = None
                else:
                    leaf.grad = torch.zeros_like(leaf.grad)

    @contextmanager
    def in_place_of_parameters(self, owner: object, mode: Callable[[dict[int, Tensor]], TorchFunctionMode]) -> Iterator[None]:
        """A block in which torch functions of this thread get leaves where they are given parameters."""
        _here.leaves, _here.owner = self, owner
        try:
            with mode({id(p): leaf for p, leaf in self.of.items()}):
                yield
        finally:
            _here.leaves = _here.owner = None


def leaves_here(owner: object) -> Leaves | None:
    """The leaves that stand for an optimizer's parameters in this thread, if any do."""
    return _here.leaves if getattr(_here, "owner", None) is owner else None


class Substitution(TorchFunctionMode):
    """Hands every torch function the leaves instead of the parameters, which are known by their `id`."""

    def __init__(self, leaves: dict[int, Tensor]) -> None:
        super().__init__()
        self.leaves = leaves

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaf = self.leaves.get
        own = [substituted(a, leaf) if type(a) in _NESTED else leaf(id(a), a) for a in args]
        if not kwargs:
            return func(*own)
        return func(*own, **{k: substituted(a, leaf) if type(a) in _NESTED else leaf(id(a), a) for k, a in kwargs.items()})


_NESTED = frozenset((list, tuple))


def substituted(values: list[Any] | tuple[Any, ...], leaf: Callable[[int, Any], Any]) -> list[Any] | tuple[Any, ...]:
    """A list or tuple with leaves for parameters, also in those within; the same object where there are none."""
    own = [substituted(a, leaf) if type(a) in _NESTED else leaf(id(a), a) for a in values]
    if all(map(operator.is_, own, values)):
        return values
    return own if type(values) is list else tuple(own)


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The members of nested lists and tuples."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value
