"""Defaults of settings that were left out: from the signature of the rule's optimizer, with exceptions for data sets."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..baselines import IVON, VOGN, ivon_opt
from ..bases import Base
from ..data import is_path
from ..optim import AdditiveBLR, AffineBLR, KroneckerBLR, MultiplicativeBLR
from ..optim.presets import AFFINE_LR, ALGORITHM_3, kronecker_lr
from ..rule import Absorbed, Adaptive, Fisher, Metric
from .precision import resolve_precision
from .settings import Rule, SettingsError, TrainSettings, option, require_valid

OPTIMIZERS: dict[Rule, Callable[..., Any]] = {
    "additive": AdditiveBLR,
    "multiplicative": MultiplicativeBLR,
    "affine": AffineBLR,
    "kronecker": KroneckerBLR,
    "ivon": IVON,
    "vogn": VOGN,
    "ivon-opt": ivon_opt,
}
METRICS: dict[str, Metric] = {"absorbed": Absorbed(), "fisher": Fisher(), "adaptive": Adaptive()}
_LEFT_OUT = [field.name for field in dataclasses.fields(TrainSettings) if field.default is None]


def _of_optimizer(rule: Rule) -> dict[str, Any]:
    """The arguments of the rule's optimizer that are settings, with their defaults written as settings."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(OPTIMIZERS[rule]).parameters.items()}
    return _as_settings(defaults)


def _as_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in arguments.items():
        if isinstance(value, Metric):
            value = next(known for known, metric in METRICS.items() if metric == value)
        elif isinstance(value, Base):
            value = re.sub(r"\w+=", "", repr(value))
        found["prior_precision" if name == "prior" else name] = value
    return {name: found[name] for name in _LEFT_OUT if name in found}


_PRINTED = _as_settings(ALGORITHM_3)
OF_ALGORITHM_3 = tuple(name for name in _PRINTED if name not in ("lr", "temperature", "prior_precision"))
"""Settings that only the affine rule with --curvature samples has."""
_SGD = {"lr": 0.1, "momentum": 0.9, "prior_precision": 0.1}
TAKES: dict[Rule, dict[str, Any]] = {"sgd": _SGD, **{rule: _of_optimizer(rule) for rule in OPTIMIZERS}}
"""The settings that each rule's optimizer takes, and their defaults."""
TAKES["affine"] |= dict.fromkeys(OF_ALGORITHM_3)
RULES: dict[Rule, dict[str, Any]] = {rule: {"signs": "none", "mc_samples": 1, **own} for rule, own in TAKES.items()}
RULES["multiplicative"]["signs"] = "plus-minus"
for _rule in ("sgd", "additive"):  # the entropy does not change: settings.json has always said so
    RULES[_rule]["temperature"] = 0.0

_COLOUR_IMAGES = {"model": "resnet20", "epochs": 30, "batch_size": 200, "augment": True}
_OTHER_DATA = {"model": "mlp", "epochs": 20, "batch_size": 50, "augment": False}
DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "epochs": 20, "batch_size": 32, "augment": False, "threads": 1},
    "mnist": _OTHER_DATA,
    "fashion-mnist": _OTHER_DATA,
    "cifar10": _COLOUR_IMAGES,
    "cifar100": _COLOUR_IMAGES,
    "tinyimagenet": _COLOUR_IMAGES,
    "diabetes": {"model": "mlp", "epochs": 60, "batch_size": 32, "augment": False, "threads": 1},
}
_EXCEPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    # Chosen by cross-validation: benchmarks/digits.py, which also has SGD with the same regulariser.
    ("digits", "additive"): {"prior_precision": 1.0, "lr": 1.4},
    ("digits", "affine"): {"prior_precision": 1.0, "lr": 1.4},
    # The step sizes of the paper's table, and of the package, are too small for 900 steps in total.
    ("digits", "vogn"): {"prior_precision": 1.0, "lr": 0.03},
    ("digits", "ivon-opt"): {"lr": 1.0},
    # More samples lower the pooled NLL on these folds.
    ("digits", "multiplicative"): {"prior_precision": 0.3, "mc_samples": 4},
    # Six layers of tanh: half the step of a shallow network gets further in the first epochs.
    **{(d, r): {"lr": 0.5} for d in ("mnist", "fashion-mnist") for r in ("additive", "affine")},
    # The multiplicative network of Sec. 5.1 needs a tenth of the regulariser of B.1, or weights run away.
    ("mnist", "multiplicative"): {"lr": 0.03, "prior_precision": 25.0, "temperature": 0.006},
    ("fashion-mnist", "multiplicative"): {"lr": 0.03, "prior_precision": 25.0, "temperature": 0.006},
}
_NARROW = {"base": "Normal(0.02)", "lr": 0.1}
_REGRESSION: dict[str, dict[str, Any]] = {"affine": _NARROW, "additive": _NARROW}
"""For numbers to predict: with few data Normal(3/√N) is wider than the weights. Chosen on 70 held-out patients of diabetes."""


