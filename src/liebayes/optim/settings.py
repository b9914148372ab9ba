"""The settings of a parameter group: checked once, in words a user can act on, and written into checkpoints as text."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn

from ..distributed import is_sharded, require_shardable
from ..groups import DiagonalAffine, LieGroup, Product
from ..posterior import Posterior
from ..posterior.prior import PosteriorPrior
from ..rule.family import require_base, require_fit, require_group
from ..rule.metric import Metric, require_metric
from .layout import layout_for
from .noise import Source
from .rule import inputs_of, root_mean_square, unit_of

Prior = float | Callable[[Tensor], Tensor] | Posterior
Curvature = Literal["samples", "gauss-newton"]


class Common(TypedDict, total=False):
    """Options of `LieGroupBLR` that all optimizers built on it pass on as they are."""

    seed: int
    noise: Source | None
    maximize: bool
    nonfinite: Literal["raise", "skip"]
    foreach: bool
    process_group: Any


class AffineOptions(Common, total=False):
    """The same for `AffineBLR`, with what only Alg. 3 as printed has."""

    scale_lr: float | None
    scale_momentum: float | None
    metric: Metric
    max_step: float | None
    initial_scale: float


OBJECTS = ("group", "base", "metric", "prior")
"""Settings that are objects: a checkpoint holds their text, and the optimizer that loads it must have the same."""


OF_THE_OPTIMIZER = ("mc_samples", "seed", "noise", "nonfinite", "foreach", "process_group")
"""Options that all parameter groups share."""


def prepare(settings: dict[str, Any], options: Collection[str]) -> None:
    """Checks a new parameter group and brings its settings into the form the optimizer uses.

    `options` are those that a group may have of its own.
    """
    _require_known(settings, options)
    require_real_lr(settings["lr"])
    _resolve_prior(settings)
    require_numbers(settings)
    group, base = settings["group"], settings["base"]
    require_group(group)
    if isinstance(group, Product):
        raise ValueError(
            f"A parameter group takes one Lie group, but got {group!r}. For a product of groups use several parameter groups: "
            '[{"params": ..., "group": ..., "base": ...}, ...].'
        )
    require_base(base)
    require_metric(settings["metric"])
    settings["base"] = base = base.scaled(settings.pop("initial_scale"))
    require_fit(group, base)
    settings["metric"].on(group, base, group.identity(torch.ones(2)))  # a pair without a metric is refused before any step
    if settings["curvature"] == "gauss-newton":
        _require_gauss_newton(settings)
    scale_lr = settings.pop("scale_lr")
    if scale_lr is not None and settings["lr"] == 0:
        raise ValueError("scale_lr is kept as a multiple of lr, so lr must not be 0 at the start. Warm up with a scheduler.")
    settings["scale_lr_ratio"] = 1.0 if scale_lr is None else scale_lr / settings["lr"]
    if settings["scale_momentum"] is None:
        settings["scale_momentum"] = settings["momentum"]
    for name, p in named(settings):
        require_parameter(name, p, group)
        layout_for(group, base, p.dtype)


def _resolve_prior(settings: dict[str, Any]) -> None:
    """A posterior as prior is, for a parameter group, the families of its parameters."""
    prior = settings["prior"]
    given = prior.posterior if isinstance(prior, PosteriorPrior) else prior  # of a group that was copied
    if isinstance(given, Posterior):
        settings["prior"] = prior = PosteriorPrior(given, named(settings))
        if settings["curvature"] == "gauss-newton":
            if not isinstance(settings["group"], DiagonalAffine):
                raise ValueError(
                    f"A posterior as prior needs a width for every weight, not {settings['group']}. Use AffineBLR."
                )
            for p in settings["params"]:
                prior.gaussian(p)  # a family that is no Gaussian is refused


def _require_gauss_newton(settings: dict[str, Any]) -> None:
    group, base = settings["group"], settings["base"]
    if not group.affine_action or not hasattr(group.at(torch.ones(1)), group.shift_block):
        raise ValueError(f'curvature="gauss-newton" needs a group with a shift and scales, but {group} is not. Use "samples".')
    try:
        group.average_precision(group.at(torch.ones(1)), group.divergence(group.at(torch.ones(1)), torch.ones(1)), 0.5)
        finite = math.isfinite(base.variance) and base.variance > 0
    except ValueError as error:
        raise ValueError(f'curvature="gauss-newton" is not for {group} on {base}: {error}') from error
    if not finite:
        raise ValueError(f'curvature="gauss-newton" needs a base with a variance, but {base} has {base.variance}.')
    if settings["temperature"] == 0:
        raise ValueError('curvature="gauss-newton" needs a positive temperature: at 0 the best width is 0. Use "samples".')
    for name, p in named(settings):
        if is_sharded(p):
            raise ValueError(
                f'The parameter {name} is sharded, but curvature="gauss-newton" measures whole tensors. Use "samples", which '
                "AffineBLR takes as an argument, or DistributedDataParallel."
            )
    set_typical_sizes(settings, [p for p in settings["params"] if p.ndim > 1] or settings["params"])


def set_typical_sizes(settings: dict[str, Any], matrices: list[Tensor]) -> None:
    """What vectors, and matrices of zeros, take for their size and for the unit of their steps."""
    inputs = math.exp(sum(math.log(inputs_of(p)) for p in matrices) / max(len(matrices), 1))
    settings["typical_size"] = root_mean_square(*matrices) or 1 / math.sqrt(inputs)
    settings["typical_unit"] = unit_of(settings["typical_size"], inputs, settings)


def named(settings: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Parameters with a name for messages: their own where the optimizer was given named parameters."""
    names = settings.get("param_names") or [f"number {i}" for i in range(len(settings["params"]))]
    return list(zip(names, settings["params"], strict=True))


