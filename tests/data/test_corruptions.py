"""Corrupted images against formulas written number by number."""

from __future__ import annotations

import colorsys
import io
import math

import pytest
import torch
from PIL import Image

from liebayes.data import CORRUPTIONS, SEVERITIES, corrupted

IMAGES = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
GREY = IMAGES[:, :1]


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("images", [IMAGES, GREY], ids=["colour", "grey"])
def test_the_same_arguments_give_the_same_images(kind: str, images: torch.Tensor) -> None:
    before = images.clone()
    found = [corrupted(images, kind, severity) for severity in SEVERITIES]
    assert images.equal(before)
    assert all(f.dtype == torch.uint8 and f.shape == images.shape for f in found)
    assert all(corrupted(images, kind, s).equal(f) for s, f in zip(SEVERITIES, found, strict=True))
    moved = [float((f.float() - images.float()).square().mean()) for f in found]
    assert moved == sorted(moved), "more severe images are further from their originals"
    assert 0 < moved[0] < moved[-1]


def test_brightness_is_the_value_of_hsv() -> None:
    black = torch.cat([IMAGES, torch.zeros(1, 3, 8, 8, dtype=torch.uint8)])
    found = corrupted(black, "brightness", 3)
    for n, y, x in [(0, 0, 0), (1, 3, 5), (2, 7, 7), (3, 2, 2)]:
        h, s, v = colorsys.rgb_to_hsv(*(float(c) / 255 for c in black[n, :, y, x]))
        wanted = colorsys.hsv_to_rgb(h, s, min(v + 0.15, 1.0))
        assert found[n, :, y, x].tolist() == pytest.approx([255 * w for w in wanted], abs=0.51)


def test_contrast_is_about_the_mean() -> None:
    found, pixels = corrupted(IMAGES, "contrast", 2), IMAGES[1, 2].double().flatten().tolist()
    mean = sum(pixels) / len(pixels)
    assert found[1, 2].flatten().tolist() == pytest.approx([mean + 0.5 * (p - mean) for p in pixels], abs=0.51)


def test_blur_of_a_point_is_a_gaussian() -> None:
    point = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    point[0, 0, 7, 7] = 255
    found = corrupted(point, "blur", 5)[0, 0]
    total = sum(math.exp(-0.5 * k * k) for k in range(-4, 5)) ** 2
    for y, x in [(7, 7), (6, 7), (7, 9), (5, 6), (0, 0)]:
        assert int(found[y, x]) == pytest.approx(255 * math.exp(-0.5 * ((y - 7) ** 2 + (x - 7) ** 2)) / total, abs=0.51)
    flat = torch.full((1, 3, 6, 6), 77, dtype=torch.uint8)
    assert corrupted(flat, "blur", 5).equal(flat), "edges are continued"


def test_noise_has_its_deviation() -> None:
    grey = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    for severity, deviation in zip(SEVERITIES, CORRUPTIONS["noise"][0], strict=True):
        off = (corrupted(grey, "noise", severity).double() - 128) / 255
        bound = 5 * deviation / math.sqrt(off.numel())  # five standard errors
        assert abs(float(off.mean())) < bound
        assert float(off.std()) == pytest.approx(math.hypot(deviation, 1 / 255 / math.sqrt(12)), abs=bound)
    assert not corrupted(grey, "noise", 1, seed=1).equal(corrupted(grey, "noise", 1))


def test_jpeg_is_what_pillow_reads_back() -> None:
    import numpy as np

    found = corrupted(IMAGES, "jpeg", 4)
    file = io.BytesIO()
    Image.fromarray(IMAGES[2].permute(1, 2, 0).numpy()).save(file, "JPEG", quality=50)
    assert np.array_equal(found[2].permute(1, 2, 0).numpy(), np.asarray(Image.open(file)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IMAGES, "fog", 1), "noise, blur"),
        ((IMAGES, "noise", 6), "from 1 to 5"),
        ((IMAGES.float(), "noise", 1), "uint8"),
        ((IMAGES[0], "noise", 1), "uint8"),
        ((IMAGES[:, :2], "jpeg", 1), "1 or 3 channels"),
    ],
)
def test_bad_arguments(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corrupted(*arguments)
