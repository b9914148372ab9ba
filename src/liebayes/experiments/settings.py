"""The settings of a training run: one dataclass, whose field docs are the help of `liebayes train`."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

Rule = Literal["sgd", "additive", "multiplicative", "affine", "kronecker", "ivon", "vogn", "ivon-opt"]
Signs = Literal["none", "plus-minus", "dale", "fixed"]
MetricName = Literal["absorbed", "fisher", "adaptive"]
Schedule = Literal["cosine", "linear"]
CurvatureName = Literal["samples", "gauss-newton"]
Precision = Literal["auto", "float32", "bfloat16"]
TaskName = Literal["classification", "binary", "multilabel", "regression"]

MODELS = ("mlp", "lenet", "resnet20")
BOOKKEEPING = frozenset(("output", "resume", "data_dir", "checkpoint_seconds"))
"""Settings that do not change what is computed."""


@dataclass(frozen=True)
class TrainSettings:
    """Settings that are None get a default for the data set and the rule: see `resolved`."""

    dataset: str = "digits"
    """digits and diabetes (included), mnist, fashion-mnist, cifar10, cifar100, tinyimagenet; or your own: a table (.csv, .tsv,
    .parquet), arrays (.npz), or a folder with a folder of images for each class."""
    task: TaskName | None = None
    """What is predicted, where the data leave a choice."""
    target: str | None = None
    """Of a table, the column to be predicted; several are separated by commas."""
    ignore: str | None = None
    """Of a table, columns to leave out, separated by commas."""
    test_data: str | None = None
    """The file or folder with test data of your own; without it, a fifth of the data is held out for tests."""
    image_size: int | None = None
    """Resize the images of a folder to squares of this side."""
    noise: str = "learned"
    """Of regression, the noise of the targets: learned (one for all inputs), predicted (for every input), or its standard
    deviation."""
    data_dir: Path | None = None
    """The folder with the data sets. Missing ones are downloaded into it."""
    held_out: int = 0
    """Hold out this many training images and evaluate on them instead of the test images, to choose settings."""
    model: str | None = None
    """mlp, lenet or resnet20; or a function of yours, package.module:function, from the shape of an input and the number of
    outputs to a network."""
    initial_threshold: float = 0.0
    """The thresholds of filter response normalisation before the first step (resnet20). -1 learns faster at first."""
    rule: Rule = "affine"
    """The Lie-group rule with the additive, multiplicative, affine or Kronecker group, or a baseline: sgd, ivon, vogn,
    ivon-opt."""
    curvature: CurvatureName | None = None
    """Where widths come from (affine): squares of gradients, or samples as in Alg. 3, whose --scale-lr, --scale-momentum,
    --metric and --max-step imply it."""
    base: str | None = None
    """The base distribution, such as Laplace(0.005)."""
    signs: Signs | None = None
    """The sign constraint on the weights. The multiplicative rule needs one; the other rules have none."""
    epochs: int | None = None
    """Passes over the training data."""
    batch_size: int | None = None
    """Images per step, over all processes."""
    mc_samples: int | None = None
    """Monte Carlo samples per step, in every process."""
    split_batch: bool = False
    """Evaluate each Monte Carlo sample on its own part of the batch: several samples at nearly the cost of one."""
    lr: float | None = None
    """The peak step size α."""
    scale_lr: float | None = None
    """The step size of the scales (affine). With the fisher metric, set it equal to --lr."""
    momentum: float | None = None
    """β, or β₁ where there is a β₂."""
    scale_momentum: float | None = None
    """β₂, for the scales (affine) or the curvature (ivon, vogn, ivon-opt)."""
    temperature: float | None = None
    """τ, the weight of the entropy (multiplicative and affine)."""
    prior_precision: float | None = None
    """δ in the regulariser R(θ) = ½δ‖θ‖²."""
    damping: float | None = None
    """d, added to the curvature of the mean loss (ivon, vogn)."""
    initial_curvature: float | None = None
    """The curvature h before the first step (ivon, vogn, ivon-opt). The variance starts at 1/(N(h + δ/N + d))."""
    metric: MetricName | None = None
    """How covectors become steps. With fisher, the step on the shift shrinks with the square of the base's scale, so --lr
    must grow by the same factor."""
    max_step: float | None = None
    """The largest step in the Lie algebra."""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up, before the step size decays to zero."""
    schedule: Schedule = "cosine"
    """How the step size decays after the warm-up: along a cosine or a line."""
    augment: bool | None = None
    """Random crops and flips. N then counts every image four times."""
    predictive_samples: int = 32
    """Samples from the posterior predictive in evaluations."""
    evaluate_every: int = 1
    """Epochs between evaluations. The last epoch is always evaluated."""
    checkpoint_seconds: float = 300.0
    """Write a checkpoint after every epoch, and within an epoch whenever this much time has passed."""
    seed: int = 0
    """Determines the initial weights, the order of the data, the augmentation and all noise."""
    threads: int | None = None
    """CPU threads per process. Small networks are faster with one."""
    precision: Precision = "float32"
    """The arithmetic of the training passes; evaluations are in float32. auto is bfloat16 where the processor computes with
    it, which is faster for convolutions, otherwise float32."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster for large networks."""
    output: Path | None = None
    """The run directory."""
    resume: bool = False
    """Continue the run in --output, bit for bit as if it had never stopped. Its settings need not be repeated."""

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, content: object) -> TrainSettings:
        """The inverse of `to_json`. Refuses unknown names and values of the wrong type."""
        if not isinstance(content, dict):
            raise SettingsError(f"settings are a JSON object of names and values, not a {type(content).__name__}.")
        hints = get_type_hints(cls)
        unknown = sorted(set(content) - set(hints))
        if unknown:
            close = difflib.get_close_matches(str(unknown[0]), hints, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(sorted(hints))}."
            raise SettingsError(f"there is no setting {unknown[0]!r}; {hint}")
        for name, value in content.items():
            if isinstance(value, int) and value.bit_length() > 128:
                raise SettingsError(f"{name} must be a number of at most 128 bits, but has {value.bit_length()}.")
            if not _fits(value, hints[name]):
                raise SettingsError(f"{name} must be {type_in_words(hints[name])}, but is {value!r}.")
        paths = {key: Path(content[key]) for key in ("data_dir", "output") if content.get(key) is not None}
        return cls(**{**content, **paths})

    @classmethod
    def read(cls, path: Path) -> TrainSettings:
        """Reads settings from a JSON file."""
        return cls.from_json(read_json(path))


