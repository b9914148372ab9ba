"""The images that no class of a report's data set has: made here, or another data set brought to size."""

from pathlib import Path

import pytest
import torch

from liebayes import data
from liebayes.experiments import SettingsError
from liebayes.experiments.report.outside import MADE, outside_images


def test_images_from_outside() -> None:
    digits = data.load("digits")
    for name in MADE:
        outside = outside_images(digits, name, None)
        assert outside.images.shape == digits.test_images.shape
        assert outside.images.dtype == torch.uint8
        assert name in outside.name
    shuffled = outside_images(digits, None, None)
    assert shuffled.name == "shuffled test images"
    assert not torch.equal(shuffled.images, digits.test_images)
    assert torch.equal(shuffled.images.flatten(1).sort(1)[0], digits.test_images.flatten(1).sort(1)[0])
    with pytest.raises(SettingsError, match="--ood must be one of"):
        outside_images(digits, "nothing", None)


def test_another_data_set_is_brought_to_size() -> None:
    digits = data.load("digits")
    colour = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
    colour[:, 0] = 90
    large = data.from_tensors(colour, torch.arange(5), colour, torch.arange(5), name="large")
    data.register("large-colours", lambda data_dir, download: large)
    try:
        images = outside_images(digits, "large-colours", None).images
    finally:
        data.unregister("large-colours")
    assert images.shape == (5, 1, 8, 8)
    assert images.unique().tolist() == [30]


def test_a_damaged_companion_does_not_stop_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digits = data.load("digits")
    images, labels = digits.train_images[:20], digits.train_labels[:20]
    mnist = data.from_tensors(images, labels, images, labels, name="mnist")
    (tmp_path / "fashion-mnist").mkdir()
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "fashion-mnist" / f"{part}-ubyte.gz").write_bytes(b"cut short")
    with pytest.warns(UserWarning, match="Using shuffled images instead"):
        assert outside_images(mnist, None, tmp_path).name.startswith("shuffled")
    with pytest.warns(UserWarning, match="Using shuffled images instead"):  # its companion, where images are held out
        outside_images(mnist.held_out(5), None, tmp_path)
    with pytest.raises(data.DataError):
        outside_images(mnist, "fashion-mnist", tmp_path)
