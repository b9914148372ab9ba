"""Readers of public data sets, and batches.

    dataset = load("mnist", data_dir="...")              # or digits, fashion-mnist, cifar10, cifar100, tinyimagenet
    batches = Batches(dataset, batch_size=50, seed=0)
    for images, labels in batches.epoch(0): ...

Files are read in their public formats from the data directory (`data_dir`, the environment variable LIEBAYES_DATA, or a
folder in the user's cache). Missing files are downloaded to it and checked against their published checksum. Data sets stay
in memory as bytes; crops, flips and normalisation happen on batches.
"""

from .augment import Augmentation, normalize
from .batches import Batches
from .cifar import cifar10, cifar100
from .dataset import Dataset, from_tensors, stratified_folds
from .digits import digits
from .errors import DataError, DataFileError, IncompleteDataWarning, MissingDataError
from .idx import fashion_mnist, mnist
from .registry import Reader, load, names, register, unregister
from .tiny_imagenet import tiny_imagenet

__all__ = [
    "Augmentation",
    "Batches",
    "DataError",
    "DataFileError",
    "Dataset",
    "IncompleteDataWarning",
    "MissingDataError",
    "Reader",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "from_tensors",
    "load",
    "mnist",
    "names",
    "normalize",
    "register",
    "stratified_folds",
    "tiny_imagenet",
    "unregister",
]
