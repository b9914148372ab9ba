"""Arguments of torch's optimizers, and what stands in their place here: helpful errors for those who come from AdamW."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn

WRITTEN_BY_OTHERS = {
    *("params", "param_names", "name", "kind", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "base_momentum"),
    *("max_momentum", "lr_scale", "scale_lr_ratio", "typical_size", "typical_unit"),
}
"""Keys of parameter groups that schedulers, trainers and this library write."""

_NO_SUCH = "There is no such setting here: leave it out."
_INSTEAD = {
    "weight_decay": "Decay is the prior here: prior=δ is the regulariser ½δ‖θ‖² of all N data together, so start with "
    "prior = weight_decay·data_size.",
    "betas": "Use momentum for the first; in place of the second is width_rate.",
    "ess": "Use data_size, the number of training data, and temperature.",
    "hess_init": "Use start_width, the width the posterior starts with.",
    "beta1": "Use momentum.",
    "beta2": "Use width_rate.",
    "clip_radius": "Use max_step, a bound in the Lie algebra.",
    "nesterov": _NO_SUCH,
    "dampening": "The momentum here is an average, as with dampening=momentum.",
}


def refuse_unknown(optimizer: str, given: Iterable[str], options: Collection[str], where: str = "") -> None:
    """Refuses names that are no option, as torch's optimizers have them or misspelt."""
    for name in sorted(given):
        close = difflib.get_close_matches(name, options, 1, cutoff=0.75)
        if name in _INSTEAD:
            hint = f"{_INSTEAD[name]} See docs/from-adamw.md."
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
