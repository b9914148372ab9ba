"""The convolutional network of App. B.1: 128, 256 and 512 filters, each followed by max-pooling, then 512 and 256 units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from .sizes import require_images, require_sizes

ELU_GAIN = 1.2452
"""1/√E[elu(z)²] for a standard normal z, with E[elu(z)²] = 1 + e²Φ(−2) − 2√e·Φ(−1): it keeps the size of signals."""


def lenet(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    *,
    filters: Sequence[int] = (128, 256, 512),
    hidden: Sequence[int] = (512, 256),
) -> nn.Sequential:
    """A LeNet from images of `shape` to logits: 5×5 filters padded by 2, ELU, unpadded 3×3 max-pooling of stride 2.

    Weights start normal with variance gain²/fan in, with the gain of ELU (1 in the last layer); biases start at 0.

    >>> sum(p.numel() for p in lenet().parameters())
    6600202
    >>> small = lenet((1, 8, 8), filters=(16, 32), hidden=(32,))
    """
    require_images(shape)
    require_sizes(shape=shape, classes=[classes], filters=filters, hidden=hidden)
    channels, *size = shape
    layers: list[nn.Module] = []
    for count in filters:
        if min(size) < 3:
            raise ValueError(
                f"Images of {shape[1]}×{shape[2]} are too small for {len(filters)} layers of 3×3 pooling. "
                "Give fewer filters, or use another network."
            )
        layers += [nn.Conv2d(channels, count, 5, padding=2), nn.ELU(), nn.MaxPool2d(3, stride=2)]
        channels, size = count, [(n - 3) // 2 + 1 for n in size]
    layers.append(nn.Flatten())
    widths = [channels * math.prod(size), *hidden]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ELU()]
    layers.append(nn.Linear(widths[-1], classes))
    network = nn.Sequential(*layers)
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            gain = 1.0 if layer is network[-1] else ELU_GAIN
            nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.weight[0].numel()))
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]
    return network
