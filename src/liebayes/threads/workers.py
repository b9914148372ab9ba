"""Workers for one Monte Carlo sample each: a few threads in which torch computes with a single thread.

Many small matrix products, one in each thread, are faster than one after the other shared by all threads. Results are taken
in the order of their numbers, whichever worker has them first, so they do not depend on timing or on the number of workers.

Torch keeps its number of threads per thread, and a default for threads to come. Workers set their own to one; another thread,
which ends at once, sets the default back, so that nobody else sees a difference.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from .. import native

Begin = Callable[[int], Any]
Compute = Callable[[int, int, Any], Any]
Take = Callable[[int, Any], None]

_here = threading.local()  # whether this thread is a worker


class _Run:
    """Numbers 0 … count−1, each computed by some worker and then taken in order."""

    def __init__(self, count: int, begin: Begin, compute: Compute, take: Take) -> None:
        self.begin, self.compute, self.take = begin, compute, take
        self.beginning = threading.Lock()
        self.next = 0  # the number that the next free worker gets
        self.end = count  # lowered to the first number that failed: later ones are not wanted any more
        self.turn = 0  # the number whose result is taken next
        self.working = 0
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def work(self, worker: int) -> None:
        """What one worker does, until nothing is left."""
        try:
            while self._one(worker):
                pass
        finally:
            with self.changed:
                self.working -= 1
                self.changed.notify_all()

    def _one(self, worker: int) -> bool:
        number = self.end
        try:
            with self.beginning:  # numbers are given out, and what they begin with is made, in order
                with self.changed:
                    number = self.next
                    if number >= self.end:
                        return False
                    self.next += 1
                begun = self.begin(number)
            result = self.compute(worker, number, begun)
            if self._wait_for_turn(number):
                self.take(number, result)
                self._pass_turn()
        except BaseException as error:  # also SystemExit: it belongs to the caller, not to this thread
            self._fail(number, error)
        return True

    def _wait_for_turn(self, number: int) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == number or number >= self.end)
            return number < self.end

    def _pass_turn(self) -> None:
        with self.changed:
            self.turn += 1
            self.changed.notify_all()

    def _fail(self, number: int, error: BaseException) -> None:
        with self.changed:
            if number < self.end:  # the earliest error counts
                self.end, self.error = number, error
            self.changed.notify_all()

    def stop(self) -> None:
        """Lets workers finish what they have begun, and no more."""
        with self.changed:
            self.end = min(self.end, self.turn)
            self.changed.notify_all()

    def wait(self) -> None:
        """Returns when no worker is working."""
        with self.changed:
            self.changed.wait_for(lambda: self.working == 0)


class Workers:
    """Threads that live as long as the process and sleep between runs."""

    def __init__(self) -> None:
        self.owner: int = os.getpid()
        self._queues: list[queue.SimpleQueue[_Run | None]] = []
        self._busy = threading.Lock()

    def run(self, count: int, workers: int, begin: Begin, compute: Compute, take: Take) -> None:
        """Calls `take(number, compute(worker, number, begin(number)))` for the numbers 0 … count−1.

        `begin` is called in their order, one at a time, and so is `take`; `compute` by several workers at once. The first
        error in that order is raised here, after all workers have stopped.
        """
        if getattr(_here, "working", False):  # a worker that needs workers: all are taken, so it does the work itself
            for number in range(count):
                take(number, compute(0, number, begin(number)))
            return
        workers = min(workers, count)
        with self._busy:
            self._require(workers)
            run = _Run(count, begin, compute, take)
            native.rest()
            try:
                for one in self._queues[:workers]:
                    run.working += 1
                    one.put(run)
                run.wait()
            except BaseException:  # KeyboardInterrupt: leave when nobody touches the caller's tensors any more
                run.stop()
                try:
                    run.wait()
                except BaseException:  # a second one: these threads are given up
                    self._dismiss()
                    raise
                raise
        if run.error is not None:
            raise run.error

    def _require(self, workers: int) -> None:
        for number in range(len(self._queues), workers):
            tasks: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
            ready = threading.Event()
            default = _in_a_new_thread(torch.get_num_threads)
            try:
                thread = threading.Thread(target=_serve, args=(number, tasks, ready), name=f"liebayes-{number}", daemon=True)
                thread.start()
                ready.wait()
            finally:
                _in_a_new_thread(partial(torch.set_num_threads, default))
            self._queues.append(tasks)

    def _dismiss(self) -> None:
        for tasks in self._queues:
            tasks.put(None)
        self._queues = []


def _serve(number: int, tasks: queue.SimpleQueue[_Run | None], ready: threading.Event) -> None:
    _here.working = True
    torch.get_num_threads()  # torch sets a thread up when it is first asked, so before its number is changed
    torch.set_num_threads(1)
    ready.set()
    while (run := tasks.get()) is not None:
        run.work(number)
        del run  # a sleeping worker must not keep a model alive


def _in_a_new_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@contextmanager
def single_threaded() -> Iterator[None]:
    """A block in which torch computes with one thread here, as the workers do."""
    own = torch.get_num_threads()
    if own == 1:
        yield
        return
    default = _in_a_new_thread(torch.get_num_threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(own)
        if default != own:
            _in_a_new_thread(partial(torch.set_num_threads, default))


_workers = Workers()


def shared_workers() -> Workers:
    """The workers of this process. They are made when first needed; a forked process has none and makes its own."""
    global _workers
    if _workers.owner != os.getpid():
        _workers = Workers()
    return _workers
