"""What a person sees of training: a live bar on a terminal, and one line per epoch that stays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..variational.progress import ProgressBar
from .settings import TrainSettings
from .tasks import task_of_line


class Display:
    """Epoch, training loss, test figures, images per second, bounded steps and time left."""

    def __init__(self, bar: ProgressBar, settings: TrainSettings, steps_per_epoch: int, images_per_epoch: int) -> None:
        self.bar: ProgressBar = bar
        self.settings: TrainSettings = settings
        self.steps_per_epoch = steps_per_epoch
        self.images_per_step: float = images_per_epoch / max(steps_per_epoch, 1)
        self._last_figures = ""
        self._began, self._steps = time.monotonic(), 0

    def step(self, epoch: int, batch: int, loss: float, bounded: int) -> None:
        """Call after every step; `epoch` are those completed, `batch` the steps in the current one."""
        self._steps += 1
        if self.bar.live:
            title, figures = f"epoch {epoch + 1}/{self.settings.epochs}", f"loss {loss:.4f}  {self._last_figures}"
            self.bar.update(epoch * self.steps_per_epoch + batch, title, figures + self._speed(bounded))

    def epoch(self, line: Mapping[str, Any]) -> None:
        """Call after every epoch, with its line of metrics.jsonl."""
        figures = ""
        if "test_nll" in line:
            on = "held out" if self.settings.held_out else "test"
            first, *others = task_of_line(line).figures[:3]
            head = "" if first.name == "accuracy" else f"{first.heading} "
            rest = [f"{figure.heading} {figure.text(line[f'test_{figure.name}'])}  " for figure in others]
            figures = f"{on} {head}{first.text(line[f'test_{first.name}'])}  {''.join(rest)}"
            self._last_figures = f"after epoch {line['epoch']}: {figures}"
        head = f"epoch {line['epoch']}/{self.settings.epochs}  loss {line['train_loss']:.4f}  "
        self.bar.line(head + figures + self._speed(line["bounded"]))

    def _speed(self, bounded: int) -> str:
        speed = self._steps * self.images_per_step / max(time.monotonic() - self._began, 1e-9)
        return f"{speed:,.0f} examples/s" + (f"  {bounded:,} bounded" if bounded else "")


def duration(seconds: float) -> str:
    """A duration in the largest fitting unit.

    >>> duration(8.25), duration(75), duration(7300)
    ('8.2 s', '1:15 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
