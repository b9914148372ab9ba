"""One bucket of parameters through one step of the rule, in torch: draw, pull the gradient back, update.

Every formula is the rule's. What happens here is fetching its arguments from parameters and states, and storing its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..bases import Base
from ..rule import Adaptive, Family, Form, SecondMoment, State, differential, update
from . import kernel, philox
from .buckets import SIZE, Bucket, buckets
from .layout import Layout, layout_for
from .noise import Noise
from .sharding import draw_like, full, is_sharded

Settings = dict[str, Any]
ParameterState = dict[str, Any]
"""Tensors in the layout of the parameter, by name, and its number of `steps`."""


def working_dtype(p: Tensor) -> torch.dtype:
    """The precision of states and formulas: float32, or the parameter's own if that is wider."""
    return torch.float32 if p.dtype.itemsize < 4 else p.dtype


def follow_layout(p: Tensor, state: ParameterState) -> None:
    """Gives a parameter's state the layout that the parameter has now."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == p.shape and value.stride() != p.stride() and not is_sharded(p):
            state[name] = torch.empty_like(p, dtype=value.dtype, requires_grad=False).copy_(value)


def follow(name: str, p: Tensor, state: ParameterState, settings: Settings, start: Callable[..., ParameterState]) -> None:
    """Gives a parameter's state the blocks, precision and layout that the parameter needs now. Another shape is refused."""
    elementwise = settings["group"].elementwise
    needed = start(torch.ones(1, dtype=p.dtype) if elementwise else p, settings)
    if "remainder" not in needed:  # of a narrower dtype that the parameter had: the point is what the module shows
        state.pop("remainder", None)
    for key, like in [(key, like) for key, like in needed.items() if isinstance(like, Tensor)]:
        value, shape = state.get(key), p.shape if elementwise else like.shape
        if value is None and key == "remainder":  # the parameter had a wider dtype, which rounded nothing away
            value = torch.zeros_like(p, dtype=like.dtype, requires_grad=False)
        if value is None or value.shape != shape:
            found = "nothing" if value is None else f"the shape {tuple(value.shape)}"
            raise ValueError(
                f"The parameter {name} of shape {tuple(p.shape)} needs a state {key} of shape {tuple(shape)}, but has "
                f"{found}. Load a checkpoint of the same model; after a change of shape, build a new optimizer."
            )
        state[key] = value.to(like.dtype)
    follow_layout(p, state)


def in_layout_of(p: Tensor, block: Tensor) -> Tensor:
    """A sample, or a block of a covector, in the layout, dtype and device that the parameter has now."""
    dtype = working_dtype(p)
    if block.shape != p.shape or block.stride() == p.stride() or is_sharded(p):
        return block.to(p.device, dtype)
    return torch.empty_like(p, dtype=dtype, requires_grad=False).copy_(block)


def start_state(p: Tensor, settings: Settings) -> ParameterState:
    """The state of a parameter before its first step."""
    point = p.detach().to(working_dtype(p))
    layout = layout_for(settings["group"], settings["base"], p.dtype)
    state: ParameterState = dict(layout.start(point))
    element = layout.element(point, state)
    for name, block in zip(element._fields, element, strict=True):
        state[f"momentum_{name}"] = torch.zeros_like(block)
        if isinstance(settings["metric"], Adaptive):
            state[f"second_moment_{name}"] = torch.zeros_like(block)
    state["steps"] = 0
    return state


def buckets_of(
    parameters: Sequence[Tensor], state: Mapping[Tensor, Any], settings: Settings, together: bool
) -> Iterator[Bucket]:
    """Parameters that can be worked on together: of one dtype, device and age, in their order."""
    runs: list[list[Tensor]] = []
    kind: Any = None
    for p in parameters:
        this = (p.dtype, p.device, state[p]["steps"])
        if not runs or this != kind:
            runs.append([])
        kind = this
        runs[-1].append(p)
    for run in runs:
        yield from buckets(run, flat=settings["group"].elementwise, together=together)


class Fetched(NamedTuple):
    """What a bucket knows of its elements."""

    layout: Layout
    point: Tensor
    element: Any
    state: dict[str, Tensor]


def fetch(bucket: Bucket, states: list[ParameterState], settings: Settings) -> Fetched:
    """The elements of a bucket's parameters, as one."""
    first = bucket.parameters[0]
    dtype = working_dtype(first)
    names = [name for name, value in states[0].items() if isinstance(value, Tensor)]
    state = {name: bucket.read([s[name] for s in states], dtype) for name in names}
    point = bucket.read([p.detach() for p in bucket.parameters], dtype)
    layout = layout_for(settings["group"], settings["base"], first.dtype)
    return Fetched(layout, point, layout.element(point, state), state)


