"""The rule on the parameters of one group: draw a sample, take a covector in, advance the elements.

Each is done by the native kernel on the CPU, by Triton's on a GPU, and in torch, bucket by bucket, for what these do not take.
All agree to rounding, given the same noise; `reference` is the one to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rule import Form
from . import gpu, kernel, philox, reduction, reference
from .gradients import all_finite as finite
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


Memo = dict[int, kernel.Records]
"""The kernel's tables of parameter groups, by their identity; whoever changes samples or states must clear it."""


def draw(
    parameters: Sequence[Tensor],
    state: State,
    settings: Settings,
    noise: Noise,
    targets: Tensors,
    together: bool = True,
    memo: Memo | None = None,
) -> None:
    """θ = g·ε into `targets`."""
    counted = noise.source != "torch" and philox.supports(settings["base"])
    paths = _paths(parameters, settings, counted, memo)
    if paths.native:
        kernel.draw(_records(paths, state, settings, targets, noise.numbers, memo), settings, noise)
    for chosen in _launches(paths.gpu if noise.source == "philox" else [], state):
        into, numbers = [targets[p] for p in chosen], [noise.numbers[p] for p in chosen]
        counter = {"seed": noise.seed, "step": noise.step, "stream": noise.stream}
        gpu.sample(chosen, [state[p] for p in chosen], settings, into, numbers=numbers, **counter)
    rest = paths.torch if noise.source == "philox" else [*paths.gpu, *paths.torch]
    for bucket in reference.buckets_of(rest, state, settings, together):
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
) -> bool:
    """Adds the covector of a sample to the sums, or begins them with it. A missing gradient is 0.

    Returns whether all gradients were finite: if not, the sums are not either.
    """
    paths = _paths(parameters, settings, formulas.of_the_rule)
    blocks = len(settings["group"].at(torch.ones(1)))
    for p in [*paths.native, *paths.gpu]:
        if p not in sums or (first and sums[p][0].stride() != p.stride()):
            sums[p] = [torch.zeros_like(p, requires_grad=False) for _ in range(blocks)]
    found = finite([gradients[p] for p in [*paths.gpu, *paths.torch] if p in gradients])
    if paths.native:
        found &= kernel.fold(_records(paths, state, settings, samples, None, None), settings, gradients, sums, first)
    for chosen in _launches(paths.gpu, state):
        for block in [block for p in chosen for block in sums[p] if first]:
            block.zero_()
        gpu.fold(chosen, [state[p] for p in chosen], settings, [samples[p] for p in chosen], [sums[p] for p in chosen])
    for bucket in reference.buckets_of(paths.torch, state, settings, together):
        fetched = reference.fetch(bucket, [state[p] for p in bucket.parameters], settings)
        xi = _covector(formulas, fetched, bucket, settings, samples, gradients)
        for i, block in enumerate(xi):
            places = [_place(sums, p, i, block, bucket.flat) for p in bucket.parameters]
            bucket.write(block if first else block + bucket.read(places, block.dtype), places)
    return found


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
    memo: Memo | None = None,
) -> int | Tensor:
    """g ← g·exp(−αM♯), with the covector of one sample, or the mean of those in the sums where there are several.

    Covectors are averaged over processes, unless they are `local`. Returns how many coordinates were bounded.
    """
    paths = _paths(parameters, settings, formulas.of_the_rule, memo, gradients)
    alone = local or reduction.world_size(process_group) == 1
    fast = [*paths.native, *paths.gpu]
    for p in [p for p in fast if folds and sums[p][0].stride() != p.stride()]:
        sums[p] = [reference.in_layout_of(p, block) for block in sums[p]]
    if fast and not alone:
        if not folds:
            fold(formulas, fast, state, settings, samples, gradients, sums, first=True)
        blocks = [block for p in fast for block in sums[p]]
        for block in blocks if folds > 1 else []:
            block.div_(folds)  # this rank's own number of samples, which others need not have
        _average(blocks, process_group)
    summed = bool(folds) or not alone
    bounded: int | Tensor = 0
    count = max(folds, 1) if alone else 1  # of samples in the sums
    if paths.native:
        shares = (sums, 1 / count) if summed else (None, 1.0)
        records = _records(paths, state, settings, samples, None, memo)
        bounded += kernel.advance(records, settings, form(records.element), gradients, *shares)
        torch.autograd.graph.increment_version(paths.native)  # which torch has not seen written
        for each in records.states:
            each["steps"] += 1
    for chosen in _launches(paths.gpu, state):
        covectors: dict[str, Any] = {"samples": [samples[p] for p in chosen]}
        if summed:
            covectors = {"sums": [sums[p] for p in chosen], "folds": count}
        bounded = bounded + gpu.step(chosen, [state[p] for p in chosen], settings, **covectors)
    for bucket in reference.buckets_of(paths.torch, state, settings, together):
        states = [state[p] for p in bucket.parameters]
        fetched = reference.fetch(bucket, states, settings)
        if folds:
            xi = _mean_of_sums(fetched.element, bucket, sums, folds)
        else:
            xi = _covector(formulas, fetched, bucket, settings, samples, gradients)
        if not alone:
            xi = type(fetched.element)(*reduction.mean_over_ranks(list(xi), process_group))
        bounded = bounded + formulas.advance(fetched, bucket, states, settings, form(fetched.element), xi)
    for p in [*paths.gpu, *paths.torch]:
        state[p]["steps"] += 1
    return bounded


