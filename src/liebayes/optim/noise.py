"""The noise of training as a counter: (seed, step, stream) fixes a draw, so that any run can be resumed to the bit.

A stream is one Monte Carlo sample; across processes it is numbered over all ranks, so that two ranks with one sample each
draw what one process with two samples draws.

There are three sources. `xoshiro` is the kernel's own and the fastest; `philox` is the reference, which the kernel and torch
both have, to rounding; both give every parameter a stream of its own. `torch` is torch's generator, through which the
parameters follow one another: it is used where the others cannot be, for parameters that are not float32 and for users' bases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from .. import bases, native
from ..bases import Base, philox

Source = Literal["xoshiro", "philox", "torch"]

_MASK = 0xFFFFFFFF


def choose_source(name: str | None, on_cpu: bool = True) -> Source:
    """The source of that name; for None, the fastest there is."""
    if name is None:
        return "xoshiro" if on_cpu and native.available() else "torch"
    if name not in get_args(Source):
        raise ValueError(f"noise must be one of {', '.join(get_args(Source))} or None, but got {name!r}.")
    if name == "xoshiro" and not native.available():
        raise ValueError(
            'The noise "xoshiro" is drawn by the native kernel, which is not here (see `liebayes info`). Install a C compiler '
            'and liebayes again. A run that has to go on without the kernel is one with noise="philox".'
        )
    return name  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Noise:
    """One draw for all parameters of an optimizer."""

    source: Source
    seed: int
    step: int
    stream: int
    numbers: Mapping[Tensor, int]
    """Which of the optimizer's parameters each one is."""
    _generators: dict[torch.device, torch.Generator] = field(default_factory=dict)

    def is_counted(self, p: Tensor, base: Base) -> bool:
        """Whether a parameter has noise of its own from a counter, and not that of torch's generator."""
        return (
            self.source != "torch"
            and p.dtype == torch.float32
            and (self.source == "philox" or p.device.type == "cpu")
            and philox.supports(base)
        )

    def sample(self, p: Tensor, base: Base, size: tuple[int, ...], start: int, dtype: torch.dtype) -> Tensor:
        """ε for the elements of a parameter from `start` on, in the order of memory."""
        if not self.is_counted(p, base):
            return base.sample(size, generator=self._generator(p.device), dtype=dtype, device=p.device)
        count, number = math.prod(size), self.numbers[p]
        if p.device.type == "cpu" and native.available():
            return kernel_noise(base, count, self, number, start).view(size)
        counter = {"seed": self.seed, "tensor": number, "step": self.step, "stream": self.stream}
        return philox.draw(base, count, **counter, device=p.device, start=start).view(size)

    def _generator(self, device: torch.device) -> torch.Generator:
        """torch's generator of this draw, which continues from parameter to parameter."""
        if device not in self._generators:
            self._generators[device] = stream_generator(self.seed, self.step, self.stream, device)
        return self._generators[device]


# The kernel's streams.

_BASES: dict[type, int] = {
    kind: number
    for number, kind in enumerate(
        (bases.Normal, bases.Laplace, bases.Uniform, bases.Cauchy, bases.StudentT, bases.Gumbel, bases.Rayleigh,
         bases.Exponential, bases.LogNormal, bases.Dirac)
    )
}  # fmt: skip
_KINDS = {"philox": 0, "xoshiro": 1}


def describe_noise(job: native.Job, base: Base, noise: Noise) -> None:
    """Tells the kernel which numbers to draw."""
    job.seed, job.step, job.stream = noise.seed & (1 << 64) - 1, noise.step & _MASK, noise.stream & _MASK
    job.base, job.stream_kind = _BASES[type(base)], _KINDS[noise.source]
    job.base_scale = getattr(base, "scale", getattr(base, "half_width", getattr(base, "sigma", 0.0)))
    job.base_shape = getattr(base, "df", getattr(base, "mu", 0.0))


def kernel_noise(base: Base, count: int, noise: Noise, number: int, start: int = 0) -> Tensor:
    """ε itself: the numbers [start, start + count) of parameter `number`, where start is a multiple of 2,048."""
    target = torch.empty(count, dtype=torch.float32, device="cpu")
    job = native.Job(what=native.NOISE, threads=native.threads())
    describe_noise(job, base, noise)
    columns = {"sample": [target.data_ptr()], "count": [count], "number": [number], "offset": [start]}
    native.run(job, native.table(columns))
    return target


# torch's generator.


def stream_generator(seed: int, step: int, stream: int, device: torch.device) -> torch.Generator:
    """The generator of one draw.

    The CPU generator of torch keeps 32 bits of its seed. A keyed bijection of the counter, instead of a hash, makes sure
    that no two of the first 2²⁴ steps and 2⁸ streams of a run share one.
    """
    counter = (step & 0xFFFFFF) << 8 | (stream & 0xFF)
    key = _mix(_mix(seed & _MASK) ^ (seed >> 32 & _MASK)) ^ _mix(step >> 24 & _MASK) ^ _mix((stream >> 8) + 0x9E3779B9 & _MASK)
    return torch.Generator(device=device).manual_seed(_mix(_mix(counter ^ key) + key & _MASK))


def _mix(x: int) -> int:
    """A bijection of 32 bits in which every input bit reaches every output bit (the finaliser of MurmurHash3)."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & _MASK
    x ^= x >> 13
    x = x * 0xC2B2AE35 & _MASK
    return x ^ x >> 16
