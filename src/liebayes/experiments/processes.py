"""The processes of a run under torchrun: one rank writes, and all of them fail or stop together."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from .settings import SettingsError


class PeerError(RuntimeError):
    """Another rank has failed, and reports the reason."""


class Team:
    """The rank of this process and the number of ranks."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def writes(self) -> bool:
        """Whether this is the rank that writes files."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that fails on all ranks if it fails on one, so that no rank waits forever.

        The first failed rank raises its own error, all others a `PeerError`.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            if self.size == 1:
                raise
            failure = error
        if self.size == 1:
            return
        texts: list[str | None] = [None] * self.size
        dist.all_gather_object(texts, None if failure is None else f"{type(failure).__name__}: {failure}")
        first = next((rank for rank, text in enumerate(texts) if text is not None), None)
        if first == self.rank and failure is not None:
            raise failure
        if first is not None:
            raise PeerError(f"Rank {first} has failed: {texts[first]}")

    def highest(self, number: int) -> int:
        """The largest number over all ranks."""
        if self.size == 1:
            return number
        value = torch.tensor(number)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return int(value)

    def mean(self, number: float) -> float:
        """The mean over all ranks."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(value)
        return float(value) / self.size


def require_one_process(what: str) -> None:
    """Refuses torchrun for commands of many runs, which would need a process group for each."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(f"liebayes {what} runs in one process. Under torchrun use liebayes train, once for each run.")


@contextmanager
def team() -> Iterator[Team]:
    """The ranks that torchrun has started; a single process otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team()
        return
    dist.init_process_group("gloo")  # the program trains on the CPU
    try:
        yield Team(dist.get_rank(), size)
    finally:
        gc.collect()  # a DistributedDataParallel that outlives its process group aborts the process at exit, now and then
        dist.destroy_process_group()


@contextmanager
def interruptible(patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C or SIGTERM has come, so that the step can end. A second one ends at once.

    torchrun forwards a Ctrl-C that its processes have already received, so a signal counts as a second one only after
    `patience` seconds.
    """
    asked_at: float | None = None

    def ask(number: int, frame: object) -> None:
        nonlocal asked_at
        if asked_at is None:
            asked_at = time.monotonic()
        elif time.monotonic() - asked_at >= patience:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked_at is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
