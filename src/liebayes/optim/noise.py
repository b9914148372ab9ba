"""The noise of training as a counter: (seed, step, stream) fixes a draw, so that any run can be resumed to the bit.

A stream is one Monte Carlo sample; across processes it is numbered over all ranks, so that two ranks with one sample each
draw what one process with two samples draws. Within a stream the tensors follow one another, which keeps them independent.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


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
