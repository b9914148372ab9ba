"""Contenders in turn, several rounds: the median of each, and the ratio of medians.

A round runs every contender of every row, in an order that changes from round to round, so that none has always the same one
before it, and that a machine that slows down slows all of them. A round in which others took the cores does not count and is
run again.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from . import quiet


class Contender(Protocol):
    """Someone who is timed."""

    @property
    def name(self) -> str: ...

    def warm_up(self, at_least: float) -> None:
        """Everything that happens once: compilers, caches, pools of threads, pages of memory.

        Work that takes fewer seconds than `at_least` is then repeated in a round until it does.
        """

    def seconds(self) -> float:
        """What the work takes in this round."""
        ...


class Here:
    """A contender that is a function of this process."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.work = work
        self.repeats = 1
        self.short = True

    def warm_up(self, at_least: float) -> None:
        took = 0.0
        for _ in range(3):
            began = time.perf_counter()
            self.work()
            took = time.perf_counter() - began
        self.short = took < 1.0
        self.repeats = max(1, min(200, math.ceil(at_least / took)))

    def seconds(self) -> float:
        if self.short:
            self.work()  # caches, and threads that still wait for the work of whoever was before
        began = time.perf_counter()
        for _ in range(self.repeats):
            self.work()
        return (time.perf_counter() - began) / self.repeats


@dataclass(frozen=True)
class Limit:
    """What ours must reach: a figure of its own, or the ratio with a peer's."""

    kind: Literal["times", "faster", "value"]
    """ours ≤ bound × peer; peer ≥ bound × ours; ours ≤ bound."""
    bound: float
    peer: str = ""

    def ratio(self, ours: float, peer: float) -> float:
        """What the bound is for."""
        return {"times": lambda: ours / peer, "faster": lambda: peer / ours, "value": lambda: ours}[self.kind]()

    def holds(self, ratio: float) -> bool:
        """Whether it is reached."""
        return ratio >= self.bound if self.kind == "faster" else ratio <= self.bound

    def __str__(self) -> str:
        return {
            "times": f"≤ {self.bound:g} × {self.peer}",
            "faster": f"≥ {self.bound:g} × faster than {self.peer}",
            "value": f"≤ {self.bound:g}",
        }[self.kind]


@dataclass
class Row:
    """One kind of work, which all contenders do; `ours` is the one that the limits are for."""

    key: str
    work: str
    ours: str
    contenders: Sequence[Contender]
    limits: Sequence[Limit] = ()
    note: Callable[[], str] = lambda: ""
    """What is known once it has run."""
    unit: Literal["s", "floats per parameter"] = "s"
    figures: dict[str, list[float]] = field(default_factory=dict)

    def result(self) -> dict[str, Any]:
        """The row as it is stored."""
        found = {
            name: {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": values}
            for name, values in self.figures.items()
        }
        return {
            "key": self.key,
            "work": self.work,
            "unit": self.unit,
            "ours": self.ours,
            "note": self.note(),
            "figures": found,
            "limits": [judged(limit, found, self.ours) for limit in self.limits],
        }


def judged(limit: Limit, figures: dict[str, dict[str, Any]], ours: str) -> dict[str, Any]:
    """A limit with the ratio that was found; None where a peer is not installed."""
    if limit.peer and limit.peer not in figures:
        return {**asdict(limit), "ratio": None, "held": None}
    peer = figures[limit.peer]["median"] if limit.peer else math.nan
    ratio = limit.ratio(figures[ours]["median"], peer)
    return {**asdict(limit), "ratio": ratio, "held": limit.holds(ratio)}


def rotated(items: Sequence[Any], by: int) -> list[Any]:
    """The same, beginning elsewhere."""
    by %= max(len(items), 1)
    return [*items[by:], *items[:by]]


def run(rows: Sequence[Row], rounds: int, anyway: bool, at_least: float = 1.0) -> list[float]:
    """Fills the rows' figures; returns how many cores others took in each round.

    A round counts if others left the cores alone just before it, during it and just after it. If as many rounds as asked for
    have been disturbed, `BusyError` says by whom.
    """
    for row in rows:
        for contender in row.contenders:
            contender.warm_up(at_least)
    gc.collect()
    gc.freeze()  # what is there by now is not looked through again in the middle of a measurement
    taken: list[float] = []
    disturbed = attempts = 0
    while len(taken) < rounds:
        before, began = quiet.now(), quiet.look()
        found = _round(rows, attempts)
        worst = max(before, quiet.between(began, quiet.look()), quiet.now(), key=lambda one: one.cores)
        attempts += 1
        if worst.quiet or anyway:
            taken.append(round(worst.cores, 3))
            for row, name, value in found:
                row.figures.setdefault(name, []).append(value)
        else:
            disturbed += 1
        verdict = "" if worst.quiet else " (not quiet)" if anyway else " (does not count)"
        print(f"round {len(taken)} of {rounds}: others took {worst.cores:.2f} cores{verdict}", file=sys.stderr)
        if disturbed >= rounds:
            raise quiet.BusyError(worst.message())
    gc.unfreeze()
    return taken


def _round(rows: Sequence[Row], number: int) -> list[tuple[Row, str, float]]:
    return [
        (row, contender.name, contender.seconds())
        for row in rows
        for contender in rotated(row.contenders, number)
    ]
