"""Progress of long work on the error stream: a live bar on a terminal, nothing elsewhere unless asked for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, str], None]


@contextmanager
def progress_bar(title: str, total: int, show: bool | None) -> Iterator[Report]:
    """Yields a function to call with the number of steps done and a line of figures.

    `show=None` shows a live bar where the error stream is a terminal and `rich` is installed. `show=True` makes do with a
    plain line at every tenth of the work where there is no terminal, or no `rich`.
    """
    live = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    if show is False or (show is None and not live):
        yield lambda done, figures: None
    elif live:
        with _live_bar(title, total) as report:
            yield report
    else:
        yield _plain_lines(title, total)


@contextmanager
def _live_bar(title: str, total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, figures="")
        yield lambda done, figures: bar.update(task, completed=done, figures=figures)


def _plain_lines(title: str, total: int) -> Report:
    shown = 0

    def report(done: int, figures: str) -> None:
        nonlocal shown
        tenths = 10 * done // total
        if tenths > shown:
            shown = tenths
            print(f"{title} {done}/{total}  {figures}", file=sys.stderr, flush=True)

    return report
