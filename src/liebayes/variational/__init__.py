"""Variational inference with the rule, for any differentiable loss."""

from .fit import fit
from .plots import plot_fit
from .progress import progress_bar
from .run import Fit, FitError
from .verdict import FitWarning

__all__ = ["Fit", "FitError", "FitWarning", "fit", "plot_fit", "progress_bar"]
