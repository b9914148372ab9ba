"""What is trained: the network, optimizer and data that the settings describe."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import nn as networks
from ..bases import Dirac, parse
from ..data import Batches, Dataset
from ..groups import Additive, Shift
from ..optim import LieGroupBLR, default_base, local_gradients
from ..posterior import Posterior, unwrap
from ..rule import Absorbed, Family
from .defaults import METRICS, OF_ALGORITHM_3, OPTIMIZERS, TAKES
from .own_model import own_network
from .processes import Team
from .settings import SettingsError, TrainSettings
from .tasks import Task, task_of


def build_network(settings: TrainSettings, dataset: Dataset) -> nn.Module:
    """The network for a data set, with its sign constraint. The seed determines the initial weights."""
    shape, task = dataset.image_shape, task_of(dataset)
    if settings.noise != "learned" and dataset.kind != "regression":
        raise SettingsError(f"--noise {settings.noise} is for regression, but {dataset.name} is for {dataset.kind}.")
    outputs = task.outputs(dataset, settings.noise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if ":" in (settings.model or ""):
            model: nn.Module = own_network(settings.model or "", shape, outputs)
        elif settings.model == "mlp":
            hidden = (1024, 512, 256, 256, 256) if math.prod(shape) >= 784 else (128,)
            model = networks.mlp(shape, outputs, hidden=hidden)
        elif settings.model == "resnet20":
            model = networks.resnet20(shape, outputs, initial_threshold=settings.initial_threshold)
        else:
            model = networks.lenet(shape, outputs)
        constraints = {"plus-minus": networks.plus_minus, "dale": networks.dale, "fixed": networks.fixed_sign}
        if settings.signs in constraints:
            constraints[settings.signs](model)
        return task.network(model, dataset, settings.noise)


def effective_size(settings: TrainSettings, dataset: Dataset) -> int:
    """N; with augmentation, four times the number of images (App. B)."""
    if settings.augment and dataset.augmentation is None:
        raise ValueError(f"--augment: the data set {dataset.name} has no augmentation. Leave the option out.")
    return len(dataset.train_labels) * (4 if settings.augment else 1)


def build_optimizer(settings: TrainSettings, model: nn.Module, data_size: int) -> torch.optim.Optimizer:
    """The optimizer of a rule, with the settings that it takes."""
    if settings.rule == "sgd":
        # The paper's momentum averages, torch's accumulates. R enters both as ∇R/N.
        decay = (settings.prior_precision or 0.0) / data_size
        return torch.optim.SGD(model.parameters(), settings.lr or 0.0, settings.momentum or 0.0, weight_decay=decay)
    taken = {name: getattr(settings, name) for name in TAKES[settings.rule]}
    taken["prior"] = taken.pop("prior_precision")
    if taken.get("curvature") == "gauss-newton":
        taken = {name: value for name, value in taken.items() if name not in OF_ALGORITHM_3}
    if "metric" in taken:
        taken["metric"] = METRICS[taken["metric"]]
        taken["base"] = taken["base"] or default_base(data_size)
    base = taken.get("base")
    if isinstance(base, str):
        taken["base"] = parse(base)
    params: Any = model.named_parameters() if settings.rule != "ivon-opt" else model.parameters()
    if settings.rule == "multiplicative":
        params = networks.parameter_groups(model, {}, _beside_magnitudes(data_size))
    return OPTIMIZERS[settings.rule](params, data_size=data_size, seed=settings.seed, **taken)


def _beside_magnitudes(data_size: int) -> dict[str, Any]:
    """Parameters that are not magnitudes follow the additive rule beside the multiplicative one."""
    base = default_base(data_size)
    return {"group": Additive(), "base": base, "metric": Absorbed(), "max_step": None, "temperature": 0.0}


def distributed(model: nn.Module, settings: TrainSettings) -> nn.Module:
    """The model as each rank calls it. SGD averages gradients; the other rules average the covectors of their own samples."""
    wrapped = DistributedDataParallel(model)
    return wrapped if settings.rule == "sgd" else local_gradients(wrapped)


def posterior_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Posterior:
    """The learned posterior. SGD is the additive rule with a Dirac base (Sec. 4.1), so its posterior is a point."""
    if not isinstance(optimizer, torch.optim.SGD):
        return cast(LieGroupBLR, optimizer).posterior(model)
    points = {name: Shift(p.detach().clone()) for name, p in unwrap(model).named_parameters()}
    return Posterior(model, {name: Family(Additive(), Dirac(), g) for name, g in points.items()}, temperature=0.0)


class Progress:
    """How far a run has come: what a checkpoint holds beside the model and the optimizer."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.loss_sum: float = 0.0
        self.seconds: float = 0.0
        self.lines: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, content: dict[str, Any], epochs: int, batches: int) -> None:
        """Restores the progress from a checkpoint, if a run of so many epochs and batches can have it."""
        sizes = [content.get(name) for name in ("loss_sum", "seconds")]
        counts = [content.get(name) for name in ("epoch", "batch")]
        if not (
            content.keys() == vars(self).keys()
            and all(type(count) is int and 0 <= count <= most for count, most in zip(counts, (epochs, batches), strict=True))
            and all(isinstance(size, float) and math.isfinite(size) for size in sizes)
            and isinstance(content["lines"], list)
            and [line["epoch"] for line in content["lines"]] == list(range(1, content["epoch"] + 1))
            and all(isinstance(value, (int, float)) for line in content["lines"] for value in line.values())
        ):
            raise ValueError("its progress does not belong to such a run")
        vars(self).update(content)


class Learner:
    """The network, its optimizer, the data, and how far training is."""

    def __init__(self, settings: TrainSettings, dataset: Dataset, ranks: Team) -> None:
        self.settings: TrainSettings = settings
        self.ranks: Team = ranks
        self.progress: Progress = Progress()
        try:
            dataset = dataset.held_out(settings.held_out)
            self.dataset: Dataset = dataset
            self.task: Task = task_of(dataset)
            if not len(dataset.test_labels) or (dataset.kind == "classification" and len(dataset.class_names) < 2):
                raise ValueError(
                    f"Evaluation needs test images of at least two classes, but {dataset.name} has "
                    f"{len(dataset.test_labels)} test images and {len(dataset.class_names)} classes."
                )
            self.model: nn.Module = build_network(settings, dataset)
            self.optimizer: torch.optim.Optimizer = build_optimizer(settings, self.model, effective_size(settings, dataset))
            self.batches: Batches = Batches(
                dataset, settings.batch_size or 1, seed=settings.seed, augment=bool(settings.augment), rank=ranks.rank,
                world_size=ranks.size,
            )  # fmt: skip
            self._require_equal_parts()
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def _require_equal_parts(self) -> None:
        """--split-batch needs equal parts of each rank's batch. The last batch of an epoch, if smaller, is not split."""
        size, samples = (self.settings.batch_size or 1) // self.ranks.size, self.settings.mc_samples or 1
        images = len(self.dataset.train_labels)
        if self.settings.split_batch and (size % samples or size > images):
            raise ValueError(
                f"--split-batch: {size} images of {images}, for each of {self.ranks.size} processes, do not split into "
                f"{samples} equal parts, one for each sample. Choose another --batch-size or --mc-samples."
            )

    def checkpoint_size(self) -> int:
        """A bound in bytes: the parameters, their element and momentum, and the running averages of the metric."""
        return 4 * 6 * sum(p.numel() for p in self.model.parameters()) + 100_000

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint."""
        return {
            "settings": self.settings.to_json(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": self.progress.to_json(),
        }
