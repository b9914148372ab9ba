"""Checkpoints of optimizers: tensors, numbers and strings only, so that `torch.load(weights_only=True)` reads them.

A checkpoint is checked as a whole before anything changes: it is loaded as it was written, or refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ..distributed import is_sharded, local, shard_like
from .settings import OBJECTS, describe, is_count, is_number, named, require_numbers, shown

DERIVED = ("scale_lr_ratio", "typical_size", "typical_unit")
"""Settings that `settings.prepare` adds to the options."""

LATER = {"curvature", "width_rate", "start_width"}
"""Options that checkpoints of version 0.1.0 do not have."""


def with_own_objects(
    groups: list[dict[str, Any]], state_dict: Mapping[str, Any], options: Collection[str]
) -> list[dict[str, Any]]:
    """The checkpoint's parameter groups with the optimizer's own objects, which must be those it was written with.

    Everything in the checkpoint is checked first, so that it is loaded as it was written or refused before anything has
    changed. `options` are those that a group may have of its own.
    """
    _require_parts(state_dict)
    count = len(state_dict["param_groups"])
    if count != len(groups):
        raise ValueError(f"The checkpoint has {count} parameter groups, but this optimizer has {len(groups)}.")
    restored = []
    for settings, saved in zip(groups, state_dict["param_groups"], strict=True):
        needed = {*options, *DERIVED} & set(settings)
        missing = needed - set(saved) if isinstance(saved, Mapping) else {"settings"}
        if missing > LATER and settings["curvature"] == "gauss-newton":
            raise ValueError(
                "The checkpoint was written by version 0.1.0, whose widths come from samples (Alg. 3). Build the optimizer "
                'with curvature="samples".'
            )
        if missing and missing != LATER:
            raise _no_checkpoint(f"a parameter group without {', '.join(sorted(missing))}")
        for key in OBJECTS:
            mine, theirs = describe(settings[key]), saved[key]
            if isinstance(theirs, Tensor) or mine != theirs:
                raise ValueError(
                    f"The checkpoint was written with {key} {theirs!r}, but this optimizer has {mine!r}. "
                    "Build the optimizer with the same settings."
                )
        new = {key: value for key, value in settings.items() if key not in saved}  # options that the writer did not have yet
        whole = {**new, **saved, **{key: settings[key] for key in OBJECTS}}
        require_numbers(whole, "The checkpoint cannot be used: ")
        for key in [key for key in needed if is_number(settings, key)]:
            if whole[key] is not None and not (is_number(whole, key) and whole[key] >= 0):
                raise _no_checkpoint(f"{shown(whole[key])} as {key}")
        restored.append(whole)
    _require_states(state_dict, groups)
    return restored


def _no_checkpoint(found: str) -> ValueError:
    return ValueError(f"The checkpoint has {found}. Pass what state_dict() returned, from an undamaged file.")


def _require_parts(state_dict: Mapping[str, Any]) -> None:
    own = state_dict.get("liebayes") if isinstance(state_dict, Mapping) else None
    if own is None:
        raise ValueError("This is not a checkpoint of a liebayes optimizer: it has no entry 'liebayes'.")
    for key, kind in (("liebayes", Mapping), ("param_groups", (list, tuple)), ("state", Mapping)):
        if not isinstance(state_dict.get(key), kind):
            raise _no_checkpoint(f"a {type(state_dict.get(key)).__name__} as its entry {key!r}")
    for key in ("seed", "steps", "clock", "skipped", "bounded"):
        if not (is_count(own.get(key)) or (key == "seed" and type(own.get(key)) is int)):
            raise _no_checkpoint(f"{own.get(key)!r} as its number {key!r}")
    if not isinstance(own.get("noise"), str):
        raise _no_checkpoint(f"{own.get('noise')!r} as its noise")


def _require_states(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
    """States are tensors of finite numbers and a count of steps, of parameters in the order of the groups."""
    listed = [saved.get("params") for saved in state_dict["param_groups"]]
    if not all(isinstance(numbers, (list, tuple)) for numbers in listed):
        raise _no_checkpoint("a parameter group without a list of its params")
    known = [number for numbers in listed for number in numbers]
    named_ones = all(isinstance(number, str) for number in known) and len(set(known)) == len(known)  # by torch.distributed
    if not named_ones and not (all(map(is_count, known)) and known == list(range(len(known)))):
        raise _no_checkpoint("parameters that are not numbered in their order")
    for number, state in state_dict["state"].items():
        if number not in known or not isinstance(state, Mapping):
            raise _no_checkpoint(f"a state of the parameter {number!r}, which is in no group or no dictionary")
        for key, value in state.items():
            if not _is_sound(key, value):
                raise _no_checkpoint(f"{key} of the parameter {number} with numbers that are not finite, or of a wrong type")
        if state and "steps" not in state:
            raise _no_checkpoint(f"no number of steps for the parameter {number}")
    trained = [name for settings in groups for name, p in named(settings) if p.requires_grad]
    if state_dict["liebayes"]["steps"] and len(trained) > sum(map(bool, state_dict["state"].values())):
        warnings.warn(
            "The checkpoint has no state for some of the parameters that are trained now. They were not trained when it was "
            "written, or it is incomplete: their posterior starts again.",
            stacklevel=4,
        )


def _is_sound(key: str, value: Any) -> bool:
    if key == "steps":
        return is_count(value)
    if not isinstance(value, Tensor):
        return is_number({key: value}, key) and value > 0
    if not (value.is_floating_point() and value.layout == torch.strided):
        return False
    value = local(value)
    return bool(value.isfinite().all()) and not (key.startswith("second_moment") and bool((value < 0).any()))


def own_precision(value: Any, p: Tensor) -> Any:
    """A checkpoint's state on the parameter's device and sharded like it; torch would cast it to the parameter's dtype."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().to(p.device, copy=True)
    return shard_like(value, p).clone() if is_sharded(p) and not is_sharded(value) else value
