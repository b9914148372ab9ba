"""Checks of network sizes."""

from __future__ import annotations

from collections.abc import Sequence


def require_sizes(**sizes: Sequence[int]) -> None:
    """Refuses sizes that are not whole positive numbers."""
    for name, values in sizes.items():
        if not all(isinstance(value, int) and value > 0 for value in values):
            raise ValueError(f"{name} must be whole numbers of at least 1, but got {tuple(values)}.")


def require_images(shape: Sequence[int]) -> None:
    """Refuses inputs that are not images."""
    if len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), but got {tuple(shape)}.")
