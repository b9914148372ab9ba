"""The low-rank affine group: g = (L, b), g·θ = Lθ + b with L lower triangular, and nothing below its diagonal but k columns.

    L = [A 0; C D],    A of size k × k, C of (P − k) × k, D diagonal.

It is closed, [A 0; C D][A′ 0; C′ D′] = [AA′ 0; CA′ + DC′ DD′], and everything costs O(k²P). The first k coordinates are
correlated with all; the others have the covariance CCᵀ + D², low rank plus diagonal, and are independent given the first k:
the shape of a hierarchical posterior whose few shared parameters come first. `TriangularAffine` is the case k = P − 1,
`DiagonalAffine` k = 0. Written from the last coordinate to the first, it is the block upper triangular group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .affine import centred_constants, mixing, require_vector, row_norms, saturated, solve_block, wide
from .exponential import scale_of
from .lie_group import LieGroup, average_over_samples, require_positive_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class LowRankShift(NamedTuple):
    """An element (log diag L, its first k columns below the diagonal, b), or a vector of the algebra with the same blocks."""

    log_diagonal: Tensor
    columns: Tensor
    """(…, P, k), with zeros on and above the diagonal."""
    shift: Tensor

    @property
    def matrix(self) -> Tensor:
        """L itself."""
        return _matrix(scale_of(self.log_diagonal), self.columns)


class LowRankAffine(LieGroup[LowRankShift]):
    """Correlations through the first `rank` coordinates, in (k + 2)·P numbers.

    >>> group = LowRankAffine(1)
    >>> g = LowRankShift(torch.zeros(3), torch.tensor([[0.0], [0.5], [2.0]]), torch.zeros(3))
    >>> group.covariance(g, 1.0)
    tensor([[1.0000, 0.5000, 2.0000],
            [0.5000, 1.2500, 1.0000],
            [2.0000, 1.0000, 5.0000]])
    """

    affine_action = True

    def __init__(self, rank: int) -> None:
        if not isinstance(rank, int) or rank < 0:
            raise ValueError(f"LowRankAffine needs a rank of 0 or more, but got {rank!r}.")
        self.rank = rank

    def identity(self, like: Tensor) -> LowRankShift:
        return self.at(torch.zeros_like(like))

    def compose(self, g: LowRankShift, h: LowRankShift) -> LowRankShift:
        scale, columns = scale_of(g.log_diagonal), g.columns.tril(-1)
        composed = scale.unsqueeze(-1) * h.columns.tril(-1) + columns @ _head(scale_of(h.log_diagonal), h.columns)
        shift = _apply(scale, columns, h.shift) + g.shift
        return LowRankShift(g.log_diagonal + h.log_diagonal, saturated(composed.tril(-1)), saturated(shift))

    def inverse(self, g: LowRankShift) -> LowRankShift:
        zero = torch.zeros_like(g.shift)
        inverse = LowRankShift(-g.log_diagonal, self._inverse_columns(g), zero)
        return inverse._replace(shift=-self.act(inverse, g.shift))

    def _inverse_columns(self, g: LowRankShift) -> Tensor:
        """−D⁻¹CA⁻¹ below, and A⁻¹ without its diagonal above: both are −(D⁻¹C)A⁻¹ for the strictly lower columns C."""
        scaled = wide(g.columns.tril(-1) * scale_of(-g.log_diagonal).unsqueeze(-1))
        head = wide(_head(scale_of(g.log_diagonal), g.columns))
        solved = torch.linalg.solve_triangular(head, scaled, upper=False, left=False)
        return -solved.tril(-1).to(g.columns.dtype)

    def act(self, g: LowRankShift, theta: Tensor) -> Tensor:
        return _apply(scale_of(g.log_diagonal), g.columns.tril(-1), theta) + g.shift

    def act_inverse(self, g: LowRankShift, theta: Tensor) -> Tensor:
        return _apply(scale_of(-g.log_diagonal), self._inverse_columns(g), theta - g.shift)

    def exp(self, X: LowRankShift) -> LowRankShift:
        """Row i of the matrix exponential knows only the first k coordinates, itself and the shift: k + 2 numbers."""
        x, columns, y = X.log_diagonal, X.columns.tril(-1), X.shift
        k, rest = columns.shape[-1], x.shape[-1] - columns.shape[-1]
        rows = torch.cat([columns, x.unsqueeze(-1), y.unsqueeze(-1)], -1)[..., k:, :]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, 1)) if rest == 0 else rows
        first = torch.cat([_head(x, columns), y.new_zeros(*y.shape[:-1], k, 1), y[..., :k, None]], -1)
        first = first.unsqueeze(-3).expand(*rows.shape[:-1], k, k + 2)
        small = torch.cat([first, torch.nn.functional.pad(rows.unsqueeze(-2), (0, 0, 0, 1))], -2)
        found = torch.linalg.matrix_exp(wide(small)).to(x.dtype)  # of [[a, 0, y₁], [cᵢ, dᵢ, yᵢ], [0, 0, 0]]
        top, below = found[..., 0, :k, :], found[..., :rest, k, :]
        whole = torch.cat([top[..., :k], below[..., :k]], -2).tril(-1)
        return LowRankShift(x, whole, torch.cat([top[..., k + 1], below[..., k + 1]], -1))

    def at(self, point: Tensor, scale: float = 1.0) -> LowRankShift:
        require_vector(self, point)
        require_positive_scale(scale)
        columns = point.new_zeros(*point.shape, min(self.rank, point.shape[-1]))
        return LowRankShift(torch.full_like(point, math.log(scale)), columns, point.clone())

    # Closed forms.

    def pullback(self, g: LowRankShift, theta: Tensor, gradient: Tensor) -> LowRankShift:
        whitened = _apply_transpose(scale_of(g.log_diagonal), g.columns.tril(-1), gradient)
        return self.pullback_at_identity(g, self.act_inverse(g, theta), whitened)

    def pullback_at_identity(self, e: LowRankShift, epsilon: Tensor, gradient: Tensor) -> LowRankShift:
        shape, k = e.shift.shape, e.columns.shape[-1]
        samples = gradient.shape[: gradient.ndim - len(shape)].numel()
        flat, noise = gradient.reshape(samples, *shape), epsilon.reshape(samples, *shape)
        columns = torch.einsum("s...i,s...j->...ij", flat, noise[..., :k]) / samples
        return LowRankShift(average_over_samples(flat * noise, shape), columns.tril(-1), average_over_samples(flat, shape))

    def act_with_transpose(self, g: LowRankShift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        scale, columns = scale_of(g.log_diagonal), g.columns.tril(-1)
        return _apply(scale, columns, epsilon) + g.shift, lambda gradient: _apply_transpose(scale, columns, gradient)

    def log_jacobian(self, g: LowRankShift, theta: Tensor) -> Tensor:
        return g.log_diagonal.sum()

    def divergence(self, g: LowRankShift, epsilon: Tensor) -> LowRankShift:
        return LowRankShift(torch.ones_like(g.log_diagonal), torch.zeros_like(g.columns), torch.zeros_like(g.shift))

    def flat(self, X: LowRankShift, base: Base) -> LowRankShift:
        """That of `TriangularAffine`, restricted to the columns there are."""
        x, columns, y = X
        mean = base.mean
        c_X, B, c_y = centred_constants(base)
        y = y + mean * (x + columns.sum(-1))
        shift = B * x + c_y * y
        lower = (mixing(base) * columns + mean * shift.unsqueeze(-1)).tril(-1)
        return LowRankShift(c_X * x + B * y + mean * shift, lower, shift)

    def sharp(self, covector: LowRankShift, base: Base) -> LowRankShift:
        U, lower, V = covector
        mean = base.mean
        x, y = solve_block(U - mean * V, V, base)
        lower = ((lower - mean * V.unsqueeze(-1)) / mixing(base)).tril(-1)
        return LowRankShift(x, lower, y - mean * (x + lower.sum(-1)))

    def variance(self, g: LowRankShift, variance: float) -> Tensor:
        return (g.columns.tril(-1).square().sum(-1) + scale_of(2 * g.log_diagonal)) * variance

    def stddev(self, g: LowRankShift, stddev: float) -> Tensor:
        return row_norms(torch.cat([g.columns.tril(-1), scale_of(g.log_diagonal).unsqueeze(-1)], -1)) * stddev

    def covariance(self, g: LowRankShift, variance: float) -> Tensor:
        L = g.matrix
        return L @ L.mT * variance

    def cholesky(self, g: LowRankShift) -> Tensor:
        return g.matrix


def _apply(scale: Tensor, columns: Tensor, theta: Tensor) -> Tensor:
    """Lθ for θ with leading sample dimensions."""
    head = theta[..., : columns.shape[-1]]
    mixed = head @ columns.mT if columns.ndim == 2 else (columns @ head.unsqueeze(-1)).squeeze(-1)
    return scale * theta + mixed


def _apply_transpose(scale: Tensor, columns: Tensor, gradient: Tensor) -> Tensor:
    """Lᵀ∇."""
    mixed = gradient @ columns if columns.ndim == 2 else (columns.mT @ gradient.unsqueeze(-1)).squeeze(-1)
    return scale * gradient + torch.nn.functional.pad(mixed, (0, gradient.shape[-1] - columns.shape[-1]))


def _head(diagonal: Tensor, columns: Tensor) -> Tensor:
    """The first k rows and columns."""
    k = columns.shape[-1]
    return columns[..., :k, :].tril(-1) + torch.diag_embed(diagonal[..., :k])


def _matrix(diagonal: Tensor, columns: Tensor) -> Tensor:
    wide_columns = torch.nn.functional.pad(columns.tril(-1), (0, diagonal.shape[-1] - columns.shape[-1]))
    return wide_columns + torch.diag_embed(diagonal)
