"""Frozen weights: a posterior neither copies nor stores them, but recognises them by their fingerprints.

A fingerprint is computed from the bits: in chunks, Σ_k c·(2k + 1)·bits_k modulo 2⁶⁴, and a hash of these sums with dtype and
shape. It is the same on every device and takes one pass over memory. It detects weights that differ by accident; it is not a
signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..posterior_file import OtherModelError

_CHUNK = 1 << 17
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
    weights = (torch.arange(min(_CHUNK, len(bits)), device=bits.device) * 2 + 1) * _ODD
    parts = bits.split(_CHUNK) if len(bits) else ()
    sums = torch.zeros(len(parts), dtype=torch.int64, device=bits.device)  # small tensors, one by one, would split the heap
    for total, part in zip(sums, parts, strict=True):
        torch.sum(part.to(torch.int64) * weights[: len(part)], 0, out=total)
    text = f"{value.dtype} {tuple(value.shape)} {sums.tolist()}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def fingerprints(parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """The fingerprint of each."""
    return {name: fingerprint(p) for name, p in parameters.items()}


def require_frozen(where: str, frozen: Mapping[str, str], model: nn.Module) -> None:
    """Refuses a model whose frozen weights are not those of the posterior."""
    if not frozen:
        return
    parameters = dict(model.named_parameters())
    changed = [name for name, saved in frozen.items() if name not in parameters or fingerprint(parameters[name]) != saved]
    if changed:
        raise OtherModelError(
            f"{where} {len(changed)} of {len(frozen)} frozen weights, such as {changed[0]}, are not those that the posterior "
            "was trained beside. It has no copy of them: give it the model with the same weights, in the same precision."
        )


def whole(t: Tensor) -> Tensor:
    """All of a tensor that is sharded."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t  # pyright: ignore[reportAttributeAccessIssue]
