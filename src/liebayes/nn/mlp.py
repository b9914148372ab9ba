"""The fully connected network of App. B.1: hidden layers of 1024, 512, 256, 256 and 256 units, tanh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from .sizes import require_finite, require_sizes


def mlp(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    hidden: Sequence[int] = (1024, 512, 256, 256, 256),
    activation: Callable[[], nn.Module] = nn.Tanh,
    gain: float = 1.0,
    bias: float = 0.05,
) -> nn.Sequential:
    """A multilayer perceptron from inputs of `shape`, which are flattened, to logits.

    Weights start normal with Glorot's variance 2·gain²/(fan in + fan out), which suits tanh near zero; for ReLU use a
    gain of √2. Biases start at 0.05, as in the published experiments.

    >>> sum(p.numel() for p in mlp().parameters())
    1594122
    >>> small = mlp((1, 8, 8), hidden=(32, 16))
    """
    require_sizes(shape=shape, classes=[classes], hidden=hidden)
    require_finite(gain=gain, bias=bias)
    if gain < 0:
        raise ValueError(f"gain must be zero or positive, but got {gain!r}.")
    widths = [math.prod(shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layer = nn.Linear(fan_in, fan_out)
        last = len(layers) == 1 + 2 * len(hidden)
        nn.init.xavier_normal_(layer.weight, gain=1.0 if last else gain)
        nn.init.constant_(layer.bias, bias)
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)
