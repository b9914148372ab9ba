"""A data set in memory: inputs, and classes, yes-or-no labels or numbers to predict; stratified folds of it."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .augment import Augmentation, normalize
from .errors import DataError

if TYPE_CHECKING:
    from .tables import TableEncoding

Split = Literal["train", "test"]
Kind = Literal["classification", "multilabel", "regression"]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images and labels in memory, with the constants of the public recipes.

    uint8 images have the intensity pixel/255, from 0 to 1; `mean` and `std` are on that scale, one value for each channel or
    one for all. Floating-point images are used as they are, and may be feature vectors of shape (N, D). `augmentation` applies
    to training batches only (`Batches`); None disables it.

    What is predicted follows from the labels: int64 of shape (N,) are classes, bool of shape (N, L) are L yes-or-no labels,
    floating-point numbers of shape (N,) or (N, T) are values to regress on. `class_names` names the classes, the labels or the
    values.
    """

    name: str
    train_images: Tensor  # (N, C, H, W), uint8
    train_labels: Tensor  # (N,), int64; or bool or floating
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augmentation: Augmentation | None = None
    encoding: TableEncoding | None = None
    """How the columns of a table became inputs, for tables that come later."""

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            images, labels = self.split(split)
            pictures = images.dtype == torch.uint8 and images.ndim == 4
            if not pictures and not (images.is_floating_point() and images.ndim >= 2):
                raise ValueError(
                    f"{self.name}: {split}_images must be uint8 of shape (N, C, H, W), or floating of shape (N, C, ...), "
                    f"not {images.dtype} of shape {tuple(images.shape)}"
                )
            if self.kind != "classification":
                self._require_targets(split, labels, len(images))
                continue
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
                raise ValueError(
                    f"{self.name}: {split}_labels must be int64 of shape ({len(images)},), "
                    f"not {labels.dtype} of shape {tuple(labels.shape)}"
                )
            if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= len(self.class_names)):
                raise ValueError(
                    f"{self.name}: {split}_labels run from {int(labels.min())} to {int(labels.max())}, "
                    f"but there are {len(self.class_names)} class names"
                )
        if self.train_images.shape[1:] != self.test_images.shape[1:] or self.train_images.dtype != self.test_images.dtype:
            raise ValueError(
                f"{self.name}: training and test images differ: {tuple(self.train_images.shape[1:])} "
                f"{self.train_images.dtype} and {tuple(self.test_images.shape[1:])} {self.test_images.dtype}"
            )
        channels = self.train_images.shape[1]
        for what, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(f"{self.name}: {what} has {len(values)} values for images of {channels} channels")
        if not all(value > 0 for value in self.std):
            raise ValueError(f"{self.name}: std must be positive, not {self.std}")
        if self.augmentation is not None and self.train_images.ndim != 4:
            raise ValueError(f"{self.name}: augmentation needs images of shape (N, C, H, W)")

    def _require_targets(self, split: Split, labels: Tensor, inputs: int) -> None:
        """Refuses yes-or-no labels and values unless there is one for each name."""
        shapes = [(inputs, len(self.class_names))] + [(inputs,)] * (self.kind == "regression" and len(self.class_names) == 1)
        if tuple(labels.shape) not in shapes or labels.dtype != self.train_labels.dtype:
            raise ValueError(
                f"{self.name}: {split}_labels must be {self.train_labels.dtype} of shape {shapes[-1]}, one for each of "
                f"{', '.join(self.class_names)}, not {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if not bool(labels.isfinite().all()):
            raise ValueError(f"{self.name}: {split}_labels must be finite numbers")

    def __repr__(self) -> str:
        shape = "×".join(str(size) for size in self.image_shape)
        what = {
            "classification": f"{self.num_classes} classes",
            "multilabel": f"{self.num_classes} labels",
            "regression": f"predicting {', '.join(self.class_names)}",
        }[self.kind]
        inputs = "images" if len(self.image_shape) > 1 or self.kind == "classification" else "rows"
        return (
            f"Dataset({self.name!r}: {len(self.train_labels):,} training and {len(self.test_labels):,} test {inputs} "
            f"of {shape}, {what})"
        )

    @property
    def kind(self) -> Kind:
        """What is predicted, by the type of the labels."""
        if self.train_labels.is_floating_point():
            return "regression"
        return "multilabel" if self.train_labels.dtype == torch.bool else "classification"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return tuple(self.train_images.shape[1:])

    def split(self, split: Split) -> tuple[Tensor, Tensor]:
        """The images and labels of one part."""
        if split == "train":
            return self.train_images, self.train_labels
        if split == "test":
            return self.test_images, self.test_labels
        raise ValueError(f"split must be 'train' or 'test', not {split!r}")

    def everything(self) -> tuple[Tensor, Tensor]:
        """All images and labels, the training ones first."""
        return torch.cat([self.train_images, self.test_images]), torch.cat([self.train_labels, self.test_labels])

    def normalize(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The input of the network for these images: (intensity − mean) / std."""
        return normalize(images, self.mean, self.std, dtype)

    def folds(self, number: int = 5, seed: int = 0) -> list[Dataset]:
        """Stratified cross-validation over all data: `number` data sets whose test parts are disjoint and cover everything.

        >>> from liebayes import data
        >>> [len(fold.test_labels) for fold in data.load("digits").folds(5)]
        [360, 360, 359, 359, 359]
        """
        images, labels = self.everything()
        fold = stratified_folds(labels, number, seed)
        return [
            replace(
                self,
                train_images=images[fold != k],
                train_labels=labels[fold != k],
                test_images=images[fold == k],
                test_labels=labels[fold == k],
            )
            for k in range(number)
        ]

    def held_out(self, number: int, seed: int = 0) -> Dataset:
        """The data set with `number` training images in place of the test images, to choose settings without these.

        The held-out images are stratified by class. With 0 it is the data set itself.

        >>> from liebayes import data
        >>> data.load("digits").held_out(300)
        Dataset('digits (300 held out)': 1,137 training and 300 test images of 1×8×8, 10 classes)
        """
        images = len(self.train_labels)
        if not 0 <= number < images:
            raise ValueError(f"{self.name}: the number of images held out must be from 0 to {images - 1}, not {number}")
        if number == 0:
            return self
        share = torch.empty(images, dtype=torch.float64)  # the share of its class that precedes an image
        for members in _shuffled_classes(_strata(self.train_labels), seed):
            share[members] = (torch.arange(len(members)) + 0.5).double() / len(members)
        order = share.argsort(stable=True)
        out, kept = order[:number].sort().values, order[number:].sort().values
        return replace(
            self,
            name=f"{self.name} ({number} held out)",
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            test_images=self.train_images[out],
            test_labels=self.train_labels[out],
        )


def from_tensors(
    train_images: Any,
    train_labels: Any,
    test_images: Any,
    test_labels: Any,
    *,
    name: str = "tensors",
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    augmentation: Augmentation | None = None,
    encoding: TableEncoding | None = None,
) -> Dataset:
    """A data set from tensors, or from arrays of numpy.

    uint8 images of shape (N, H, W) get a channel dimension; in all others the second dimension is the channels, or the
    features. Labels of any integer type are classes, a matrix of bool or of 0 and 1 is yes-or-no labels, and floating-point
    numbers are values to regress on. Class names default to the numbers from 0 to the highest label, `mean` and `std` to
    those of each channel of the training images.

    >>> import torch
    >>> images, labels = torch.arange(64, dtype=torch.uint8).view(4, 4, 4), torch.tensor([0, 1, 0, 2])
    >>> from_tensors(images[:3], labels[:3], images[3:], labels[3:])
    Dataset('tensors': 3 training and 1 test images of 1×4×4, 3 classes)
    """

    train_images, test_images = (_inputs(images) for images in (train_images, test_images))
    train_labels, test_labels = _labels(train_labels, "train_labels"), _labels(test_labels, "test_labels")
    if class_names is None:
        class_names = _default_names(train_labels, test_labels)
    if (mean is None or std is None) and train_images.ndim >= 2 and len(train_images):
        own_mean, own_std = _moments(train_images)
        mean, std = own_mean if mean is None else mean, own_std if std is None else std
    return Dataset(
        name,
        train_images,
        train_labels,
        test_images,
        test_labels,
        tuple(class_names),
        _tuple(mean, 0.0),
        _tuple(std, 1.0),
        augmentation,
        encoding,
    )


def _inputs(images: Any) -> Tensor:
    images = torch.as_tensor(images)
    if images.dtype == torch.uint8:
        return images.unsqueeze(1) if images.ndim == 3 else images
    # float64 is what numpy makes of numbers, and integers of features: neither is meant as a precision.
    numbers = images.dtype == torch.float64 or (images.ndim == 2 and not images.is_floating_point())
    return images.float() if numbers else images


def _labels(labels: Any, what: str) -> Tensor:
    labels = torch.as_tensor(labels)
    if labels.is_complex() or (labels.dtype == torch.bool and labels.ndim != 2):
        raise ValueError(f"{what} must be class numbers of an integer type, a matrix of bool, or values, not {labels.dtype}")
    if labels.is_floating_point():
        return labels.float()
    if labels.ndim != 2:
        return labels.to(torch.int64)
    if labels.dtype != torch.bool and not bool(((labels == 0) | (labels == 1)).all()):
        raise ValueError(f"{what} of shape {tuple(labels.shape)} must be 0 or 1, the yes-or-no labels of every input")
    return labels.bool()


def _default_names(train_labels: Tensor, test_labels: Tensor) -> list[str]:
    if train_labels.dtype != torch.int64:
        columns = 1 if train_labels.ndim == 1 else train_labels.shape[1]
        word = "label" if train_labels.dtype == torch.bool else "target"
        return [word] if columns == 1 else [f"{word} {k + 1}" for k in range(columns)]
    highest = max((int(labels.max()) for labels in (train_labels, test_labels) if len(labels)), default=-1)
    return [str(k) for k in range(highest + 1)]


def _moments(images: Tensor) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of each channel, with 1 for the standard deviation of a constant channel."""
    if images.dtype == torch.uint8:
        # By counting: exact, and without a copy of eight bytes per pixel.
        counts = torch.stack([images[:, c].flatten().bincount(minlength=256) for c in range(images.shape[1])]).double()
        weights, levels = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
        mean = (weights * levels).sum(1)
        std = (weights * (levels - mean[:, None]).square()).sum(1).sqrt()
    else:
        values = images.transpose(0, 1).flatten(1).double()
        mean, std = values.mean(1), values.std(1, correction=0)
    return mean.tolist(), torch.where(std > 0, std, 1.0).tolist()


def _tuple(values: Sequence[float] | float | None, default: float) -> tuple[float, ...]:
    if values is None:
        return (default,)
    if isinstance(values, (int, float, numbers.Real)):  # also numpy's
        return (float(values),)
    return tuple(float(value) for value in values)


def stratified_folds(labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """The fold of each record, from 0 to `folds` − 1: (N,). Sizes differ by at most one, over all and within each class."""
    if not 2 <= folds <= max(len(labels), 2):
        raise ValueError(f"the number of folds must be from 2 to the {len(labels)} records, not {folds}")
    fold = torch.empty(len(labels), dtype=torch.int64)
    dealt = 0
    for members in _shuffled_classes(_strata(labels), seed):
        # Dealt like cards, each class from where the previous one ended, so that no fold collects all the remainders.
        fold[members] = (torch.arange(len(members)) + dealt) % folds
        dealt += len(members)
    return fold


def split_rows(labels: Tensor) -> Tensor:
    """Whether a row belongs to the test part, a fifth of all: fold 0 of five stratified folds, as of the digits."""
    if len(labels) < 5:
        raise DataError(f"{len(labels)} rows are too few to hold out a fifth for tests.")
    return stratified_folds(labels, 5, seed=0) == 0


def _strata(labels: Tensor) -> Tensor:
    """The groups that every fold should have its share of: classes; the rest is one group."""
    return labels if labels.dtype == torch.int64 else torch.zeros(len(labels), dtype=torch.int64)


def _shuffled_classes(labels: Tensor, seed: int) -> Iterator[list[int]]:
    """The records of each class, ordered by the SHA-256 of "seed:index", which no version of a library can change."""
    for label in labels.unique(sorted=True):
        members = (labels == label).nonzero().flatten().tolist()
        yield sorted(members, key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())
