"""What `.grad` holds: whether it is finite, dense, a sample's own, and what it was when it was last looked at."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..bases import Dirac
from . import kernel, reduction
from .settings import named
from .sharding import local


def present(parameters: list[Tensor]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [gradient for p in parameters if (gradient := p.grad) is not None]


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether no gradient has an infinite or NaN value."""
    if native.available():
        plain = [gradient for gradient in gradients if kernel.reads(gradient)]
        if not kernel.all_finite(plain):
            return False
        gradients = [] if len(plain) == len(gradients) else [g for g in gradients if not kernel.reads(g)]
    # In torch a sum is quickest, and finite only if all its numbers are; that of large numbers may overflow.
    gradients = [local(gradient) for gradient in gradients]
    sums = [gradient.sum(dtype=torch.float64 if gradient.dtype == torch.float64 else torch.float32) for gradient in gradients]
    finite = zip(sums, gradients, strict=True)
    return all(bool(total.isfinite()) or bool(gradient.isfinite().all()) for total, gradient in finite)


def require_dense(groups: list[dict[str, Any]], gradients: Mapping[Tensor, Tensor] | None = None) -> None:
    """Refuses sparse gradients, those given or those in `.grad`, by the name of their parameter."""
    found = gradients.values() if gradients is not None else (p.grad for settings in groups for p in settings["params"])
    if all(gradient is None or gradient.layout is torch.strided for gradient in found):
        return
    for settings in groups:
        for name, p in named(settings):
            gradient = p.grad if gradients is None else gradients.get(p)
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(
                    f"The gradient of the parameter {name} is sparse. Use a dense one (for nn.Embedding: sparse=False)."
                )


def require_own(parameters: list[Tensor], groups: list[dict[str, Any]], process_group: Any) -> bool:
    """Refuses gradients that something has averaged over ranks: samples differ, so their gradients do.

    Returns whether there was anything to tell by.
    """
    gradients = [p.grad.double().norm() for p in parameters if p.grad is not None]
    total = float(torch.stack(gradients).sum()) if gradients else 0.0
    same = reduction.equal_on_all_ranks(total, parameters[0].device, process_group)
    noisy = any(settings["base"] != Dirac() for settings in groups)
    if same and noisy and total > 0:
        raise RuntimeError(
            "All ranks have the same gradients although their samples differ: DistributedDataParallel has averaged them, "
            "which shrinks the scale's covector. Call liebayes.optim.local_gradients(ddp_model) once, before training; "
            "the callback of liebayes.integrations.lightning does."
        )
    return total > 0 or not same


def nonzero(p: Tensor) -> bool:
    """Whether p has a gradient that is not zero."""
    return p.grad is not None and bool(local(p.grad).any())


def gradient_sizes(parameters: list[Tensor]) -> list[float]:
    """A number for each gradient that changes when it is scaled, which GradScaler does without raising its version."""
    sizes = [
        torch.zeros(()) if p.grad is None else torch.linalg.vector_norm(local(p.grad.detach()).float()) for p in parameters
    ]
    return torch.stack([size.to(sizes[0].device) for size in sizes]).tolist() if sizes else []


class GradientMarks:
    """Remembers the gradients of parameters, to tell later whether they have changed."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # By identity, which is what a tensor's hash is, without a call of Python for each. No gradient needs no mark.
        ref = weakref.ref
        self._marks = {id(p): (ref(gradient), gradient._version) for p in parameters if (gradient := p.grad) is not None}

    def __len__(self) -> int:
        return len(self._marks)

    def same_tensor(self, p: Tensor) -> bool:
        """Whether p has the gradient tensor it had, whatever that holds now."""
        mark = self._marks.get(id(p))
        return mark is not None and mark[0]() is p.grad

    def changed(self, parameters: list[Tensor]) -> list[Tensor]:
        """Those that have another gradient than they had, or the same tensor with other values."""
        marks = self._marks
        return [
            p
            for p in parameters
            if (gradient := p.grad) is not None
            and ((mark := marks.get(id(p))) is None or mark[0]() is not gradient or mark[1] != gradient._version)
        ]
