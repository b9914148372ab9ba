"""Expectations under a base by a rule of its own: composite Gauss–Legendre after x = sinh t, or x = e^t on the half line.

It shares nothing with the double-exponential rule of the library. Panels meet at 0, so the kink of a Laplace density is an
end point of two of them.
"""

import functools

import numpy as np
import torch
from support.registry import BaseCase, GroupCase
from torch import Tensor

ORDER = 12
QUADRATURE = 1e-8
"""Where there is a variance the rule gives Σw = 1 to 1e-10 (tests/bases); functions are up to a hundred times as large."""
HEAVY_TAILS = 2e-6
"""Of a Cauchy density, 1e-7 of the mass is beyond the last node."""


def _panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(ORDER)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * nodes).ravel(), (half * weights).ravel()


@functools.lru_cache(maxsize=40)
def nodes_and_weights(case: BaseCase, panels: int = 80) -> tuple[Tensor, Tensor]:
    """ε and w with E[f(ε)] = Σ w·f(ε), for f that grow like a power; the density is scipy's."""
    if case.half_line:
        t, w = _panels(np.linspace(-40.0, 8.0, panels + 1))
        x, w = np.exp(t), w * np.exp(t)
    else:
        t, w = _panels(np.linspace(-16.0, 16.0, panels + 1))
        x, w = np.sinh(t), w * np.cosh(t)
    with np.errstate(over="ignore"):
        w = w * case.scipy.pdf(x)
    keep = w > 1e-60
    return torch.from_numpy(x[keep]), torch.from_numpy(w[keep])


@functools.lru_cache(maxsize=16)
def plane(case: BaseCase) -> tuple[Tensor, Tensor]:
    """The same for two independent coordinates: points of shape (n², 2)."""
    x, w = nodes_and_weights(case, panels=48)
    x, w = x[w > 1e-22], w[w > 1e-22]  # what is left out is below rounding, also for fourth powers
    first, second = torch.meshgrid(x, x, indexing="ij")
    return torch.stack([first, second], -1).reshape(-1, 2), torch.outer(w, w).reshape(-1)


def rule_of(group: GroupCase, case: BaseCase) -> tuple[Tensor, Tensor, Tensor]:
    """A parameter like θ, points ε and weights: one coordinate says everything for an elementwise group, two for others."""
    if group.group.elementwise:
        return torch.zeros((), dtype=torch.float64), *nodes_and_weights(case)
    return torch.zeros(2, dtype=torch.float64), *plane(case)
