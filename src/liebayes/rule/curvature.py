"""The Gauss–Newton covector of scales, and its level (docs/curvature.md).

With w = A(g)ᵀ∇ℓ, the gradient in the coordinates of ε, and κ Stein's kernel of the base, the exact covector of the linear part
X of an affine action is a curvature: E⟨w, X(ε − μ)⟩ = Σ X_pq·E[κ(ε_q)·∂w_p/∂ε_q]. The Gauss–Newton approximation replaces the
derivative by c·w_p·w_q, and in every group this is

    covector = pullback_at_identity(e, c·κ(ε)⊙w + μ, w),

whose shift is exact. Its noise is as large as its signal, where that of the exact covector is √(N/n) times as large. The level
c holds what squares of gradients cannot tell (batch size, distance from the optimum, a wrong model). Both covectors have the
same trace in expectation, so c = E⟨ε − μ, w⟩ / E⟨κ(ε)⊙w, w⟩: two numbers for each tensor, pooled over steps and tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..bases import Base
from ..groups import LieGroup, map_blocks

E = TypeVar("E")


def gauss_newton(group: LieGroup[E], base: Base, e: E, epsilon: Tensor, whitened: Tensor, level: float | Tensor) -> E:
    """The covector at the identity e of a group with an affine action, averaged over the leading sample dimensions.

    `whitened` is the gradient of ε ↦ ℓ(g·ε), as `act_with_transpose` gives it; `level` is c. The entropy is not included, and
    neither is a prior whose curvature is known (`gaussian_prior`).
    """
    if not group.affine_action:
        raise ValueError(f"A Gauss–Newton covector needs an affine action, which {group} does not have. Use its pullback.")
    noise = base.stein_kernel(epsilon) * whitened * level
    return group.pullback_at_identity(e, noise + base.mean if base.mean else noise, whitened)


def traces(base: Base, epsilon: Tensor, whitened: Tensor, samples: int = 1) -> tuple[Tensor, Tensor]:
    """⟨ε − μ, w⟩ and ⟨κ(ε)⊙w, w⟩ of one tensor, averaged over samples: the same trace, the second in units of c."""
    exact = torch.linalg.vecdot((epsilon - base.mean if base.mean else epsilon).flatten(), whitened.flatten())
    squares = torch.linalg.vecdot((base.stein_kernel(epsilon) * whitened).flatten(), whitened.flatten())
    return exact / samples, squares / samples


def gaussian_prior(group: LieGroup[E], base: Base, g: E, e: E, precision: float, centre: float | Tensor = 0.0) -> E:
    """The exact covector of ½δ‖θ − centre‖² at g, without samples: δ·`spread`, plus the covector at the mean.

    ⟨δAᵀ(Aε + b − centre), Xε + y⟩ has the expectation δ·Var(ε)·⟨A, AX⟩ + ⟨δAᵀ(E[θ] − centre), μX1 + y⟩.
    """
    noise = torch.full(group.event_shape(g), base.mean, dtype=g[-1].dtype, device=g[-1].device)  # type: ignore[index]
    mean, transpose = group.act_with_transpose(g, noise)
    pulled = group.pullback_at_identity(e, noise, transpose(precision * (mean - centre)))
    return map_blocks(lambda p, s: p + precision * s, pulled, group.spread(g, base.variance))


# The level.


class Level(NamedTuple):
    """Running means of both traces, one pair for every tensor of a model, and their weights."""

    exact: Tensor  # (tensors,)
    squares: Tensor  # (tensors,)
    weight: float = 0.0
    """Σ of the weights so far: dividing by it removes the bias of the zero start."""
    noise: float = 0.0
    """Σ of weights² over independent draws; `weight²/noise` is the effective number of draws."""

    @property
    def draws(self) -> float:
        """The effective number of independent draws in the means."""
        return self.weight**2 / self.noise if self.noise else 0.0


def initial_level(tensors: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Level:
    """The level before the first step."""
    zero = torch.zeros(tensors, dtype=dtype, device=device)
    return Level(zero, zero.clone())


def observe(level: Level, exact: Tensor, squares: Tensor, beta: float, samples: int = 1) -> Level:
    """The level after one more step, whose traces are means over `samples` samples. Non-finite traces are ignored."""
    usable = torch.isfinite(exact) & torch.isfinite(squares)
    weight = max(level.weight, torch.finfo(level.exact.dtype).tiny)
    exact, squares = (
        torch.lerp(mean, torch.where(usable, new, mean / weight), 1 - beta)
        for mean, new in ((level.exact, exact), (level.squares, squares))
    )
    return Level(exact, squares, beta * level.weight + (1 - beta), beta**2 * level.noise + (1 - beta) ** 2 / samples)


def ratio(level: Level, variety: float = 1.0, limit: float = 8.0) -> Tensor:
    """c for every tensor: positive, finite, and within a factor `limit` of that of the whole model.

    Given the squares b, the exact trace of one draw is c·b with a variance of about b, since ε is fresh noise on w. So c is
    the slope of a line through the origin: Σa/Σb for the model, with variance 1/(K·Σb) after K draws; and for a tensor the
    precision-weighted mean of its own slope and the model's c̄, if tensors differ by about `variety`·c̄. Small tensors borrow
    from the rest, large ones rely on themselves. Since c̄ is known to be positive, it is the mean of its normal distribution
    truncated at 0.
    """
    weight = max(level.weight, torch.finfo(level.exact.dtype).tiny)
    a, b, draws = level.exact.double() / weight, level.squares.double() / weight, level.draws
    total = draws * float(b.sum())
    pooled = _positive_mean(draws * float(a.sum()) / total, total**-0.5) if total > 0 else 1.0
    trusted = draws * (variety * pooled) ** 2  # of a tensor's own traces, against those of the model
    return ((trusted * a + pooled) / (trusted * b + 1)).clamp(pooled / limit, pooled * limit).to(level.exact.dtype)


def _positive_mean(mean: float, deviation: float) -> float:
    """E[c | c > 0] of a normal distribution: m + s·φ(z)/Φ(z) with z = m/s."""
    z = mean / deviation
    if z > -10:
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return mean + deviation * density / (math.erfc(-z / math.sqrt(2)) / 2)
    t = -z  # φ/Φ = t + 1/t − 2/t³ + 10/t⁵ …, and z cancels the first term
    return deviation * (1 - (2 - 10 / t**2) / t**2) / t
