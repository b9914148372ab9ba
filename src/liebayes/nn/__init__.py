"""The paper's networks (Sec. 5, App. B), sign constraints for any network (Sec. 4.2), and Gaussian outputs for regression."""

from .constraints import PlusMinus, SignConstraint, Signed
from .conversion import dale, fixed_sign, plus_minus, restore
from .gaussian import GaussianOutput, gaussian_loss
from .lenet import lenet
from .mlp import mlp
from .normalization import FilterResponseNorm
from .parameters import SplitParameters, parameter_groups, split_parameters
from .resnet import resnet20
from .units import unit_signs

__all__ = [
    "FilterResponseNorm",
    "GaussianOutput",
    "PlusMinus",
    "SignConstraint",
    "Signed",
    "SplitParameters",
    "dale",
    "fixed_sign",
    "gaussian_loss",
    "lenet",
    "mlp",
    "parameter_groups",
    "plus_minus",
    "resnet20",
    "restore",
    "split_parameters",
    "unit_signs",
]
