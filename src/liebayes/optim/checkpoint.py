"""Checkpoints of an optimizer: tensors, numbers and strings only, so that `torch.load(weights_only=True)` reads them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import sharding
from .settings import OBJECTS, describe


def with_own_objects(groups: list[dict[str, Any]], state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoint's parameter groups with the optimizer's own objects, which must be those it was written with."""
    own = state_dict.get("liebayes")
    if own is None:
        raise ValueError("This is not a checkpoint of a liebayes optimizer: it has no entry 'liebayes'.")
    count = len(state_dict["param_groups"])
    if count != len(groups):
        raise ValueError(f"The checkpoint has {count} parameter groups, but this optimizer has {len(groups)}.")
    restored = []
    for settings, saved in zip(groups, state_dict["param_groups"], strict=True):
        for key in OBJECTS:
            mine = describe(settings[key])
            if mine != saved[key]:
                raise ValueError(
                    f"The checkpoint was written with {key} {saved[key]!r}, but this optimizer has {mine!r}. "
                    "Build the optimizer with the same settings."
                )
        restored.append({**saved, **{key: settings[key] for key in OBJECTS}})
    return restored


def own_precision(value: Any, p: Tensor) -> Any:
    """A state as the checkpoint has it, on the parameter's device and cut as it is cut; torch would cast it to its dtype."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().to(p.device, copy=True)
    return sharding.shard_like(value, p).clone() if sharding.is_sharded(p) and not sharding.is_sharded(value) else value
