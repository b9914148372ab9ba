"""Functions on all blocks of an element at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch.utils import _pytree as pytree

E = TypeVar("E")


def map_blocks(f: Callable[..., Any], X: E, *others: Any) -> E:
    """f on every block of X, with the same blocks of the others: `tree_map`, at a tenth of its cost for a plain element."""
    if is_plain(X):
        return X._make(map(f, X, *others))  # type: ignore[attr-defined]
    return pytree.tree_map(f, X, *others)


def blocks_of(X: Any) -> list[Any]:
    """The blocks in a list."""
    return list(X) if is_plain(X) else pytree.tree_leaves(X)


def with_blocks(X: E, blocks: Sequence[Any]) -> E:
    """An element like X with other blocks."""
    return X._make(blocks) if is_plain(X) else pytree.tree_unflatten(list(blocks), pytree.tree_structure(X))  # type: ignore[attr-defined]


def is_plain(X: Any) -> bool:
    """A NamedTuple, whose fields are the blocks; only products nest them, in tuples and dictionaries."""
    return hasattr(X, "_fields")
