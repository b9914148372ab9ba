"""Checks of network sizes."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import torch


def require_sizes(**sizes: Sequence[int]) -> None:
    """Refuses sizes that are not whole positive numbers."""
    for name, values in sizes.items():
        if not (isinstance(values, Iterable) and all(isinstance(value, int) and 0 < value < 1 << 31 for value in values)):
            raise ValueError(f"{name} must be whole numbers of at least 1 and below 2³¹, but got {values!r}.")


def in_float32(value: Any) -> bool:
    """Whether a value is a number that float32 holds."""
    long = isinstance(value, int) and value.bit_length() > 127
    return isinstance(value, numbers.Real) and not long and abs(float(value)) <= torch.finfo(torch.float32).max


def require_finite(**numbers: float) -> None:
    """Refuses anything but a number that float32 holds."""
    for name, value in numbers.items():
        if not in_float32(value):
            raise ValueError(f"{name} must be a finite number, but got {value!r}.")


def require_images(shape: Sequence[int]) -> None:
    """Refuses inputs that are not images."""
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), but got {shape!r}.")
