"""The protocol between a training loop and the rule: the samples drawn since the last step, and whose gradient is in `.grad`.

            sampled()              leave                    step()
    READY ────────────▶ SAMPLING ───────────▶ WAITING ─────────────────▶ READY
                        ▲      │                 │
              sampled() │      │ leave,          │ sampled(), zero_grad():
                        │      ▼ several samples ▼ the gradient has come
                        └──── FOLDED ◀───────────┘
                                 │ step()
                                 └──────▶ READY

With one sample a step, its gradient is whatever `.grad` holds when `step()` is called, so clipping, unscaling and accumulation
count. With several, each sample's covector is folded into a sum as soon as its gradient is there.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import distributed
from ..bases import Dirac
from ..install import Alias
from .settings import named


class Phase(Enum):
    """Where a training loop is between two steps."""

    READY = "no sample since the last step"
    SAMPLING = "a sample is in the module"
    WAITING = "a sample was in the module, and its gradient is awaited"
    FOLDED = "the covectors of samples are in the sums"


class Progress:
    """The state of the protocol since the last step."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.phase: Phase = Phase.READY
        self.parameters: list[Tensor] = []  # those of the last sample
        self.folds: int = 0
        self.folded: set[int] = set()  # identities of parameters that some folded sample had a gradient for
        self.finite: bool = True  # all folded gradients were
        self.marks: GradientMarks = GradientMarks(parameters)  # gradients that have been counted, or were there before
        self.stray: GradientMarks = GradientMarks([])  # gradients that no sample has given
        self.norms: list[float] | None = None  # of the folded gradients, to notice later changes

    def count_fold(self, gradients: Mapping[int, Tensor], finite: bool) -> None:
        """One more sample's covector is in the sums."""
        self.folds += 1
        self.folded.update(gradients)
        self.finite &= finite
        self.phase = Phase.FOLDED

    def remember_gradients(self, watch: bool) -> None:
        """After a fold: what `.grad` holds now has been counted."""
        self.marks = GradientMarks(self.parameters)
        self.norms = gradient_norms(self.parameters) if watch else None

    def new_gradients(self) -> list[Tensor]:
        """Parameters of the last sample whose gradient has not been counted yet."""
        return self.marks.changed(self.parameters)

    def mixes_stray_gradients(self) -> bool:
        """Whether a sample's gradient was added to one that no sample has given.

        Gradients that were there and that no backward has touched since are the user's own, and count as they are.
        """
        return bool(self.stray) and any(self.stray.same_tensor(p) for p in self.new_gradients())

    def changed_after_folding(self) -> list[Tensor]:
        """Parameters whose gradient was changed after it had been folded in."""
        touched = self.new_gradients()
        changed = [p for p in touched if nonzero(p)]
        if self.finite and self.norms is not None:
            ids = {id(p) for p in touched}
            for p, then, now in zip(self.parameters, self.norms, gradient_norms(self.parameters), strict=True):
                # A norm is rounded differently by another number of threads; a gradient scaler changes it by far more.
                if id(p) not in ids and now != 0 and not math.isclose(now, then, rel_tol=1e-3):
                    changed.append(p)
        return changed


