"""Batches whose order and augmentation depend on (seed, epoch) alone."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterator

import torch
from torch import Tensor

from .augment import Augmentation, Normalization
from .dataset import Dataset, Split


class Batches:
    """Shuffled, augmented, normalised batches of a data set or of a pair of tensors (inputs, targets).

    The order of an epoch and the crop and flip of each image are functions of (seed, epoch) and the place in the order. So
    training resumes bit for bit at any batch: `epoch(e, start_batch=b)` yields what `epoch(e)` yields from batch b on. The
    augmentation depends neither on the batch size nor on the number of processes.

    With `world_size` processes, `batch_size` is that of all together and must be a multiple of `world_size`; rank r takes
    the r-th of the equal consecutive parts of each batch, so the ranks' parts together are the batch of one process.

    The last batch of an epoch is smaller if `batch_size` does not divide the number of images; `drop_last` leaves it out
    (the order changes each epoch, so other images each time). With several processes a smaller last batch is cut to equal
    parts: at most `world_size` − 1 images are left out.

    A data set's augmentation is on for its training part unless `augment=False`; it is never applied to the test part.
    Order: shuffled for training, as stored for test, unless `shuffle` says otherwise. Tensors are taken as a training part
    without augmentation; uint8 inputs are divided by 255, and inputs that are not integers are given in `dtype`.

    >>> inputs, targets = torch.arange(10.0).view(10, 1), torch.arange(10)
    >>> batches = Batches((inputs, targets), 4, seed=1)
    >>> [len(target) for _, target in batches.epoch(0)]
    [4, 4, 2]
    >>> whole = [target for _, target in batches.epoch(3)]
    >>> rest = [target for _, target in batches.epoch(3, start_batch=1)]
    >>> all(a.equal(b) for a, b in zip(whole[1:], rest, strict=True))
    True
    """

    def __init__(
        self,
        data: Dataset | tuple[Tensor, Tensor],
        batch_size: int,
        *,
        split: Split = "train",
        seed: int = 0,
        shuffle: bool | None = None,
        augment: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        augmentation: Augmentation | None = None
        mean: tuple[float, ...] = (0.0,)
        std: tuple[float, ...] = (1.0,)
        if isinstance(data, Dataset):
            images, labels = data.split(split)
            mean, std = data.mean, data.std
            augmentation = data.augmentation if augment and split == "train" else None
        elif isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
            images, labels = data
        else:
            raise ValueError(
                "data must be a Dataset, such as liebayes.data.load('digits'), or a pair of tensors (inputs, targets), "
                f"not a {type(data).__name__}"
            )
        self.images: Tensor = images
        self.labels: Tensor = labels
        self.mean: tuple[float, ...] = mean
        self.std: tuple[float, ...] = std
        self.augmentation: Augmentation | None = augmentation
        if len(self.images) != len(self.labels):
            raise ValueError(f"there are {len(self.images)} inputs, but {len(self.labels)} targets")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to world_size − 1, not rank {rank} of {world_size}")
        if not isinstance(batch_size, numbers.Integral) or batch_size < 1 or batch_size % world_size:
            raise ValueError(
                f"batch_size, that of all processes together, must be a positive multiple of world_size {world_size}, "
                f"not {batch_size!r}"
            )
        self.batch_size: int = batch_size
        self.seed: int = seed
        self.shuffle: bool = shuffle if shuffle is not None else split == "train"
        self.drop_last: bool = drop_last
        self.rank: int = rank
        self.world_size: int = world_size
        self.dtype: torch.dtype = dtype
        self.device: torch.device = torch.device(device) if device is not None else images.device
        self._normalize: Normalization | None = None
        if self.images.dtype == torch.uint8 or self.images.is_floating_point():
            self._normalize = Normalization(self.mean, self.std, self.images.dtype, self.images.ndim, dtype, self.device)
        if len(self) == 0:
            raise ValueError(
                f"{len(self.images)} images make no batch of {batch_size}"
                + (" with drop_last: take a smaller batch_size" if len(self.images) >= world_size else "")
            )

    def __len__(self) -> int:
        """The number of batches in an epoch, the same on every rank."""
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (not self.drop_last and rest >= self.world_size)

    def order(self, epoch: int) -> Tensor:
        """The order of the images in an epoch, before it is cut into batches: (N,), int64."""
        _check(epoch, "epoch")
        if not self.shuffle:
            return torch.arange(len(self.images))
        return torch.randperm(len(self.images), generator=self._generator(epoch, "order"))

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from `start_batch` on: normalised images and labels of this rank."""
        _check(start_batch, "start_batch")
        if start_batch > len(self):
            raise ValueError(f"start_batch is {start_batch}, but an epoch has {len(self)} batches")
        order = self.order(epoch)
        drawn = None
        if self.augmentation is not None:
            drawn = self.augmentation.draw(len(order), self._generator(epoch, "augmentation"))
        # The checks above run when epoch is called; in a generator they would wait for the first batch.
        return self._from(order, drawn, start_batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches in stored order. Shuffled batches need an epoch, so that none is repeated by mistake."""
        if self.shuffle or self.augmentation is not None:
            raise TypeError("these batches differ from epoch to epoch: iterate over batches.epoch(number)")
        return self.epoch(0)

    def _from(self, order: Tensor, drawn: Tensor | None, start_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in range(start_batch, len(self)):
            start = batch * self.batch_size
            size = (min(start + self.batch_size, len(order)) - start) // self.world_size
            start += self.rank * size
            chosen = order[start : start + size].to(self.images.device)
            images, labels = self.images.index_select(0, chosen), self.labels.index_select(0, chosen.to(self.labels.device))
            if drawn is not None and self.augmentation is not None:
                images = self.augmentation.apply(images, drawn[start : start + size])
            # As bytes to the device, where they are widened: a quarter of the traffic.
            images, labels = images.to(self.device), labels.to(self.device)
            yield (images if self._normalize is None else self._normalize(images)), labels

    def _generator(self, epoch: int, purpose: str) -> torch.Generator:
        digest = hashlib.sha256(f"{self.seed}:{epoch}:{purpose}".encode()).digest()
        # torch's generator keeps 32 bits of its seed.
        return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def _check(number: int, what: str) -> None:
    if number < 0:
        raise ValueError(f"{what} must be at least 0, not {number}")
