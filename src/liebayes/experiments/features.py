"""First-layer features as images, and how sparse and local they are (Sec. 5.1)."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from ..metrics import localisation, sparsity


def first_layer(model: nn.Module) -> nn.Linear | nn.Conv2d:
    """The first layer with weights."""
    return next(module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d)))


def weight_images(layer: nn.Linear | nn.Conv2d, image_shape: tuple[int, ...]) -> Tensor | None:
    """The weights of each unit or filter as an image (units, channels, height, width); None where they are no images."""
    weight = layer.weight.detach()
    if weight.ndim == 4:
        return weight if weight.shape[1] in (1, 3) else None
    return weight.view(-1, *image_shape) if weight.shape[1] == math.prod(image_shape) else None


def activations(model: nn.Module, layer: nn.Linear | nn.Conv2d, image: Tensor) -> Tensor:
    """How much one image, (1, channels, height, width), excites each unit; filters are averaged over the image."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0].detach()))
    try:
        with torch.no_grad():
            model(image)
    finally:
        handle.remove()
    return seen[0].flatten(1).mean(1) if seen[0].ndim > 1 else seen[0]


def window_side(side: int) -> int:
    """A quarter of the side, so that a feature without a place has about a sixteenth of its mass in any window.

    >>> window_side(28), window_side(32), window_side(5)
    (7, 8, 1)
    """
    return max(1, round(side / 4))


def feature_numbers(images: Tensor) -> dict[str, Any]:
    """Sparsity of the whole layer, and the mean sparsity and localisation of its features.

    A few units with enormous weights change the layer's numbers, and not those of features.
    """
    found = sparsity(images)
    features = [sparsity(feature) for feature in images if bool(feature.any())]  # one of zeros has no numbers
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
