"""Row 8: memory, by the count of benchmarks/memory.py, which is exact and needs no rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from memory import measure

import liebayes as lb

from .contest import Limit, Row
from .sizes import Sizes

DATA_SIZE = 1000


def row(sizes: Sizes) -> Row:
    """The peak beyond parameters and gradients."""
    makers: dict[str, Callable[[Any], Any]] = {
        "AffineBLR": lambda p: lb.AffineBLR(p, lr=0.01, data_size=DATA_SIZE),
        "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    }
    try:
        from ivon import IVON

        makers["ivon-opt"] = lambda p: IVON(p, lr=0.01, ess=DATA_SIZE)
    except ImportError:
        pass
    return Row(
        "memory",
        "memory, affine, peak beyond parameters and gradients",
        "AffineBLR",
        [],
        [Limit("value", 5.0)],
        unit="floats per parameter",
        figures={name: [round(measure(make, size=sizes.memory)["peak"], 3)] for name, make in makers.items()},
    )
