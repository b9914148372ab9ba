"""Frozen weights: a posterior neither copies nor stores them, but recognises them by their fingerprints.

A fingerprint is computed from the bits: in chunks, Σ_k c·(2k + 1)·bits_k modulo 2⁶⁴, and a hash of these sums with dtype and
shape. It is the same on every device and takes one pass over memory. It detects weights that differ by accident; it is not a
signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn

from ..posterior_file import OtherModelError

_CHUNK = 1 << 17
_BLOCK = 1 << 16
_ODD = -0x61C8864680B583EB  # 2⁶⁴ over the golden ratio, as a signed number
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(value: Tensor) -> str:
    """16 hexadecimal digits of a tensor's bits, dtype and shape.

    >>> fingerprint(torch.tensor([1.0, 2.0])) == fingerprint(torch.tensor([2.0, 1.0]))
    False
    """
    flat = whole(value.detach()).contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_BITS[flat.element_size()])
    sums = _sums_of_chunks(bits).tolist()
    return hashlib.blake2b(f"{value.dtype} {tuple(value.shape)} {sums}".encode(), digest_size=8).hexdigest()


def _sums_of_chunks(bits: Tensor) -> Tensor:
    """Σ_k c·(2k + 1)·bits_k of every chunk, by blocks in one small room: large ones that come and go would split the heap."""
    weights, per_chunk = _weights_of_a_chunk(bits.device), _CHUNK // _BLOCK
    room = torch.empty_like(weights[0])
    sums = torch.zeros(-(-len(bits) // _CHUNK), per_chunk, dtype=torch.int64, device=bits.device)
    for k, (block, total) in enumerate(zip(bits.split(_BLOCK), sums.flatten(), strict=False)):
        products = room[: len(block)].copy_(block).mul_(weights[k % per_chunk, : len(block)])
        torch.sum(products, 0, out=total)
    return sums.sum(1)


@cache
def _weights_of_a_chunk(device: torch.device) -> Tensor:
    return torch.arange(_CHUNK, device=device).mul_(2).add_(1).mul_(_ODD).view(-1, _BLOCK)


def fingerprints(parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """The fingerprint of each."""
    return {name: fingerprint(p) for name, p in parameters.items()}


def require_frozen(where: str, frozen: Mapping[str, str], model: nn.Module) -> None:
    """Refuses a model whose frozen weights are not those of the posterior."""
    if not frozen:
        return
    found = fingerprints({name: p for name, p in model.named_parameters() if name in frozen})
    changed = [name for name, saved in frozen.items() if found.get(name) != saved]
    if changed:
        raise OtherModelError(
            f"{where} {len(changed)} of {len(frozen)} frozen weights, such as {changed[0]}, are not those that the posterior "
            "was trained beside. It has no copy of them: give it the model with the same weights, in the same precision."
        )


def whole(t: Tensor) -> Tensor:
    """All of a tensor that is sharded."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t  # pyright: ignore[reportAttributeAccessIssue]
