"""The rule as a `torch.optim.Optimizer` (Alg. 1–3 for any group and base): settings, checkpoints, the posterior.

How a step goes is in `sampling`; the work on parameters is done by stores (`store`, `native_store`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .. import distributed
from ..bases import Base
from ..groups import LieGroup
from ..posterior import Posterior, recentred, unwrap
from ..rule import Absorbed, Family, Metric
from .checkpoint import own_precision, with_own_objects
from .noise import Source, choose_source
from .protocol import Phase
from .rule import GaussNewtonRule, LieGroupRule, Rule
from .sampling import SamplingOptimizer, in_turn
from .settings import (
    OBJECTS,
    AffineOptions,
    Common,
    Curvature,
    Prior,
    named,
    prepare,
    refuse_model,
    refuse_unknown,
    whole_number,
    written,
)
from .store import family_of, fit_state, starting_state

if TYPE_CHECKING:
    from typing_extensions import Self


class LieGroupBLR(SamplingOptimizer):
    """The Lie-group Bayesian learning rule for any group and base.

    The loss is the mean over a minibatch. Between steps the module holds one point of the posterior: the shift of the
    additive and affine groups, the mean g·E[ε] of the multiplicative group.

    Args:
        params: parameters, or dictionaries of them with settings of their own: groups, bases and all options up to
            `initial_scale`, but for `mc_samples`, and `maximize` may differ from one to the next, which is the Cartesian
            product of Sec. 3.1. The other options belong to the whole optimizer.
        group: the Lie group that moves the base.
        base: the base distribution, in the units of the parameters.
        lr: the step size α.
        data_size: N, the number of training data; the entropy and the prior count 1/N of the mean loss.
        scale_lr: the step size of everything that is not a shift, `lr` by default; kept as a multiple of `lr`, so that
            schedulers move both.
        temperature: τ.
        momentum: β, for affine groups the β₁ of the shift.
        scale_momentum: the β₂ of everything else; `momentum` by default.
        mc_samples: Monte Carlo samples per step.
        prior: the regulariser R: a precision δ for R(θ) = ½δ‖θ‖², a function from one parameter tensor to a scalar, or the
            `Posterior` of an earlier training, R = −τ·log q, with whose widths this one then starts. None, with
            "gauss-newton": δ = 0.7, and widths of at most the size that each tensor started with.
        metric: `Absorbed()`, `Fisher()` or `Adaptive()`.
        max_step: the bound on one step in the algebra.
        initial_scale: a factor on the base: the width the posterior starts with.
        curvature: where the covector of scales comes from: "samples" (Alg. 3), or "gauss-newton", squares of gradients at the
            level of the exact covector (docs/curvature.md), which learns widths some hundred times faster. With
            "gauss-newton" a step has a length of its own, `lr` times the `step_unit` of its tensor, whatever the loss, N, the
            base and the widths are; `scale_lr`, `scale_momentum`, `metric` and `max_step` have no part in it.
        width_rate: with "gauss-newton", the share of a new step in the widths; they are learned in some 1/`width_rate` steps.
        start_width: with "gauss-newton", the width at the start relative to the size of each tensor; None: the base's own.
        seed: fixes all noise.
        noise: where noise comes from: "xoshiro" (the native kernel, fastest), "philox" (the same with and without the
            kernel, to rounding) or "torch"; the fastest there is by default.
        maximize: ascend the objective instead.
        nonfinite: what to do about gradients, or a step's result, that are not finite: "raise", or "skip" the step. Parameters
            and states stay as they were.
        foreach: work on many parameters at once; the same numbers as one by one, to rounding.
        process_group: the processes to average covectors over; all of them by default where torch.distributed runs.

    >>> model = nn.Linear(3, 1)
    >>> from liebayes.groups import DiagonalAffine
    >>> from liebayes.bases import StudentT
    >>> optimizer = LieGroupBLR(model.parameters(), DiagonalAffine(), StudentT(5, 0.01), lr=0.1, data_size=100)
    >>> with optimizer.sampled():
    ...     loss = model(torch.ones(8, 3)).square().mean()
    >>> loss.backward()
    >>> optimizer.step()
    """

    rule_type: ClassVar[type[Rule]] = LieGroupRule

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        known = inspect.signature(cls.__init__).parameters
        others = {name for name, parameter in known.items() if parameter.kind is parameter.VAR_KEYWORD}
        if others <= {"common", "options"}:  # otherwise a user's subclass takes more
            more = AffineOptions if "options" in others else Common if others else type(None)
            options = {*known, *getattr(more, "__annotations__", ())} - {"self", "params", *others}
            refuse_unknown(cls.__name__, kwargs.keys() - {"params"} - options, options)
        return super().__new__(cls)

    def __init__(
        self,
        params: Iterable[Any],
        group: LieGroup[Any],
        base: Base,
        lr: float,
        *,
        data_size: int,
        scale_lr: float | None = None,
        temperature: float = 1.0,
        momentum: float = 0.9,
        scale_momentum: float | None = None,
        mc_samples: int = 1,
        prior: Prior | None = 0.0,
        metric: Metric | None = None,
        max_step: float | None = None,
        initial_scale: float = 1.0,
        curvature: Curvature = "samples",
        width_rate: float = 0.005,
        start_width: float | None = None,
        seed: int = 0,
        noise: Source | None = None,
        maximize: bool = False,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool = True,
        process_group: Any = None,
    ) -> None:
        refuse_model(params)
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f'nonfinite must be "raise" or "skip", but got {nonfinite!r}.')
        self.mc_samples: int = whole_number("mc_samples", mc_samples, "a whole number of at least 1", 1, 1 << 32)
        self.nonfinite: Literal["raise", "skip"] = nonfinite
        self.foreach = foreach
        self.process_group: Any = process_group
        self.seed: int = whole_number("seed", seed)
        self._reset_counters()
        self.param_groups: list[dict[str, Any]] = []
        self._clear()
        super().__init__(
            params,
            {
                "lr": lr,
                "scale_lr": scale_lr,
                "data_size": data_size,
                "temperature": temperature,
                "momentum": momentum,
                "scale_momentum": scale_momentum,
                "prior": prior,
                "metric": Absorbed() if metric is None else metric,
                "max_step": max_step,
                "initial_scale": initial_scale,
                "curvature": curvature,
                "width_rate": width_rate,
                "start_width": start_width,
                "maximize": maximize,
                "group": group,
                "base": base,
            },
        )
        self.noise: Source = choose_source(noise, on_cpu=all(p.is_cpu for p in self._trained()))

    def _reset_counters(self) -> None:
        self.steps: int = 0
        self.skipped: int = 0
        self.clock: int = 0
        self.bounded: int | Tensor = 0

    def rule_for(self, settings: dict[str, Any]) -> Rule:
        return self._gauss_newton if settings["curvature"] == "gauss-newton" else self.rule

    def _clear(self) -> None:
        super()._clear()
        self._gauss_newton = GaussNewtonRule()

    _own_defaults: Mapping[str, Any] = {}
    """Options of parameter groups that a rule has beside those of this class."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also during training, with settings of their own or the defaults."""
        self._refuse_inside("Parameters cannot be added")
        refuse_model(param_group["params"])
        super().add_param_group(param_group)
        try:
            prepare(self.param_groups[-1], {*self.defaults, *self._own_defaults})
        except Exception:
            self.param_groups.pop()
            raise

    # Checkpoints: tensors, numbers and strings only.

    def state_dict(self) -> dict[str, Any]:
        """The state for torch.save; `torch.load(weights_only=True)` reads it back."""
        saved = super().state_dict()
        saved["param_groups"] = [written(settings) for settings in saved["param_groups"]]
        saved["liebayes"] = {
            "noise": self.noise,
            "seed": self.seed,
            "steps": self.steps,
            "clock": self._next_clock(),
            "skipped": self.skipped,
            "bounded": int(self.bounded),
        }
        return saved

    def _next_clock(self) -> int:
        return self.clock + (self._progress.phase is Phase.WAITING)  # a sample that waits does not travel

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a checkpoint, to the bit. Groups, bases, metrics and priors must be those it was written with."""
        self._refuse_inside("A checkpoint cannot be loaded")
        restored = with_own_objects(self.param_groups, state_dict, {*self.defaults, *self._own_defaults})
        own = state_dict["liebayes"]
        noise = choose_source(own["noise"])
        states: dict[Tensor, dict[str, Any]] = {}
        for settings, saved in zip(self.param_groups, restored, strict=True):
            for number, (name, p) in zip(saved["params"], named(settings), strict=False):  # torch says if there are others
                found = state_dict["state"].get(number)
                if found:
                    states[p] = {key: own_precision(value, p) for key, value in found.items()}
                    fit_state(name, p, states[p], settings, self.rule_for(settings))
        super().load_state_dict({"state": state_dict["state"], "param_groups": restored})
        for settings, own_objects in zip(self.param_groups, restored, strict=True):
            settings |= {key: own_objects[key] for key in OBJECTS}  # of which torch makes copies
        self.state.update(states)
        self.seed, self.steps, self.clock = own["seed"], own["steps"], own["clock"]
        self.skipped, self.bounded, self.noise = own["skipped"], own["bounded"], noise
        self._clear()

    def __getstate__(self) -> dict[str, Any]:
        # Samples and buffers do not travel: a copy starts between two steps.
        self._refuse_inside("A copy cannot be made")
        own = ("mc_samples", "nonfinite", "foreach", "seed", "noise", "steps", "skipped")
        here = {name: getattr(self, name) for name in own} | {"clock": self._next_clock()}
        return {**super().__getstate__(), **here, "bounded": int(self.bounded)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for settings in self.param_groups:
            for name, value in (("curvature", "samples"), ("width_rate", 0.005), ("start_width", None)):
                settings.setdefault(name, value)  # what version 0.1.0 had
        self.noise = choose_source(self.noise)
        self.process_group = None
        self._clear()

    # The posterior.

    @in_turn
    def families(self) -> dict[Tensor, Family[Any]]:
        """The member of its family that each trained parameter has reached."""
        self._refuse_inside("The posterior cannot be taken")
        if distributed.all_sharded(self._trained()):
            distributed.forget_gathered_weights()  # the model then has its shards as parameters, by which they are found
        found: dict[Tensor, Family[Any]] = {}
        with torch.no_grad():
            for settings in self.param_groups:
                for name, p in named(settings):
                    if p.requires_grad:
                        state = dict(self.state[p])
                        if state:
                            fit_state(name, p, state, settings, self.rule_for(settings))
                        else:
                            state = starting_state(p, settings, self.rule_for(settings))
                        found[p] = family_of(p, state, settings)
        return found

    def posterior(self, model: nn.Module) -> Posterior:
        """A snapshot of the posterior over the model's weights, buffers included; it does not follow later training.

        Of an optimizer that was given `named_parameters()`, the model may be an average or another copy of the one it trains:
        the posterior then has the widths of the training, by name, around that model's weights.
        """
        families = self.families()
        temperature = {settings["temperature"] for settings in self.param_groups}
        own = dict(unwrap(model).named_parameters())
        members = {name: families[p] for name, p in own.items() if p in families}
        if not members:
            names = {name: p for settings in self.param_groups for name, p in named(settings) if "param_names" in settings}
            common = {name: p for name, p in names.items() if name in own and p in families}
            members = {name: recentred(name, families[p], own[name]) for name, p in common.items()}
        if not members:
            raise ValueError(
                "None of the model's parameters is trained by this optimizer. Pass the model it was built for. For an average "
                "of it take optimizer.posterior(model).centred_at(average), or build the optimizer by named_parameters()."
            )
        return Posterior(model, members, temperature=max(temperature))
