"""Posteriors from posteriors: moved, around another point, with data counted several times, two merged into one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..bases import Normal
from ..bases.base import is_positive
from ..groups import DiagonalAffine
from ..groups.diagonal_affine import ScaleShift
from ..posterior_file import Contents
from ..rule import Family


def moved(tensors: Mapping[str, Tensor], device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Tensors on another device; floating-point ones in another precision."""
    return {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in tensors.items()}


def on(family: Family[Any], device: torch.device | str | None, dtype: torch.dtype | None) -> Family[Any]:
    """A member on another device, in another precision."""
    return Family(family.group, family.base, type(family.element)(**moved(family.element._asdict(), device, dtype)))


def centred(contents: Contents, values: Mapping[str, Tensor]) -> Contents:
    """The families around other values, by name."""
    if not isinstance(values, Mapping):
        raise ValueError(f"A posterior is centred at a module, or at tensors by name, but got {type(values).__name__}.")
    missing = sorted(set(contents.families) - set(values))
    if missing:
        raise ValueError(f"A posterior is centred at values of all its parameters, but these are missing: {missing}.")

    def others(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        here = {name: value for name, value in own.items() if name in values}
        return {**own, **{name: values[name].detach().to(own.device, own.dtype, copy=True) for name, own in here.items()}}

    families = {name: recentred(name, family, values[name]) for name, family in contents.families.items()}
    return contents._replace(families=families, fixed=others(contents.fixed), buffers=others(contents.buffers))


def recentred(name: str, family: Family[Any], point: Tensor) -> Family[Any]:
    """The member with this point: its shift, or its mean where a scale is all there is."""
    point = point.detach().to(family.device, family.dtype, copy=True)
    if point.shape != family.event_shape:
        raise ValueError(f"{name} has the shape {tuple(family.event_shape)}, but the new values have {tuple(point.shape)}.")
    if hasattr(family.element, "shift"):
        return Family(family.group, family.base, family.element._replace(shift=point))
    try:
        mean = family.base.mean
    except ValueError:  # a base without one: the point is the scale
        mean = 1.0
    return Family(family.group, family.base, family.group.at(point / mean))


def merged(a: Contents, b: Contents, prior: float | Contents) -> Contents:
    """q₁·q₂ over the prior, for Gaussians with a precision for every weight."""
    if differing := _differing(a, b):
        raise ValueError(f"Only one of the posteriors is over {differing}; both must be.")
    if dict(a.frozen) != dict(b.frozen):
        raise ValueError(
            "The posteriors were trained beside different frozen weights; only posteriors beside the same weights can be "
            "merged."
        )
    if a.kept or b.kept:
        raise ValueError("Pruned posteriors cannot be merged. Merge first, then prune.")
    if a.temperature != b.temperature or a.temperature == 0:
        raise ValueError(
            f"Only posteriors of the same positive temperature can be merged, but theirs are {a.temperature:g} and "
            f"{b.temperature:g}."
        )
    _require_prior(a, prior)
    found: dict[str, Family[Any]] = {}
    for name, family in a.families.items():
        (one, m1), (two, m2) = (precision_and_mean(name, contents.families[name]) for contents in (a, b))
        none, m0 = _of_prior(name, a, prior)
        total = one + two - none
        if not bool((total > 0).all()):
            raise ValueError(
                f"{name} has weights whose prior is more precise than both posteriors together. Give the prior they were "
                "trained with, and train until widths are learned."
            )
        mean = (one * m1 + two * m2 - none * m0) / total
        found[name] = _with(family, total, mean)
    return a._replace(families=found)


def counted(contents: Contents, times: float, prior: float | Contents) -> Contents:
    """The same point with the precisions Λ₀ + times·(Λ − Λ₀)."""
    if isinstance(times, bool) or not is_positive(times):
        raise ValueError(f"times must be a positive number, but got {times!r}.")
    if contents.kept or contents.temperature == 0:
        raise ValueError("Counting data several times needs a positive temperature and a posterior that is not pruned.")
    _require_prior(contents, prior)
    found: dict[str, Family[Any]] = {}
    for name, family in contents.families.items():
        precision, mean = precision_and_mean(name, family)
        before, _ = _of_prior(name, contents, prior)
        # Widths are learned with noise: a weight that the data left open may come out a little wider than its prior.
        found[name] = _with(family, before + times * (precision - before).clamp_min(0), mean)
    return contents._replace(families=found)


def _differing(a: Contents, b: Contents) -> str:
    """A parameter that only one of two posteriors has, with its shape; otherwise nothing."""
    one, two = ({f"{name} of shape {tuple(f.event_shape)}" for name, f in c.families.items()} for c in (a, b))
    return min(one ^ two, default="")


def _require_prior(contents: Contents, prior: float | Contents) -> None:
    if isinstance(prior, Contents):
        if differing := _differing(prior, contents):
            raise ValueError(f"The prior must be over the same parameters as the posterior, but only one is over {differing}.")
    elif isinstance(prior, bool) or not (is_positive(prior) or prior == 0):
        raise ValueError(
            f"prior must be the precision used in training, or the posterior that was the prior, but got {prior!r}."
        )


def _of_prior(name: str, contents: Contents, prior: float | Contents) -> tuple[Tensor, Tensor]:
    """Λ₀ and m₀ of what a posterior was trained with."""
    if isinstance(prior, Contents):
        return precision_and_mean(name, prior.families[name])
    shift = contents.families[name].element.shift.double()
    return torch.full_like(shift, prior / contents.temperature), torch.zeros_like(shift)


def _with(family: Family[Any], precision: Tensor, mean: Tensor) -> Family[Any]:
    log_scale = -0.5 * precision.log() - math.log(family.base.stddev)
    return Family(family.group, family.base, ScaleShift(log_scale.to(family.dtype), mean.to(family.dtype)))


def precision_and_mean(name: str, family: Family[Any]) -> tuple[Tensor, Tensor]:
    """Λ and m of a Gaussian with a width for every number, in float64."""
    if not (isinstance(family.group, DiagonalAffine) and isinstance(family.base, Normal)):
        raise ValueError(
            f"{name} is of {family.group} on {family.base}, but this is for Gaussians with a width for every weight: "
            "DiagonalAffine on Normal, such as AffineBLR and IVON learn."
        )
    log_scale, shift = family.element.log_scale.double(), family.element.shift.double()
    return (-2 * (log_scale + math.log(family.base.scale))).exp(), shift
