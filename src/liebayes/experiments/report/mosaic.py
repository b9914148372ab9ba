"""Many small images as one: a mosaic is drawn as a single image, pixel by pixel, which keeps files small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

DIVERGING = "RdBu_r"


@dataclass(frozen=True)
class Grid:
    """The positions of the tiles of a mosaic, in pixels."""

    lefts: list[float]
    tops: list[float]
    height: int
    width: int


def draw(axes: Axes, tiles: list[np.ndarray], columns: int, *, gap: float = 0.1, row_gap: float | None = None) -> Grid:
    """Draws tiles (height, width, 4) row by row on a transparent background.

    Args:
        axes: the axes to draw on.
        tiles: tiles of the same size.
        columns: tiles in a row.
        gap: space between tiles, in widths of a tile.
        row_gap: space between rows, in heights of a tile; like `gap` by default.
    """
    height, width, _ = tiles[0].shape
    # Small tiles are enlarged, so that a gap can be narrower than one of their pixels.
    factor = max(1, math.ceil(24 / width))
    tiles = [tile.repeat(factor, 0).repeat(factor, 1) for tile in tiles]
    height, width = height * factor, width * factor
    across = max(1, round(gap * width))
    down = max(1, round((gap if row_gap is None else row_gap) * height))
    rows = -(-len(tiles) // columns)
    canvas = np.zeros((rows * (height + down) - down, columns * (width + across) - across, 4), np.uint8)
    lefts, tops = [], []
    for k, tile in enumerate(tiles):
        y, x = (k // columns) * (height + down), (k % columns) * (width + across)
        canvas[y : y + height, x : x + width] = tile
        lefts.append(x - 0.5)
        tops.append(y - 0.5)
    axes.imshow(canvas, interpolation="none")
    axes.set_axis_off()
    return Grid(lefts, tops, height, width)


def photograph(image: Tensor) -> np.ndarray:
    """An image of a data set as a tile; a floating-point image on its own scale."""
    pixels = image.float()
    if image.dtype == torch.uint8:
        pixels = pixels / 255
    else:
        pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12)
    return _tile(pixels.expand(3, -1, -1))


def feature(weight: Tensor) -> np.ndarray:
    """Weights (channels, height, width) on their own scale: red and blue about zero, or colours about grey."""
    reach = max(float(weight.abs().max()), 1e-12)
    if len(weight) == 1:
        return coloured(weight[0] / (2 * reach) + 0.5, DIVERGING)
    return _tile(weight / (2 * reach) + 0.5)


def coloured(values: Tensor, colours: str) -> np.ndarray:
    """Numbers from 0 to 1 through a colour map."""
    return matplotlib.colormaps[colours](values.double().clamp(0, 1).numpy(), bytes=True)


def _tile(pixels: Tensor) -> np.ndarray:
    opaque = torch.cat([pixels, torch.ones_like(pixels[:1])])
    return (opaque.clamp(0, 1) * 255).round().to(torch.uint8).movedim(0, -1).numpy()
