"""A posterior as the prior of the next training: R(θ) = −τ·log q(θ), with the τ that q was trained with.

What was learned from earlier data is then counted once, as Bayes' rule has it: with these data and this prior, the objective
is E_q[loss] + τ·KL(q ‖ prior), and posteriors of data in parts equal those of all data where the family holds them.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..groups import DiagonalAffine
from ..rule import Family
from .combining import precision_and_mean
from .frozen import fingerprint
from .posterior import Posterior


class Gaussian(NamedTuple):
    """The prior of one tensor as mean and curvature of R."""

    mean: Tensor
    curvature: Tensor
    """τ·Λ, in the place of a prior's precision δ."""


class PosteriorPrior:
    """The families of a posterior for the parameters of a group, by identity or by name."""

    def __init__(self, posterior: Posterior, parameters: list[tuple[str, Tensor]]) -> None:
        if posterior.kept:
            raise ValueError(
                "A pruned posterior cannot be a prior: pruned weights have no density. Pass the posterior from before pruning."
            )
        if posterior.temperature == 0:
            raise ValueError(
                "prior must be a posterior whose widths were learned from data, but this one was trained at temperature 0, "
                "where widths do not depend on the data. Train with AffineBLR."
            )
        own = {id(p): name for name, p in posterior.model.named_parameters()}
        self.posterior: Posterior = posterior
        self.families: dict[Tensor, Family[Any]] = {}
        for name, p in parameters:
            family = posterior.families.get(own.get(id(p), name))
            if family is None or family.event_shape != p.shape:
                found = "no such parameter" if family is None else f"{name} of shape {tuple(family.event_shape)}"
                raise ValueError(
                    f"prior: parameter {name} of shape {tuple(p.shape)} is to be trained, but the posterior has {found}. Pass "
                    "named_parameters(); give parameters that are new a group of their own with a number as prior."
                )
            self.families[p] = family if family.device == p.device else _on(family, p.device)

    def __call__(self, theta: Tensor) -> Tensor:
        """Other priors are functions of one tensor; this one knows which."""
        raise TypeError("A posterior as prior needs to know the parameter: call `gradient`.")

    def gradient(self, p: Tensor, theta: Tensor) -> Tensor:
        """∇R(θ) for a parameter."""
        family = self.families[p]
        with torch.enable_grad():
            leaf = theta.detach().to(family.dtype).requires_grad_()
            (found,) = torch.autograd.grad(family.log_prob(leaf), leaf)
        return (-self.posterior.temperature * found).to(theta.dtype)

    def gaussian(self, p: Tensor) -> Gaussian:
        """R of a Gaussian with a width for every weight: its mean and curvature."""
        precision, mean = precision_and_mean("The prior of a parameter", self.families[p])
        dtype = self.families[p].dtype
        return Gaussian(mean.to(dtype), (self.posterior.temperature * precision).to(dtype))

    def log_width(self, p: Tensor, of_base: float) -> Tensor | None:
        """The logarithm of the prior's widths relative to a base's, where a training can start with them."""
        family = self.families[p]
        if not isinstance(family.group, DiagonalAffine) or not of_base > 0:
            return None
        return family.stddev.log() - math.log(of_base)

    def __repr__(self) -> str:
        blocks = [fingerprint(block.cpu()) for family in self.families.values() for block in family.element]
        return f"posterior {hashlib.sha256(' '.join(blocks).encode()).hexdigest()[:16]}"


def _on(family: Family[Any], device: torch.device) -> Family[Any]:
    return Family(family.group, family.base, type(family.element)(*(block.to(device) for block in family.element)))
