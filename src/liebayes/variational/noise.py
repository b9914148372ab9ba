"""Noise for `fit`: how many samples a step has, and drawing them ahead of their use, beside the work on a second core.

Full-rank families have many numbers to learn from few samples. In the coordinates of the noise the gradients are Hε, and the
covector of the linear part, at the samples, is the mean of (H − 1)εεᵀ: its square is (1 + d/n)·|H − 1|² in expectation, for n
samples and d numbers in each row. Steps −α times that shrink |H − 1|² by 1 − 2α + α²(1 + d/n), best at α = n/(n + d), and let
it grow from twice that on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..groups import blocks_of
from .factors import Factor

AHEAD = 1 << 20
"""How many numbers are drawn at once, if a step needs fewer."""
SMALL = 1 << 16
"""How many numbers a step may have that a second thread is no help for."""


def samples_for(factors: Sequence[Factor], lr: float) -> int:
    """Enough for steps of size `lr`, and 16 at least."""
    return max(16, *(math.ceil(_row(f) * lr / (1 - lr)) * (1 + f.in_pairs) if lr < 1 else 16 for f in factors))


def longest_step(factors: Sequence[Factor], samples: int) -> float:
    """The largest step size for scales that so many samples allow; the two of a pair count as one."""
    return min(1 / (1 + _row(f) * (1 + f.in_pairs) / samples) if _row(f) > 1 else math.inf for f in factors)


def _row(factor: Factor) -> float:
    """How many numbers of the linear part go with one coordinate."""
    *linear, last = blocks_of(factor.start)
    return sum(block.numel() for block in linear) / max(last.numel(), 1)


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
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) if threads > 1 else _Here() as pool:
            waiting: Future[list[Tensor]] = pool.submit(draw, at_once)
            for number, count in enumerate(counts, start=1):
                present = waiting.result()
                if number < len(counts):
                    waiting = pool.submit(draw, at_once)
                yield from _split(present, count)
    finally:
        torch.set_num_threads(threads)


class _Here(Executor):
    """Does at once what it is given: on one thread another one would be in the way. The draws are the same."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


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
