"""The settings of a run of `fit`, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, SupportsFloat

from ..rule import Fisher, Metric
from ..rule.metric import require_metric
from .factors import EntropyGradient

Schedule = Callable[[float], float]
"""From the fraction of the run that is done, in [0, 1), to a factor on the step size."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
}


@dataclass(frozen=True)
class Settings:
    """The settings of `fit`, where they are explained."""

    temperature: float = 1.0
    tempering: Literal["entropy", "kl"] = "entropy"
    initial_scale: float = 1.0
    metric: Metric = Fisher()
    lr: float = 0.1
    scale_lr: float | None = None
    momentum: float = 0.0
    max_step: float | None = 0.5
    max_shift: float = 100.0
    samples: int | None = None
    antithetic: bool = True
    batch_size: int | None = None
    steps: int = 2000
    schedule: str | Schedule = "cosine"
    entropy: EntropyGradient = "auto"
    tolerance: float = 1e-5
    vectorize: bool = True
    seed: int = 0
    record_every: int = 10

    def __post_init__(self) -> None:
        self._check_numbers()
        for name, kind in NUMBERS.items():
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else kind(value))
        _require_choice("tempering", self.tempering, ("entropy", "kl"))
        _require_choice("entropy", self.entropy, ("auto", "exact", "samples"))
        if isinstance(self.schedule, str):
            _require_choice("schedule", self.schedule, tuple(SCHEDULES))
        elif not callable(self.schedule):
            raise ValueError(f"schedule must be a function, but got {self.schedule!r}.")
        require_metric(self.metric)

    def _check_numbers(self) -> None:
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self) if field.name in NUMBERS}
        for name, value in given.items():
            if not (_is_number(value) or (value is None and name in OPTIONAL)):
                raise ValueError(f"{name} must be a number, but got {value!r}.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be zero or positive, but got {self.temperature}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), but got {self.momentum}.")
        for name in ("initial_scale", "lr", "scale_lr", "max_step", "max_shift"):
            value = given[name]
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, but got {value}.")
        if not math.isfinite(self.seed) or int(self.seed) != self.seed:
            raise ValueError(f"seed must be a whole number, but got {self.seed}.")
        for name in ("samples", "steps", "record_every", "batch_size"):
            count = given[name]
            if count is None:
                continue
            if not math.isfinite(count) or int(count) != count or count < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, but got {count}.")

    @property
    def unit(self) -> float:
        """E_q[loss] − τH divided by this is a KL divergence: its covectors have the same scale in every problem."""
        return self.temperature if self.temperature > 0 else 1.0

    def rate(self, step: int) -> float:
        """The schedule's factor on the step sizes of a step, from 1 on."""
        schedule = SCHEDULES[self.schedule] if isinstance(self.schedule, str) else self.schedule
        return float(schedule((step - 1) / self.steps))


OPTIONAL = ("scale_lr", "max_step", "batch_size", "samples")

NUMBERS: dict[str, type[float] | type[int]] = {
    "temperature": float,
    "initial_scale": float,
    "lr": float,
    "scale_lr": float,
    "momentum": float,
    "max_step": float,
    "max_shift": float,
    "tolerance": float,
    "samples": int,
    "batch_size": int,
    "steps": int,
    "record_every": int,
    "seed": int,
}


def _is_number(value: Any) -> bool:
    """Numbers of Python, numpy and torch that a float can hold; texts are refused."""
    try:
        return isinstance(value, SupportsFloat) and float(value) is not None
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return False


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, but got {value!r}.")
