"""Known facts about the real data sets; those that are missing here are skipped."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from liebayes import data
from liebayes.data import Batches, Dataset, IncompleteDataWarning, MissingDataError
from liebayes.data.idx import FASHION_MNIST, MNIST


def load(name: str, folder: Path) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteDataWarning)
        try:
            return data.load(name, folder, download=False)
        except MissingDataError as error:
            pytest.skip(str(error))


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """By channel, from the counts of the 256 levels."""
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)]).double()
    share, levels = counts / counts.sum(1, keepdim=True), torch.arange(256) / 255
    mean = (share * levels).sum(1)
    return mean.float(), ((share * levels**2).sum(1) - mean**2).sqrt().float()


def near_constants(dataset: Dataset, tolerance: float) -> bool:
    mean, std = moments(dataset.train_images)
    close = torch.allclose(mean, torch.tensor(dataset.mean), atol=tolerance, rtol=0)
    return close and torch.allclose(std, torch.tensor(dataset.std), atol=tolerance, rtol=0)


def test_mnist(real_data: Path) -> None:
    dataset = load("mnist", real_data)
    assert dataset.train_images.shape == (60_000, 1, 28, 28)
    assert dataset.test_images.shape == (10_000, 1, 28, 28)
    assert dataset.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert dataset.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert tuple(dataset.train_labels[:16].tolist()) == MNIST.first_labels["train"]
    assert tuple(dataset.test_labels[:16].tolist()) == MNIST.first_labels["t10k"]
    assert dataset.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert near_constants(dataset, 1e-4)
    assert dataset.augmentation is None
    images, labels = next(iter(Batches(dataset, 2_000).epoch(0)))
    assert abs(float(images.mean())) < 0.03
    assert abs(float(images.std()) - 1) < 0.03
    assert labels.bincount(minlength=10).min() > 100


def test_fashion_mnist(fashion_data: Path) -> None:
    dataset = load("fashion-mnist", fashion_data)
    assert dataset.train_images.shape == (60_000, 1, 28, 28)
    assert dataset.train_labels.bincount().tolist() == [6_000] * 10
    assert dataset.test_labels.bincount().tolist() == [1_000] * 10
    assert tuple(dataset.train_labels[:16].tolist()) == FASHION_MNIST.first_labels["train"]
    assert tuple(dataset.test_labels[:16].tolist()) == FASHION_MNIST.first_labels["t10k"]
    assert dataset.class_names[dataset.train_labels[0]] == "Ankle boot"
    assert near_constants(dataset, 1e-4)


def test_cifar10(real_data: Path) -> None:
    dataset = load("cifar10", real_data)
    assert dataset.train_images.shape == (50_000, 3, 32, 32)
    assert dataset.test_images.shape == (10_000, 3, 32, 32)
    assert dataset.train_labels.bincount().tolist() == [5_000] * 10
    assert dataset.test_labels.bincount().tolist() == [1_000] * 10
    assert [dataset.class_names[k] for k in dataset.train_labels[:4]] == ["frog", "truck", "truck", "deer"]
    assert [dataset.class_names[k] for k in dataset.test_labels[:4]] == ["cat", "ship", "ship", "airplane"]
    assert near_constants(dataset, 1e-4)
    assert torch.allclose(moments(dataset.train_images)[0], torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)
    # The first image of the published file, row by row: channel planes, not interleaved colours.
    assert dataset.train_images[0, :, 0, 0].tolist() == [59, 62, 63]


def test_cifar100(real_data: Path) -> None:
    dataset = load("cifar100", real_data)
    assert dataset.image_shape == (3, 32, 32)
    assert dataset.num_classes == 100
    assert dataset.train_labels[:4].tolist() == [19, 29, 0, 11]
    assert dataset.test_labels[:4].tolist() == [49, 33, 72, 51]
    assert dataset.class_names[19] == "cattle"
    assert near_constants(dataset, 0.01)
    names = real_data / "cifar-100-binary" / "fine_label_names.txt"
    if names.is_file():
        assert dataset.class_names == tuple(names.read_text().split())


def test_tiny_imagenet(real_data: Path) -> None:
    pytest.importorskip("PIL")
    dataset = load("tinyimagenet", real_data)
    assert dataset.image_shape == (3, 64, 64)
    counts = dataset.train_labels.bincount(minlength=dataset.num_classes)
    assert len(counts) == dataset.num_classes
    assert int(counts.min()) == int(counts.max()) > 0
    assert "Egyptian cat" in dataset.class_names
    assert near_constants(dataset, 0.03)


def test_parts_of_data_sets_warn(real_data: Path) -> None:
    train = real_data / "cifar-100-binary" / "train.bin"
    if not train.is_file() or train.stat().st_size == 50_000 * 3074:
        pytest.skip("CIFAR-100 is absent or complete")
    with pytest.warns(IncompleteDataWarning) as caught:
        dataset = data.load("cifar100", real_data, download=False)
    assert f"{train}: {len(dataset.train_labels):,} of the 50,000 published training images" in str(caught[0].message)


def test_mnist_is_not_taken_for_fashion_mnist(real_data: Path) -> None:
    if not (real_data / "mnist").is_dir():
        pytest.skip("no folder mnist")
    with pytest.raises(data.DataFileError, match="labels of MNIST, not of Fashion-MNIST"):
        data.load("fashion-mnist", real_data / "mnist", download=False)
