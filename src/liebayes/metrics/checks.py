"""Checks of the arguments of metrics: tensors, or arrays of numpy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_tensor(value: Any) -> Any:
    """An array as a tensor; everything else as it is."""
    return torch.as_tensor(value) if hasattr(value, "__array__") and not isinstance(value, Tensor) else value


def real_tensor(name: str, value: Any) -> Tensor:
    """A tensor of real numbers."""
    value = as_tensor(value)
    if not isinstance(value, Tensor) or value.dtype.is_complex or value.is_quantized:
        came = str(value.dtype) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{name} must be a tensor of real numbers, but got {came}. Make one: torch.as_tensor(...).")
    return value
