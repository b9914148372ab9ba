"""`torch.func.vmap` and `torch.autograd.grad` without their handling of general arguments.

That handling costs as much as a small loss. Here are the calls that these functions end in; where a version of torch
does not have them, the public functions are used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_NEEDED = ("_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim", "_remove_batch_dim")


def short_vmap(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.func.vmap(f, randomness="different")`. Call the public one once before, which loads what it needs."""
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is None or not all(hasattr(functorch, name) for name in _NEEDED):
        return torch.func.vmap(f, randomness="different")

    def vectorized(*leaves: Tensor) -> Tensor:
        size = leaves[0].shape[0]
        level = functorch._vmap_increment_nesting(size, "different")
        try:
            value = f(*(functorch._add_batch_dim(leaf, 0, level) for leaf in leaves))
            return functorch._remove_batch_dim(value, level, size, 0)
        finally:
            functorch._vmap_decrement_nesting()

    return vectorized


def short_grad(values: Tensor, weights: Tensor, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad(values, inputs, weights, allow_unused=True)`."""
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None:
        return torch.autograd.grad(values, inputs, weights, allow_unused=True)
    return engine.run_backward((values,), (weights,), False, False, tuple(inputs), True, accumulate_grad=False)
