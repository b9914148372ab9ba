"""A network and its optimizer, as settings name them."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import nn as networks
from ..baselines import IVON, VOGN, ivon_opt
from ..bases import Base, Dirac, Normal, parse
from ..data import Dataset
from ..groups import Additive, DiagonalAffine, Multiplicative, Shift
from ..optim import LieGroupBLR, default_base, local_gradients
from ..posterior import Posterior, unwrap
from ..rule import Absorbed, Adaptive, Family, Fisher, Metric
from .settings import TrainSettings

METRICS: dict[str, Metric] = {"absorbed": Absorbed(), "fisher": Fisher(), "adaptive": Adaptive()}


def build_network(settings: TrainSettings, dataset: Dataset) -> nn.Module:
    """The network for a data set, with its sign constraint; its first weights are fixed by the seed."""
    shape, classes = dataset.image_shape, dataset.num_classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if settings.model == "mlp":
            hidden = (1024, 512, 256, 256, 256) if math.prod(shape) >= 784 else (128,)
            model: nn.Module = networks.mlp(shape, classes, hidden=hidden)
        elif settings.model == "lenet":
            model = networks.lenet(shape, classes)
        elif settings.model == "resnet20":
            model = networks.resnet20(shape, classes)
        else:
            raise ValueError(f"--model must be mlp, lenet or resnet20, but is {settings.model}.")
        if settings.signs == "plus-minus":
            networks.plus_minus(model)
        elif settings.signs == "dale":
            networks.dale(model)
        elif settings.signs == "fixed":
            networks.fixed_sign(model)
    return model


def effective_size(settings: TrainSettings, dataset: Dataset) -> int:
    """N, counted fourfold with augmentation (App. B)."""
    if settings.augment and dataset.augmentation is None:
        raise ValueError(f"--augment: the data set {dataset.name} has no augmentation. Leave it out.")
    return len(dataset.train_labels) * (4 if settings.augment else 1)


def build_optimizer(settings: TrainSettings, model: nn.Module, data_size: int) -> torch.optim.Optimizer:
    """The optimizer of a rule. Parameters that are not magnitudes follow the additive rule beside the multiplicative one."""
    lr, prior = settings.lr or 0.0, settings.prior_precision or 0.0
    if settings.rule == "sgd":
        # The paper's momentum averages, torch's adds up: R enters both as ∇R/N.
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=settings.momentum or 0.0, weight_decay=prior / data_size)
    shared: dict[str, Any] = {
        "data_size": data_size,
        "momentum": settings.momentum,
        "mc_samples": settings.mc_samples,
        "prior": prior,
        "seed": settings.seed,
    }
    curvature: dict[str, Any] = {"scale_momentum": settings.scale_momentum, "initial_curvature": settings.initial_curvature}
    if settings.rule == "ivon-opt":
        return ivon_opt(model.parameters(), lr, **shared, **curvature)
    if settings.rule in ("ivon", "vogn"):
        kind = IVON if settings.rule == "ivon" else VOGN
        return kind(model.named_parameters(), lr, **shared, **curvature, damping=settings.damping or 0.0)
    base: Base = parse(settings.base) if settings.base else default_base(data_size)
    shared |= {
        "metric": METRICS[settings.metric or "absorbed"],
        "max_step": settings.max_step,
        "temperature": settings.temperature,
    }
    if settings.rule == "additive":
        return LieGroupBLR(model.named_parameters(), Additive(), base, lr, **shared)
    if settings.rule == "affine":
        shared |= {"scale_lr": settings.scale_lr, "scale_momentum": settings.scale_momentum}
        return LieGroupBLR(model.named_parameters(), DiagonalAffine(), base, lr, **shared)
    magnitudes, others = networks.split_parameters(model)
    groups: list[dict[str, Any]] = [{"params": magnitudes}]
    if others:
        width = Normal(3 / math.sqrt(data_size))
        rest = {"group": Additive(), "base": width, "metric": Absorbed(), "max_step": None, "temperature": 0.0}
        groups.append({"params": others, **rest})
    return LieGroupBLR(groups, Multiplicative(), base, lr, **shared)


def parallel(model: nn.Module, settings: TrainSettings) -> nn.Module:
    """The model as every rank calls it. SGD averages gradients, the others what they make of their own samples' gradients."""
    wrapped = DistributedDataParallel(model)
    return wrapped if settings.rule == "sgd" else local_gradients(wrapped)


def posterior_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Posterior:
    """What the optimizer has learned. SGD is the additive rule on a Dirac base (Sec. 4.1), and its posterior a point."""
    if not isinstance(optimizer, torch.optim.SGD):
        return cast(LieGroupBLR, optimizer).posterior(model)
    points = {name: Shift(p.detach().clone()) for name, p in unwrap(model).named_parameters()}
    return Posterior(model, {name: Family(Additive(), Dirac(), g) for name, g in points.items()}, temperature=0.0)
