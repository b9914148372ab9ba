"""The parameters of a constrained network in two lists: positive magnitudes, and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from .conversion import constraints_of


class SplitParameters(NamedTuple):
    """Parameters for the parameter groups of an optimizer, as pairs of name and tensor."""

    magnitudes: list[Any]
    """Positive: for the multiplicative group."""
    others: list[Any]
    """Of either sign: norms, and whatever was not converted."""


def split_parameters(model: nn.Module) -> SplitParameters:
    """Separates the magnitudes of a network with sign constraints from its other parameters.

    torch refuses an empty list beside one with names; `parameter_groups` leaves it out.

    >>> from liebayes.nn import plus_minus
    >>> network = plus_minus(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    >>> magnitudes, others = split_parameters(network)
    >>> len(magnitudes), [name for name, _ in others]
    (4, ['1.weight', '1.bias'])
    """
    positive = set()
    for module in model.modules():
        for name in constraints_of(module):
            lists: Any = module.parametrizations
            positive.update(id(p) for p in lists[name].parameters(recurse=False))
    result = SplitParameters([], [])
    for name, p in model.named_parameters():
        (result.magnitudes if id(p) in positive else result.others).append((name, p))
    return result


def parameter_groups(model: nn.Module, magnitudes: Mapping[str, Any], others: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parameter groups for one optimizer, with settings for the magnitudes and settings for everything else.

    The key "kind" is "magnitudes" or "others". A group without parameters is left out.

    >>> from liebayes.nn import plus_minus
    >>> network = plus_minus(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    >>> groups = parameter_groups(network, magnitudes={"lr": 0.03}, others={"lr": 0.1})
    >>> [(group["kind"], len(group["params"]), group["lr"]) for group in groups]
    [('magnitudes', 4, 0.03), ('others', 2, 0.1)]
    """
    for name, settings in (("magnitudes", magnitudes), ("others", others)):
        if not isinstance(settings, Mapping):
            raise ValueError(f"{name} must be settings by name, such as {{'lr': 0.1}}, but got {settings!r}.")
    split = split_parameters(model)
    groups = [
        {"params": split.magnitudes, "kind": "magnitudes", **magnitudes},
        {"params": split.others, "kind": "others", **others},
    ]
    return [group for group in groups if group["params"]]
