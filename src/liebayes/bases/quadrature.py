"""Integrals over the support of a univariate density, to about ten digits, in float64.

Double-exponential quadrature (Takahasi and Mori 1974): the substitution makes the integrand decay doubly exponentially at
both ends, so that heavy tails, integrable edges and the kink of a Laplace density at 0 are all within reach of one rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Support = tuple[float, float]
REAL_LINE: Support = (-math.inf, math.inf)
HALF_LINE: Support = (0.0, math.inf)

_COARSEST, _FINEST = 2.0**-7, 2.0**-15


def resolving_step(density: Callable[[Tensor], Tensor], support: Support) -> float | None:
    """The step at which the integral of a density stays as it is and is near 1; none for a peak too narrow for its place."""
    step = _COARSEST
    mass = integrate(density, support, step)
    while step > _FINEST:
        finer = integrate(density, support, step / 2)
        if abs(finer - mass) < 1e-6 and abs(finer - 1) < 0.01:
            return step if abs(finer - mass) < 1e-10 else step / 2
        step, mass = step / 2, finer
    return None


def integrate(f: Callable[[Tensor], Tensor], support: Support, step: float = _COARSEST) -> float:
    """∫ f over the support; infinite (or not a number) where the integral does not converge."""
    low, high = support
    if math.isinf(low) and math.isinf(high):
        return integrate(f, (low, 0.0), step) + integrate(f, (0.0, high), step)
    if math.isinf(low):
        return integrate(lambda x: f(-x), (-high, math.inf), step)
    if math.isinf(high):
        # x runs from 1e-137 (where x^0.1 is small, and 1/x² still a number) to 1e50 above the edge.
        t = torch.arange(-6.0, 5.0 + step, step, dtype=torch.float64)
        distance = (math.pi / 2 * t.sinh()).exp()
        nodes, weights = low + distance, distance * math.pi / 2 * t.cosh() * step
    else:
        t = torch.arange(-3.1, 3.1 + step, step, dtype=torch.float64)
        u = math.pi / 2 * t.sinh()
        half = (high - low) / 2
        nodes = low + half * (1 + u.tanh())
        weights = half * math.pi / 2 * t.cosh() / u.cosh().square() * step
    terms = f(nodes) * weights
    total = float(terms.sum())
    # Where the integral converges, the terms have died out at both ends; where it does not, they carry it, up to where the
    # density underflows to 0.
    carried = terms[terms != 0]
    if not len(carried):
        return total
    ends = float(torch.stack([carried[:4].abs().max(), carried[-4:].abs().max()]).max())
    return total if ends <= 1e-6 * max(abs(total), 1e-300) or ends < 1e-12 else math.inf
