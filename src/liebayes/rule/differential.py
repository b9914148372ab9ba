"""The differential of E_q[ℓ] − τ·H(q) as a covector on the Lie algebra (Sec. 3.4, A.2)."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from ..bases import Base
from ..groups import LieGroup, map_blocks

E = TypeVar("E")


def differential(group: LieGroup[E], g: E, theta: Tensor, gradient: Tensor, temperature: float) -> E:
    """① + τ·② at g, from samples θ of q_g and the loss gradients there, averaged over the leading sample dimensions.

    `gradient` may be that of a sum over the data, with temperature τ, or, as in Alg. 1–3, of a mean over N data, with τ/N.
    """
    covector = group.pullback(g, theta, gradient)
    if temperature == 0:
        return covector
    epsilon = theta if group.affine_action else group.act(group.inverse(g), theta)
    return map_blocks(lambda c, d: c.sub(d, alpha=temperature), covector, group.divergence(g, epsilon))


def differential_by_samples(group: LieGroup[E], base: Base, e: E, epsilon: Tensor, gradient: Tensor, temperature: float) -> E:
    """The same covector in expectation, at the identity, with the entropy's gradient taken at the samples: ∇ℓ + τs.

    Where the target is in the family, the two cancel sample by sample, and no variance is left at the optimum (Roeder, Wu,
    Duvenaud 2017). The identity is enough: the rule at g for the loss ℓ is the rule at e for ℓ(g·ε) − τ·log |det ∂(g·ε)/∂ε|.
    The base's density must vanish at its edges.
    """
    if temperature != 0:
        gradient = base.add_score(gradient, epsilon, temperature)
    return group.pullback_at_identity(e, epsilon, gradient)