def all_finite(parameters: Sequence[Tensor], settings: Settings, gradients: Tensors, memo: Memo) -> bool:
    """Whether no gradient has an infinite or NaN value."""
    known = memo.get(id(settings))
    if known is not None and known.serve(parameters, settings):
        return kernel.has_finite(known, gradients)
    memo.pop(id(settings), None)
    return finite([gradients[p] for p in parameters])


class _Paths(NamedTuple):
    native: Sequence[Tensor]
    gpu: Sequence[Tensor]
    torch: Sequence[Tensor]
    records: kernel.Records | None = None
    """The table of the native kernel, where it is known."""


def _paths(
    parameters: Sequence[Tensor], settings: Settings, fast: bool, memo: Memo | None = None, gradients: Tensors | None = None
) -> _Paths:
    """Who does the work on each parameter."""
    if not fast:
        return _Paths([], [], parameters)
    known = None if memo is None else memo.get(id(settings))
    drawing = gradients is None
    if known is not None and kernel.takes(settings) and known.serve(parameters, settings, gradients, drawing):
        return _Paths(parameters, [], [], known)
    if memo is not None:
        memo.pop(id(settings), None)
    native = [p for p in parameters if kernel.reads(p)] if kernel.takes(settings) else []
    if len(native) == len(parameters):
        return _Paths(native, [], [])
    others = [p for p in parameters if not kernel.reads(p)] if native else parameters
    on_gpu = [gpu.supports(p, settings) for p in others]
    pairs = list(zip(others, on_gpu, strict=True))
    return _Paths(native, [p for p, yes in pairs if yes], [p for p, yes in pairs if not yes])


def _records(
    paths: _Paths, state: State, settings: Settings, samples: Tensors, numbers: Mapping[Tensor, int] | None, memo: Memo | None
) -> kernel.Records:
    if paths.records is not None:
        return paths.records
    if numbers is None and any(samples[p].shape != p.shape or samples[p].dtype != p.dtype for p in paths.native):
        raise RuntimeError("A parameter has another shape or dtype than its sample. Change models after a step, not before.")
    if numbers is None and any(samples[p].stride() != p.stride() for p in paths.native):  # since the sample was drawn
        for p in paths.native:
            reference.follow_layout(p, state[p])
        samples = {p: reference.in_layout_of(p, samples[p]) for p in paths.native}
    made = kernel.Records(paths.native, state, settings, samples, numbers or dict.fromkeys(paths.native, 0))
    if memo is not None and numbers is not None:
        memo[id(settings)] = made
    return made


def _launches(parameters: Sequence[Tensor], state: State) -> Iterator[list[Tensor]]:
    """Parameters that one launch can serve: of one device and age."""
    kinds: dict[Any, list[Tensor]] = {}
    for p in parameters:
        kinds.setdefault((p.device, state[p]["steps"]), []).append(p)
    yield from kinds.values()


def _covector(formulas: Formulas, fetched: Any, bucket: Any, settings: Settings, samples: Tensors, gradients: Tensors) -> Any:
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
