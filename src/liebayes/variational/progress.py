"""Progress of `fit` and of training runs: a live bar on a terminal with `rich`, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

Report = Callable[[int, str], None]


class ProgressBar:
    """A live bar with a title and a line of figures, and lines that stay.

    Args:
        total: the number of steps.
        stream: the output or error stream.
        show: True falls back on the lines alone where there is no terminal or no `rich`, None on nothing; False shows nothing.
        transient: remove the bar at the end.
    """

    def __init__(self, total: int, stream: TextIO, *, show: bool | None = True, transient: bool = False) -> None:
        self.total: int = total
        self.stream: TextIO = stream
        self.show: bool | None = show
        self.transient: bool = transient
        self.live: bool = show is not False and stream.isatty() and importlib.util.find_spec("rich") is not None
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=self.stream), transient=self.transient)
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, figures="")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, title: str, figures: str) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=title, figures=figures)

    def line(self, text: str) -> None:
        """Prints a line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, emoji=False)
        elif self.show:
            print(text, file=self.stream, flush=True)


@contextmanager
def progress_bar(title: str, total: int, show: bool | None) -> Iterator[Report]:
    """Yields a function to call with the number of steps done and a line of figures. Without a live bar, see `show` above,
    it prints a line after every tenth of the work. All output goes to the error stream.
    """
    shown = 0

    def report(done: int, figures: str) -> None:
        nonlocal shown
        bar.update(done, f"{title} {done}/{total}", figures)
        if not bar.live and 10 * done // total > shown:
            shown = 10 * done // total
            bar.line(f"{title} {done}/{total}  {figures}")

    with ProgressBar(total, sys.stderr, show=show, transient=True) as bar:
        yield report
