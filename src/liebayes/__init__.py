"""liebayes: the Lie-group Bayesian learning rule in PyTorch."""

from . import bases, groups, rule
from .rule import Absorbed, Adaptive, Family, Fisher, ProductFamily
from .variational import FitError, fit

__version__ = "0.1.0"

__all__ = [
    "Absorbed",
    "Adaptive",
    "Family",
    "Fisher",
    "FitError",
    "ProductFamily",
    "__version__",
    "bases",
    "fit",
    "groups",
    "rule",
]
