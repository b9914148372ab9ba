"""The rule on the parameters of one group: draw a sample, take a covector in, advance the elements.

Each is done by the native kernel for the parameters it takes, and in torch, bucket by bucket, for the others. The two agree to
rounding, given the same noise; `reference` is the one to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rule import Form
from . import kernel, philox, reduction, reference
from .noise import Noise
from .reference import ParameterState, Settings

State = Mapping[Tensor, ParameterState]
Tensors = Mapping[Tensor, Tensor]
Sums = dict[Tensor, list[Tensor]]
"""Covectors of several samples, added up: one tensor for each block of a parameter's element."""


class Formulas(NamedTuple):
    """What is done to a bucket: that of the rule, or of a baseline, which shares everything else."""

    covector: Callable[..., Any] = reference.covector
    advance: Callable[..., Any] = reference.advance

    @property
    def of_the_rule(self) -> bool:
        """Whether these are the formulas that the kernel has."""
        return self == Formulas()


def draw(
    parameters: Sequence[Tensor], state: State, settings: Settings, noise: Noise, targets: Tensors, together: bool = True
) -> None:
    """θ = g·ε into `targets`."""
    known = noise.source != "torch" and philox.supports(settings["base"])
    fast, slow = _split(parameters, settings) if known else ([], parameters)
    if fast:
        kernel.draw(fast, state, settings, noise, targets)
    for bucket in reference.buckets_of(slow, state, settings, together):
        fetched = reference.fetch(bucket, [state[p] for p in bucket.parameters], settings)
        bucket.write(reference.draw(fetched, bucket, settings, noise), [targets[p] for p in bucket.parameters])


def fold(
    formulas: Formulas,
    parameters: Sequence[Tensor],
    state: State,
    settings: Settings,
    samples: Tensors,
    gradients: Tensors,
    sums: Sums,
    first: bool,
    together: bool = True,
) -> None:
    """Adds the covector of a sample to the sums, or begins them with it. A missing gradient is 0."""
    fast, slow = _split(parameters, settings) if formulas.of_the_rule else ([], parameters)
    if fast:
        blocks = len(type(settings["group"].at(torch.ones(1)))._fields)
        for p in fast:
            if p not in sums:
                sums[p] = [torch.zeros_like(p, requires_grad=False) for _ in range(blocks)]
        kernel.fold(fast, state, settings, samples, gradients, sums, first)
    for bucket in reference.buckets_of(slow, state, settings, together):
        fetched = reference.fetch(bucket, [state[p] for p in bucket.parameters], settings)
        xi = _covector(formulas, fetched, bucket, settings, samples, gradients)
        for i, block in enumerate(xi):
            places = [_place(sums, p, i, block, bucket.flat) for p in bucket.parameters]
            bucket.write(block if first else block + bucket.read(places, block.dtype), places)


def advance(
    formulas: Formulas,
    parameters: Sequence[Tensor],
    state: State,
    settings: Settings,
    form: Callable[[Any], Form[Any]],
    samples: Tensors,
    gradients: Tensors,
    sums: Sums,
    folds: int,
    process_group: Any,
    local: bool,
    together: bool = True,
) -> int | Tensor:
    """g ← g·exp(−αM♯), with the covector of one sample, or the mean of those in the sums where there are several.

    Covectors are averaged over processes, unless they are `local`. Returns how many coordinates were bounded.
    """
    fast, slow = _split(parameters, settings) if formulas.of_the_rule else ([], parameters)
    alone = local or reduction.world_size(process_group) == 1
    bounded: int | Tensor = 0
    if fast:
        if not alone:
            if not folds:
                fold(formulas, fast, state, settings, samples, gradients, sums, first=True)
            _average([block for p in fast for block in sums[p]], process_group)
        from_sums = None if alone and not folds else sums
        element = settings["group"].at(torch.ones(1))
        bounded += kernel.advance(
            fast, state, settings, form(element), samples, gradients, from_sums, share=1 / max(folds, 1)
        )
    for bucket in reference.buckets_of(slow, state, settings, together):
        states = [state[p] for p in bucket.parameters]
        fetched = reference.fetch(bucket, states, settings)
        if folds:
            xi = _mean_of_sums(fetched.element, bucket, sums, folds)
        else:
            xi = _covector(formulas, fetched, bucket, settings, samples, gradients)
        if not alone:
            xi = type(fetched.element)(*reduction.mean_over_ranks(list(xi), process_group))
        bounded = bounded + formulas.advance(fetched, bucket, states, settings, form(fetched.element), xi)
    for p in parameters:
        state[p]["steps"] += 1
    return bounded


def _split(parameters: Sequence[Tensor], settings: Settings) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The parameters of the kernel, and the others."""
    if not kernel.takes(settings):
        return [], parameters
    fast = [p for p in parameters if kernel.reads(p)]
    return fast, [] if len(fast) == len(parameters) else [p for p in parameters if not kernel.reads(p)]


def _covector(
    formulas: Formulas, fetched: Any, bucket: Any, settings: Settings, samples: Tensors, gradients: Tensors
) -> Any:
    chosen = bucket.parameters
    return formulas.covector(
        fetched.element, bucket, [samples[p] for p in chosen], [gradients.get(p) for p in chosen], settings
    )


def _place(sums: Sums, p: Tensor, index: int, block: Tensor, flat: bool) -> Tensor:
    blocks = sums.setdefault(p, [])
    if len(blocks) == index:
        blocks.append(torch.zeros_like(p, dtype=block.dtype, requires_grad=False) if flat else torch.zeros_like(block))
    return blocks[index]


def _mean_of_sums(element: Any, bucket: Any, sums: Sums, folds: int) -> Any:
    dtype = reference.working_dtype(bucket.parameters[0])
    totals = [bucket.read([sums[p][i] for p in bucket.parameters], dtype) for i in range(len(element))]
    return type(element)(*(total / folds for total in totals))


def _average(blocks: list[Tensor], process_group: Any) -> None:
    for block, mean in zip(blocks, reduction.mean_over_ranks(blocks, process_group), strict=True):
        block.copy_(mean)
