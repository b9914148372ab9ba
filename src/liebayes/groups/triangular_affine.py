"""The triangular affine group: g = (L, b), g·θ = Lθ + b with L lower triangular and its diagonal positive.

It reaches every Gaussian exactly once, so its Fisher metric is not singular where that of `Affine` is. The diagonal of L is
stored as its logarithm, the entries below it as they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .affine import (
    MatrixShift,
    apply,
    centred_constants,
    matrix_shift_exp,
    mixing,
    outer_mean,
    require_vector,
    row_norms,
    saturated,
    set_diagonal,
    solve_block,
    wide,
)
from .exponential import scale_of
from .lie_group import LieGroup, require_positive_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


SMALL = 64
"""Up to so many dimensions a step costs no more for taking the exponential map itself."""


class TriangularShift(NamedTuple):
    """An element (log diag L, L below the diagonal, b), or a vector of the algebra with the same three blocks."""

    log_diagonal: Tensor
    lower: Tensor
    shift: Tensor

    @property
    def matrix(self) -> Tensor:
        """L itself."""
        return self.lower.tril(-1) + torch.diag_embed(scale_of(self.log_diagonal))


class TriangularAffine(LieGroup[TriangularShift]):
    """Any covariance, in P(P + 1)/2 + P numbers: full-rank variational inference on any base with a variance.

    >>> group = TriangularAffine()
    >>> group.act(group.at(torch.tensor([1.0, 0.0]), scale=2.0), torch.tensor([3.0, 1.0]))
    tensor([7., 2.])
    """

    affine_action = True

    def identity(self, like: Tensor) -> TriangularShift:
        return self.at(torch.zeros_like(like))

    def compose(self, g: TriangularShift, h: TriangularShift) -> TriangularShift:
        L = g.matrix
        lower, shift = (L @ h.matrix).tril(-1), apply(L, h.shift) + g.shift
        return TriangularShift(g.log_diagonal + h.log_diagonal, saturated(lower), saturated(shift))

    def inverse(self, g: TriangularShift) -> TriangularShift:
        L = wide(g.matrix)
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
        inverse = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False).to(g.shift.dtype)
        return TriangularShift(-g.log_diagonal, inverse.tril(-1), -apply(inverse, g.shift))

    def act(self, g: TriangularShift, theta: Tensor) -> Tensor:
        return apply(g.matrix, theta) + g.shift

    def act_inverse(self, g: TriangularShift, theta: Tensor) -> Tensor:
        L, centred = wide(g.matrix), wide(theta - g.shift)
        if L.ndim == 2 and theta.ndim > 1:
            flat = centred.reshape(-1, L.shape[-1])
            epsilon = torch.linalg.solve_triangular(L.mT, flat, upper=True, left=False).reshape(theta.shape)
        else:
            epsilon = torch.linalg.solve_triangular(L, centred.unsqueeze(-1), upper=False).squeeze(-1)
        return epsilon.to(theta.dtype)

    def exp(self, X: TriangularShift) -> TriangularShift:
        matrix, shift = matrix_shift_exp(MatrixShift(_algebra_matrix(X), X.shift))
        return TriangularShift(X.log_diagonal, matrix.tril(-1), shift)

    def move(self, g: TriangularShift, X: TriangularShift, t: float) -> TriangularShift:
        """g·exp(tX); where products of matrices are the cost, e^(tX) below the diagonal to second order, by two of them."""
        if X.shift.shape[-1] <= SMALL:
            return super().move(g, X, t)
        X = X if t == 1 else TriangularShift(*(block * t for block in X))
        x = _algebra_matrix(X)
        lower, shift = (x @ x).div_(2).add_(X.lower).tril(-1), X.shift + apply(x, X.shift) / 2
        return self.compose(g, TriangularShift(X.log_diagonal, lower, shift))

    def at(self, point: Tensor, scale: float = 1.0) -> TriangularShift:
        require_vector(self, point)
        require_positive_scale(scale)
        return TriangularShift(
            torch.full_like(point, math.log(scale)), point.new_zeros(*point.shape, point.shape[-1]), point.clone()
        )

    # Closed forms.

    def adjoint(self, g: TriangularShift, X: TriangularShift) -> TriangularShift:
        L, x = g.matrix, _algebra_matrix(X)
        x = torch.linalg.solve_triangular(wide(L), wide(L @ x), upper=False, left=False).to(L.dtype)
        return TriangularShift(X.log_diagonal, x.tril(-1), apply(L, X.shift) - apply(x, g.shift))

    def bracket(self, X: TriangularShift, Y: TriangularShift) -> TriangularShift:
        x1, x2 = _algebra_matrix(X), _algebra_matrix(Y)
        return TriangularShift(
            torch.zeros_like(X.log_diagonal), (x1 @ x2 - x2 @ x1).tril(-1), apply(x1, Y.shift) - apply(x2, X.shift)
        )

    def pullback(self, g: TriangularShift, theta: Tensor, gradient: Tensor) -> TriangularShift:
        U, V = outer_mean(apply(g.matrix.mT, gradient), self.act_inverse(g, theta), g.shift.shape)
        return TriangularShift(U.diagonal(dim1=-2, dim2=-1), U.tril(-1), V)

    def pullback_at_identity(self, e: TriangularShift, epsilon: Tensor, gradient: Tensor) -> TriangularShift:
        U, V = outer_mean(gradient, epsilon, e.shift.shape)
        return TriangularShift(U.diagonal(dim1=-2, dim2=-1), U.tril(-1), V)

    def act_with_transpose(self, g: TriangularShift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        L = g.matrix
        return apply(L, epsilon) + g.shift, lambda gradient: apply(L.mT, gradient)

    def log_jacobian(self, g: TriangularShift, theta: Tensor) -> Tensor:
        return g.log_diagonal.sum()

    def divergence(self, g: TriangularShift, epsilon: Tensor) -> TriangularShift:
        return TriangularShift(torch.ones_like(g.log_diagonal), torch.zeros_like(g.lower), torch.zeros_like(g.shift))

    def flat(self, X: TriangularShift, base: Base) -> TriangularShift:
        """As in `Affine`, but an entry below the diagonal has no partner above it, so its weight is a = E[s²]·Var(ε) alone."""
        x, lower, y = X
        a, mean = mixing(base), base.mean
        c_X, B, c_y = centred_constants(base)
        y = y + mean * (x + lower.sum(-1))
        shift = B * x + c_y * y
        return TriangularShift(
            c_X * x + B * y + mean * shift,
            (a * lower + mean * shift.unsqueeze(-1)).tril(-1),
            shift,
        )

    def sharp(self, covector: TriangularShift, base: Base) -> TriangularShift:
        U, lower, V = covector
        a, mean = mixing(base), base.mean
        x, y = solve_block(U - mean * V, V, base)
        lower = ((lower - mean * V.unsqueeze(-1)) / a).tril(-1)
        return TriangularShift(x, lower, y - mean * (x + lower.sum(-1)))

    def average_precision(self, g: TriangularShift, curvature: TriangularShift, rate: float) -> TriangularShift:
        from .factor import Factor

        moved = Factor(g.log_diagonal, g.lower).average_precision(Factor(curvature.log_diagonal, curvature.lower), rate)
        return TriangularShift(*moved, g.shift)

    def variance(self, g: TriangularShift, variance: float) -> Tensor:
        return g.matrix.square().sum(-1) * variance

    def stddev(self, g: TriangularShift, stddev: float) -> Tensor:
        return row_norms(g.matrix) * stddev

    def spread(self, g: TriangularShift, variance: float) -> TriangularShift:
        L = g.matrix
        gram = L.mT @ L * variance
        return TriangularShift(gram.diagonal(dim1=-2, dim2=-1), gram.tril(-1), torch.zeros_like(g.shift))

    def covariance(self, g: TriangularShift, variance: float) -> Tensor:
        L = g.matrix
        return L @ L.mT * variance

    def cholesky(self, g: TriangularShift) -> Tensor:
        return g.matrix


def _algebra_matrix(X: TriangularShift) -> Tensor:
    return set_diagonal(X.lower.tril(-1), X.log_diagonal)
