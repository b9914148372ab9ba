"""A family's diagnosis, with weights that hold where those of the family itself do not.

A family fitted by KL(q ‖ p) is too narrow rather than too wide, and its weights p/q have long tails just where it misses
something. So a second family is matched to the weighted draws: full rank on Student's t, with their mean and covariance in the
coordinates of the supports. Its draws join the others, all with the weights p/q̄ of the mixture q̄ of both (moment matching:
Paananen, Piironen, Bürkner and Vehtari 2021; weights of a mixture: Veach and Guibas 1995). k of the family stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases import StudentT
from ..groups import Chart, Conjugated, Joint, Positive, Real, TriangularAffine
from ..groups.triangular_affine import TriangularShift
from .family import Family, ProductFamily
from .importance import Diagnosis, diagnosis_of
from .joint import JointFamily
from .member import Member

ROUNDS = 3
"""How many families are matched at most: one unless k says that the family is the posterior almost, and more while the
weights have no variance (k ≥ ½) or are worth less than half the draws."""
ENOUGH = 5
"""For each dimension so many effective draws, or their covariance is nothing to go by."""
BASE = StudentT(5.0)


def diagnosed(q: Member, energies: Callable[[Any], Tensor], draws: int, seed: int) -> Diagnosis:
    """The diagnosis of a family by its own draws and by those of families matched to them.

    Args:
        q: the family.
        energies: ℓ/τ for every draw, in double precision.
        draws: how many of each family.
        seed: fixes the draws.
    """
    families, theta = [q], _draws(q, draws, seed)
    values = energies(theta)
    found = first = diagnosis_of(theta, -values - q.log_prob(theta).double(), draws)
    chart = _chart_of(q)
    for number in range(1, ROUNDS + 1):
        good = found.weighted_k < (0.2 if number == 1 else 0.5) and found.effective >= draws / 2
        family = None if chart is None or good else _matched(chart, found)
        if family is None:
            break
        families.append(family)
        more = _draws(family, draws, seed + number)
        try:
            values = torch.cat([values, energies(more)])
        except Exception:  # a loss may refuse what is further out than the family goes
            break
        theta = pytree.tree_map(lambda *parts: torch.cat(parts), theta, more)
        mixture = torch.stack([family.log_prob(theta).double() for family in families]).logsumexp(0) - math.log(len(families))
        there = diagnosis_of(theta, -values - mixture, draws, first.pareto_k)
        if math.isnan(there.weighted_k):
            break
        found = there
    return found


def _draws(q: Member, count: int, seed: int) -> Any:
    return q.sample((count,), torch.Generator(q._device()).manual_seed(seed))


def _matched(chart: Joint, found: Diagnosis) -> JointFamily | None:
    """The full-rank family with the mean and the covariance of weighted draws; None where these do not tell."""
    z = chart.to_real(found.draws)
    if not found.effective >= ENOUGH * z.shape[-1]:
        return None
    weights, wide = found.weights.to(z.device).double(), z.double()
    mean = weights @ wide
    spread = (wide - mean).mT @ (weights.unsqueeze(-1) * (wide - mean)) / BASE.variance
    L, failed = torch.linalg.cholesky_ex(spread)
    if int(failed) or not bool(torch.isfinite(L).all()):
        return None
    element = TriangularShift(L.diagonal().log().to(z), L.tril(-1).to(z), mean.to(z))
    return JointFamily(Family(TriangularAffine(), BASE, element), chart)


def _chart_of(q: Member) -> Joint | None:
    """The coordinates in which the family is one of vectors."""
    if isinstance(q, JointFamily):
        return q.chart
    try:
        return Joint.of(q.sample(()), _supports(q))
    except ValueError:
        return None


def _supports(q: Any) -> Any:
    if isinstance(q, ProductFamily):
        return q.group.join([_supports(part) for _, part in q.group.split("the parts", q.parts)])
    support: Chart = q.group.chart if isinstance(q.group, Conjugated) else Positive() if q.group.positive else Real()
    return support
