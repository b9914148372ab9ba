"""The module of a posterior: without its wrappers, in evaluation mode, as a copy with other weights."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..install import Turn
from ..prediction import slots_of


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside wrappers of torch.compile, data parallelism and averaging."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def copy_with(model: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a module in evaluation mode whose parameters and buffers are these; what has no value is shared with it."""
    slots = slots_of(model)
    memo: dict[int, Any] = {}
    for name, slot in slots.items():
        value = values.get(name)
        if value is None:
            memo[id(slot)] = slot
        else:
            memo[id(slot)] = nn.Parameter(value, slot.requires_grad) if isinstance(slot, nn.Parameter) else value
    with Turn(slots.values()):
        return copy.deepcopy(model, memo).eval()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; every submodule gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def export_refused(model: nn.Module) -> Iterator[None]:
    """A block in which the module cannot be exported: a program would have its weights of after the block."""

    def refuse(module: nn.Module, inputs: Any) -> None:
        tracing = torch._C._get_tracing_state() is not None
        if _is_exporting() or (tracing and not torch.onnx.is_in_onnx_export()):  # ONNX's own tracer writes weights at once
            raise RuntimeError(
                "A module cannot be exported or traced inside posterior.sampled(): the program would refer to the parameters, "
                "which hold the point again after the block. Export posterior.sample_module()."
            )

    handle = model.register_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


def _flag_of_export() -> bool:
    return getattr(torch.compiler, "_is_compiling_flag", False)


_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", _flag_of_export)  # torch 2.6 has only the flag


def refuse_sharded(model: nn.Module) -> None:
    """Refuses models of fully_shard, which put their own weights in place of a sample's."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # loaded if the model was sharded, and slow to load otherwise
    if fsdp is not None and any(isinstance(module, getattr(fsdp, "FSDPModule", ())) for module in model.modules()):
        raise ValueError(
            "The model is sharded (fully_shard), and puts its own weights in place of a sample's. Save the posterior, and "
            "load it for a plain model: Posterior.load(path, model)."
        )
