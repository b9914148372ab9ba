"""Variational inference with the rule, for any differentiable loss."""

from .fit import FitError, fit
from .progress import progress_bar

__all__ = ["FitError", "fit", "progress_bar"]
