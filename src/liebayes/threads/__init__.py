"""Several Monte Carlo samples at once, one in each thread, for training and for prediction."""

from .context import CallersContext
from .probing import Probe, code_of, obstacle, random_state, signature
from .substitution import Leaves, Substitution, leaves_here
from .workers import shared_workers, single_threaded

MIN_WEIGHTS = 10_000
"""Smaller networks are a matter of Python's time more than of torch's, and Python has one thread."""

__all__ = [
    "MIN_WEIGHTS",
    "CallersContext",
    "Leaves",
    "Probe",
    "Substitution",
    "code_of",
    "leaves_here",
    "obstacle",
    "random_state",
    "shared_workers",
    "signature",
    "single_threaded",
]