class GradientMarks:
    """Remembers the gradients of parameters, to tell later whether they have changed."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        pairs = [(p, gradient) for p in parameters if (gradient := p.grad) is not None]
        self._ids = [id(p) for p, _ in pairs]
        self._references = [weakref.ref(gradient) for _, gradient in pairs]  # nothing is kept alive
        self._versions = [gradient._version for _, gradient in pairs]

    @cached_property
    def _marks(self) -> dict[int, tuple[weakref.ref[Tensor], int]]:
        return dict(zip(self._ids, zip(self._references, self._versions, strict=True), strict=True))

    def __len__(self) -> int:
        return len(self._ids)

    def same_tensor(self, p: Tensor) -> bool:
        """Whether p has the gradient tensor it had, whatever that holds now."""
        mark = self._marks.get(id(p))
        return mark is not None and mark[0]() is p.grad

    def changed(self, parameters: list[Tensor]) -> list[Tensor]:
        """Parameters that have another gradient than they had, or the same tensor with other values."""
        gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
        if (  # mostly none of them has, which is quickly told for all of them
            len(gradients) == len(parameters) == len(self._ids)
            and all(map(operator.is_, gradients, [reference() for reference in self._references]))
            and [gradient._version for gradient in gradients] == self._versions
            and list(map(id, parameters)) == self._ids
        ):
            return []
        marks = self._marks
        return [
            p
            for p in parameters
            if (gradient := p.grad) is not None
            and ((mark := marks.get(id(p))) is None or mark[0]() is not gradient or mark[1] != gradient._version)
        ]


def require_dense(groups: list[dict[str, Any]], gradients: Iterable[Tensor]) -> None:
    """Refuses sparse gradients by the name of their parameter."""
    strided = torch.strided
    if all([gradient.layout is strided for gradient in gradients]):  # noqa: C419  # a list is quicker
        return
    for settings in groups:
        for name, p in named(settings):
            if p.grad is not None and p.grad.layout != strided:
                raise ValueError(
                    f"The gradient of the parameter {name} is sparse. Use a dense one (for nn.Embedding: sparse=False)."
                )


def require_local_gradients(parameters: list[Tensor], groups: list[dict[str, Any]], process_group: Any) -> bool:
    """Refuses gradients that something has averaged over ranks: samples differ, so their gradients do.

    Returns whether there were gradients to judge by.
    """
    gradients = [p.grad.double().norm() for p in parameters if p.grad is not None]
    total = float(torch.stack(gradients).sum()) if gradients else 0.0
    same = distributed.equal_on_all_ranks(total, parameters[0].device, process_group)
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
    return p.grad is not None and bool(distributed.local(p.grad).any())


def gradient_norms(parameters: list[Tensor]) -> list[float]:
    """The norm of each gradient, which tells that it was scaled: GradScaler does not raise a gradient's version."""
    norms = [
        torch.zeros(()) if p.grad is None else torch.linalg.vector_norm(distributed.local(p.grad.detach()).float())
        for p in parameters
    ]
    return torch.stack([norm.to(norms[0].device) for norm in norms]).tolist() if norms else []


# Buffers for samples.


class SampleBuffers:
    """One buffer for every parameter, holding the last sample; not used again while a graph still needs it."""

    def __init__(self) -> None:
        self._values: dict[Tensor, Tensor] = {}
        self._aliases: weakref.WeakSet[Alias] = weakref.WeakSet()
        self._sample = 0
        self.in_use: bool = False  # the last sample is in the module, or waits for its gradient

    def fit(self, parameters: list[Tensor]) -> list[Tensor]:
        """Buffers of the parameters' own shapes, dtypes and layouts. A sample that is in one of another layout is kept."""
        for p in parameters:
            old = self._values.get(p)
            if old is None or (old.shape, old.stride(), old.dtype, old.device) != (p.shape, p.stride(), p.dtype, p.device):
                self._values[p] = torch.empty_like(p, requires_grad=False)
                if self.in_use and old is not None:
                    if (old.shape, old.dtype) != (p.shape, p.dtype):
                        raise RuntimeError(
                            "A parameter has another shape or dtype than its sample. Change models after a step, not before."
                        )
                    self._values[p].copy_(old)
        return [self._values[p] for p in parameters]

    def release(self) -> bool:
        """Ends the use of the last sample. Returns whether its buffers can be used again; otherwise they are given up."""
        self._sample += 1
        if not len(self._aliases):
            return True
        self._values, self._aliases = {}, weakref.WeakSet()
        return False

    def alias(self, tensor: Tensor) -> Alias:
        """What autograd saves of a parameter inside a block, for a backward after it."""
        made = _SampleAlias(tensor, self, self._sample)
        self._aliases.add(made)
        return made


class _SampleAlias(Alias):
    __slots__ = ("buffers", "sample")

    def __init__(self, tensor: Tensor, buffers: SampleBuffers, sample: int) -> None:
        super().__init__(tensor)
        self.buffers = buffers
        self.sample = sample

    def value(self) -> Tensor:
        if self.sample != self.buffers._sample and self.buffers.in_use:
            raise RuntimeError(
                "Backward through the sample of an earlier block while a later one waits for its gradient: the two would be "
                "mixed up. Run backward of each block before the next one begins."
            )
        return self.tensor
