"""The Lie-group Bayesian learning rule (Sec. 3.4, 3.5, 4): pure functions on elements, momenta and covectors."""

from .blr import exponential_step, gaussian_step, rayleigh_step
from .curvature import Level, gauss_newton, gaussian_prior, initial_level, observe, ratio, traces
from .differential import differential, differential_by_samples
from .family import Family, ProductFamily, relative_tangent
from .history import Convergence, History
from .joint import JointFamily
from .metric import Absorbed, Adaptive, Fisher, Form, Metric, SecondMoment
from .update import State, Update, accumulate, bound, descend, initial_state, update

__all__ = [
    "Absorbed",
    "Adaptive",
    "Convergence",
    "Family",
    "Fisher",
    "Form",
    "History",
    "JointFamily",
    "Level",
    "Metric",
    "ProductFamily",
    "SecondMoment",
    "State",
    "Update",
    "accumulate",
    "bound",
    "descend",
    "differential",
    "differential_by_samples",
    "exponential_step",
    "gauss_newton",
    "gaussian_prior",
    "gaussian_step",
    "initial_level",
    "initial_state",
    "observe",
    "ratio",
    "rayleigh_step",
    "relative_tangent",
    "traces",
    "update",
]
