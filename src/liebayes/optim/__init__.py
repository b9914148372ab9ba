"""The rule as drop-in PyTorch optimizers (Alg. 1–3)."""

from ..distributed import gathered, local_gradients
from ..training_warnings import TrainingWarning
from .optimizer import LieGroupBLR
from .presets import AdditiveBLR, AffineBLR, KroneckerBLR, MultiplicativeBLR, default_base
from .sampling import NonFiniteError

__all__ = [
    "AdditiveBLR",
    "AffineBLR",
    "KroneckerBLR",
    "LieGroupBLR",
    "MultiplicativeBLR",
    "NonFiniteError",
    "TrainingWarning",
    "default_base",
    "gathered",
    "local_gradients",
]
