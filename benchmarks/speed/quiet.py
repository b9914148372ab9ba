"""Whether other processes take the cores, and who: from /proc, between two looks at it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.15
"""How many cores others may take in a round that counts. A machine at rest takes about 0.02."""

PROC = Path("/proc")


class BusyError(RuntimeError):
    """Others take the cores."""


@dataclass(frozen=True)
class Process:
    """One entry of /proc; times are in ticks of the clock."""

    parent: int
    ticks: int
    """Its own."""
    ticks_of_ended_children: int


@dataclass(frozen=True)
class Look:
    """What /proc says at one moment. All zeros where there is none."""

    busy: int
    total: int
    cores: int
    processes: dict[int, Process]


@dataclass(frozen=True)
class Load:
    """What others took between two looks."""

    cores: float
    who: dict[int, float]
    """The cores each process took, most first."""

    @property
    def quiet(self) -> bool:
        """Whether a measurement counts."""
        return self.cores <= LIMIT

    def message(self, proc: Path = PROC) -> str:
        """Who takes the cores, and what to do."""
        lines = [f"Other processes take {self.cores:.2f} cores, so that times would be theirs as much as ours:"]
        lines += [f"  {cores:5.2f}  {pid:>7}  {command_of(pid, proc)}" for pid, cores in list(self.who.items())[:5]]
        unseen = self.cores - sum(self.who.values())
        if unseen > LIMIT:
            lines.append(f"  {unseen:5.2f}           not visible from here: short-lived, of other users or other machines")
        return "\n".join([*lines, "Wait until it is quiet, or measure --anyway; the result is then marked as not quiet."])


def look(proc: Path = PROC) -> Look:
    """The counters of all cores and all processes."""
    if not (proc / "stat").exists():
        return Look(0, 0, os.cpu_count() or 1, {})
    lines = [line.split() for line in (proc / "stat").read_text().splitlines()]
    # user nice system idle iowait irq softirq steal: guests are part of user, and steal is time of other machines.
    fields = [int(field) for field in lines[0][1:9]]
    cores = sum(line[0].startswith("cpu") for line in lines if line) - 1
    processes: dict[int, Process] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue  # it has ended
            # A name stands in brackets and may have blanks and brackets of its own; numbers follow the last one.
            after = text.rpartition(")")[2].split()
            own, ended = int(after[11]) + int(after[12]), int(after[13]) + int(after[14])
            processes[int(folder.name)] = Process(int(after[1]), own, ended)
    return Look(sum(fields) - fields[3] - fields[4], sum(fields), cores, processes)


def between(before: Look, after: Look, own: int | None = None) -> Load:
    """What was taken by others than the process `own` (this one) and those it has started."""
    total = after.total - before.total
    if total <= 0:
        return Load(0.0, {})
    family = _family(after.processes, os.getpid() if own is None else own)
    ours, who = 0, {}
    for pid, process in after.processes.items():
        earlier = before.processes.get(pid, Process(0, 0, 0))
        if pid in family:
            ours += process.ticks - earlier.ticks + process.ticks_of_ended_children - earlier.ticks_of_ended_children
        elif process.ticks > earlier.ticks:
            who[pid] = (process.ticks - earlier.ticks) / total * after.cores
    taken = (after.busy - before.busy - ours) / total * after.cores
    return Load(max(taken, 0.0), dict(sorted(who.items(), key=lambda item: -item[1])))


def now(seconds: float = 0.5) -> Load:
    """What others take while we wait."""
    before = look()
    time.sleep(seconds)
    return between(before, look())


def command_of(pid: int, proc: Path = PROC) -> str:
    """The command line of a process, as far as it fits."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return (words or (proc / str(pid) / "comm").read_text().strip())[:90]
    except OSError:
        return "(has ended)"


def _family(processes: dict[int, Process], head: int) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found, waiting = set(), [head]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found
