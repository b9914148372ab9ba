"""The settings of a training run. Their documentation is the program's help; what is left out is filled in per data set."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Rule = Literal["sgd", "additive", "multiplicative", "affine"]
Signs = Literal["none", "plus-minus", "dale", "fixed"]
MetricName = Literal["absorbed", "fisher", "adaptive"]


@dataclass(frozen=True)
class TrainSettings:
    """Train a posterior and leave it in a run directory. Settings left out have defaults for the data set and the rule."""

    dataset: str = "digits"
    """digits (comes with the program), mnist, fashion-mnist, cifar10, cifar100, tinyimagenet, or a registered one."""
    data_dir: Path | None = None
    """Where data sets are; the environment variable LIEBAYES_DATA by default. Missing ones are downloaded there."""
    model: str | None = None
    """mlp, lenet or resnet20. [default: mlp for digits, mnist and fashion-mnist, otherwise resnet20]"""
    rule: Rule = "affine"
    """The learning rule: sgd, or the Lie-group rule with the additive, multiplicative or affine group."""
    base: str | None = None
    """The base distribution, such as Laplace(0.005). [default: Normal(3/√N), for multiplicative Rayleigh(1)]"""
    signs: Signs | None = None
    """A sign constraint on the weights. [default: plus-minus for multiplicative, otherwise none]"""
    epochs: int | None = None
    """Passes over the training data."""
    batch_size: int | None = None
    """Images per step, over all processes."""
    mc_samples: int | None = None
    """Monte Carlo samples per step. [default: 2 for multiplicative, otherwise 1]"""
    lr: float | None = None
    """The step size α at its height."""
    scale_lr: float | None = None
    """The step size of the scales (affine). [default: lr]"""
    momentum: float | None = None
    """β, or β₁ of the affine rule."""
    scale_momentum: float | None = None
    """β₂ of the affine rule."""
    temperature: float | None = None
    """τ."""
    prior_precision: float | None = None
    """δ of the regulariser R(θ) = ½δ‖θ‖²."""
    metric: MetricName | None = None
    """How covectors become steps. [default: adaptive for multiplicative, otherwise absorbed]"""
    max_step: float | None = None
    """The bound on one step in the Lie algebra. [default: 0.2; none for additive]"""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up before the cosine to zero. [default: 5 % of the run, at most 5]"""
    augment: bool | None = None
    """Random crops and flips; N counts fourfold then. [default: yes for cifar and tinyimagenet]"""
    predictive_samples: int = 32
    """Samples of the posterior predictive in evaluations."""
    evaluate_every: int = 1
    """Epochs between evaluations on the test data; the last epoch is always evaluated."""
    checkpoint_seconds: float = 300.0
    """A checkpoint is written after every epoch, and within an epoch when this much time has passed."""
    seed: int = 0
    """Fixes the first weights, the order of the data, the augmentation and all noise."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster on large networks."""
    output: Path | None = None
    """The run directory. [default: runs/DATASET-RULE-SEED]"""
    resume: bool = False
    """Go on with the run in --output, to the bit as if it had never stopped."""

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON has them."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainSettings:
        """The inverse of `to_json`; a name that does not exist is refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise ValueError(f"Unknown settings {unknown}; the names are {sorted(known)}.")
        paths = {key: Path(content[key]) for key in ("data_dir", "output") if content.get(key) is not None}
        return cls(**{**content, **paths})

    @classmethod
    def read(cls, path: Path) -> TrainSettings:
        """Settings from a JSON file."""
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as settings: {error}") from error


_IMAGES = {"model": "resnet20", "epochs": 30, "batch_size": 200, "augment": True}
_DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "epochs": 40, "batch_size": 32, "augment": False},
    "mnist": {"model": "mlp", "epochs": 20, "batch_size": 50, "augment": False},
    "fashion-mnist": {"model": "mlp", "epochs": 20, "batch_size": 50, "augment": False},
    "cifar10": _IMAGES,
    "cifar100": _IMAGES,
    "tinyimagenet": _IMAGES,
}
_RULES: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "momentum": 0.9, "prior_precision": 0.1, "signs": "none", "mc_samples": 1, "temperature": 0.0},
    "additive": {"lr": 1.0, "momentum": 0.9, "prior_precision": 0.1, "signs": "none", "mc_samples": 1, "metric": "absorbed",
                 "temperature": 0.0},
    "affine": {"lr": 1.0, "momentum": 0.9, "scale_momentum": 0.999, "prior_precision": 0.1, "signs": "none", "mc_samples": 1,
               "metric": "absorbed", "temperature": 1.0, "max_step": 0.2},
    "multiplicative": {"lr": 0.1, "momentum": 0.9, "prior_precision": 0.03, "signs": "plus-minus", "mc_samples": 2,
                       "metric": "adaptive", "temperature": 0.01, "max_step": 0.2, "base": "Rayleigh(1.0)"},
}  # fmt: skip
_PAIRS: dict[tuple[str, str], dict[str, Any]] = {
    # The multiplicative network of Sec. 5.1 needs the regulariser of B.1 (a tenth of it), or weights run away.
    ("mnist", "multiplicative"): {"lr": 0.03, "prior_precision": 25.0, "temperature": 0.006},
    ("fashion-mnist", "multiplicative"): {"lr": 0.03, "prior_precision": 25.0, "temperature": 0.006},
}


def resolved(settings: TrainSettings) -> TrainSettings:
    """Every setting that was left out, filled in; settings that do not fit together are refused."""
    defaults = {
        **_RULES[settings.rule],
        **_DATASETS.get(settings.dataset, {"model": "mlp", "epochs": 20, "batch_size": 50, "augment": False}),
        **_PAIRS.get((settings.dataset, settings.rule), {}),
        "output": Path("runs") / f"{settings.dataset}-{settings.rule}-{settings.seed}",
    }
    missing = {k: v for k, v in defaults.items() if getattr(settings, k) is None}
    full = dataclasses.replace(settings, **missing)
    if full.warmup_epochs is None:
        full = dataclasses.replace(full, warmup_epochs=min(5.0, 0.05 * (full.epochs or 0)))
    _require(full)
    return full


def _require(s: TrainSettings) -> None:
    for name in ("epochs", "batch_size", "mc_samples", "evaluate_every"):
        value = getattr(s, name)
        if value is None or value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, but is {value}.")
    if s.predictive_samples < 1:
        raise ValueError(f"--predictive-samples must be at least 1, but is {s.predictive_samples}.")
    if s.lr is None or not (math.isfinite(s.lr) and s.lr > 0):
        raise ValueError(f"--lr must be positive, but is {s.lr}.")
    for name in ("temperature", "prior_precision", "warmup_epochs"):
        value = getattr(s, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"--{name.replace('_', '-')} must be zero or positive, but is {value}.")
    if s.rule == "multiplicative" and s.signs == "none":
        raise ValueError("--rule multiplicative trains positive magnitudes: choose --signs plus-minus, dale or fixed.")
    if s.rule != "multiplicative" and s.signs != "none":
        raise ValueError(f"--signs {s.signs} keeps magnitudes positive, which only --rule multiplicative does.")
    if s.rule == "sgd" and (s.base or s.metric or s.scale_lr):
        raise ValueError("--base, --metric and --scale-lr belong to the Lie-group rules, not to --rule sgd.")


def learning_rate(settings: TrainSettings, progress: float) -> float:
    """The step size after a number of epochs, also a fraction: a linear warm-up, then a cosine to zero."""
    lr, epochs, warmup = settings.lr or 0.0, settings.epochs or 1, settings.warmup_epochs or 0.0
    if progress < warmup:
        return lr * progress / warmup
    return lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / max(epochs - warmup, 1e-9))))
