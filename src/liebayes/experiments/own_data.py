"""The user's own data, from Python: a data set, tensors or loaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..data import Dataset, from_tensors

OwnData: TypeAlias = Dataset | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Iterable[Any], Iterable[Any]]


def as_dataset(content: OwnData) -> Dataset:
    """Turns the data into a data set in memory.

    A loader is read once; the order of every epoch then follows from the seed, so that runs can be resumed. This would freeze
    random augmentation in a loader: give a `Dataset` with an `augmentation` instead.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> images, labels = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    >>> as_dataset((loader, loader))
    Dataset('tensors': 6 training and 6 test images of 2, 3 classes)
    """
    if isinstance(content, Dataset):
        return content
    if not isinstance(content, tuple) or len(content) not in (2, 4):
        raise ValueError(
            "dataset must be a liebayes.data.Dataset, four tensors (training images and labels, test images and labels) or "
            f"two loaders (training and test), but is a {type(content).__name__}."
        )
    if len(content) == 4:
        return from_tensors(*content)
    return from_tensors(*_read(content[0], "training"), *_read(content[1], "test"))


def _read(loader: Iterable[Any], which: str) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(f"The {which} loader must give pairs of images and labels, but gave a {type(batch).__name__}.")
        images.append(torch.as_tensor(batch[0]))
        labels.append(torch.as_tensor(batch[1]))
        if labels[-1].ndim != 1:
            raise ValueError(
                f"The {which} loader must give batches with a label for each image, but the labels of one have the shape "
                f"{tuple(labels[-1].shape)}. Wrap a data set in a torch.utils.data.DataLoader."
            )
    if not images:
        raise ValueError(f"The {which} loader gave no batch.")
    return torch.cat(images), torch.cat(labels)
