"""Signs that a run goes wrong, told once: steps mostly bounded, a loss that has risen a hundredfold, a sum as loss."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

WINDOW = 20
"""Steps between two looks; reading counters of a GPU would make every step wait."""


class TrainingWarning(UserWarning):
    """Training goes wrong; the message says which setting to change."""


class Watch:
    """What an optimizer has told its user, and what it needs to know for that."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._first: float | None = None
        self._losses: list[float | Tensor] = []
        self._bounded: int | None = None

    def see_closure(self, result: Any) -> None:
        """Looks at what a closure has returned for the first sample: the loss must be a mean."""
        if self._first is None and getattr(getattr(result, "grad_fn", None), "_saved_reduction", None) == _SUM:
            self._tell(
                "sum",
                'The loss is a sum over the batch (reduction="sum"), but the rule takes the mean for it, so the data would '
                'count batch-size times. Use reduction="mean".',
            )

    def see_step(self, groups: Sequence[Mapping[str, Any]], bounded: int | Tensor, loss: Any) -> None:
        """Looks at the steps since the last look, when there are enough of them."""
        if isinstance(loss, (int, float)) or (isinstance(loss, Tensor) and loss.numel() == 1):
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
            if self._first is None:
                self._first = float(self._losses[-1])
        else:
            self._losses.append(0.0)
        if len(self._losses) < WINDOW:
            return
        mean, self._losses = float(sum(self._losses)) / WINDOW, []
        before, self._bounded = self._bounded or 0, int(bounded)
        self._judge_loss(mean, groups)
        self._judge_bounds(self._bounded - before, groups)

    def _judge_loss(self, mean: float, groups: Sequence[Mapping[str, Any]]) -> None:
        if self._first is not None and self._first > 0 and mean > 100 * self._first:
            self._tell(
                "loss",
                f"The loss has risen from {self._first:.3g} to {mean:.3g}, the mean of the last {WINDOW} steps: training "
                f"diverges. Lower lr (now {_values(groups, 'lr')}); or is the start too wide: a base with a smaller scale? "
                "Targets of regression should have a standard deviation near 1.",
            )

    def _judge_bounds(self, bounded: int, groups: Sequence[Mapping[str, Any]]) -> None:
        # Of matrix groups whole blocks are bounded, and counted: a few numbers beside those of elementwise groups.
        limited = [settings for settings in groups if settings["max_step"] is not None and settings["group"].elementwise]
        share = bounded / max(WINDOW * sum(p.numel() for settings in limited for p in settings["params"]), 1)
        if limited and share > 0.5:
            self._tell(
                "bounded",
                f"max_step={_values(limited, 'max_step')} has bounded {min(share, 1):.0%} of all coordinates in the last "
                f"{WINDOW} steps: the steps are its own, not those of the rule. Lower lr (now {_values(limited, 'lr')}); and "
                "is the loss the mean over the batch?",
            )

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(text, TrainingWarning, stacklevel=6)  # the line that calls step()


_SUM = 2
"""How torch's loss functions write reduction="sum" into their node of the graph."""


def _values(groups: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(f"{settings[name]:g}" for settings in groups))
