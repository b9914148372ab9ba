"""Several Monte Carlo samples at once, one in each thread, for training and for prediction."""

import torch

from .context import CallersContext
from .probing import Probe, code_of, obstacle, random_state, signature
from .substitution import Leaves, Substitution, leaves_here
from .workers import shared_workers, single_threaded

MIN_WEIGHTS = 10_000
"""Smaller networks are a matter of Python's time more than of torch's, and Python has one thread."""

MAX_WEIGHTS = 1 << 28
"""Of all workers together: a gigabyte of float32, and as much for their gradients."""


def affordable_workers(weights: int) -> int:
    """As many as torch has threads, as far as memory goes."""
    return max(1, min(torch.get_num_threads(), MAX_WEIGHTS // max(weights, 1)))


def not_worthwhile(weights: int) -> str | None:
    """Why threads are not chosen for a network of this size, if they are not."""
    if weights < MIN_WEIGHTS:
        return f"there are fewer than {MIN_WEIGHTS} weights"
    if affordable_workers(weights) == 1:
        return "a second copy of the weights would take too much memory"
    return None


__all__ = [
    "CallersContext",
    "Leaves",
    "Probe",
    "Substitution",
    "affordable_workers",
    "code_of",
    "leaves_here",
    "not_worthwhile",
    "obstacle",
    "random_state",
    "shared_workers",
    "signature",
    "single_threaded",
]
