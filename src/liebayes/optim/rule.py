"""What one step does to the elements of a bucket: their first state, the covector of a sample, the update.

`LieGroupRule` is the rule of the paper (Alg. 1–3); every formula in it is one of `rule/`. The baselines bring rules of their
own and share everything else. A rule reads tensors and returns tensors; a store fetches and writes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..groups import LieGroup
from ..rule import Adaptive, Form, SecondMoment, State, differential, update
from .buckets import Bucket
from .layout import Layout, layout_for, working_dtype

Settings = dict[str, Any]
ParameterState = dict[str, Any]
"""Tensors in the layout of the parameter, by name, and its number of `steps`."""


class Elements(NamedTuple):
    """The elements of a bucket's parameters, as one."""

    layout: Layout
    point: Tensor
    element: Any
    state: dict[str, Tensor]
    steps: int
    """How many steps these parameters have taken."""


class Moved(NamedTuple):
    """What an update leaves."""

    element: Any
    memory: dict[str, Tensor]
    """The new values of states beside the element: momenta, second moments."""
    bounded: int | Tensor
    """How many coordinates `max_step` has bounded."""


class Rule(ABC):
    """The formulas of a learning rule."""

    in_kernel: ClassVar[bool] = False
    """Whether the native kernel has these formulas."""

    prior_in_covector: ClassVar[bool] = True
    """Whether the gradient that `covector` gets has the prior's ∇R/N in it."""

    def observing(self, parameters: list[Tensor], *, again: bool) -> AbstractContextManager[None]:
        """A block around forward passes, for rules that need more of them than the gradient; `again`: with the last sample."""
        return nullcontext()

    def require_observations(self, parameters: list[Tensor]) -> None:  # noqa: B027
        """Refuses gradients that came without what the rule needs beside them, before anything is changed."""

    def forget_observations(self) -> None:  # noqa: B027
        """Called by zero_grad."""

    @abstractmethod
    def start(self, p: Tensor, settings: Settings) -> ParameterState:
        """The state of a parameter before its first step."""

    @abstractmethod
    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> Any:
        """The covector at a sample θ, from the gradient of the mean loss there."""

    @abstractmethod
    def advance(self, elements: Elements, covector: Any, settings: Settings) -> Moved:
        """One step along a covector."""


class LieGroupRule(Rule):
    """g ← g·exp(−αM♯) for any group, base and metric (Alg. 1–3)."""

    in_kernel = True

    def __init__(self) -> None:
        self._forms: dict[Any, Form[Any]] = {}

    def start(self, p: Tensor, settings: Settings) -> ParameterState:
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

    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> Any:
        """① + τ/N·② (line 6 of Alg. 1–3)."""
        temperature = settings["temperature"] / settings["data_size"]
        return differential(settings["group"], elements.element, theta, gradient, temperature)

    def advance(self, elements: Elements, covector: Any, settings: Settings) -> Moved:
        group, metric, element, state = settings["group"], settings["metric"], elements.element, elements.state
        names, kind = element._fields, type(element)

        def remembered(what: str) -> Any:
            return kind(*(state[f"{what}_{name}"] for name in names))

        memory: Any = ()
        if isinstance(metric, Adaptive):
            memory = SecondMoment(remembered("second_moment"), 1 - metric.beta**elements.steps)
        taken = update(
            group,
            self.form(settings, element),
            State(element, remembered("momentum"), memory),
            covector,
            lr=per_block(group, element, settings["lr"], settings["lr"] * settings["scale_lr_ratio"]),
            momentum=per_block(group, element, settings["momentum"], settings["scale_momentum"]),
            max_step=settings["max_step"],
        )
        results = {f"momentum_{name}": block for name, block in zip(names, taken.state.momentum, strict=True)}
        if isinstance(metric, Adaptive):
            results |= {f"second_moment_{name}": block for name, block in zip(names, taken.state.metric.mean, strict=True)}
        return Moved(taken.state.element, results, taken.bounded)

    def form(self, settings: Settings, element: Any) -> Form[Any]:
        """The metric's form, computed once for a group and base; for matrix groups once for each shape."""
        group, base, metric = settings["group"], settings["base"], settings["metric"]
        shape = None if group.elementwise else group.event_shape(element)
        key = (group, id(base), metric, shape)
        if key not in self._forms:
            self._forms[key] = metric.on(group, base, element)
        return self._forms[key]


def per_block(group: LieGroup[Any], element: Any, of_shift: float, of_others: float) -> Any:
    """One number for the shift and another for every other block. A group with a single block has the shift's."""
    if len(element) == 1 or of_shift == of_others:
        return of_shift
    return type(element)(*(of_shift if name == group.shift_block else of_others for name in element._fields))
