"""One factor of a Kronecker product: lower triangular with a positive diagonal, block-diagonal with such blocks, diagonal, or
absent (the identity).

The shapes tell which: blocks have a dimension that counts them, a diagonal factor has nothing below its diagonal, and an
absent one no diagonal either. As in `TriangularAffine`, a factor in the group stores the logarithms of its diagonal and the
entries below it, and one in the algebra the entries of both; methods say which of the two they are for. Leading dimensions are
a batch.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .affine import row_norms, saturated, wide
from .exponential import scale_of

Kind = Literal["triangular", "diagonal", "none"]
KINDS: tuple[Kind, ...] = ("triangular", "diagonal", "none")


class Factor(NamedTuple):
    """(log diag F, F below the diagonal), or the same two parts of a vector or a covector."""

    log_diagonal: Tensor  # (…, m), or (…, 0) where the factor is absent
    lower: Tensor  # (…, m, m), (…, m/b, b, b) for blocks of b rows, or (…, 0, 0) where there is nothing

    @property
    def absent(self) -> bool:
        return self.log_diagonal.shape[-1] == 0

    @property
    def triangular(self) -> bool:
        """Whether it has entries below its diagonal: in one block, or in several."""
        return self.lower.shape[-1] > 0

    @property
    def blocked(self) -> bool:
        """Whether it has several blocks."""
        return 0 < self.lower.shape[-1] < self.log_diagonal.shape[-1]

    # A dimension of m numbers as one of m/b blocks and one of b numbers, and back; as it is without blocks.

    def split(self, diagonal: Tensor) -> Tensor:
        """(…, m) as (…, m/b, b)."""
        return diagonal.unflatten(-1, (-1, self.lower.shape[-1])) if self.blocked else diagonal

    def join(self, diagonal: Tensor) -> Tensor:
        """(…, m/b, b) as (…, m)."""
        return diagonal.flatten(-2) if self.blocked else diagonal

    def split_rows(self, W: Tensor) -> Tensor:
        """(…, m, n) as (…, m/b, b, n)."""
        return W.unflatten(-2, (-1, self.lower.shape[-1])) if self.blocked else W

    def join_rows(self, W: Tensor) -> Tensor:
        """(…, m/b, b, n) as (…, m, n)."""
        return W.flatten(-3, -2) if self.blocked else W

    def beside(self, numbers: Tensor) -> Tensor:
        """One number for each factor of a batch, (…, 1), in the dimensions of `lower`."""
        return numbers.reshape(*numbers.shape[:-1], *[1] * (self.lower.ndim - numbers.ndim + 1))

    # In the group.

    @property
    def blocks(self) -> Tensor:
        """F, or its blocks (…, m/b, b, b)."""
        return _with_diagonal(self.lower, self.split(scale_of(self.log_diagonal)))

    @property
    def matrix(self) -> Tensor:
        """F itself."""
        if not self.triangular:
            return torch.diag_embed(scale_of(self.log_diagonal))
        return _block_diagonal(self.blocks) if self.blocked else self.blocks

    @property
    def operator(self) -> Operator:
        """W ↦ F·W and the like, of which several share what they need of F."""
        return Operator(self)

    def solve(self, W: Tensor) -> Tensor:
        """F⁻¹·W."""
        if not self.triangular:
            return Factor(-self.log_diagonal, self.lower).operator.times(W)
        F, W_blocks = wide(self.blocks), wide(self.split_rows(W))
        return self.join_rows(torch.linalg.solve_triangular(F, W_blocks, upper=False)).to(W.dtype)

    def solve_right(self, W: Tensor) -> Tensor:
        """W·F⁻ᵀ."""
        return self.solve(W.mT).mT

    def compose(self, other: Factor) -> Factor:
        """F·F′."""
        lower = saturated((self.blocks @ other.blocks).tril(-1)) if self.triangular else self.lower
        return Factor(self.log_diagonal + other.log_diagonal, lower)

    def inverse(self) -> Factor:
        """F⁻¹."""
        if not self.triangular:
            return Factor(-self.log_diagonal, self.lower)
        F = wide(self.blocks)
        eye = torch.eye(F.shape[-1], dtype=F.dtype, device=F.device).expand_as(F)
        lower = torch.linalg.solve_triangular(F, eye, upper=False).to(self.lower.dtype)
        return Factor(-self.log_diagonal, lower.tril(-1))

    def advance(self, X: Factor) -> Factor:
        """F·e^D·(1 + N) for X = D + N of the algebra, N below the diagonal: F·exp(X) up to second order, in one product."""
        log_diagonal = self.log_diagonal + X.log_diagonal
        if not self.triangular:
            return Factor(log_diagonal, self.lower)
        grown = self.lower * self.split(scale_of(X.log_diagonal)).unsqueeze(-2)
        F = _with_diagonal(grown, self.split(scale_of(log_diagonal)))
        return Factor(log_diagonal, saturated((F + F @ X.lower.tril(-1)).tril(-1)))

    def average_precision(self, S: Factor, rate: float) -> Factor:
        """F·J⁻¹ with J lower triangular and JᵀJ = (1 − rate)·1 + rate·S; S is given as a covector, by its lower part."""
        if not self.triangular:
            return Factor(self.log_diagonal - 0.5 * torch.log1p(rate * (S.log_diagonal - 1)), self.lower)
        below = rate * S.lower.tril(-1)
        M = wide(below + below.mT + torch.diag_embed(1 + rate * (self.split(S.log_diagonal) - 1)))
        # JᵀJ is a Cholesky factorisation that starts at the last row: that of the matrix with rows and columns reversed.
        J = torch.linalg.cholesky(M.flip(-2, -1)).flip(-2, -1).mT
        moved = torch.linalg.solve_triangular(J, wide(self.blocks), upper=False, left=False).to(self.lower.dtype)
        diagonal = self.join(J.diagonal(dim1=-2, dim2=-1)).log().to(self.log_diagonal.dtype)
        return Factor(self.log_diagonal - diagonal, saturated(moved.tril(-1)))

    def adjoint(self, X: Factor) -> Factor:
        """F·X·F⁻¹ for X of the algebra: a triangular factor does not change the diagonal."""
        if not self.triangular:
            return X
        F = self.blocks
        moved = torch.linalg.solve_triangular(wide(F), wide(F @ X.algebra_blocks), upper=False, left=False)
        return Factor(X.log_diagonal, moved.to(F.dtype).tril(-1))

    def dilated(self, log_scale: Tensor) -> Factor:
        """e^x·F, with one number x for each factor of a batch, (…, 1)."""
        return Factor(self.log_diagonal + log_scale, self.lower * self.beside(scale_of(log_scale)))

    def log_determinant(self) -> Tensor:
        """log det F, one number for each matrix of a batch."""
        return self.log_diagonal.sum(-1)

    def row_norms(self, rows: int) -> Tensor:
        """√Σ_k F_ik² for every row i."""
        if self.absent:
            return self.log_diagonal.new_ones(*self.log_diagonal.shape[:-1], rows)
        return self.join(row_norms(self.blocks)) if self.triangular else scale_of(self.log_diagonal)

    def gram(self) -> Factor:
        """FᵀF as a covector."""
        if not self.triangular:
            return Factor(scale_of(2 * self.log_diagonal), self.lower)
        F = self.blocks
        product = F.mT @ F
        return Factor(self.join(product.diagonal(dim1=-2, dim2=-1)), product.tril(-1))

    def trace(self, side: int) -> Tensor:
        """The trace of a covector, (…, 1), or of the identity where the factor is absent."""
        if self.absent:
            return self.log_diagonal.new_full((*self.log_diagonal.shape[:-1], 1), side)
        return self.log_diagonal.sum(-1, keepdim=True)

    def weighted(self, weight: Tensor) -> Factor:
        """The covector times one number for each factor of a batch, (…, 1)."""
        return Factor(self.log_diagonal * weight, self.lower * self.beside(weight))

    # In the algebra.

    @property
    def algebra_blocks(self) -> Tensor:
        """The matrix of a vector of the algebra, or its blocks."""
        return _with_diagonal(self.lower, self.split(self.log_diagonal))

    def velocity(self, W: Tensor) -> Tensor | float:
        """X·W; 0 where the factor is absent."""
        if self.absent:
            return 0.0
        if not self.triangular:
            return self.log_diagonal.unsqueeze(-1) * W
        return self.join_rows(self.algebra_blocks @ self.split_rows(W))

    def velocity_right(self, W: Tensor) -> Tensor | float:
        """W·Xᵀ; 0 where the factor is absent."""
        moved = self.velocity(W.mT)
        return moved.mT if isinstance(moved, Tensor) else moved

    def bracket(self, other: Factor) -> Factor:
        """X·Y − Y·X, whose diagonal is 0."""
        zero = torch.zeros_like(self.log_diagonal)
        if not self.triangular:
            return Factor(zero, self.lower)
        x, y = self.algebra_blocks, other.algebra_blocks
        return Factor(zero, (x @ y - y @ x).tril(-1))

    def row_sums(self) -> Tensor | float:
        """Σ_k X_ik for every row i; 0 where the factor is absent."""
        if self.absent:
            return 0.0
        return self.log_diagonal + self.join(self.lower.tril(-1).sum(-1)) if self.triangular else self.log_diagonal

    def norm(self) -> float:
        """A bound of the largest norm in a batch."""
        below = torch.linalg.vector_norm(self.lower.tril(-1), dim=(-3, -2, -1) if self.blocked else (-2, -1))
        return float((torch.linalg.vector_norm(self.log_diagonal, dim=-1) + below).detach().amax())

    def exp(self, halvings: int, terms: int) -> Factor:
        """exp(X/2^halvings), in the group, by `terms` terms of its series after the first; `series` gives both numbers.

        torch's matrix_exp would need fewer products, but lose up to seven digits (pytorch issue 196592).
        """
        shrink = math.ldexp(1.0, -halvings)
        if not self.triangular:
            return Factor(self.log_diagonal * shrink, self.lower)
        x = self.algebra_blocks * shrink
        total = term = x
        for k in range(2, terms + 2):
            term = term @ x / k
            total = total + term
        return Factor(self.log_diagonal * shrink, total.tril(-1))


class Operator:
    """A factor of the group as a linear map of matrices."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.F: Tensor = factor.blocks if factor.triangular else scale_of(factor.log_diagonal).unsqueeze(-1)

    def times(self, W: Tensor) -> Tensor:
        """F·W."""
        if self.factor.triangular:
            return self.factor.join_rows(self.F @ self.factor.split_rows(W))
        return W if self.factor.absent else self.F * W

    def times_right(self, W: Tensor) -> Tensor:
        """W·Fᵀ."""
        return self.times(W.mT).mT

    def transpose_times(self, W: Tensor) -> Tensor:
        """Fᵀ·W."""
        if self.factor.triangular:
            return self.factor.join_rows(self.F.mT @ self.factor.split_rows(W))
        return self.times(W)

    def transpose_times_right(self, W: Tensor) -> Tensor:
        """W·F."""
        return self.transpose_times(W.mT).mT


