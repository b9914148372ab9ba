"""The ResNet-20 of App. B.2 (He et al., 2016, Table 6), with filter response normalisation in place of batch normalisation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from .normalization import FilterResponseNorm
from .sizes import require_images, require_sizes


class ResidualBlock(nn.Module):
    """z = max(FRN(conv(max(FRN(conv(x)), τ))) + shortcut(x), τ').

    The second threshold comes after the addition, where a residual network has its activation. A shortcut that changes the
    shape is a 1×1 convolution with a norm and threshold of its own.
    """

    def __init__(self, channels: int, width: int, stride: int, *, initial_threshold: float = 0.0) -> None:
        super().__init__()
        self.conv1: nn.Conv2d = nn.Conv2d(channels, width, 3, stride, padding=1)
        self.norm1: FilterResponseNorm = FilterResponseNorm(width, initial_threshold=initial_threshold)
        self.conv2: nn.Conv2d = nn.Conv2d(width, width, 3, padding=1)
        self.norm2: FilterResponseNorm = FilterResponseNorm(width, threshold=False, initial_threshold=initial_threshold)
        self.shortcut: nn.Module = nn.Identity()
        if channels != width or stride != 1:
            norm = FilterResponseNorm(width, initial_threshold=initial_threshold)
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride), norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm2.thresholded(self.norm2(self.conv2(self.norm1(self.conv1(x)))) + self.shortcut(x))


class _MeanOverPositions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


def resnet20(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    *,
    width: int = 16,
    blocks: Sequence[int] = (3, 3, 3),
    initial_threshold: float = 0.0,
) -> nn.Sequential:
    """A residual network from images of `shape` to logits: stages of 1, 2, 4 times `width` filters, of 3 blocks each.

    Convolutions start normal with variance 2/fan in (the norm makes their size immaterial), the last layer with Glorot's,
    biases at 0, the thresholds of the norms at `initial_threshold` (see `FilterResponseNorm`).

    >>> sum(p.numel() for p in resnet20().parameters())
    274042
    >>> small = resnet20((1, 8, 8), width=4)
    """
    require_images(shape)
    require_sizes(shape=shape, classes=[classes], width=[width], blocks=blocks)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv"] = nn.Conv2d(shape[0], width, 3, padding=1)
    layers["norm"] = FilterResponseNorm(width, initial_threshold=initial_threshold)
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers[f"stage{stage + 1}_block{block + 1}"] = ResidualBlock(
                channels, width << stage, 2 if stage and not block else 1, initial_threshold=initial_threshold
            )
            channels = width << stage
    layers["mean"] = _MeanOverPositions()
    layers["output"] = nn.Linear(channels, classes)
    network = nn.Sequential(layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network
