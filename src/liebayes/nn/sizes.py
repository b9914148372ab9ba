"""Checks of network sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def require_sizes(**sizes: Sequence[int]) -> None:
    """Refuses sizes that are not whole positive numbers."""
    for name, values in sizes.items():
        if not (isinstance(values, Iterable) and all(isinstance(value, int) and 0 < value < 1 << 31 for value in values)):
            raise ValueError(f"{name} must be whole numbers of at least 1 and below 2³¹, but got {values!r}.")


def require_images(shape: Sequence[int]) -> None:
    """Refuses inputs that are not images."""
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), but got {shape!r}.")
