"""Noise for `fit`, drawn ahead of its use: many steps at once, and beside the work where there is a second core."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

AHEAD = 1 << 20
"""How many numbers are drawn at once, if a step needs fewer."""
SMALL = 1 << 16
"""How many numbers a step may have that a second thread is no help for."""


def noise_of_steps(
    draw: Callable[[int], list[Tensor]], numbers_per_step: int, steps: int, beside: bool
) -> Generator[list[Tensor], None, None]:
    """For every step the noise of every factor.

    Args:
        draw: draws the noise of a number of steps: one tensor for each factor, whose first dimension is the step.
        numbers_per_step: how many numbers one step needs.
        steps: how many steps there are.
        beside: draw the next ones in another thread while these are used. Only for draws that touch nothing but their own
            generator.
    """
    # The same size whatever the number of steps, so that a longer run begins like a shorter one.
    at_once = max(1, AHEAD // max(numbers_per_step, 1))
    counts = [min(at_once, steps - start) for start in range(0, steps, at_once)]
    if not beside:
        for count in counts:
            yield from _split(draw(at_once), count)
        return
    threads = torch.get_num_threads()
    # The other thread must not share out its work in turn, or it takes this one's core from it. torch keeps the number for
    # each thread, and another one for threads to come, which is put back in the end.
    try:
        with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting: Future[list[Tensor]] = pool.submit(draw, at_once)
            for number, count in enumerate(counts, start=1):
                present = waiting.result()
                if number < len(counts):
                    waiting = pool.submit(draw, at_once)
                yield from _split(present, count)
    finally:
        torch.set_num_threads(threads)


def _split(blocks: list[Tensor], steps: int) -> Iterator[list[Tensor]]:
    for step in range(steps):
        yield [block[step] for block in blocks]


@contextmanager
def sharing(numbers: int) -> Iterator[Callable[[bool], None]]:
    """Lets torch share out the work of the loss among threads, but not that of steps which are too small for it.

    MKL shares out even an exponential of a thousand numbers, and then waits for the core on which noise is drawn.
    """
    threads = torch.get_num_threads()
    if threads == 1 or numbers > SMALL:
        yield lambda wanted: None
        return
    try:
        yield lambda wanted: torch.set_num_threads(threads if wanted else 1)
    finally:
        torch.set_num_threads(threads)
