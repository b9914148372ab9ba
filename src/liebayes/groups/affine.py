"""The affine group of Sec. 3.1: g = (A, b), g·θ = Aθ + b with A any invertible matrix."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .exponential import scale_range
from .lie_group import LieGroup, require_positive_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class MatrixShift(NamedTuple):
    """An element (A, b) of the affine group, or a vector (X, y) of its algebra."""

    matrix: Tensor
    shift: Tensor


class Affine(LieGroup[MatrixShift]):
    """All affine maps of ℝ^P: any covariance, in P² + P numbers.

    Rotations leave an isotropic Normal base unchanged, so its Fisher metric is singular; `TriangularAffine` reaches the same
    Gaussians without rotations. On other bases with a finite variance, rotations matter. Where they hardly do (a StudentT with
    80 degrees of freedom), their noise would dominate everything else, and the metric is refused too.

    In floating point the condition number of A is bounded (`condition_limit`): constant steps in one direction multiply it by
    a factor per step, and past the bound rounding decides whether A has an inverse at all. At the bound the smallest singular
    values stop shrinking, with a warning. `TriangularAffine` stores logarithms and has no such bound.

    >>> group = Affine()
    >>> group.act(group.at(torch.tensor([1.0, 0.0]), scale=2.0), torch.tensor([3.0, 1.0]))
    tensor([7., 2.])
    """

    affine_action = True

    def identity(self, like: Tensor) -> MatrixShift:
        return self.at(torch.zeros_like(like))

    def compose(self, g: MatrixShift, h: MatrixShift) -> MatrixShift:
        return MatrixShift(within_float(g.matrix, h.matrix), saturated(apply(g.matrix, h.shift) + g.shift))

    def inverse(self, g: MatrixShift) -> MatrixShift:
        inverse = torch.linalg.inv(wide(g.matrix)).to(g.matrix.dtype)
        return MatrixShift(inverse, -apply(inverse, g.shift))

    def act(self, g: MatrixShift, theta: Tensor) -> Tensor:
        return apply(g.matrix, theta) + g.shift

    def act_inverse(self, g: MatrixShift, theta: Tensor) -> Tensor:
        return solve(g.matrix, theta - g.shift)

    def exp(self, X: MatrixShift) -> MatrixShift:
        return matrix_shift_exp(X)

    def at(self, point: Tensor, scale: float = 1.0) -> MatrixShift:
        require_vector(self, point)
        require_positive_scale(scale)
        low, high = scale_range(point.dtype)
        scale = min(max(scale, low), high)
        eye = torch.eye(point.shape[-1], dtype=point.dtype, device=point.device)
        return MatrixShift((scale * eye).expand(*point.shape, -1).clone(), point.clone())

    # Closed forms.

    def adjoint(self, g: MatrixShift, X: MatrixShift) -> MatrixShift:
        x = g.matrix @ X.matrix @ torch.linalg.inv(wide(g.matrix)).to(g.matrix.dtype)
        return MatrixShift(x, apply(g.matrix, X.shift) - apply(x, g.shift))

    def bracket(self, X: MatrixShift, Y: MatrixShift) -> MatrixShift:
        x1, y1 = X
        x2, y2 = Y
        return MatrixShift(x1 @ x2 - x2 @ x1, apply(x1, y2) - apply(x2, y1))

    def pullback(self, g: MatrixShift, theta: Tensor, gradient: Tensor) -> MatrixShift:
        epsilon = self.act_inverse(g, theta)
        moved = apply(g.matrix.mT, gradient)  # ⟨∇ℓ, A(Xε + y)⟩ = ⟨(Aᵀ∇ℓ)εᵀ, X⟩ + ⟨Aᵀ∇ℓ, y⟩
        return outer_mean(moved, epsilon, g.shift.shape)

    def pullback_at_identity(self, e: MatrixShift, epsilon: Tensor, gradient: Tensor) -> MatrixShift:
        return outer_mean(gradient, epsilon, e.shift.shape)

    def act_with_transpose(self, g: MatrixShift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.act(g, epsilon), lambda gradient: apply(g.matrix.mT, gradient)

    def log_jacobian(self, g: MatrixShift, theta: Tensor) -> Tensor:
        return torch.linalg.slogdet(wide(g.matrix)).logabsdet.sum().to(g.matrix.dtype)

    def divergence(self, g: MatrixShift, epsilon: Tensor) -> MatrixShift:
        eye = torch.eye(g.matrix.shape[-1], dtype=g.matrix.dtype, device=g.matrix.device)
        return MatrixShift(eye.expand_as(g.matrix).clone(), torch.zeros_like(g.shift))

    def flat(self, X: MatrixShift, base: Base) -> MatrixShift:
        """For independent coordinates, with ε centred at its mean, X_ii couples only to y_i, and X_ij only to X_ji.

        The pair (ij), (ji) has the block [[a, 1], [1, a]] with a = E[s²]·Var(ε), since E[s_i ε_i] = −1.
        """
        x, y = X
        a = mixing(base)
        mean = base.mean
        y = y + mean * x.sum(-1)  # in the centred coordinates Xε + y = X(ε − μ) + (y + μX1)
        c_X, B, c_y = centred_constants(base)
        diagonal = x.diagonal(dim1=-2, dim2=-1)
        matrix = a * x + x.mT
        matrix = set_diagonal(matrix, c_X * diagonal + B * y)
        shift = B * diagonal + c_y * y
        return MatrixShift(matrix + mean * shift.unsqueeze(-1), shift)

    def sharp(self, covector: MatrixShift, base: Base) -> MatrixShift:
        U, V = covector
        a = mixing(base)
        if U.shape[-1] > 1 and abs(a - 1) < 1e-3:
            raise ValueError(
                f"The Fisher metric of Affine on {base} is singular, or nearly so: the rotations (antisymmetric directions "
                "of the matrix) leave this base unchanged. Use TriangularAffine, which reaches the same covariances, or "
                "Absorbed()."
            )
        mean = base.mean
        U = U - mean * V.unsqueeze(-1)
        x_diagonal, y = solve_block(U.diagonal(dim1=-2, dim2=-1), V, base)
        matrix = (a * U - U.mT) / (a * a - 1) if U.shape[-1] > 1 else U
        x = set_diagonal(matrix, x_diagonal)
        return MatrixShift(x, y - mean * x.sum(-1))

    def variance(self, g: MatrixShift, variance: float) -> Tensor:
        return g.matrix.square().sum(-1) * variance

    def stddev(self, g: MatrixShift, stddev: float) -> Tensor:
        return row_norms(g.matrix) * stddev

    def spread(self, g: MatrixShift, variance: float) -> MatrixShift:
        return MatrixShift(g.matrix.mT @ g.matrix * variance, torch.zeros_like(g.shift))

    def covariance(self, g: MatrixShift, variance: float) -> Tensor:
        return g.matrix @ g.matrix.mT * variance

    def cholesky(self, g: MatrixShift) -> Tensor:
        lower = torch.linalg.qr(wide(g.matrix).mT).R.mT  # L of A = LQ; a factor of AAᵀ would have half the digits
        signs = torch.where(lower.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
        return (lower * signs.unsqueeze(-2)).to(g.matrix.dtype)


# Shared with the triangular subgroup.


def require_vector(group: LieGroup[Any], point: Tensor) -> None:
    """Refuses scalars: matrix groups act on vectors, the last dimension of a start."""
    if point.ndim == 0:
        raise ValueError(f"{type(group).__name__} acts on vectors, but got a scalar. Give a tensor of shape (P,).")


def wide(matrix: Tensor) -> Tensor:
    """The matrix in float32 at least: torch has no solvers below that, and its `matrix_exp` is wrong there."""
    return matrix.float() if matrix.dtype.itemsize < 4 else matrix


def apply(matrix: Tensor, theta: Tensor) -> Tensor:
    """Aθ for θ with leading sample dimensions."""
    return theta @ matrix.mT if matrix.ndim == 2 else (matrix @ theta.unsqueeze(-1)).squeeze(-1)


def solve(matrix: Tensor, theta: Tensor) -> Tensor:
    """A⁻¹θ for θ with leading sample dimensions."""
    dtype, matrix, theta = theta.dtype, wide(matrix), wide(theta)
    if matrix.ndim == 2:
        solved = torch.linalg.solve(matrix.mT, theta, left=False) if theta.ndim > 1 else torch.linalg.solve(matrix, theta)
    else:
        solved = torch.linalg.solve(matrix, theta.unsqueeze(-1)).squeeze(-1)
    return solved.to(dtype)


def outer_mean(left: Tensor, right: Tensor, shape: torch.Size) -> MatrixShift:
    """The mean over samples of left ⊗ right, and of left."""
    samples = left.shape[: left.ndim - len(shape)].numel()
    left, right = left.reshape(samples, *shape), right.reshape(samples, *shape)
    outer = torch.einsum("k...i,k...j->...ij", left, right)
    return MatrixShift(outer / samples, left.mean(0))


def matrix_shift_exp(X: MatrixShift) -> MatrixShift:
    """exp of the matrix [[X, y], [0, 0]]: the embedding of A.5 gives φ(X)y without dividing by X."""
    x, y = X
    embedded = torch.nn.functional.pad(torch.cat([x, y.unsqueeze(-1)], -1), (0, 0, 0, 1))
    result = torch.linalg.matrix_exp(wide(embedded)).to(x.dtype)
    return MatrixShift(result[..., :-1, :-1], result[..., :-1, -1])


def rescaled(matrix: Tensor) -> Tensor:
    """The matrix scaled into the range of its dtype, as `scale_of` does for a scale; a common factor keeps it invertible."""
    if matrix.numel() == 0:
        return matrix
    low, high = scale_range(matrix.dtype)
    size = matrix.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
    return matrix * (size.clamp(low, high) / size)


def condition_limit(dtype: torch.dtype, dim: int) -> float:
    """The largest condition number that a P×P matrix A can have in its dtype: 1/(8√P·eps), and at least 2.

    Rounding the entries of A moves its singular values by up to eps/2·‖A‖_F ≤ eps/2·√P·σ_max. Within this limit that is a
    sixteenth of the smallest of them, which leaves room for the rounding of products and factorisations.
    """
    return max(1 / (8 * math.sqrt(dim) * torch.finfo(dtype).eps), 2.0)


def within_float(left: Tensor, right: Tensor) -> Tensor:
    """The product of two invertible matrices, its smallest singular values raised where the dtype would lose them."""
    product = rescaled(left @ right)
    if product.numel() == 0:
        return product
    matrix, limit = wide(product.detach()), condition_limit(product.dtype, product.shape[-1])
    # ‖A‖·‖A⁻¹‖ in Frobenius norms is no less than the condition number, and much cheaper than singular values.
    bound = torch.linalg.matrix_norm(matrix) * torch.linalg.matrix_norm(torch.linalg.inv_ex(matrix).inverse)
    if bool(((bound <= limit) | ~matrix.isfinite().all(-1).all(-1)).all()):
        return product
    U, S, Vh = torch.linalg.svd(matrix.double())
    held = S[..., -1] * limit >= S[..., 0]
    if bool(held.all()):
        return product
    warnings.warn(
        f"The matrix of an Affine element has reached the condition number {limit:.1e}, the most that it can have in "
        f"{product.dtype} with {matrix.shape[-1]} coordinates; its narrowest directions stay at that width. Lower lr or "
        "max_step, use float64, or TriangularAffine, which has no such limit.",
        RuntimeWarning,
        stacklevel=3,
    )
    # Past the limit rounding may have flipped the sign of the determinant, which the factors' determinants tell.
    turned = torch.linalg.slogdet(wide(left)).sign * torch.linalg.slogdet(wide(right)).sign * torch.linalg.det(U @ Vh) < 0
    S = S.clamp_min(S[..., :1] / limit)
    S = torch.cat([S[..., :-1], torch.where(turned.unsqueeze(-1), -S[..., -1:], S[..., -1:])], -1)
    return torch.where(held[..., None, None], product, ((U * S.unsqueeze(-2)) @ Vh).to(product))


def row_norms(matrix: Tensor) -> Tensor:
    """The norm of every row, computed relative to its largest entry, whose square may leave the float's range."""
    size = matrix.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
    return torch.linalg.vector_norm(wide(matrix / size), dim=-1).to(matrix.dtype) * size.squeeze(-1)


def saturated(x: Tensor) -> Tensor:
    """The numbers clamped to the range of scales."""
    _, high = scale_range(x.dtype)
    return x.clamp(-high, high)


def set_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """The matrix with another diagonal."""
    return matrix + torch.diag_embed(diagonal - matrix.diagonal(dim1=-2, dim2=-1))


def mixing(base: Base) -> float:
    """a = E[s²]·Var(ε), the weight of the off-diagonal directions; infinite if the variance is."""
    return base.fisher_shift * base.variance


def centred_constants(base: Base) -> tuple[float, float, float]:
    """c_X, B, c_y of ε − E[ε]: the dilation 1 + εs becomes 1 + εs − μs."""
    mean, c_X, B, c_y = base.mean, base.fisher_scale, base.fisher_cross, base.fisher_shift
    return c_X - 2 * mean * B + mean**2 * c_y, B - mean * c_y, c_y


def solve_block(U: Tensor, V: Tensor, base: Base) -> tuple[Tensor, Tensor]:
    """The inverse of the centred 2×2 block of A.5 on (U, V)."""
    c_X, B, c_y = centred_constants(base)
    determinant = c_X * c_y - B * B
    return (c_y * U - B * V) / determinant, (c_X * V - B * U) / determinant
