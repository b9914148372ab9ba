"""Dataset: the digits, folds, data from tensors, checks, and the registry of names."""

import subprocess
import sys
from pathlib import Path

import formats
import pytest
import torch

from liebayes import data
from liebayes.data import Augmentation, DataError, DataFileError, Dataset, from_tensors, stratified_folds
from liebayes.data.errors import check_count


def test_digits() -> None:
    dataset = data.load()
    assert dataset.name == "digits"
    assert dataset.train_images.shape == (1437, 1, 8, 8)
    assert dataset.test_images.shape == (360, 1, 8, 8)
    assert dataset.train_images.dtype == torch.uint8
    share = dataset.test_labels.bincount() / dataset.everything()[1].bincount()
    assert float((share - 0.2).abs().max()) < 0.005
    # The split is the same with every version of every library: these are its first records.
    assert dataset.test_labels[:8].tolist() == [7, 5, 6, 7, 8, 3, 6, 1]
    values = dataset.train_images.double() / 255
    assert values.mean().item() == pytest.approx(dataset.mean[0], abs=1e-4)
    assert values.std().item() == pytest.approx(dataset.std[0], abs=1e-4)


def test_digits_keep_their_levels() -> None:
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    pixels, target = load_digits(return_X_y=True)
    images, labels = data.load("digits").everything()
    back = (images.double() * 16 / 255).round().flatten(1)
    ours = sorted(map(tuple, torch.cat([back, labels[:, None]], 1).tolist()))
    theirs = sorted(map(tuple, torch.cat([torch.tensor(pixels), torch.tensor(target)[:, None]], 1).tolist()))
    assert ours == theirs


def test_folds_cover_everything_once() -> None:
    dataset = data.load("digits")
    folds = dataset.folds(5, seed=3)
    assert sorted(len(fold.test_labels) for fold in folds) == [359, 359, 359, 360, 360]
    everything = sorted(map(tuple, dataset.everything()[0].flatten(1).tolist()))
    assert sorted(map(tuple, torch.cat([fold.test_images for fold in folds]).flatten(1).tolist())) == everything
    for fold in folds:
        assert len(fold.train_labels) + len(fold.test_labels) == 1797
        assert int((fold.test_labels.bincount() - dataset.everything()[1].bincount() / 5).abs().max()) < 1
    assert torch.equal(folds[0].test_images, dataset.folds(5, seed=3)[0].test_images)
    assert not torch.equal(folds[0].test_images, dataset.folds(5, seed=4)[0].test_images)


def test_held_out_images_are_training_images() -> None:
    dataset = data.load("digits")
    part = dataset.held_out(300)
    assert (len(part.train_labels), len(part.test_labels)) == (len(dataset.train_labels) - 300, 300)
    both = torch.cat([part.train_images, part.test_images]).flatten(1), torch.cat([part.train_labels, part.test_labels])
    assert sorted(map(tuple, torch.cat([both[0], both[1][:, None]], 1).tolist())) == sorted(
        map(tuple, torch.cat([dataset.train_images.flatten(1), dataset.train_labels[:, None]], 1).tolist())
    ), "all of the training images, each with its label, and none of the test images"
    expected = dataset.train_labels.bincount() * 300 / len(dataset.train_labels)
    assert float((part.test_labels.bincount() - expected).abs().max()) <= 1
    assert torch.equal(part.test_images, dataset.held_out(300).test_images)
    assert not torch.equal(part.test_images, dataset.held_out(300, seed=1).test_images)
    assert dataset.held_out(0) is dataset
    for wrong in (-1, len(dataset.train_labels)):
        with pytest.raises(ValueError, match=f"from 0 to 1436, not {wrong}"):
            dataset.held_out(wrong)


def test_stratified_folds() -> None:
    labels = torch.tensor([0] * 7 + [1] * 3 + [2] * 11)
    fold = stratified_folds(labels, 3)
    assert fold.bincount().tolist() == [7, 7, 7]
    for label in range(3):
        counts = fold[labels == label].bincount(minlength=3)
        assert int(counts.max() - counts.min()) <= 1
    with pytest.raises(ValueError, match="from 2 to the 21 records, not 1"):
        stratified_folds(labels, 1)
    with pytest.raises(ValueError, match="from 2 to the 21 records, not 22"):
        stratified_folds(labels, 22)


