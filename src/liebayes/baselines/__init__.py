"""The peers that Sec. 5.2 compares with, iVON and VOGN, in the protocol of our optimizers."""

from .ivon import IVON
from .ivon_opt import ivon_opt
from .per_example import PerExampleError
from .vogn import VOGN

__all__ = ["IVON", "VOGN", "PerExampleError", "ivon_opt"]