def resolved(settings: TrainSettings) -> TrainSettings:
    """The settings with every default filled in. Refuses invalid and contradictory ones."""
    settings = TrainSettings.from_json(settings.to_json())  # Python callers may have given values of the wrong type
    dataset, path = settings.dataset.strip().lower().replace("_", "-"), is_path(settings.dataset)
    if path:  # files are found again from any folder
        dataset = Path(settings.dataset).stem
        here = {name: getattr(settings, name) for name in ("dataset", "test_data")}
        absolute = {name: str(Path(path).absolute()) for name, path in here.items() if path is not None}
        settings = dataclasses.replace(settings, **absolute)
    regression = settings.task == "regression" or dataset == "diabetes"
    defaults = {
        **RULES[settings.rule],
        **DATASETS.get(dataset, _OTHER_DATA),
        **_EXCEPTIONS.get((dataset, settings.rule), {}),
        **(_REGRESSION.get(settings.rule, {}) if regression else {}),
        "output": Path("runs") / f"{dataset}-{settings.rule}-{settings.seed}",
    }
    if settings.rule == "affine":
        defaults = _of_affine(settings, defaults, regression)
    if settings.rule == "kronecker":
        defaults["lr"] = kronecker_lr(settings.prior_precision)
    missing = {name: value for name, value in defaults.items() if getattr(settings, name) is None}
    missing["precision"] = resolve_precision(settings.precision)
    full = dataclasses.replace(settings, dataset=settings.dataset if path else dataset, **missing)
    if full.warmup_epochs is None:
        full = dataclasses.replace(full, warmup_epochs=min(5.0, 0.05 * (full.epochs or 0)))
    require_valid(full)
    _require_taken(full)
    return full


def _of_affine(settings: TrainSettings, defaults: dict[str, Any], regression: bool) -> dict[str, Any]:
    """The defaults of the affine rule: those of Alg. 3 if one of its settings is given, and for regression."""
    printed = [name for name in OF_ALGORITHM_3 if getattr(settings, name) is not None]
    curvature = settings.curvature or ("samples" if printed or regression else "gauss-newton")
    if curvature == "samples":
        return {**_PRINTED, **{name: value for name, value in defaults.items() if value is not None}, "curvature": curvature}
    if printed:
        raise SettingsError(f"{option(printed[0])} belongs to --curvature samples: leave it out, or ask for that.")
    own = {name: TAKES["affine"][name] for name in _PRINTED}
    return {**defaults, **own, "base": None, "curvature": curvature, "lr": AFFINE_LR}


def _require_taken(settings: TrainSettings) -> None:
    """Refuses settings that the rule's optimizer does not take."""
    own, fixed = TAKES[settings.rule], RULES[settings.rule]
    foreign = [name for names in TAKES.values() for name in names if name not in own]
    foreign += ["split_batch"] if settings.rule in ("sgd", "ivon-opt") else []
    for name in foreign:
        value = getattr(settings, name)
        if value and value != fixed.get(name):
            raise SettingsError(f"{option(name)} {value} has no meaning for --rule {settings.rule}: leave it out.")


_IN_WORDS = {
    "data_dir": "$LIEBAYES_DATA, or a folder in the user's cache",
    "base": "Rayleigh(1.0) for multiplicative; Normal(1.0) for kronecker, and for affine unless its curvature is that of "
    "samples; otherwise Normal(3/√N), and Normal(0.02) for regression",
    "threads": "1 for digits and diabetes; otherwise torch's own choice",
    "task": "as the data say",
    "image_size": "as they are",
    "warmup_epochs": "5 % of the run, at most 5",
    "output": "runs/DATASET-RULE-SEED",
    **dict.fromkeys(("target", "ignore", "test_data"), ""),
}
"""Defaults that are not constants."""


def default_text(name: str) -> str:
    """The default of a setting, for the help, from the tables above.

    >>> default_text("momentum"), default_text("seed")
    ('0.8 for ivon; 0.95 for vogn; otherwise 0.9', '0')
    """
    constant = getattr(TrainSettings(), name)
    if constant is not None:
        return str(constant)
    if name in _IN_WORDS:
        return _IN_WORDS[name]
    datasets = [*DATASETS, "your own data"]
    full = {pair: getattr(settings, name) for pair, settings in _every_default().items()}
    by_rule = {r: _within({d: full[d, r] for d in datasets}) for r in RULES}
    by_dataset = {d: _within({r: full[d, r] for r in RULES}) for d in datasets}
    return min(_across(by_dataset), _across(by_rule), key=lambda text: ("(" in text, len(text)))


@functools.cache
def _every_default() -> dict[tuple[str, Rule], TrainSettings]:
    return {(d, r): resolved(TrainSettings(dataset=d, rule=r)) for d in [*DATASETS, "your own data"] for r in RULES}


def _grouped(values: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Each rarer value with the names that have it, and the most common value."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault("none" if value is None else str(value), []).append(name)
    *rare, common = sorted(groups, key=lambda text: len(groups[text]))
    return {text: ", ".join(groups[text]) for text in rare}, common


def _within(values: Mapping[str, Any]) -> str:
    rare, common = _grouped(values)
    return common + (f" ({'; '.join(f'{text} with {names}' for text, names in rare.items())})" if rare else "")


def _across(values: Mapping[str, Any]) -> str:
    rare, common = _grouped(values)
    return "; ".join([*(f"{text} for {names}" for text, names in rare.items()), f"otherwise {common}" if rare else common])
