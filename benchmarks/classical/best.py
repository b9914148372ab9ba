"""The best Gaussian of each family by other means than the rule: minimisation over fixed draws, by L-BFGS.

With fixed ε the objective E_q[ℓ − log |∂θ/∂z|] − log det L, z = Lε + b, is a function like any other. The points are Sobol's
with their mirror images, many for each number that is searched: with few the search learns the points, and its objective falls
on them alone. So the fall is that on other draws. The search is in the coordinates of the fit it starts from, L = L₀·M and
b = b₀ + L₀m, so that it is well scaled, and knows nothing of natural gradients.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from .families import Fitted
from .models import Arrays

POINTS = 1024
FOR_EACH = 64
"""At least so many points for each number."""
DRAWS = 1 << 15


def sobol(dim: int, count: int) -> Tensor:
    """Standard normal points, each with its mirror image."""
    uniform = torch.quasirandom.SobolEngine(dim, scramble=True, seed=1).draw(count, dtype=torch.float64)
    half = torch.erfinv(2 * uniform.clamp(1e-12, 1 - 1e-12) - 1) * 2**0.5
    return torch.cat([half, -half])


def pattern(method: str, dim: int) -> Tensor:
    """Where the family's L may differ from 0 below its diagonal."""
    below = torch.ones(dim, dim, dtype=torch.float64).tril(-1)
    if method == "DiagonalAffine":
        return 0 * below
    return below if method == "TriangularAffine" else below * (torch.arange(dim) < 2)


def best(found: Fitted, method: str) -> tuple[Arrays, dict[str, Any]]:
    """Draws of the best member, how far the objective fell from where the fit ended, and how long the search was."""
    q, chart = found.family, found.family.chart
    L, b = q.real.group.cholesky(q.real.element).detach(), q.real.mean.detach()
    dim = len(b)
    mask = pattern(method, dim)
    below = mask.nonzero(as_tuple=True)
    start = np.zeros(2 * dim + int(mask.sum()))
    epsilon = sobol(dim, max(POINTS, 1 << math.ceil(math.log2(FOR_EACH * len(start)))))

    def member(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        M = torch.zeros(dim, dim, dtype=torch.float64).index_put(below, x[2 * dim :])
        return L @ (M + torch.diag(x[:dim].exp())), b + L @ x[dim : 2 * dim], x[:dim].sum()

    def one(z: Tensor) -> Tensor:
        return found.loss(chart.from_real(z)) - chart.log_jacobian(z)

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(numbers, requires_grad=True)
        root, shift, volume = member(x)
        value = torch.func.vmap(one, chunk_size=1024)(epsilon @ root.mT + shift).mean() - volume
        (slope,) = torch.autograd.grad(value, x)
        return (value.item(), slope.detach().numpy()) if bool(torch.isfinite(value)) else (1e300, np.zeros_like(numbers))

    search = {"maxiter": 300, "maxcor": 50, "ftol": 1e-12, "gtol": 1e-6}
    result = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=search)
    root, shift, volume = member(torch.tensor(result.x))
    fresh = torch.randn(DRAWS, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = fresh @ root.mT + shift
    every = torch.func.vmap(one, chunk_size=1024)
    falls = sum(every(e @ L.mT + b) - every(e @ root.mT + shift) for e in (fresh, -fresh)) / 2 + volume
    draws = {name: np.asarray(x) for name, x in chart.from_real(z).items()}
    facts = {"fall": float(falls.mean()), "fall_error": float(falls.std() / len(falls) ** 0.5)}
    return draws, facts | {"iterations": int(result.nit), "points": len(epsilon)}
