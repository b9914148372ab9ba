"""Several processes: covectors are averaged over them, or they hold shards of one model.

**Data parallelism.** Each rank has its own sample and its own part of the batch. Aε·mean(∇ℓ) is not the mean of Aε·∇ℓ:
averaging gradients first would shrink the scale's covector by the number of ranks. DistributedDataParallel averages gradients
unless told not to, which `local_gradients` does.

**Sharding** (FSDP2's `fully_shard`). All ranks hold parts of one model, so they share one sample: every rank draws the noise
of the whole tensor and keeps its part, which makes the noise of an element the same however many ranks there are. FSDP has
averaged the gradients over the parts of the batch, each taken at this one sample, so covectors need no reduction. States are
sharded as their parameters are; the rule works on this rank's elements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from .groups import LieGroup

if dist.is_available():
    # DistributedDataParallel loads this module, and its functions keep the process group of that moment as a default argument.
    # A group that is kept so is never closed, and its threads abort the process at exit, now and then. Here there is none yet.
    import torch.distributed.nn.functional


def world_size(process_group: Any = None) -> int:
    """The number of processes; 1 if torch.distributed is not running."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    count = dist.get_world_size(process_group)
    if count < 1:  # what torch says to those who are not in the group, whose messages do nothing
        raise ValueError("This process is not a member of process_group. Pass the group that was made for its ranks.")
    return count


def rank(process_group: Any = None) -> int:
    """The number of this process."""
    return dist.get_rank(process_group) if dist.is_available() and dist.is_initialized() else 0


def local_gradients(model: DistributedDataParallel) -> DistributedDataParallel:
    """Keeps every rank's gradients its own, as the optimizers of liebayes need them; returns the model.

    Parameters and buffers are still broadcast at the start, and buffers before each forward pass.
    """

    def keep(state: object, bucket: Any) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    keep.__annotations__ = {}  # DistributedDataParallel refuses annotations that are text, as they are in this file
    model.register_comm_hook(None, keep)
    return model


def any_rank(flags: Tensor, process_group: Any) -> Tensor:
    """Elementwise: whether any rank has a flag set."""
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=process_group)
    return flags


def average_over_ranks(blocks: Sequence[Tensor], process_group: Any) -> None:
    """Replaces each block by its average over all ranks, in one message for each dtype."""
    for dtype in sorted({block.dtype for block in blocks}, key=str):
        chosen = [block for block in blocks if block.dtype == dtype]
        message = torch.cat([block.reshape(-1) for block in chosen])
        dist.all_reduce(message, group=process_group)
        parts = message.div_(world_size(process_group)).split([block.numel() for block in chosen])
        for block, part in zip(chosen, parts, strict=True):
            block.copy_(part.view_as(block))


def equal_on_all_ranks(value: float, device: torch.device, process_group: Any) -> bool:
    """Whether all ranks have the same number."""
    pair = torch.tensor([value, -value], dtype=torch.float64, device=device)
    dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=process_group)
    return float(pair[0]) == -float(pair[1])


# Shards.


def is_sharded(t: object) -> bool:
    """Whether a tensor is a DTensor. Looks only if torch's module for them is loaded; loading it takes a second."""
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


def all_sharded(parameters: Sequence[Tensor]) -> bool:
    """Whether parameters are sharded: all of them, or none."""
    kinds = {is_sharded(p) for p in parameters}
    if len(kinds) > 1:
        raise ValueError(
            "Some parameters are sharded over processes (fully_shard) and some are not. FSDP averages the gradients of the "
            "first only, so one step cannot serve both. Shard the whole model, or train the parts with two optimizers."
        )
    return kinds == {True}


@contextmanager
def contents_exchanged(parameters: Sequence[Tensor], samples: Sequence[Tensor]) -> Iterator[None]:
    """A block in which shards hold a sample. FSDP gathers weights from its own storage, so contents are exchanged."""
    pairs = [(local(p.detach()), local(sample)) for p, sample in zip(parameters, samples, strict=True)]

    @torch.no_grad()
    def exchange() -> None:
        for a, b in pairs:
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)
        forget_gathered_weights()

    exchange()
    try:
        yield
    finally:
        exchange()


def forget_gathered_weights() -> None:
    """Makes FSDP gather its weights again, because shards have changed.

    It keeps those of a root module after a forward pass until a backward pass has run. From a parameter there is no way to
    its module, so this goes through torch's register of all of them; gathering once more harms none.
    """
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()
