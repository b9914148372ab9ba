"""The rule as drop-in PyTorch optimizers (Alg. 1–3)."""

from .optimizer import LieGroupBLR, NonFiniteError
from .presets import AdditiveBLR, AffineBLR, MultiplicativeBLR, default_base
from .reduction import local_gradients
from .sharding import gathered

__all__ = [
    "AdditiveBLR",
    "AffineBLR",
    "LieGroupBLR",
    "MultiplicativeBLR",
    "NonFiniteError",
    "default_base",
    "gathered",
    "local_gradients",
]
