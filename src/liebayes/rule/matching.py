"""A family's diagnosis, with weights that hold where those of the family itself do not.

A family fitted by KL(q ‖ p) is too narrow rather than too wide, and its weights p/q have long tails just where it misses
something. So a second family is matched to the weighted draws: full rank on Student's t, with their mean and covariance in the
coordinates of the supports. Its draws join the others, all with the weights p/q̄ of the mixture q̄ of both (moment matching:
Paananen, Piironen, Bürkner and Vehtari 2021; weights of a mixture: Veach and Guibas 1995). k of the family stays what it is.

One ellipsoid does not follow a posterior that narrows towards one of its ends. So where the width of some parameter rests on
few draws, further families are matched to its two tails, each to the draws of one side, weighted by their squared deviation.
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
from .importance import Diagnosis, diagnosis_of, worst_tail
from .joint import JointFamily
from .member import Member

ROUNDS = 6
"""How often families are matched at most: once unless k says that the family is the posterior almost, and again while some
figure has no variance (k ≥ ½) or the weights are worth less than half the draws."""
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
    families: list[tuple[Member, int]] = [(q, draws)]
    theta = _draws(q, draws, seed)
    values = energies(theta)
    ratios = -values - q.log_prob(theta).double()
    found = first = diagnosis_of(theta, ratios, draws)
    chart = _chart_of(q)
    for number in range(1, ROUNDS + 1):
        good = found.weighted_k < 0.5 and found.effective >= draws / 2 and (number > 1 or found.pareto_k < 0.2)
        if chart is None or good or math.isnan(found.weighted_k):
            break
        more = [_matched(chart, found, found.weights)] if number == 1 else _tails(chart, found, ratios)
        new = [family for family in more if family is not None]
        if not new:
            break
        count = draws // len(new)
        parts = [_draws(family, count, seed + len(families) + place) for place, family in enumerate(new)]
        try:
            values = torch.cat([values, *map(energies, parts)])
        except Exception:  # a loss may refuse what is further out than the family goes
            break
        families += [(family, count) for family in new]
        theta = pytree.tree_map(lambda *leaves: torch.cat(leaves), theta, *parts)
        mixture = torch.stack([family.log_prob(theta).double() + math.log(n) for family, n in families]).logsumexp(0)
        ratios = -values - mixture + math.log(len(values))
        there = diagnosis_of(theta, ratios, draws, first.pareto_k)
        if math.isnan(there.weighted_k):
            break
        found = there
    return found


def _draws(q: Member, count: int, seed: int) -> Any:
    return q.sample((count,), torch.Generator(q._device()).manual_seed(seed))


def _tails(chart: Joint, found: Diagnosis, ratios: Tensor) -> list[JointFamily | None]:
    """Families matched to both tails of the parameter whose width is least sure; to all draws where the weights are worse."""
    k, off = worst_tail(found.draws, ratios, found.weights)
    sides = [found.weights * off.clamp_min(0).square(), found.weights * off.clamp_max(0).square()] if k > 0.5 else []
    families = [_matched(chart, found, weights) for weights in sides]
    return families if any(families) else [_matched(chart, found, found.weights)]


def _matched(chart: Joint, found: Diagnosis, weights: Tensor) -> JointFamily | None:
    """The full-rank family with the mean and the covariance of weighted draws; None where these do not tell."""
    z = chart.to_real(found.draws)
    weights = (weights / weights.sum()).to(z.device).double()
    if not 1 / float(weights.square().sum()) >= ENOUGH * z.shape[-1]:
        return None
    wide = z.double()
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
