"""Warnings about runs that go wrong, each given once: most steps bounded, a loss that has risen a hundredfold, a sum as loss.

The loss does not have to be passed in: a hook on one parameter's gradient runs below the frame of `torch.autograd.backward`,
whose argument is the loss. Without such a frame there is no warning.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

WINDOW = 20
"""Steps between two looks; reading counters of a GPU would make every step wait."""

LOSSES = 10_000
"""Losses are looked at in so many steps: settings that let a run diverge show early, and a scaler of losses grows later."""


class TrainingWarning(UserWarning):
    """Training goes wrong; the message says which setting to change."""


class Watch:
    """The warnings that an optimizer has given, and the losses and counts they rest on."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._first: float | None = None
        self._losses: list[float | Tensor] = []
        self._looks = 0
        self._bounded: int | None = None
        self._hook: Any = None
        self._loss: Tensor | None = None
        self._is_sum = False

    def await_loss(self, parameters: Sequence[Tensor]) -> None:
        """Looks at the next loss that a backward pass starts from; the last parameter is nearest to it."""
        self._stop()
        if parameters and self._looks * WINDOW < LOSSES:
            shapes = {tuple(p.shape) for p in parameters}
            self._hook = parameters[-1].register_hook(lambda _: self._keep_loss(shapes))

    def _stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _keep_loss(self, shapes: set[tuple[int, ...]]) -> None:
        loss = _differentiated()
        if loss is not None and loss.numel() == 1:
            self._loss = loss.detach()
            self._is_sum = self._is_sum or (self._first is None and is_sum(loss.grad_fn, shapes))

    def see_step(self, groups: Sequence[Mapping[str, Any]], bounded: int | Tensor, loss: Any) -> None:
        """Looks at the steps since the last look, when there are enough of them."""
        self._stop()
        if not (isinstance(loss, (int, float)) or (isinstance(loss, Tensor) and loss.numel() == 1)):
            loss = self._loss
        self._loss = None
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else 0.0 if loss is None else loss)
        if self._first is None and loss is not None:
            self._first = float(self._losses[-1])
            self._judge_sum()
        if len(self._losses) < WINDOW:
            return
        mean, self._losses = float(sum(self._losses)) / WINDOW, []
        self._looks += 1
        before, self._bounded = self._bounded or 0, int(bounded)
        self._judge_loss(mean, groups)
        self._judge_bounds(self._bounded - before, groups)

    def _judge_sum(self) -> None:
        if self._is_sum:
            self._warn(
                "sum",
                "The loss is a sum over the batch, but the rule needs the mean: the data would count batch-size "
                'times. Use .mean(), or reduction="mean". (If it is a mean whose weights add up to 1, ignore this.)',
            )

    def _judge_loss(self, mean: float, groups: Sequence[Mapping[str, Any]]) -> None:
        if self._first is not None and self._first > 0 and mean > 100 * self._first and self._looks * WINDOW <= LOSSES:
            self._warn(
                "loss",
                f"The loss has risen from {self._first:.3g} to {mean:.3g}, the mean of the last {WINDOW} steps: training "
                f"diverges. Lower lr (now {_values(groups, 'lr')}); or start narrower, on a base with a smaller scale. "
                "Targets of regression should have a standard deviation near 1.",
            )

    def _judge_bounds(self, bounded: int, groups: Sequence[Mapping[str, Any]]) -> None:
        # Of matrix groups whole blocks are bounded, and counted: a few numbers beside those of elementwise groups.
        limited = [settings for settings in groups if settings["max_step"] is not None and settings["group"].elementwise]
        share = bounded / max(WINDOW * sum(p.numel() for settings in limited for p in settings["params"]), 1)
        if limited and share > 0.5:
            self._warn(
                "bounded",
                f"max_step={_values(limited, 'max_step')} has bounded {min(share, 1):.0%} of all coordinates in the last "
                f"{WINDOW} steps: the bound decides how far they go, not the rule. Lower lr (now {_values(limited, 'lr')}); "
                "and "
                "is the loss the mean over the batch?",
            )

    def _warn(self, what: str, text: str) -> None:
        if what not in self._given:
            self._given.add(what)
            warnings.warn(text, TrainingWarning, stacklevel=6)  # the line that calls step()


_SUM = 2
"""How torch's loss functions write reduction="sum" into their node of the graph."""


def is_sum(node: Any, shapes: set[tuple[int, ...]]) -> bool:
    """Whether a loss is a sum over its batch, by the last nodes of its graph.

    Not of a mean, or of several losses that were stacked; nor over something of a parameter's shape, as in problems without
    data. Numbers that were saved for the backward pass are gone when it has come to a parameter, so that a sum times a number
    is taken for a mean.

    >>> x = torch.ones(8, 3, requires_grad=True)
    >>> [is_sum(loss.grad_fn, set()) for loss in (x.square().sum(), x.square().sum() / 8, x.mean(0).sum(), -x.sum(1).sum())]
    [True, False, False, True]
    """
    while node is not None and node.name() == "NegBackward0":
        node = node.next_functions[0][0]
    if node is None or getattr(node, "_saved_reduction", None) == _SUM:
        return node is not None
    if node.name() not in ("SumBackward0", "SumBackward1"):
        return False
    sizes, below = tuple(node._saved_self_sym_sizes), node.next_functions[0][0]
    alone = below is None or below.name().startswith(("Mean", "Stack"))
    return math.prod(sizes) > 1 and sizes not in shapes and not alone


def _differentiated() -> Tensor | None:
    """The loss whose backward pass runs: of passes within passes, as of checkpointing, the outermost."""
    found, frame = None, sys._getframe()
    while frame is not None:
        if frame.f_code is torch.autograd.backward.__code__:
            found = frame.f_locals.get("tensors")
        frame = frame.f_back
    found = found[0] if isinstance(found, (tuple, list)) and len(found) == 1 else found
    return found if isinstance(found, Tensor) else None


def _values(groups: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(f"{settings[name]:g}" for settings in groups))
