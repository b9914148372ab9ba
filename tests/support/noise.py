"""Noise of the library by its counters: the one place that knows where the kernel's noise is asked for."""

from __future__ import annotations

from torch import Tensor

from liebayes.bases import Base, Dirac, StudentT, philox
from liebayes.optim.noise import Noise, Source, kernel_noise

from .registry import BASES

STREAMED: list[Base] = [
    *(case.base for case in BASES if philox.supports(case.base)),
    StudentT(0.7),
    StudentT(200.0),
    Dirac(),
]
"""Bases that the counter-based streams can draw."""


def kernel(base: Base, count: int, source: Source, *, seed: int = 5, number: int = 4, start: int = 0) -> Tensor:
    """The kernel's noise for elements [start, start + count) of one tensor, at step 3, stream 2."""
    return kernel_noise(base, count, Noise(source, seed, 3, 2, {}), number=number, start=start)


def reference(base: Base, count: int, *, seed: int = 5, number: int = 4) -> Tensor:
    """What philox in torch says that noise is."""
    return philox.draw(base, count, seed=seed, tensor=number, step=3, stream=2)
