"""The reference noise stream: Philox4x32-10 (Salmon et al. 2011) as plain torch, on any device.

A word is a pure function of its counter, so any part of any draw can be computed alone, by any kernel, in any order. The key
is the seed; the counter is (c₀, tensor, step, stream), 32 bits each. Elements of a tensor, in the order of memory, form groups
of 32, four rows of eight lanes: element i, with q = i div 32, row j = (i mod 32) div 8 and lane = i mod 8, has word j of the
counter c₀ = 8q + lane. A tensor's last group may be incomplete.

With u(w) = min((w mod 2³¹ + ½)·2⁻³¹, 1 − 2⁻²⁴) in float32, s(w) = ±1 by the top bit of w (set: −1) and φ(w) = π·int32(w)·2⁻³¹,
a number ε of each base, before its scale, is

    Normal       √(−2 log u(w))·(cos φ(w'), sin φ(w'))    for rows 0 and 1, and for rows 2 and 3: w above, w' below it
    LogNormal    exp(σ·Normal + μ)
    Laplace      −s(w)·log u(w)                           Cauchy       s(w)·cot(½π·u(w))
    Uniform      int32(w)·2⁻³¹                            Gumbel       −log(−log u(w))
    Rayleigh     √(−2 log u(w))                           Exponential  −log u(w)
    StudentT     √(df·expm1(−(2/df)·log u(w)))·cos φ(w')  w' from the counter with the top bit of `tensor` set
    Dirac        0

This is the specification of the kernels, written for accuracy: float64 inside, one rounding to float32 at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from .base import Base
from .half_line import Exponential, LogNormal, Rayleigh
from .real_line import Cauchy, Dirac, Gumbel, Laplace, Normal, StudentT, Uniform

GROUP = 32
"""Elements that share eight counters."""

SECOND = 1 << 31
"""The bit of `tensor` that marks the second word of bases that need two for a number."""

LARGEST = 1 << 34
"""Elements a tensor can have: the first counter has 32 bits."""

_MASK = 0xFFFFFFFF
_LANES = 8
_PIECE = 1 << 13  # groups at a time: temporaries of half a megabyte, which stay in the cache

Word = TypeVar("Word", int, Tensor)
Place = tuple[int, int, int]
"""(tensor, step, stream): the part of a counter that a whole tensor shares."""


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Four words for a counter. Words are in [0, 2³²): plain integers, or tensors of int64, which may be mixed."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, a)
        high1, low1 = _multiply(0xCD9E8D57, c)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & _MASK, k1 + 0xBB67AE85 & _MASK
    return a, b, c, d


def _multiply(constant: int, x: Word) -> tuple[Word, Word]:
    """The upper and the lower half of a product of two words, through halves: int64 cannot hold 64 bits and a sign."""
    low = x * (constant & 0xFFFF)
    high = x * (constant >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def words(
    count: int, *, seed: int, tensor: int, step: int, stream: int, device: torch.device | str | None = None, start: int = 0
) -> Tensor:
    """The words of the elements [start, start + count) of a tensor, as int64 in [0, 2³²).

    >>> [hex(w) for w in words(17, seed=0, tensor=0, step=0, stream=0)[[0, 8, 16]].tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c']
    """
    out = torch.empty(count, dtype=torch.int64, device=device)
    for first, groups, inside, piece in _pieces(start, count):
        out[piece] = _groups(first, groups, seed, (tensor, step, stream), device).flatten()[inside]
    return out


def draw(
    base: Base,
    count: int,
    *,
    seed: int,
    tensor: int,
    step: int,
    stream: int,
    device: torch.device | str | None = None,
    start: int = 0,
) -> Tensor:
    """Draws ε of a base, in float32, for the elements [start, start + count) of a tensor."""
    if not supports(base):
        raise ValueError(f"{base!r} is not drawn from this stream. Use its own `sample`.")
    law = _LAWS[type(base)]
    out = torch.empty(count, dtype=torch.float32, device=device)
    for first, groups, inside, piece in _pieces(start, count):
        w = _groups(first, groups, seed, (tensor, step, stream), device)
        second = _groups(first, groups, seed, (tensor | SECOND, step, stream), device) if type(base) is StudentT else w
        out[piece] = law(base, w, second).flatten()[inside].to(torch.float32)
    return out


def supports(base: Base) -> bool:
    """Whether the stream has a base. A derived class may draw in another way, so it does not count."""
    return type(base) in _LAWS


def _pieces(start: int, count: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Cuts a range of elements at whole groups: (first group, groups, the elements wanted of these, their place)."""
    stop = start + count
    if not 0 <= start <= stop <= LARGEST:
        raise ValueError(f"A tensor has elements 0 to 2³⁴ in this stream, but {start} to {stop} were asked for.")
    for first in range(start // GROUP, -(-stop // GROUP), _PIECE):
        groups = min(_PIECE, -(-stop // GROUP) - first)
        left, right = max(start, first * GROUP), min(stop, (first + groups) * GROUP)
        yield first, groups, slice(left - first * GROUP, right - first * GROUP), slice(left - start, right - start)


def _groups(first: int, groups: int, seed: int, place: Place, device: torch.device | str | None) -> Tensor:
    """The words of whole groups: (groups, rows, lanes)."""
    c0 = torch.arange(first * _LANES, (first + groups) * _LANES, dtype=torch.int64, device=device).view(groups, _LANES)
    tensor, step, stream = (number & _MASK for number in place)
    return torch.stack(philox((c0, tensor, step, stream), (seed & _MASK, seed >> 32 & _MASK)), dim=1)


# From words to numbers. Words come as (groups, rows, lanes); where a number needs no second word, `w2` is not looked at.


def _u(w: Tensor) -> Tensor:
    """Uniform on the open interval (0, 1), rounded as float32 rounds it; then in float64."""
    u = ((w & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31
    return u.clamp_max(1 - 2.0**-24).to(torch.float64)


def _sign(w: Tensor) -> Tensor:
    return 1 - 2 * (w >> 31)


def _int32(w: Tensor) -> Tensor:
    """The word's bits as a signed number."""
    return w - ((w >> 31) << 32)


def _angle(w: Tensor) -> Tensor:
    return _int32(w).to(torch.float64) * (math.pi * 2.0**-31)


def _radius(w: Tensor) -> Tensor:
    return (-2 * _u(w).log()).sqrt()


def _normal(base: Normal, w: Tensor, w2: Tensor) -> Tensor:
    return _standard_normal(w) * base.scale


def _standard_normal(w: Tensor) -> Tensor:
    """Box–Muller: each pair of rows is a radius and an angle, and becomes the two coordinates of that point."""
    radius, angle = _radius(w[:, 0::2]), _angle(w[:, 1::2])
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=2)


def _log_normal(base: LogNormal, w: Tensor, w2: Tensor) -> Tensor:
    return (_standard_normal(w) * base.sigma + base.mu).exp()


def _laplace(base: Laplace, w: Tensor, w2: Tensor) -> Tensor:
    return -_sign(w) * _u(w).log() * base.scale


def _uniform(base: Uniform, w: Tensor, w2: Tensor) -> Tensor:
    return _int32(w).to(torch.float32) * 2.0**-31 * base.half_width


def _cauchy(base: Cauchy, w: Tensor, w2: Tensor) -> Tensor:
    return _sign(w) / (_u(w) * (math.pi / 2)).tan() * base.scale


def _student(base: StudentT, w: Tensor, w2: Tensor) -> Tensor:
    return (base.df * torch.expm1(_u(w).log() * (-2 / base.df))).sqrt() * _angle(w2).cos() * base.scale


def _gumbel(base: Gumbel, w: Tensor, w2: Tensor) -> Tensor:
    return -(-_u(w).log()).log() * base.scale


def _rayleigh(base: Rayleigh, w: Tensor, w2: Tensor) -> Tensor:
    return _radius(w) * base.scale


def _exponential(base: Exponential, w: Tensor, w2: Tensor) -> Tensor:
    return -_u(w).log() * base.scale


def _dirac(base: Dirac, w: Tensor, w2: Tensor) -> Tensor:
    return torch.zeros_like(w, dtype=torch.float32)


_LAWS: dict[type[Base], Callable[[Any, Tensor, Tensor], Tensor]] = {
    Normal: _normal,
    LogNormal: _log_normal,
    Laplace: _laplace,
    Uniform: _uniform,
    Cauchy: _cauchy,
    StudentT: _student,
    Gumbel: _gumbel,
    Rayleigh: _rayleigh,
    Exponential: _exponential,
    Dirac: _dirac,
}