class SettingsError(ValueError):
    """Settings that do not exist, have an invalid value or contradict each other."""


def read_json(path: Path) -> Any:
    """Reads a JSON file that the user named."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid JSON: {error}.") from error


def _fits(value: Any, annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if isinstance(annotation, type):
        kinds = {Path: (str,), float: (int, float)}.get(annotation, (annotation,))
        return isinstance(value, kinds) and not (isinstance(value, bool) and annotation is not bool)
    return any(_fits(value, choice) for choice in get_args(annotation))


def type_in_words(annotation: Any) -> str:
    """A type as a user would say it.

    >>> type_in_words(int | None), type_in_words(Literal["png", "svg"])
    ('a whole number or null', 'png or svg')
    """
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path", type(None): "null"}
    return words[annotation] if annotation in words else " or ".join(map(type_in_words, get_args(annotation)))


def option(name: str) -> str:
    """A setting as the command line writes it."""
    return f"--{name.replace('_', '-')}"


def require_valid(s: TrainSettings) -> None:
    """Refuses numbers out of range, and settings that contradict each other."""

    def require(names: str, holds: Callable[[Any], bool], what: str) -> None:
        for name in names.split():
            value = getattr(s, name)
            if value is not None and not (math.isfinite(value) and holds(value)):
                raise SettingsError(f"{option(name)} must be {what}, but is {value}.")

    require(
        "epochs batch_size mc_samples image_size evaluate_every predictive_samples threads", lambda v: v >= 1, "at least 1"
    )
    require("lr scale_lr max_step", lambda v: v > 0, "positive")
    require("temperature prior_precision damping initial_curvature", lambda v: v >= 0, "zero or positive")
    require("warmup_epochs checkpoint_seconds seed held_out", lambda v: v >= 0, "zero or positive")
    require("seed", lambda v: v < 2**63, "below 2^63")
    require("initial_threshold", lambda v: True, "a finite number")
    require("momentum scale_momentum", lambda v: 0 <= v < 1, "at least 0 and below 1")
    if s.model not in MODELS and ":" not in (s.model or ""):
        raise SettingsError(f"--model must be {', '.join(MODELS)} or package.module:function, but is {s.model}.")
    if (s.warmup_epochs or 0) > (s.epochs or 1):
        raise SettingsError(f"--warmup-epochs {s.warmup_epochs} is more than the {s.epochs} --epochs of the run.")
    if s.rule == "multiplicative" and s.signs == "none":
        raise SettingsError("--rule multiplicative trains positive magnitudes: choose --signs plus-minus, dale or fixed.")
    if s.rule != "multiplicative" and s.signs != "none":
        raise SettingsError(f"--signs {s.signs} needs positive magnitudes, which only --rule multiplicative maintains.")
    if s.initial_threshold and s.model != "resnet20":
        raise SettingsError(f"--initial-threshold {s.initial_threshold} is for --model resnet20: {s.model} has no such norm.")
    if s.rule == "vogn" and s.compile:
        raise SettingsError("--rule vogn hooks into every layer for per-example gradients, so it cannot use --compile.")


def learning_rate(settings: TrainSettings, progress: float) -> float:
    """The step size after `progress` epochs, which may be a fraction: a linear warm-up, then a cosine or a line to zero."""
    lr, epochs, warmup = settings.lr or 0.0, settings.epochs or 1, settings.warmup_epochs or 0.0
    if progress < warmup:
        return lr * progress / warmup
    decayed = min(1.0, (progress - warmup) / max(epochs - warmup, 1e-9))
    return lr * (1 - decayed if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * decayed)))
