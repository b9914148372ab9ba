"""What happens to files, and what counts as an error in words."""

from __future__ import annotations

import contextlib
import dis
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import liebayes

SECTOR = 512
HEADER = 2500
PACKAGE = str(Path(liebayes.__file__).parent)
TORCH_OPTIMIZER = str(Path(torch.optim.__file__).parent / "optimizer.py")
"""Which has words of its own about what parameters must be."""
JUNK = [
    None, "x", "", -1, 10**30, 10**400, float("nan"), float("inf"), [], {}, True, 1.5, b"x", {"steps": 1},
    torch.tensor(float("nan")), torch.ones(3, dtype=torch.long), torch.ones(2, 2).to_sparse(), torch.ones(1),
]  # fmt: skip
Place = tuple[Any, ...]


def mutant(data: bytes, draw: random.Random) -> bytes:
    """What disks, memories and transfers do to a file."""
    at, length = draw.randrange(len(data)), draw.randrange(1, SECTOR)
    if draw.random() < 0.5:  # the header has the structure
        at = draw.randrange(min(len(data), HEADER))
    kind = draw.choice(["bit", "byte", "cut", "zeros", "removed", "inserted", "swapped"])
    if kind == "bit":
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == "byte":
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "zeros":
        return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
    if kind == "removed":
        return data[:at] + data[at + length :]
    if kind == "inserted":
        return data[:at] + draw.randbytes(length) + data[at:]
    other = draw.randrange(len(data))
    swapped = bytearray(data)
    swapped[at], swapped[other] = data[other], data[at]
    return bytes(swapped)


def places(node: Any, at: Place = ()) -> Iterator[Place]:
    """All entries of a tree."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*at, key)
        yield from places(value, (*at, key))


def mutate(tree: Any, place: Place, draw: random.Random, junk: list[Any] = JUNK) -> str:
    """Takes an entry away, puts junk in its place, or NaN, an infinity or another shape into its tensor."""
    for key in place[:-1]:
        tree = tree[key]
    value, kind = tree[place[-1]], draw.choice(["removed", "replaced", "replaced", "spoilt"])
    if kind == "removed" and place[-1] != "remainder":  # which parameters of float32 need not have: 0 then
        del tree[place[-1]]
    elif kind == "spoilt" and isinstance(value, Tensor):
        spoilt = value.clone()
        spoilt.view(-1)[draw.randrange(spoilt.numel())] = draw.choice([float("nan"), float("inf"), -float("inf")])
        tree[place[-1]] = draw.choice([spoilt, value.flatten(), value.flatten()[:1], value.to(torch.int32), value * 1j])
    else:
        tree[place[-1]] = draw.choice(junk)
    return f"{place} {kind}: {value}"


def in_words(error: BaseException) -> bool:
    """Whether an error was raised on purpose, by a `raise` of the package or of torch's Optimizer, and says something.

    The instruction tells, and not the line in the file, which somebody may have edited since it was loaded.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or len(str(error)) < 20 or isinstance(error, AssertionError):
        return False
    code = trace.tb_frame.f_code
    raised = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and code.co_filename.startswith((PACKAGE, TORCH_OPTIMIZER))


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Ends what takes too long, with an AssertionError."""
    def late(*_: Any) -> None:
        raise AssertionError(f"no end after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
