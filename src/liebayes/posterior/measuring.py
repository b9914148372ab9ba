"""Computations that take a pass over data: the free energy of a posterior, and the statistics of batch norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..bases.base import is_positive
from ..install import Turn
from ..prediction import FreeEnergy, slots_of, whole_number
from .inputs import call, input_batches, named_inputs, tensor_of
from .modules import evaluation_mode

if TYPE_CHECKING:
    from .posterior import Posterior


def free_energy(
    posterior: Posterior,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    prior: float,
    samples: int,
    generator: torch.Generator,
) -> FreeEnergy:
    """See `Posterior.free_energy`."""
    samples = whole_number("samples", samples, "a whole number of at least 2", 2)
    if not is_positive(prior):
        raise ValueError(f"prior must be the precision of N(0, 1/prior), a positive number, but got {prior!r}.")
    posterior._require_usable()
    pairs = [_with_targets(batch, posterior) for batch in batches]
    if not pairs:
        raise ValueError("There is nothing to evaluate: batches gave no pair of inputs and targets.")
    model, totals = posterior.model, []
    with Turn(slots_of(model).values()), torch.no_grad(), evaluation_mode(model):
        for _ in range(samples):
            with posterior._holding(posterior._drawn(generator), check=False):
                totals.append(sum(float(loss(call(model, x), y)) for x, y in pairs))
    kl = 0.0
    for family in posterior.families.values():
        spread = (family.mean.double().square() + family.stddev.double().square()).sum()
        size = family.event_shape.numel()
        kl += float(0.5 * prior * spread - family.entropy()) + 0.5 * size * math.log(2 * math.pi / prior)
    found = torch.tensor(totals, dtype=torch.float64)
    return FreeEnergy(float(found.mean()), kl, float(found.std()) / math.sqrt(samples))


def _with_targets(batch: Any, posterior: Posterior) -> tuple[Any, Any]:
    """Inputs and targets on the posterior's device; a dictionary has both."""
    device, model = posterior.device, posterior.model
    if isinstance(batch, Mapping):
        return named_inputs(batch, device, model), {n: v.to(device) if isinstance(v, Tensor) else v for n, v in batch.items()}
    x, y = (tensor_of(each, model) for each in batch)
    return (named_inputs(x, device, model) if isinstance(x, Mapping) else x.to(device)), y.to(device)


def recompute_statistics(posterior: Posterior, loader: Iterable[Any], weights: Mapping[str, Tensor]) -> None:
    """See `Posterior.recompute_statistics`."""
    model = posterior.model
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not norms:
        return
    with Turn(slots_of(model).values()), torch.no_grad(), evaluation_mode(model), posterior._holding(weights):
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
        try:
            for batch in input_batches(loader, None, posterior.device, model):
                call(model, batch)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        posterior.buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