def test_from_tensors() -> None:
    images, labels = formats.pixels(10, 3, 4, 4), torch.arange(10, dtype=torch.uint8) % 3
    images[:, 2] = 77
    dataset = from_tensors(images[:8], labels[:8], images[8:], labels[8:], augmentation=Augmentation(1))
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.train_labels.dtype == torch.int64
    normal = dataset.normalize(dataset.train_images, torch.float64).transpose(0, 1).flatten(1)
    assert torch.allclose(normal.mean(1), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(normal.std(1, correction=0), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), atol=1e-12)
    assert repr(dataset) == "Dataset('tensors': 8 training and 2 test images of 3×4×4, 3 classes)"
    features = torch.randn(10, 5) * 3 + 1
    dataset = from_tensors(features, labels, features, labels, class_names=["a", "b", "c"], std=1.0)
    assert dataset.std == (1.0,)
    assert torch.allclose(dataset.normalize(features), features - features.mean(0), atol=1e-5)


GOOD = formats.pixels(4, 1, 2, 2)
LABELS = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"train_images": GOOD.int()}, r"train_images must be uint8 of shape .* not torch.int32"),
        ({"train_images": GOOD[:, 0]}, r"train_images must be uint8"),
        ({"train_labels": LABELS.int()}, "train_labels must be int64"),
        ({"test_labels": LABELS[:3]}, r"test_labels must be int64 of shape \(4,\)"),
        ({"test_labels": LABELS + 1}, "test_labels run from 1 to 2, but there are 2 class names"),
        ({"test_labels": LABELS - 1}, "test_labels run from -1"),
        ({"test_images": formats.pixels(4, 1, 3, 3)}, "training and test images differ"),
        ({"mean": (0.1, 0.2)}, "mean has 2 values for images of 1 channels"),
        ({"std": (0.0,)}, "std must be positive"),
    ],
)
def test_a_data_set_is_checked(arguments: dict[str, object], words: str) -> None:
    whole: dict[str, object] = {
        "name": "bad",
        "train_images": GOOD,
        "train_labels": LABELS,
        "test_images": GOOD,
        "test_labels": LABELS,
        "class_names": ("a", "b"),
    }
    Dataset(**whole)  # pyright: ignore
    with pytest.raises(ValueError, match=words):
        Dataset(**whole | arguments)  # pyright: ignore


def test_tensors_are_checked() -> None:
    features = torch.zeros(4, 3)
    with pytest.raises(ValueError, match="augmentation needs images"):
        from_tensors(features, LABELS, features, LABELS, augmentation=Augmentation())
    with pytest.raises(ValueError, match=r"test_labels must be torch\.float32 of shape \(4,\), one for each of target"):
        from_tensors(GOOD, LABELS.float(), GOOD, LABELS)
    with pytest.raises(ValueError, match="must be 0 or 1, the yes-or-no labels"):
        from_tensors(GOOD, LABELS[:, None] + 2, GOOD, LABELS[:, None])


def test_too_many_records_are_refused() -> None:
    with pytest.raises(DataFileError, match="holds 11 images, but only 10 are published"):
        check_count("some/file", 11, 10, "images")
    check_count("some/file", 10, 10, "images")


def test_names_and_registration() -> None:
    assert data.names() == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tinyimagenet", "diabetes"]
    asked: list[tuple[Path | None, bool]] = []

    def mine(data_dir: Path | None, download: bool) -> Dataset:
        asked.append((data_dir, download))
        return from_tensors(GOOD, LABELS, GOOD, LABELS, name="mine")

    data.register("Mine", mine)
    try:
        assert data.load("mine", "some/where", download=False).name == "mine"
        assert asked == [(Path("some/where"), False)]
        assert "mine" in data.names()
        with pytest.raises(ValueError, match="already"):
            data.register("mine", mine)
        data.register("mine", mine, replace=True)
    finally:
        data.unregister("mine")
    with pytest.raises(ValueError, match="no data set 'mine'"):
        data.unregister("mine")
    with pytest.raises(ValueError, match="must be a function"):
        data.register("mine", 3)  # pyright: ignore
    with pytest.raises(ValueError, match="needs a name"):
        data.register(" ", mine)
    with pytest.raises(DataError, match=r"no data set 'minst'; did you mean 'mnist'\? Known: digits, mnist"):
        data.load("minst")
    with pytest.raises(DataError, match=r"a data set is chosen by name, .* but got None"):
        data.load(None)  # pyright: ignore
    assert data.load("DIGITS").name == "digits"


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """scikit-learn and Pillow are imported where they are needed."""
    pytest.importorskip("PIL")
    code = """
import sys
for name in ("sklearn", "PIL"):
    sys.modules[name] = None
import torch
from liebayes import data
for call in (data.digits, lambda: data.tiny_imagenet(sys.argv[1])):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    formats.write_folder(tmp_path, formats.tiny_imagenet_files(1))
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "scikit-learn: pip install 'liebayes[data]'" in result.stdout
    assert "Pillow: pip install 'liebayes[data]'" in result.stdout
