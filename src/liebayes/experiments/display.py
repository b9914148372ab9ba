"""What a person sees of training: a live line on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from .settings import TrainSettings

if TYPE_CHECKING:
    from .train import Progress


class Display:
    """Epoch, loss at samples, test figures, images per second, bounded steps, time left."""

    def __init__(self, settings: TrainSettings, steps_per_epoch: int, images_per_epoch: int, *, quiet: bool = False) -> None:
        self.settings = settings
        self.steps_per_epoch = steps_per_epoch
        self.images_per_step: float = images_per_epoch / max(steps_per_epoch, 1)
        self.quiet = quiet
        self.figures: str = ""
        self._bar: Any = None
        self._began = time.monotonic()
        self._steps = 0

    def __enter__(self) -> Display:
        if not self.quiet and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns)
            self._bar.start()
            self._task = self._bar.add_task("", total=(self.settings.epochs or 1) * self.steps_per_epoch, figures="")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, progress: Progress, optimizer: torch.optim.Optimizer) -> None:
        """After every step."""
        self._steps += 1
        if self._bar is None:
            return
        speed = self._steps * self.images_per_step / max(time.monotonic() - self._began, 1e-9)
        bounded = int(getattr(optimizer, "bounded", 0))
        self._bar.update(
            self._task,
            completed=progress.epoch * self.steps_per_epoch + progress.batch,
            description=f"epoch {progress.epoch + 1}/{self.settings.epochs}",
            figures=f"loss {progress.loss_sum / max(progress.batch, 1):.4f}  {self.figures}{speed:,.0f} images/s"
            + (f"  {bounded:,} bounded" if bounded else ""),
        )

    def epoch(self, line: dict[str, Any]) -> None:
        """After every epoch."""
        if self.quiet:
            return
        figures = ""
        if "test_accuracy" in line:
            on = "held out" if self.settings.held_out else "test"
            figures = f"{on} {100 * line['test_accuracy']:.2f} %  NLL {line['test_nll']:.4f}  ECE {line['test_ece']:.4f}  "
            self.figures = f"after epoch {line['epoch']}: {figures}"
        speed = self._steps * self.images_per_step / max(time.monotonic() - self._began, 1e-9)
        text = (
            f"epoch {line['epoch']}/{self.settings.epochs}  loss {line['train_loss']:.4f}  {figures}"
            f"{speed:,.0f} images/s" + (f"  {line['bounded']:,} bounded" if line["bounded"] else "")
        )
        self.line(text)

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.console.print(text, highlight=False, markup=False, emoji=False)