def named_tensors(params: Any) -> list[tuple[str | None, Any]]:
    """The parameters of a group that is being added, with their names where it was given any."""
    refuse_model(params)
    listed = [params] if isinstance(params, Tensor) else list(params)
    pairs: list[tuple[str | None, Any]] = [entry if isinstance(entry, tuple) else (None, entry) for entry in listed]
    for _, value in pairs:
        if not isinstance(value, Tensor):
            raise TypeError(f"An optimizer takes tensors, but one of its parameters is a {type(value).__name__}.")
    return pairs


def require_parameter(name: str, p: Tensor, group: LieGroup[Any]) -> None:
    """Refuses what the rule cannot train."""
    what = f"The parameter {name} of shape {tuple(p.shape)}"
    require_shardable(name, p, group)
    if p.dtype.is_complex:
        raise ValueError(f"{what} is complex ({p.dtype}). Train its real and imaginary parts, with torch.view_as_real.")
    if not p.dtype.is_floating_point:
        raise ValueError(f"{what} has the dtype {p.dtype}, but only floating-point parameters have a posterior. Leave it out.")
    if p.layout != torch.strided:
        raise ValueError(f"{what} is sparse ({p.layout}). Give a dense parameter.")
    if group.positive and not bool((p > 0).all()):
        raise ValueError(
            f"{what} has values that are not positive, but {group} acts on positive numbers. Convert the network by a sign "
            "constraint, liebayes.nn.plus_minus, dale or fixed_sign, so that it has positive magnitudes; if it is converted, "
            "liebayes.nn.parameter_groups gives what it has beside them (norms) another group. Or use AffineBLR."
        )


