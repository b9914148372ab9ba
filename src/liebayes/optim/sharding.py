"""Parameters that are shards of a larger tensor (FSDP2's `fully_shard`).

All ranks hold parts of one model, so they share one sample: every rank draws the noise of the whole tensor and keeps its
part, which makes the noise of an element the same however many ranks there are. FSDP has averaged the gradients over the
batch's parts, each taken at this one sample, so that covectors need no reduction. States are sharded as their parameters
are; the rule works on this rank's elements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..groups import LieGroup


def is_sharded(t: object) -> bool:
    """Whether a tensor is a DTensor. Asks only where torch's module for them is loaded; loading it takes a second."""
    if type(t) is Parameter:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def local(t: Tensor) -> Tensor:
    """This rank's elements of a tensor: its storage, not a copy."""
    return t.to_local() if is_sharded(t) else t  # pyright: ignore[reportAttributeAccessIssue]


def full(t: Tensor) -> Tensor:
    """The whole of a tensor, gathered from all ranks."""
    return t.full_tensor() if is_sharded(t) else t  # pyright: ignore[reportAttributeAccessIssue]


def shard_like(whole: Tensor, p: Any) -> Tensor:
    """Cuts a tensor that every rank has as a whole in the way p is cut. Nothing is communicated."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * p.device_mesh.ndim
    return DTensor.from_local(whole, p.device_mesh, everywhere, run_check=False).redistribute(placements=p.placements)


def draw_like(p: Tensor, sample: Callable[[tuple[int, ...], int], Tensor], piece: int) -> Tensor:
    """The flat noise of this rank's elements, from that of the whole parameter, which is drawn in pieces of a given size."""
    count = p.numel()
    whole = torch.cat([sample((min(piece, count - start),), start) for start in range(0, count, piece)])
    return local(shard_like(whole.view(p.shape), p)).reshape(-1)


def gathered(state: Any) -> Any:
    """A nested dictionary, such as `optimizer.state_dict()`, with every sharded tensor made whole. All ranks must call it.

    The result can be loaded by any number of processes.
    """
    if isinstance(state, Mapping):
        return {key: gathered(value) for key, value in state.items()}
    return full(state).detach() if is_sharded(state) else state


def require_shardable(name: str, p: Tensor, group: LieGroup[Any]) -> None:
    """Refuses groups that need a whole tensor."""
    if is_sharded(p) and not group.elementwise:
        raise ValueError(
            f"The parameter {name} of shape {tuple(p.shape)} is sharded over processes, but {group} acts on whole tensors. "
            "Use an elementwise group (Additive, Multiplicative, DiagonalAffine), or leave the parameter out of fully_shard."
        )


def all_sharded(parameters: list[Tensor]) -> bool:
    """Whether parameters are sharded: all of them, or none."""
    kinds = {is_sharded(p) for p in parameters}
    if len(kinds) > 1:
        raise ValueError(
            "Some parameters are sharded over processes (fully_shard) and some are not. FSDP averages the gradients of the "
            "first only, so one step cannot serve both. Shard the whole model, or train the parts with two optimizers."
        )
    return kinds == {True}


def forget_gathered_weights() -> None:
    """Makes FSDP gather its weights anew, because shards have changed.

    It keeps those of a root module after a forward pass until a backward pass has run. From a parameter there is no way to
    its module, so this goes through torch's register of all of them; gathering once more harms none.
    """
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()
