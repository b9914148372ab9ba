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
    """The step at which the integral of a density is stable and near 1; None for a peak too narrow for where it lies."""
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
    distance, weights = _unit_rule(finite=math.isfinite(high), step=step)
    width = high - low if math.isfinite(high) else 1.0
    terms = f(low + width * distance) * (width * weights)
    total = float(terms.sum())
    # Where the integral converges, the terms have died out at both ends; where it does not, they carry it, up to where the
    # density underflows to 0.
    carried = terms[terms != 0]
    if not len(carried):
        return total
    ends = float(torch.stack([carried[:4].abs().max(), carried[-4:].abs().max()]).max())
    return total if ends <= 1e-6 * max(abs(total), 1e-300) or ends < 1e-12 else math.inf


def stein_kernel(log_prob: Callable[[Tensor], Tensor], mean: float, support: Support, x: Tensor) -> Tensor:
    """κ(x) = q(x)⁻¹ ∫ₓ^∞ (t − mean)·q(t) dt for every entry of x; 0 where the density is 0.

    The integral runs from x away from the mean, over a tail that is all of one sign: ∫ (t − mean)·q = 0 over the support, so
    either tail will do, and the farther one would cancel. Densities enter as ratios to q(x), which do not underflow.
    """
    flat = x.detach().double().reshape(-1)
    found = torch.zeros_like(flat)
    inside = (flat > support[0]) & (flat < support[1]) & (log_prob(flat) > -math.inf)
    for edge, outward, side in ((support[1], 1.0, flat >= mean), (support[0], -1.0, flat < mean)):
        places = (inside & side).nonzero().squeeze(-1)
        for chunk in places.split(2**14) if len(places) else ():
            found[chunk] = _tail_moment(log_prob, mean, edge, outward, flat[chunk])
    return found.reshape(x.shape).to(x.dtype)


def _tail_moment(log_prob: Callable[[Tensor], Tensor], mean: float, edge: float, outward: float, x: Tensor) -> Tensor:
    """∫ |t − mean|·q(t)/q(x) dt from x to the edge, with steps halved until ten digits are stable."""
    here = log_prob(x).unsqueeze(-1)
    reach = (edge - x).abs().unsqueeze(-1) if math.isfinite(edge) else torch.ones_like(here)
    total: Tensor | None = None
    step = 2.0**-4
    while True:
        distance, weights = (part.to(x.device) for part in _unit_rule(finite=math.isfinite(edge), step=step))
        away = reach * distance
        density = (log_prob(x.unsqueeze(-1) + outward * away) - here).exp()
        terms = torch.where(density > 0, ((x - mean).abs().unsqueeze(-1) + away) * density, 0.0)
        finer = (terms * (reach * weights)).sum(-1)
        if step < 2.0**-9 or (total is not None and bool(((finer - total).abs() <= 1e-10 * finer).all())):
            return finer
        total, step = finer, step / 2


def _unit_rule(finite: bool, step: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1), or on (0, ∞): from 1e-137 (where x^0.1 is small, and 1/x² still a number) to 1e50."""
    t = torch.arange(*((-3.1, 3.1 + step) if finite else (-6.0, 5.0 + step)), step, dtype=torch.float64)
    u = math.pi / 2 * t.sinh()
    if finite:
        nodes = (2 * u).sigmoid()  # (1 + tanh u)/2, exact near 0
        return nodes, math.pi / 4 * t.cosh() / u.cosh().square() * step
    return u.exp(), u.exp() * math.pi / 2 * t.cosh() * step
