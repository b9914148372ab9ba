"""Training across processes: covectors are averaged, not gradients.

Each rank has its own sample and its own part of the batch. Aε·mean(∇ℓ) is not the mean of Aε·∇ℓ: averaging gradients first
would shrink the scale's covector by the number of ranks. DistributedDataParallel averages gradients unless told not to, which
`local_gradients` does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

if dist.is_available():
    # DistributedDataParallel loads this module, and its functions keep the process group of that moment as a default argument.
    # A group that is kept so is never closed, and its threads abort the process at exit, now and then. Here there is none yet.
    import torch.distributed.nn.functional


def world_size(process_group: Any = None) -> int:
    """The number of processes; 1 where torch.distributed does not run."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    count = dist.get_world_size(process_group)
    if count < 1:  # what torch says to those who are not in the group, whose messages do nothing
        raise ValueError("process_group does not have this process in it. Give the group that was made for its ranks.")
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


def mean_over_ranks(blocks: list[Tensor], process_group: Any) -> list[Tensor]:
    """The average of each block over all ranks, in one message."""
    count = world_size(process_group)
    if count == 1:
        return blocks
    message = torch.cat([block.reshape(-1) for block in blocks])
    dist.all_reduce(message, group=process_group)
    parts = message.div_(count).split([block.numel() for block in blocks])
    return [part.view_as(block) for part, block in zip(parts, blocks, strict=True)]


def equal_on_all_ranks(value: float, device: torch.device, process_group: Any) -> bool:
    """Whether all ranks have the same number."""
    pair = torch.tensor([value, -value], dtype=torch.float64, device=device)
    dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=process_group)
    return float(pair[0]) == -float(pair[1])
