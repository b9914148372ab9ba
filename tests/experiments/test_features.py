"""How sparse and local features are."""

from __future__ import annotations

import math

import pytest
import torch

from liebayes.experiments.features import feature_numbers, weight_images, window_side
from liebayes.metrics import localisation


def test_localisation_against_a_loop() -> None:
    maps = torch.rand(5, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for window in (1, 3, 7):
        best = [
            max(float(m[y : y + window, x : x + window].sum()) for y in range(9 - window + 1) for x in range(7 - window + 1))
            for m in maps
        ]
        torch.testing.assert_close(localisation(maps, window), torch.tensor(best, dtype=torch.float64) / maps.sum((1, 2)))
    with pytest.raises(ValueError, match="from 1 to 7"):
        localisation(maps, 8)
    with pytest.raises(ValueError, match="non-negative"):
        localisation(-maps, 2)


def test_feature_numbers() -> None:
    flat, dot = torch.ones(4, 3, 28, 28), torch.zeros(4, 3, 28, 28)
    dot[:, 0, 5:8, 5:8] = 1.0
    assert window_side(28) == 7
    assert feature_numbers(flat)["localisation"] == pytest.approx(feature_numbers(flat)["localisation_if_flat"])
    found = feature_numbers(dot)
    assert found["localisation"] == pytest.approx(1.0)
    assert found["carry_90_percent"] == math.ceil(0.9 * 36)
    assert weight_images(torch.nn.Linear(12, 2), (3, 2, 2)) is not None
    assert weight_images(torch.nn.Linear(12, 2), (1, 2, 2)) is None
    assert weight_images(torch.nn.Conv2d(16, 2, 3), (3, 8, 8)) is None


def test_a_feature_without_weights_has_no_numbers() -> None:
    images = torch.rand(4, 1, 28, 28)
    of_features = ("localisation", "feature_share", "feature_gini")
    expected = feature_numbers(images[[0, 1, 3]])
    images[2] = 0
    found = feature_numbers(images)
    assert [found[name] for name in of_features] == pytest.approx([expected[name] for name in of_features])


def test_a_runaway_unit_changes_the_numbers_of_the_layer_only() -> None:
    images = torch.randn(100, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    before = feature_numbers(images)
    images[7] *= 1000
    after = feature_numbers(images)
    for name in ("localisation", "feature_share", "feature_gini"):
        assert after[name] == pytest.approx(before[name])
    assert after["gini"] > before["gini"] + 0.4
    # |N(0, 1)| has the Gini index √2 − 1, and 90 % of its mass above the root of e^(−x²/2) = 0.9.
    assert before["feature_gini"] == pytest.approx(math.sqrt(2) - 1, abs=0.01)
    assert before["feature_share"] == pytest.approx(math.erfc(math.sqrt(-math.log(0.9))), abs=0.01)