def draw(fetched: Fetched, bucket: Bucket, settings: Settings, noise: Noise) -> Tensor:
    """θ = g·ε. Noise is drawn parameter by parameter, so that it does not depend on what shares a bucket."""
    like = fetched.point

    def sample(p: Tensor, size: tuple[int, ...], start: int) -> Tensor:
        if is_counted(p, settings, noise):
            return counted(p, settings["base"], noise, size, start)
        generator = noise.generator(like.device)
        return settings["base"].sample(size, generator=generator, dtype=like.dtype, device=like.device)

    def share(p: Tensor, size: tuple[int, ...]) -> Tensor:
        return draw_like(p, partial(sample, p), SIZE) if is_sharded(p) else sample(p, size, bucket.start)

    epsilon = [share(p, size) for p, size in zip(bucket.parameters, bucket.sizes, strict=True)]
    return fetched.layout.sample(
        settings["group"], fetched.point, fetched.element, epsilon[0] if len(epsilon) == 1 else torch.cat(epsilon)
    )


def is_counted(p: Tensor, settings: Settings, noise: Noise) -> bool:
    """Whether a parameter has noise of its own, from the kernel's sources, and not torch's."""
    return (
        noise.source != "torch"
        and p.dtype == torch.float32
        and (noise.source == "philox" or p.device.type == "cpu")
        and philox.supports(settings["base"])
    )


def counted(p: Tensor, base: Base, noise: Noise, size: tuple[int, ...], start: int) -> Tensor:
    """The ε of a parameter, from its own stream."""
    count, number = math.prod(size), noise.numbers[p]
    if p.device.type == "cpu" and native.available():
        return kernel.noise_of(base, count, noise, number, start).view(size)
    return philox.draw(
        base, count, seed=noise.seed, tensor=number, step=noise.step, stream=noise.stream, device=p.device, start=start
    ).view(size)


def covector(element: Any, bucket: Bucket, samples: list[Tensor], gradients: list[Tensor | None], settings: Settings) -> Any:
    """① + τ/N·② at the samples, from the loss's gradients there, with the prior's ∇R/N (line 6 of Alg. 1–3)."""
    dtype = working_dtype(bucket.parameters[0])
    theta = bucket.read(samples, dtype)
    pairs = zip(bucket.parameters, gradients, strict=True)
    gradient = bucket.read([torch.zeros_like(p) if g is None else g for p, g in pairs], dtype)
    if settings["maximize"]:
        gradient = -gradient
    data_size, prior = settings["data_size"], settings["prior"]
    if callable(prior):
        gradient = gradient.add(bucket.read([_slope(prior, sample) for sample in samples], dtype), alpha=1 / data_size)
    elif prior:
        gradient = gradient.add(theta, alpha=prior / data_size)
    return differential(settings["group"], element, theta, gradient, settings["temperature"] / data_size)


def _slope(prior: Callable[..., Any], theta: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = prior(leaf)
        if not (isinstance(value, Tensor) and value.requires_grad):
            came = "a tensor without a gradient" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ValueError(
                f"A prior that is a function must return a tensor that depends on its argument, but returned {came}. Compute "
                "it with torch operations, without item() or detach()."
            )
        return torch.autograd.grad(value.sum(), leaf)[0]


def advance(
    fetched: Fetched, bucket: Bucket, states: list[ParameterState], settings: Settings, form: Form[Any], xi: Any
) -> int | Tensor:
    """g ← g·exp(−αM♯) with the covector ξ; returns how many coordinates were bounded."""
    element = fetched.element
    names, kind = element._fields, type(element)
    lr, beta = settings["lr"], settings["momentum"]
    if len(names) > 1:  # one number for the shift, another for everything else
        scale_lr, scale_beta = lr * settings["scale_lr_ratio"], settings["scale_momentum"]
        lr = kind(*(lr if name == "shift" else scale_lr for name in names))
        beta = kind(*(beta if name == "shift" else scale_beta for name in names))
    memory: Any = ()
    if isinstance(settings["metric"], Adaptive):
        weight = 1 - settings["metric"].beta ** states[0]["steps"]
        memory = SecondMoment(kind(*(fetched.state[f"second_moment_{name}"] for name in names)), weight)
    momentum = kind(*(fetched.state[f"momentum_{name}"] for name in names))
    taken = update(
        settings["group"], form, State(element, momentum, memory), xi, lr=lr, momentum=beta, max_step=settings["max_step"]
    )
    point, results = fetched.layout.store(fetched.point, taken.state.element, bucket.parameters[0].dtype)
    results |= {f"momentum_{name}": block for name, block in zip(names, taken.state.momentum, strict=True)}
    if isinstance(settings["metric"], Adaptive):
        results |= {f"second_moment_{name}": block for name, block in zip(names, taken.state.metric.mean, strict=True)}
    for name, values in results.items():
        bucket.write(values, [state[name] for state in states])
    bucket.write(point, [p.detach() for p in bucket.parameters])
    return taken.bounded


def family(p: Tensor, state: ParameterState, settings: Settings) -> Family[Any]:
    """The member of its family that a parameter has reached, as a copy; shards are gathered."""
    layout = layout_for(settings["group"], settings["base"], p.dtype)
    point = full(p.detach()).to(working_dtype(p), copy=True)
    copies = {name: full(value).clone() for name, value in state.items() if isinstance(value, Tensor)}
    return Family(settings["group"], settings["base"], layout.family_element(point, copies))
