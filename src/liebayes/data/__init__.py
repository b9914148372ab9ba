"""Readers of public data sets and of your own files, and batches.

>>> batches = Batches(load("digits"), batch_size=50, seed=0)
>>> for images, labels in batches.epoch(0):
...     pass
>>> images.shape[1:], labels.dtype
(torch.Size([1, 8, 8]), torch.int64)

`load` knows public data sets by name, and `from_path` reads your own: tables, `.npz` files and folders of images.
Files are read in their public formats from the data directory (`data_dir`, the environment variable LIEBAYES_DATA, or a
folder in the user's cache). Missing files are downloaded to it and checked against their published checksum. Data sets stay
in memory as bytes; crops, flips and normalisation happen on batches.
"""

from .augment import Augmentation, normalize
from .batches import Batches
from .cifar import cifar10, cifar100
from .corruptions import CORRUPTIONS, SEVERITIES, corrupted
from .dataset import Dataset, from_tensors, stratified_folds
from .diabetes import diabetes
from .digits import digits
from .errors import DataError, DataFileError, IncompleteDataWarning, MissingDataError
from .idx import fashion_mnist, mnist
from .own import arrays, as_task, from_path, is_path
from .pictures import picture, picture_folder
from .registry import Reader, load, names, register, unregister
from .tables import TABLES, TableEncoding, Task, read_table, table
from .tiny_imagenet import tiny_imagenet

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "TABLES",
    "Augmentation",
    "Batches",
    "DataError",
    "DataFileError",
    "Dataset",
    "IncompleteDataWarning",
    "MissingDataError",
    "Reader",
    "TableEncoding",
    "Task",
    "arrays",
    "as_task",
    "cifar10",
    "cifar100",
    "corrupted",
    "diabetes",
    "digits",
    "fashion_mnist",
    "from_path",
    "from_tensors",
    "is_path",
    "load",
    "mnist",
    "names",
    "normalize",
    "picture",
    "picture_folder",
    "read_table",
    "register",
    "stratified_folds",
    "table",
    "tiny_imagenet",
    "unregister",
]
