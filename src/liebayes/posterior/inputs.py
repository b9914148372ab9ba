"""What a model is called with: batches of tensors, or of named inputs as tokenizers and the loaders of trainers give them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..prediction import whole_number

TARGETS = ("labels", "label", "label_ids", "targets", "target")
"""Names under which a batch may have its targets; a model that does not take them is called without."""

_WAYS = "For a model that takes several inputs make a dictionary of them by the names of its arguments."


def tensor_of(value: Any, model: nn.Module) -> Any:
    """An array of numpy as a tensor, numbers of float64 in the precision of the model; anything else as it is."""
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    found = torch.as_tensor(value)
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return found.to(own) if found.dtype == torch.float64 else found


def call(model: nn.Module, batch: Tensor | Mapping[str, Any]) -> Any:
    """The model's output: a tensor is its one argument, named inputs are keyword arguments."""
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def input_batches(
    inputs: Any, batch_size: int | None, device: torch.device, model: nn.Module
) -> Iterator[Tensor | dict[str, Any]]:
    """Batches of inputs; of a batch with targets, the inputs. At least one."""
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, "at least 1", least=1)
    inputs = tensor_of(inputs, model)
    if isinstance(inputs, Tensor):
        if inputs.ndim == 0:
            raise ValueError("inputs must have one dimension at least, that of the inputs, but is a single number.")
        if len(inputs) == 0:
            raise ValueError("There is nothing to predict: inputs is empty.")
        yield from inputs.to(device).split(batch_size or len(inputs))
        return
    if isinstance(inputs, Mapping):
        yield from _parts(named_inputs(inputs, device, model), batch_size)
        return
    if isinstance(inputs, (tuple, str)) or not isinstance(inputs, Iterable):
        way = f"Make a list of batches: list(...). {_WAYS}" if isinstance(inputs, tuple) else _WAYS
        raise ValueError(
            "inputs must be a tensor, a dictionary of named inputs, or an iterable of such batches such as a DataLoader, but "
            f"is a {type(inputs).__name__}. {way}"
        )
    empty = True
    for batch in inputs:
        empty = False
        yield _inputs_of(batch, device, model)
    if empty:
        raise ValueError("There is nothing to predict: the loader gave no batch.")


def _inputs_of(batch: Any, device: torch.device, model: nn.Module) -> Tensor | dict[str, Any]:
    members: list[Any] = [tensor_of(each, model) for each in (batch if isinstance(batch, (tuple, list)) else [batch])]
    if not members or len(members) > 2 or not isinstance(members[0], (Tensor, Mapping)):
        kinds = ", ".join(type(member).__name__ for member in members)
        raise ValueError(
            "A batch must be a tensor, a dictionary of named inputs, or a pair of one of these and targets, but has: "
            f"{kinds}. {_WAYS}"
        )
    found = members[0]
    return found.to(device) if isinstance(found, Tensor) else named_inputs(found, device, model)


def named_inputs(batch: Mapping[str, Any], device: torch.device, model: nn.Module) -> dict[str, Any]:
    """Named inputs on a device, without targets that the model does not take."""
    taken = inspect.signature(model.forward).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    kept = [name for name in batch if anything or name in taken or name not in TARGETS]
    found = {name: tensor_of(batch[name], model) for name in kept}
    if not any(isinstance(value, Tensor) for value in found.values()):
        has = ", ".join(map(str, batch)) or "nothing"
        raise ValueError(f"A batch of named inputs must have a tensor at least, but has: {has}.")
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in found.items()}


def _parts(batch: dict[str, Any], size: int | None) -> Iterator[dict[str, Any]]:
    lengths = {name: len(value) for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    length = next(iter(lengths.values()), 0)
    if length == 0:
        raise ValueError("There is nothing to predict: inputs is empty.")
    if size is None:
        yield batch
        return
    if set(lengths.values()) != {length}:
        raise ValueError(f"batch_size splits named inputs of one length, but they have: {lengths}.")
    for start in range(0, length, size):
        yield {name: value[start : start + size] if name in lengths else value for name, value in batch.items()}