def written(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as numbers, strings and lists."""
    return {key: describe(value) if key in OBJECTS else value for key, value in settings.items()}


def describe(value: Any) -> Any:
    """The text of an object; functions are known by their name only."""
    if callable(value) and not isinstance(value, PosteriorPrior):
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    return value if isinstance(value, (int, float, str)) else repr(value)


# Numbers.


NUMBERS = ("lr", "scale_lr_ratio", "data_size", "temperature", "momentum", "scale_momentum", "prior", "max_step", "width_rate")
"""Settings that a step computes with, which may change from step to step."""


LARGEST = torch.finfo(torch.float32).max


def is_number(settings: dict[str, Any], name: str) -> bool:
    """Whether a setting is a number that float32 can hold, in which most steps compute; one of numpy becomes Python's."""
    value = settings[name]
    if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):
        value = settings[name] = int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, int) and value.bit_length() > 62:  # torch takes none of more bits
        if value.bit_length() > 1000:  # and no float holds it
            return False
        value = settings[name] = float(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(float(value)) <= LARGEST


def is_count(value: Any) -> bool:
    """Whether a value of a checkpoint is a whole number of zero or more, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def shown(value: Any) -> str:
    """A value in a message; integers may be too long to print."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    too_large = isinstance(value, float) and LARGEST < abs(value) < math.inf
    return f"{value!r}, which float32 cannot hold" if too_large else repr(value)


def require_data_size(settings: dict[str, Any]) -> None:
    """The check of N, which bases by default are made of before there is a parameter group."""
    if not (is_number(settings, "data_size") and settings["data_size"] >= 1):
        raise ValueError(
            f"data_size must be the number of training data, at least 1, but got {shown(settings['data_size'])}. Pass a "
            "number, such as len(training_set)."
        )


def whole_number(name: str, value: Any, expected: str = "a whole number", least: int = -1 << 63, most: int = 1 << 64) -> int:
    """An option of the optimizer that is a whole number, of 64 bits unless it has a narrower range."""
    given = {name: value}
    if is_number(given, name) and int(given[name]) == given[name]:
        number = value if isinstance(value, int) else int(given[name])
        if least <= number < most:
            return number
    raise ValueError(f"{name} must be {expected}, but got {shown(value)}.")


def _require_known(settings: dict[str, Any], options: Collection[str]) -> None:
    """Refuses keys that would have no effect; what schedulers and trainers keep there has a meaning for them."""
    for key in settings:
        if key in OF_THE_OPTIMIZER:
            raise ValueError(
                f"A parameter group has {key}={settings[key]!r}, but {key} belongs to the whole optimizer. Pass it there, "
                "beside the parameter groups."
            )
    unknown = {key: value for key, value in settings.items() if key not in options and key not in WRITTEN_BY_OTHERS}
    where = ", which a parameter group has: it would have no effect"
    refuse_unknown("The optimizer", unknown, [*options, *OF_THE_OPTIMIZER], where)


def require_numbers(settings: dict[str, Any], where: str = "") -> None:
    def require(name: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(f"{where}{name} must be {expected}, but got {shown(settings[name])}.")

    number = partial(is_number, settings)
    require("lr", number("lr") and settings["lr"] >= 0, "a number, zero or positive")
    require_data_size(settings)
    require("temperature", number("temperature") and settings["temperature"] >= 0, "zero or positive")
    require("momentum", number("momentum") and 0 <= settings["momentum"] < 1, "in [0, 1)")
    require("curvature", settings["curvature"] in get_args(Curvature), '"samples" or "gauss-newton"')
    require("width_rate", number("width_rate") and 0 < settings["width_rate"] <= 1, "in (0, 1]")
    width = settings["start_width"]
    require("start_width", width is None or (number("start_width") and width > 0), "positive, or None for the base's own")
    for name in {"initial_scale", "scale_lr_ratio"} & set(settings):
        require(name, number(name) and settings[name] > 0, "positive")
    for name in {"scale_lr", "max_step"} & set(settings):
        require(name, settings[name] is None or (number(name) and settings[name] > 0), "positive, or None")
    beta = settings["scale_momentum"]
    of_checkpoint = "scale_lr_ratio" in settings
    ok = number("scale_momentum") and 0 <= beta < 1
    require("scale_momentum", ok or (beta is None and not of_checkpoint), "in [0, 1), or None")
    prior = settings["prior"]
    relative = prior is None and settings["curvature"] == "gauss-newton"
    ok = relative or callable(prior) or (prior is not None and number("prior") and prior >= 0)
    require("prior", ok, "a precision of zero or more, a function, or a posterior")
    require("maximize", isinstance(settings["maximize"], bool), "True or False")


# Arguments of torch's optimizers, for those who come from AdamW.

WRITTEN_BY_OTHERS = {
    *("params", "param_names", "name", "kind", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "base_momentum"),
    *("max_momentum", "lr_scale", "scale_lr_ratio", "typical_size", "typical_unit"),
}
"""Keys of parameter groups that schedulers, trainers and this library write."""

_NO_SUCH = "There is no such setting here: leave it out."
_INSTEAD: dict[str, dict[str, str]] = {
    "weight_decay": {
        "prior": "Decay is the prior here: prior=δ is the regulariser ½δ‖θ‖² of all N data together, so start with "
        "prior = weight_decay·data_size."
    },
    "betas": {
        "width_rate": "Use momentum for the first, and width_rate, which is 1 minus the second.",
        "scale_momentum": "Use momentum for the first and scale_momentum for the second.",
        "momentum": "Use momentum for the first; the second has no counterpart.",
    },
    "ess": {
        "temperature": "Use data_size, the number of training data, and temperature.",
        "data_size": "Use data_size, the number of training data.",
    },
    "hess_init": {
        "start_width": "Use start_width, the width the posterior starts with.",
        "initial_curvature": "Use initial_curvature.",
    },
    "beta1": {"momentum": "Use momentum."},
    "beta2": {"width_rate": "Use width_rate, which is 1 minus it.", "scale_momentum": "Use scale_momentum."},
    "clip_radius": {"max_step": "Use max_step, a bound in the Lie algebra."},
    "nesterov": {},
    "dampening": {"momentum": "The momentum here is an average, as with dampening=momentum."},
}
"""For options of other optimizers, what to use here: the first of these that the optimizer has."""


def refuse_unknown(optimizer: str, given: Iterable[str], options: Collection[str], where: str = "") -> None:
    """Refuses names that are no option, as torch's optimizers have them or misspelt."""
    for name in sorted(given):
        close = difflib.get_close_matches(name, options, 1, cutoff=0.75)
        if name in _INSTEAD:
            known = [words for option, words in _INSTEAD[name].items() if option in options]
            hint = f"{known[0] if known else _NO_SUCH} See docs/from-adamw.md."
        elif close:
            hint = f"Did you mean {close[0]!r}?"
        elif name in ("eps", "amsgrad", "fused", "capturable", "differentiable", "decoupled_weight_decay"):
            hint = _NO_SUCH
        else:
            hint = f"The options are {', '.join(sorted(options))}."
        raise TypeError(f"{optimizer} has no option {name!r}{where}. {hint}")


def refuse_model(params: Any) -> None:
    """Refuses a module, or the text of a name, where parameters are meant."""
    if isinstance(params, nn.Module):
        raise TypeError(
            f"An optimizer takes parameters, but got a {type(params).__name__}. Pass model.parameters(), or "
            "model.named_parameters()."
        )


def require_real_lr(lr: Any) -> None:
    """Refuses step sizes that are no numbers: text of a configuration file, tensors."""
    if isinstance(lr, numbers.Real) and not isinstance(lr, bool):
        return
    hint = "Pass float(lr); schedulers change it in optimizer.param_groups." if isinstance(lr, Tensor) else "Pass float(lr)."
    raise TypeError(f"lr must be a number, zero or positive, but got {lr!r}. {hint}")
