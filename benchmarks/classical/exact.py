"""References without NUTS: a formula, sums over grids, and a Gibbs sampler whose every step is exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .models import houses, returns, sparse

Reference = dict[str, Any]
CHAINS, WARMUP = 400, 1000


def funnel() -> Reference:
    """x | v ~ N(0, e^v), v ~ N(0, 9), so that Var x = E[e^v] = e^4.5."""
    return {"source": "exact", "mean": [0.0] * 10, "sd": [3.0, *[math.exp(2.25)] * 9]}


def radon(count: int = 200) -> Reference:
    """Given both spreads all else is Gaussian; these two by Gauss and Legendre's rule."""
    data = houses()
    nodes, weights = np.polynomial.legendre.leggauss(count)
    low, high = np.array([0.0, 0.4]), np.array([3.0, 1.4])  # beyond there is less than 1e−12
    tau, sigma = (low[:, None] + (nodes + 1) / 2 * (high - low)[:, None])[:, :, None]
    tau, sigma = (part.ravel() for part in np.broadcast_arrays(tau, sigma.T))
    y, ones = data["y"], np.ones(len(data["y"]))
    shared = np.column_stack([ones, data["floor"], data["member"]])
    factor = np.concatenate([np.ones((len(tau), 2)), np.repeat(tau[:, None], 12, 1)], 1)  # z acts by τ
    precision = factor[:, :, None] * (shared.T @ shared) * factor[:, None] / sigma[:, None, None] ** 2
    precision += np.diag([0.01, 0.01, *[1.0] * 12])
    slope = factor * (shared.T @ y) / sigma[:, None] ** 2
    covariance = np.linalg.inv(precision)
    mean = np.einsum("nij,nj->ni", covariance, slope)
    log = -len(y) * np.log(sigma) - 0.5 * np.linalg.slogdet(precision)[1] + 0.5 * (slope * mean).sum(1)
    log += -0.5 * y @ y / sigma**2 - 0.5 * tau**2 - 0.5 * sigma**2
    mass = np.outer(weights, weights).ravel() * np.exp(log - log.max())
    mass /= mass.sum()
    inner = np.concatenate([mean[:, :2], tau[:, None], sigma[:, None], mean[:, 2:]], 1)
    variance = np.einsum("nii->ni", covariance)
    variance = np.concatenate([variance[:, :2], np.zeros((len(tau), 2)), variance[:, 2:]], 1)
    return {"source": "quadrature", **_moments(mass, inner, variance)}


def garch(count: int = 48) -> Reference:
    """Sums over a grid in the coordinates of the charts, in which the density is smooth and falls off on all sides."""
    y = returns()["y"]
    sides = [np.linspace(*side, count) for side in ((-0.2, 0.55), (-5.0, 1.8), (-5.5, 1.8), (-12.0, 5.0))]
    level, first, second = (part.ravel() for part in np.meshgrid(*sides[1:], indexing="ij"))
    a = 1 / (1 + np.exp(-first))
    b = (1 - a) / (1 + np.exp(-second))
    # dθ/dz: level for its logarithm, and a(1 − a)·b(1 − a − b)/(1 − a) for the simplex
    volume = level + np.log(a) + np.log(b) + np.log(1 - a - b)
    prior = volume - 0.5 * (np.exp(level) / 10) ** 2
    logs = []
    for mu in sides[0]:
        e, h, log = y - mu, np.full_like(a, np.mean(y**2)), prior - 0.5 * (mu / 10) ** 2
        for before, now in itertools.pairwise(e):
            h = b * h + np.exp(level) + a * before**2
            log = log - 0.5 * np.log(h) - 0.5 * now**2 / h
        logs.append(log)
    log = np.stack(logs)
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    cube = mass.reshape([count] * 4)
    edge = max(float(np.take(cube, [0, -1], axis=axis).sum()) for axis in range(4))
    values = np.broadcast_to(np.stack([np.exp(level), a, b, 1 - a - b], 1), (count, len(a), 4))
    x = np.concatenate([np.broadcast_to(sides[0][:, None, None], (count, len(a), 1)), values], 2).reshape(-1, 5)
    return {"source": "grid", "mass_at_the_edge": edge, **_moments(mass.ravel(), x, np.zeros_like(x))}


def _moments(mass: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> Reference:
    centre = mass @ mean
    return {"mean": centre.tolist(), "sd": np.sqrt(mass @ (variance + (mean - centre) ** 2)).tolist()}


def horseshoe(draws: int = 5000, seed: int = 0) -> Reference:
    """Gibbs sampling with the half-Cauchy laws as inverse gammas of inverse gammas (Makalic and Schmidt 2016).

    The noise has a half-normal prior: σ² is proposed from the conditional without it, and accepted by it.
    """
    import arviz

    data, random = sparse(), np.random.default_rng(seed)
    x, y = data["x"], data["y"]
    cases, inputs = x.shape
    gram, slope, square = x.T @ x, x.T @ y, y @ y

    def inverse_gamma(shape: float, rate: np.ndarray) -> np.ndarray:
        return rate / random.gamma(shape, size=rate.shape)

    local, auxiliary = np.ones((CHAINS, inputs)), np.ones((CHAINS, inputs))
    overall, above, variance = np.full(CHAINS, 0.01), np.ones(CHAINS), np.ones(CHAINS)  # all three are squares
    kept = np.empty((CHAINS, draws, inputs + 1))
    for step in range(-WARMUP, draws):
        precision = gram / variance[:, None, None] + np.eye(inputs) / (local * overall[:, None])[:, None]
        root = np.linalg.cholesky(precision)
        noise = random.standard_normal((CHAINS, inputs))
        half = np.linalg.solve(root, np.broadcast_to(slope, noise.shape)[..., None] / variance[:, None, None])[..., 0]
        beta = np.linalg.solve(root.swapaxes(1, 2), (half + noise)[..., None])[..., 0]
        local = inverse_gamma(1.0, 1 / auxiliary + beta**2 / (2 * overall[:, None]))
        auxiliary = inverse_gamma(1.0, 1 + 1 / local)
        overall = inverse_gamma((inputs + 1) / 2, 1 / above + (beta**2 / (2 * local)).sum(1))
        above = inverse_gamma(1.0, 100 + 1 / overall)
        residual = square - 2 * beta @ slope + ((beta @ gram) * beta).sum(1)
        proposed = inverse_gamma((cases - 1) / 2, residual / 2)
        accepted = np.log(random.random(CHAINS)) < (variance - proposed) / 18
        variance = np.where(accepted, proposed, variance)
        if step >= 0:
            kept[:, step] = np.concatenate([beta, np.sqrt(variance)[:, None]], 1)
    flat = kept.reshape(-1, inputs + 1)
    return {
        "source": "Gibbs",
        "draws": len(flat),
        "smallest_effective_size": min(float(arviz.ess(kept[..., i])) for i in range(inputs + 1)),
        "largest_rhat": max(float(arviz.rhat(kept[..., i])) for i in range(inputs + 1)),
        "mean": flat.mean(0).tolist(),
        "sd": flat.std(0).tolist(),
    }


EXACT: dict[str, Callable[[], Reference]] = {
    "funnel": funnel,
    "radon": radon,
    "GARCH(1, 1)": garch,
    "horseshoe": horseshoe,
}
