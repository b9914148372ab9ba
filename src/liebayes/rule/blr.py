"""The Bayesian learning rule (Sec. 2, Eq. 2) for the exponential families the paper compares with (Sec. 4.2, A.6).

λ ← λ − α·∂/∂μ (E_q[ℓ] − τ·H(q)), a straight step in the natural parameter. It is the reference for tests and Figure 1(b):
the Lie-group rule agrees with it to first order in α, and stays on the manifold where this one leaves it.
"""

from __future__ import annotations

from torch import Tensor


def gaussian_step(
    mean: Tensor, precision: Tensor, gradient: Tensor, hessian: Tensor, lr: float, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Diagonal Gaussians: S ← (1 − ατ)S + α·E[∇²ℓ], m ← m − α·S⁻¹·E[∇ℓ] with the new S (Khan and Rue 2021, Eq. 12).

    Nothing keeps S positive. A.6 integrates E[∇²ℓ] by parts and omits a factor S (docs/paper-notes.md).
    """
    precision = (1 - lr * temperature) * precision + lr * hessian
    return mean - lr * gradient / precision, precision


def rayleigh_step(rate: Tensor, expectation: Tensor, lr: float, temperature: float = 1.0) -> Tensor:
    """Rayleigh densities θλe^(−λθ²/2): λ ← λ + ½αλ(E[θ∂ℓ] − τ), from `expectation` = E[θ∂ℓ] (Eq. 15)."""
    return rate + 0.5 * lr * rate * (expectation - temperature)


def exponential_step(rate: Tensor, expectation: Tensor, lr: float, temperature: float = 1.0) -> Tensor:
    """Exponential densities λe^(−λθ): λ ← λ(1 − ατ) + αλ·E[θ∂ℓ] (A.6)."""
    return rate * (1 - lr * temperature) + lr * rate * expectation
