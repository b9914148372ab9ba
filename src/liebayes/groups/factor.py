"""One factor of a Kronecker product: lower triangular with a positive diagonal, diagonal, or absent (the identity).

The shapes tell which: a diagonal factor has an empty block below its diagonal, an absent one an empty diagonal as well. As in
`TriangularAffine`, a factor in the group stores the logarithms of its diagonal and the entries below it, and one in the
algebra the entries of both; methods say which of the two they are for. Leading dimensions are a batch.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .affine import row_norms, saturated, set_diagonal, wide
from .exponential import scale_of

Kind = Literal["triangular", "diagonal", "none"]
KINDS: tuple[Kind, ...] = ("triangular", "diagonal", "none")


class Factor(NamedTuple):
    """(log diag F, F below the diagonal), or the same two blocks of a vector or a covector."""

    log_diagonal: Tensor  # (…, m), or (…, 0) where the factor is absent
    lower: Tensor  # (…, m, m), or (…, 0, 0) where there is none

    @property
    def absent(self) -> bool:
        return self.log_diagonal.shape[-1] == 0

    @property
    def triangular(self) -> bool:
        return self.lower.shape[-1] > 0

    # In the group.

    @property
    def matrix(self) -> Tensor:
        """F itself."""
        diagonal = torch.diag_embed(scale_of(self.log_diagonal))
        return self.lower.tril(-1) + diagonal if self.triangular else diagonal

    def times(self, W: Tensor) -> Tensor:
        """F·W."""
        if self.absent:
            return W
        return self.matrix @ W if self.triangular else scale_of(self.log_diagonal).unsqueeze(-1) * W

    def times_right(self, W: Tensor) -> Tensor:
        """W·Fᵀ."""
        if self.absent:
            return W
        return W @ self.matrix.mT if self.triangular else W * scale_of(self.log_diagonal).unsqueeze(-2)

    def transpose_times(self, W: Tensor) -> Tensor:
        """Fᵀ·W."""
        return self.matrix.mT @ W if self.triangular else self.times(W)

    def transpose_times_right(self, W: Tensor) -> Tensor:
        """W·F."""
        return W @ self.matrix if self.triangular else self.times_right(W)

    def solve(self, W: Tensor) -> Tensor:
        """F⁻¹·W."""
        if not self.triangular:
            return Factor(-self.log_diagonal, self.lower).times(W)
        return torch.linalg.solve_triangular(wide(self.matrix), wide(W), upper=False).to(W.dtype)

    def solve_right(self, W: Tensor) -> Tensor:
        """W·F⁻ᵀ."""
        if not self.triangular:
            return Factor(-self.log_diagonal, self.lower).times_right(W)
        return torch.linalg.solve_triangular(wide(self.matrix.mT), wide(W), upper=True, left=False).to(W.dtype)

    def compose(self, other: Factor) -> Factor:
        """F·F′."""
        lower = saturated((self.matrix @ other.matrix).tril(-1)) if self.triangular else self.lower
        return Factor(self.log_diagonal + other.log_diagonal, lower)

    def inverse(self) -> Factor:
        """F⁻¹."""
        if not self.triangular:
            return Factor(-self.log_diagonal, self.lower)
        eye = torch.eye(self.lower.shape[-1], dtype=self.lower.dtype, device=self.lower.device)
        return Factor(-self.log_diagonal, self.solve(eye.expand_as(self.lower)).tril(-1))

    def advance(self, X: Factor) -> Factor:
        """F·e^D·(1 + N) for X = D + N of the algebra, N below the diagonal: F·exp(X) up to second order, in one product."""
        log_diagonal = self.log_diagonal + X.log_diagonal
        if not self.triangular:
            return Factor(log_diagonal, self.lower)
        F = self.lower.tril(-1) * scale_of(X.log_diagonal).unsqueeze(-2) + torch.diag_embed(scale_of(log_diagonal))
        return Factor(log_diagonal, saturated((F + F @ X.lower.tril(-1)).tril(-1)))

    def average_precision(self, S: Factor, rate: float) -> Factor:
        """F·J⁻¹ with J lower triangular and JᵀJ = (1 − rate)·1 + rate·S; S is given as a covector, by its lower part."""
        if not self.triangular:
            return Factor(self.log_diagonal - 0.5 * torch.log1p(rate * (S.log_diagonal - 1)), self.lower)
        below = rate * S.lower.tril(-1)
        M = wide(below + below.mT + torch.diag_embed(1 + rate * (S.log_diagonal - 1)))
        # JᵀJ is a Cholesky factorisation that starts at the last row: that of the matrix with rows and columns reversed.
        J = torch.linalg.cholesky(M.flip(-2, -1)).flip(-2, -1).mT
        moved = torch.linalg.solve_triangular(J, wide(self.matrix), upper=False, left=False).to(self.lower.dtype)
        diagonal = J.diagonal(dim1=-2, dim2=-1).log().to(self.log_diagonal.dtype)
        return Factor(self.log_diagonal - diagonal, saturated(moved.tril(-1)))

    def adjoint(self, X: Factor) -> Factor:
        """F·X·F⁻¹ for X of the algebra: a triangular factor does not change the diagonal."""
        if not self.triangular:
            return X
        F = self.matrix
        moved = torch.linalg.solve_triangular(wide(F), wide(F @ X.algebra_matrix), upper=False, left=False)
        return Factor(X.log_diagonal, moved.to(F.dtype).tril(-1))

    def log_determinant(self) -> Tensor:
        """log det F, one number for each matrix of a batch."""
        return self.log_diagonal.sum(-1)

    def row_norms(self, rows: int) -> Tensor:
        """√Σ_k F_ik² for every row i."""
        if self.absent:
            return self.log_diagonal.new_ones(*self.log_diagonal.shape[:-1], rows)
        return row_norms(self.matrix) if self.triangular else scale_of(self.log_diagonal)

    def gram(self, weight: Tensor) -> Factor:
        """weight·FᵀF as a covector."""
        if not self.triangular:
            return Factor(scale_of(2 * self.log_diagonal) * weight.unsqueeze(-1), self.lower)
        F = self.matrix
        product = F.mT @ F * weight[..., None, None]
        return Factor(product.diagonal(dim1=-2, dim2=-1), product.tril(-1))

    # In the algebra.

    @property
    def algebra_matrix(self) -> Tensor:
        """The matrix of a vector of the algebra."""
        return set_diagonal(self.lower.tril(-1), self.log_diagonal) if self.triangular else torch.diag_embed(self.log_diagonal)

    def velocity(self, W: Tensor) -> Tensor | float:
        """X·W; 0 where the factor is absent."""
        if self.absent:
            return 0.0
        return self.algebra_matrix @ W if self.triangular else self.log_diagonal.unsqueeze(-1) * W

    def velocity_right(self, W: Tensor) -> Tensor | float:
        """W·Xᵀ; 0 where the factor is absent."""
        if self.absent:
            return 0.0
        return W @ self.algebra_matrix.mT if self.triangular else W * self.log_diagonal.unsqueeze(-2)

    def bracket(self, other: Factor) -> Factor:
        """X·Y − Y·X, whose diagonal is 0."""
        zero = torch.zeros_like(self.log_diagonal)
        if not self.triangular:
            return Factor(zero, self.lower)
        x, y = self.algebra_matrix, other.algebra_matrix
        return Factor(zero, (x @ y - y @ x).tril(-1))

    def row_sums(self) -> Tensor | float:
        """Σ_k X_ik for every row i; 0 where the factor is absent."""
        if self.absent:
            return 0.0
        return self.log_diagonal + self.lower.tril(-1).sum(-1) if self.triangular else self.log_diagonal

    def norm(self) -> float:
        """A bound of the largest norm in a batch."""
        below = torch.linalg.vector_norm(self.lower.tril(-1), dim=(-2, -1))
        return float((torch.linalg.vector_norm(self.log_diagonal, dim=-1) + below).detach().amax())

    def exp(self, halvings: int, terms: int) -> Factor:
        """exp(X/2^halvings), in the group, by `terms` terms of its series after the first; `series` gives both numbers.

        torch's matrix_exp would need fewer products, but lose up to seven digits (pytorch issue 196592).
        """
        shrink = math.ldexp(1.0, -halvings)
        if not self.triangular:
            return Factor(self.log_diagonal * shrink, self.lower)
        x = self.algebra_matrix * shrink
        total = term = x
        for k in range(2, terms + 2):
            term = term @ x / k
            total = total + term
        return Factor(self.log_diagonal * shrink, total.tril(-1))


def series(size: float, dtype: torch.dtype) -> tuple[int, int]:
    """How often a step of this size is halved, and how many terms of Σ 𝓛ᵏ/(k + 1)! after the first its dtype then needs.

    A step below 0.1 gets the terms of 0.1, which its derivatives need even where its value does not.
    """
    halvings = max(math.frexp(size)[1], 0) if math.isfinite(size) else 0
    size = max(math.ldexp(size, -halvings), 0.1) if math.isfinite(size) else 1.0
    terms, rest = 0, 1.0
    while rest > torch.finfo(dtype).eps / 8:
        terms += 1
        rest *= size / (terms + 1)
    return halvings, terms


def outer(like: Factor, left: Tensor, right: Tensor) -> Factor:
    """The covector X ↦ ⟨left, X·right⟩ on factors of the given kind, averaged over leading sample dimensions."""
    if like.absent:
        return like
    extra = left.ndim - like.log_diagonal.ndim - 1
    samples = left.shape[:extra].numel()
    if extra != 1:
        left, right = (x.reshape(samples, *x.shape[extra:]) for x in (left, right))
    if not like.triangular:
        return Factor((left * right).sum((0, -1)) / samples, like.lower)
    together = left[0] @ right[0].mT if samples == 1 else torch.einsum("k...in,k...jn->...ij", left, right) / samples
    return Factor(together.diagonal(dim1=-2, dim2=-1), together.tril(-1))
