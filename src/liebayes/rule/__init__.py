"""The Lie-group Bayesian learning rule (Sec. 3.4, 3.5, 4): pure functions on elements, momenta and covectors."""

from .blr import exponential_step, gaussian_step, rayleigh_step
from .curvature import Level, gauss_newton, gaussian_prior, initial_level, observe, ratio, traces
from .differential import differential, differential_by_samples
from .family import Family, ProductFamily, relative_tangent
from .history import Convergence, History
from .importance import Diagnosis, pareto_fit, pareto_smoothed
from .joint import JointFamily
from .member import Member, Summary
from .metric import Absorbed, Adaptive, Fisher, Form, Metric, SecondMoment
from .update import State, Update, accumulate, bound, descend, initial_state, update

__all__ = [
    "Absorbed",
    "Adaptive",
    "Convergence",
    "Diagnosis",
    "Family",
    "Fisher",
    "Form",
    "History",
    "JointFamily",
    "Level",
    "Member",
    "Metric",
    "ProductFamily",
    "SecondMoment",
    "State",
    "Summary",
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
    "pareto_fit",
    "pareto_smoothed",
    "ratio",
    "rayleigh_step",
    "relative_tangent",
    "traces",
    "update",
]
