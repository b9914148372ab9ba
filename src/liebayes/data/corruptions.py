"""Corrupted images: five kinds at five severities, with the constants of CIFAR-10-C (Hendrycks and Dietterich, 2019).

For intensities x in [0, 1], with a constant c for each severity, and clipped to [0, 1]:

    noise        x + cε, ε standard normal
    blur         a Gaussian of standard deviation c pixels; edges are continued
    contrast     m + c(x − m), m the mean of each image and channel
    brightness   the largest channel v of a pixel becomes min(v + c, 1), the others keep their ratio to it
    jpeg         compressed with quality c

They are made here, so that no file is needed; only their constants are those of the published set.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

SEVERITIES = (1, 2, 3, 4, 5)


def corrupted(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """The images, uint8 of shape (N, C, H, W), corrupted. The same arguments give the same images.

    >>> grey = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    >>> corrupted(grey, "brightness", 1).unique(), corrupted(grey, "contrast", 5).unique()
    (tensor([113], dtype=torch.uint8), tensor([100], dtype=torch.uint8))
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"kind must be one of {', '.join(CORRUPTIONS)}, but is {kind!r}.")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be a whole number from 1 to 5, but is {severity!r}.")
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images must be uint8 of shape (N, C, H, W), but are {images.dtype} of shape {tuple(images.shape)}."
        )
    constants, corrupt = CORRUPTIONS[kind]
    generator = torch.Generator().manual_seed(seed)
    changed = corrupt(images.float() / 255, constants[severity - 1], generator)
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8)


def _noise(x: Tensor, c: float, generator: torch.Generator) -> Tensor:
    return x + c * torch.randn(x.shape, generator=generator)


def _blur(x: Tensor, c: float, generator: torch.Generator) -> Tensor:
    reach = math.ceil(4 * c)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / c).square())
    weights = (weights / weights.sum()).expand(x.shape[1], 1, 1, -1)
    x = functional.pad(x, (reach,) * 4, mode="replicate")
    x = functional.conv2d(x, weights, groups=x.shape[1])
    return functional.conv2d(x, weights.transpose(2, 3), groups=x.shape[1])


def _contrast(x: Tensor, c: float, generator: torch.Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return mean + c * (x - mean)


def _brightness(x: Tensor, c: float, generator: torch.Generator) -> Tensor:
    value = x.amax(1, keepdim=True)
    brighter = (value + c).clamp_max(1)
    return torch.where(value > 0, x * brighter / value.clamp_min(1e-9), brighter)  # black has no ratios: it becomes grey


def _jpeg(x: Tensor, c: float, generator: torch.Generator) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('JPEG images need pillow: pip install "liebayes[all]".') from error
    if x.shape[1] not in (1, 3):
        raise ValueError(f"JPEG images have 1 or 3 channels, not {x.shape[1]}.")
    found = []
    for image in (x * 255).round().to(torch.uint8):
        pixels = image.permute(1, 2, 0).contiguous() if len(image) == 3 else image[0]
        file = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(file, "JPEG", quality=int(c))
        with Image.open(file) as opened:
            found.append(torch.frombuffer(bytearray(opened.tobytes()), dtype=torch.uint8).view(pixels.shape))
    pixels = torch.stack(found).float() / 255
    return pixels.permute(0, 3, 1, 2) if pixels.ndim == 4 else pixels.unsqueeze(1)


Corrupt = Callable[[Tensor, float, torch.Generator], Tensor]
CORRUPTIONS: dict[str, tuple[tuple[float, ...], Corrupt]] = {
    "noise": ((0.04, 0.06, 0.08, 0.09, 0.10), _noise),
    "blur": ((0.4, 0.6, 0.7, 0.8, 1.0), _blur),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), _contrast),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), _brightness),
    "jpeg": ((80, 65, 58, 50, 40), _jpeg),
}
"""The constants for each severity, and the formula."""