def identity_factor(kind: Kind, side: int, max_side: int, block: int | None, like: Tensor) -> Factor:
    """The identity of a side, with zeros where a factor of this kind has numbers.

    Blocks are the largest of at most `block` rows that divide the side; those of one row are a diagonal.
    """
    diagonal = like.new_zeros(0 if kind == "none" else side)
    if kind != "triangular" or side > max_side:
        return Factor(diagonal, like.new_zeros(0, 0))
    rows = side if block is None else max(b for b in range(1, min(block, side) + 1) if side % b == 0)
    if rows == 1 < side:
        return Factor(diagonal, like.new_zeros(0, 0))
    return Factor(diagonal, like.new_zeros(rows, rows) if rows == side else like.new_zeros(side // rows, rows, rows))


def _with_diagonal(lower: Tensor, diagonal: Tensor) -> Tensor:
    """What is below the diagonal of a matrix, and another diagonal."""
    return torch.diagonal_scatter(lower.tril(-1), diagonal, dim1=-2, dim2=-1)


def _block_diagonal(blocks: Tensor) -> Tensor:
    """(…, k, b, b) as one matrix (…, kb, kb)."""
    apart = torch.diag_embed(blocks.movedim(-3, -1))  # (…, b, b, k, k)
    return apart.movedim((-2, -1), (-4, -2)).flatten(-4, -3).flatten(-2)


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
    left, right = like.split_rows(left), like.split_rows(right)
    together = left[0] @ right[0].mT if samples == 1 else torch.einsum("k...in,k...jn->...ij", left, right) / samples
    return Factor(like.join(together.diagonal(dim1=-2, dim2=-1)), together.tril(-1))
