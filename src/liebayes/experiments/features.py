"""First-layer features as images, sorted by activation, and how sparse and local they are (Sec. 5.1)."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data import Dataset
from ..metrics import localisation, sparsity
from .settings import SettingsError


def first_layer(model: nn.Module) -> nn.Linear | nn.Conv2d:
    """The first layer with weights."""
    return next(module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d)))


def weight_images(layer: nn.Linear | nn.Conv2d, image_shape: tuple[int, ...]) -> Tensor | None:
    """The weights of each unit or filter as an image (units, channels, height, width); None where that is impossible."""
    weight = layer.weight.detach()
    if weight.ndim == 4:
        return weight if weight.shape[1] in (1, 3) else None
    return weight.view(-1, *image_shape) if weight.shape[1] == math.prod(image_shape) else None


class Features(NamedTuple):
    """The first layer of a network, and how strongly one image activates each unit or filter."""

    layer: nn.Linear | nn.Conv2d
    weights: Tensor | None  # (units, channels, height, width), or None where they are not images
    activation: Tensor
    order: Tensor
    """The units, the most active first."""


def features_of(model: nn.Module, dataset: Dataset, index: int) -> Features:
    """The features of a network, sorted by a test image. The activations of a filter are averaged over the image."""
    if not 0 <= index < len(dataset.test_labels):
        raise SettingsError(f"--image must be the number of a test image, 0 to {len(dataset.test_labels) - 1}, not {index}.")
    layer = first_layer(model)
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0].detach()))
    try:
        with torch.no_grad():
            model(dataset.normalize(dataset.test_images[index : index + 1]))
    finally:
        handle.remove()
    activation = seen[0].flatten(1).mean(1) if seen[0].ndim > 1 else seen[0]
    return Features(layer, weight_images(layer, dataset.image_shape), activation, activation.argsort(descending=True))


def window_side(side: int) -> int:
    """A quarter of the side, so that any window holds about a sixteenth of the mass of a feature that is spread out.

    >>> window_side(28), window_side(32), window_side(5)
    (7, 8, 1)
    """
    return max(1, round(side / 4))


def feature_numbers(images: Tensor) -> dict[str, Any]:
    """Sparsity of the whole layer, and the mean sparsity and localisation of its features.

    A few units with enormous weights change the numbers of the layer, but not those of its features.
    """
    found = sparsity(images)
    features = [sparsity(feature) for feature in images if bool(feature.any())]  # undefined for a feature of zeros
    window = window_side(images.shape[-1])
    return {
        "weights": images.numel(),
        "carry_90_percent": found.mass_count,
        "carry_90_percent_share": found.mass_share,
        "gini": found.gini,
        "hoyer": found.hoyer,
        "feature_share": statistics.fmean(feature.mass_share for feature in features),
        "feature_gini": statistics.fmean(feature.gini for feature in features),
        "window": window,
        "localisation": float(localisation(images.abs().sum(1), window).nanmean()),
        "localisation_if_flat": (window / images.shape[-1]) ** 2,
    }
