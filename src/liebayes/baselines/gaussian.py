"""What iVON and VOGN share: a Newton-like step on the mean m and precision of a diagonal Gaussian N(m, σ²).

With N data, a prior of precision δ and damping d, both keep a curvature h of the mean loss, and σ² = 1/(N·a) with
a = h + δ/N + d. Then, with ρ = 1 − β₂ and the gradient ĝ of the mean loss at a sample θ = m + σε,

    h ← h + ρ(ĥ − h) + (a correction),   M ← β₁M + (1 − β₁)ĝ,   m ← m − α·(M/(1 − β₁ᵗ) + (δ/N)·m)/a.

They differ in ĥ and the correction. Here the state is log σ, not h: 1/a = Nσ², and a step of h is one of log a,

    a ← a·(1 + relative growth),   log σ ← log σ − ½·log(1 + relative growth),

so that no precision turns negative by rounding, as no scale of the Lie-group rules does. h itself is a − δ/N − d. The
Gaussian is the diagonal affine group on a Normal base, so samples, gradients and checkpoints are those of `LieGroupBLR`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..bases import Normal
from ..groups import DiagonalAffine, ScaleShift
from ..optim import LieGroupBLR
from ..optim.layout import Bucket
from ..optim.rule import Elements, LieGroupRule, Moved, ParameterState, Rule, Settings
from ..optim.settings import Common, is_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OF_OTHER_RULES = {"group", "base", "metric", "temperature", "scale_lr", "max_step", "initial_scale"}
_OF_OTHER_RULES |= {"curvature", "width_rate", "start_width"}

LARGEST = 1e18
"""A bound on the relative growth of a in one step, whose square float32 can hold."""


class GaussianRule(Rule):
    """A step on mean and precision; subclasses bring the estimate of the curvature."""

    prior_in_covector = False  # it has its place in the step

    def start(self, p: Tensor, settings: Settings) -> ParameterState:
        state = LieGroupRule().start(p, settings)
        del state["momentum_log_scale"]
        return state

    @abstractmethod
    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> ScaleShift:
        """(what the curvature is made of, σĝ)."""

    @abstractmethod
    def growth(self, curvature: Tensor, variance: Tensor, settings: Settings) -> Tensor:
        """By how much a grows relative to itself: a ← a·(1 + growth)."""

    def advance(self, elements: Elements, covector: ScaleShift, settings: Settings) -> Moved:
        log_scale, mean = elements.element
        width, N, beta = settings["base"].scale, settings["data_size"], settings["momentum"]
        scale = elements.element.scale * width
        gradient = covector.shift / elements.element.scale
        log_scale = log_scale - 0.5 * self.growth(covector.log_scale, scale.square(), settings).log1p()
        momentum = torch.lerp(gradient, elements.state["momentum_shift"], beta)
        variance = (ScaleShift(log_scale, mean).scale * width).square()
        direction = (momentum / (1 - beta ** (elements.steps + 1))).add(mean, alpha=settings["prior"] / N)
        mean = mean - (settings["lr"] * N) * variance * direction
        return Moved(ScaleShift(log_scale, mean), {"momentum_shift": momentum}, 0)


class GaussianBaseline(LieGroupBLR):
    """A diagonal Gaussian whose mean takes steps in units of its variance; see `IVON` for the arguments."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        data_size: int,
        momentum: float,
        scale_momentum: float,
        prior: float,
        mc_samples: int,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            params,
            DiagonalAffine(),
            Normal(),
            lr,
            data_size=data_size,
            momentum=momentum,
            scale_momentum=scale_momentum,
            mc_samples=mc_samples,
            prior=prior,
            **common,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also during training, with settings of their own or the defaults."""
        for name in sorted(_OF_OTHER_RULES & set(param_group)):
            raise ValueError(f"{type(self).__name__} does not take {name}, but got {param_group[name]!r}: leave it out.")
        super().add_param_group({**self._own_defaults, **param_group})
        try:
            # The width at the start belongs to the base, so that logarithms of scales begin at 0.
            self.param_groups[-1]["base"] = Normal(_initial_width(self.param_groups[-1]))
        except ValueError:
            self.param_groups.pop()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_own_defaults": self._own_defaults}


def precision_floor(settings: Settings) -> float:
    """δ/N + d: the part of a that is not curvature."""
    return settings["prior"] / settings["data_size"] + settings["damping"]


def _initial_width(settings: dict[str, Any]) -> float:
    for name in ("damping", "initial_curvature"):
        if not (is_number(settings, name) and settings[name] >= 0):
            raise ValueError(f"{name} must be zero or positive, but got {settings[name]!r}.")
    if callable(settings["prior"]):
        raise ValueError(f"prior must be a number, the precision, but got {settings['prior']!r}. Use AffineBLR for functions.")
    precision = settings["data_size"] * (settings["initial_curvature"] + precision_floor(settings))
    if precision == 0:
        raise ValueError("The precision would start at 0. Give a positive initial_curvature, damping or prior.")
    return 1 / math.sqrt(precision)
