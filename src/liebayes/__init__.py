"""liebayes: the Lie-group Bayesian learning rule in PyTorch."""

__version__ = "0.2.0"

from . import baselines, bases, data, groups, metrics, nn, optim, rule
from .optim import AdditiveBLR, AffineBLR, KroneckerBLR, LieGroupBLR, MultiplicativeBLR
from .posterior import Posterior
from .rule import Absorbed, Adaptive, Family, Fisher, JointFamily, ProductFamily
from .variational import Fit, FitError, FitWarning, fit

__all__ = [
    "Absorbed",
    "Adaptive",
    "AdditiveBLR",
    "AffineBLR",
    "Family",
    "Fisher",
    "Fit",
    "FitError",
    "FitWarning",
    "JointFamily",
    "KroneckerBLR",
    "LieGroupBLR",
    "MultiplicativeBLR",
    "Posterior",
    "ProductFamily",
    "__version__",
    "baselines",
    "bases",
    "data",
    "fit",
    "groups",
    "metrics",
    "nn",
    "optim",
    "rule",
]
