"""The Kronecker group: g = (L, R, M), g·W = L·W·Rᵀ + M on matrices W, with two lower triangular factors.

On the entries of W as one vector, row by row, this is the affine map with the matrix L ⊗ R: a subgroup of `TriangularAffine`
with m(m + 1)/2 + n(n + 1)/2 + mn numbers instead of (mn)²/2. A convolution's weight (out, in, k, k) is the matrix
(out, in·k·k); a vector is one column.

The gauge. (cL, R/c) acts like (L, R), so det R is fixed to 1, and tr Y to 0 in the algebra (X, Y, Z). Products and inverses of
matrices of determinant 1 have determinant 1, so `compose` only adds logarithms. `exp` takes any X and Y, and first moves the
trace of Y to X, which does not change the action. Of all covectors that agree on the algebra, the one whose diagonal of Y has
trace 0 is used. With one factor alone there is nothing to fix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from .affine import centred_constants, mixing, saturated
from .factor import KINDS, Factor, Kind, identity_factor, outer, series
from .lie_group import LieGroup, average_over_samples, require_positive_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bases import Base


class KroneckerShift(NamedTuple):
    """An element (L, R, M), each factor as log-diagonal and entries below the diagonal; or a vector (X, Y, Z)."""

    left_log_diagonal: Tensor
    left_lower: Tensor
    right_log_diagonal: Tensor
    right_lower: Tensor
    shift: Tensor

    @property
    def left(self) -> Factor:
        """L, or X."""
        return Factor(self.left_log_diagonal, self.left_lower)

    @property
    def right(self) -> Factor:
        """R, or Y."""
        return Factor(self.right_log_diagonal, self.right_lower)

    @property
    def sides(self) -> tuple[int, int]:
        """m and n."""
        batch = self.left_log_diagonal.ndim - 1
        return self.shift.shape[batch], self.shift.shape[batch + 1 :].numel()

    def as_matrices(self, theta: Tensor) -> Tensor:
        """θ, with leading sample dimensions, as matrices."""
        lead = theta.ndim - self.shift.ndim + self.left_log_diagonal.ndim - 1
        return theta.reshape(*theta.shape[:lead], *self.sides)


class Kronecker(LieGroup[KroneckerShift]):
    """Correlations between the rows, and between the columns, of a matrix of parameters, on any base.

    The factor of each side is "triangular", "diagonal" or "none". On a side longer than `max_side` a triangular factor becomes
    diagonal; with `block`, one of more rows has triangular blocks of at most so many, all of one size, along its diagonal.
    These are subgroups. Elements of one shape can be stacked: leading dimensions of all blocks are a batch.

    >>> group = Kronecker()
    >>> group.act(group.at(torch.ones(2, 2), scale=2.0), torch.eye(2))
    tensor([[3., 1.],
            [1., 3.]])
    """

    affine_action = True

    def __init__(
        self,
        left: Literal["triangular", "diagonal", "none"] = "triangular",
        right: Literal["triangular", "diagonal", "none"] = "triangular",
        max_side: int = 1024,
        block: int | None = None,
    ) -> None:
        for side, kind in (("left", left), ("right", right)):
            if kind not in KINDS:
                raise ValueError(f"Kronecker's {side} factor must be one of {', '.join(map(repr, KINDS))}, but got {kind!r}.")
        if left == right == "none":
            raise ValueError("Kronecker needs a factor on at least one side; without any, use the Additive group.")
        if not (isinstance(max_side, int) and max_side >= 0):
            raise ValueError(f"max_side, the longest triangular side, must be an integer ≥ 0, but got {max_side!r}.")
        if not (block is None or (type(block) is int and block >= 1)):
            raise ValueError(f"block, the most rows of a triangular block, must be an integer ≥ 1 or None, but got {block!r}.")
        self.left: Kind = left
        self.right: Kind = right
        self.max_side = max_side
        self.block = block

    def identity(self, like: Tensor) -> KroneckerShift:
        return self.at(torch.zeros_like(like))

    def compose(self, g: KroneckerShift, h: KroneckerShift) -> KroneckerShift:
        moved = _moved(g, h.as_matrices(h.shift)).reshape(h.shift.shape)
        return KroneckerShift(*g.left.compose(h.left), *g.right.compose(h.right), saturated(moved + g.shift))

    def inverse(self, g: KroneckerShift) -> KroneckerShift:
        moved = _both(g.left.solve, g.right.solve_right, g.as_matrices(g.shift)).reshape(g.shift.shape)
        return KroneckerShift(*g.left.inverse(), *g.right.inverse(), -moved)

    def act(self, g: KroneckerShift, theta: Tensor) -> Tensor:
        return _moved(g, g.as_matrices(theta)).reshape(theta.shape) + g.shift

    def act_inverse(self, g: KroneckerShift, theta: Tensor) -> Tensor:
        return _both(g.left.solve, g.right.solve_right, g.as_matrices(theta - g.shift)).reshape(theta.shape)

    def exp(self, X: KroneckerShift) -> KroneckerShift:
        """(e^X, e^Y, ∫₀¹ e^(sX)·Z·e^(sYᵀ) ds): the integral's series of a halved step, doubled as often.

        The series is Σ 𝓛ᵏZ/(k + 1)! with 𝓛Z = XZ + ZYᵀ, and the integrals of s and s + ½ give the double step's.
        """
        x, y = _without_trace(X)
        halvings, terms = series(x.norm() + y.norm(), X.shift.dtype)
        left, right = x.exp(halvings, terms), y.exp(halvings, terms)
        shift = term = X.as_matrices(X.shift)
        for k in range(2, terms + 2):
            term = _velocity(x, y, term) * math.ldexp(1 / k, -halvings)
            shift = shift + term
        for _ in range(halvings):
            shift = saturated((shift + _both(left.operator.times, right.operator.times_right, shift)) / 2)
            left, right = left.compose(left), right.compose(right)
        return KroneckerShift(*left, *right, shift.reshape(X.shift.shape))

    def retract(self, g: KroneckerShift, X: KroneckerShift) -> KroneckerShift:
        """g·(1, 1, Z)·(e^D(1 + N), the same of Y, 0): no series, and one product for each triangular factor.

        Noise in N alone does not make factors grow, and noise in D only as that of exp does.
        """
        x, y = _without_trace(X)
        moved = _moved(g, X.as_matrices(X.shift)).reshape(g.shift.shape)
        return KroneckerShift(*g.left.advance(x), *g.right.advance(y), saturated(g.shift + moved))

    def at(self, point: Tensor, scale: float = 1.0) -> KroneckerShift:
        if point.ndim == 0:
            raise ValueError("Kronecker acts on matrices, and on vectors as one column, but got a scalar. Give a tensor (P,).")
        require_positive_scale(scale)
        rows, columns = point.shape[0], point.shape[1:].numel()
        left = identity_factor(self.left, rows, self.max_side, self.block, point)
        right = identity_factor(self.right, columns, self.max_side, self.block, point)
        blocks = KroneckerShift(*left, *right, point.clone())
        carrier = blocks.right_log_diagonal if left.absent else blocks.left_log_diagonal
        carrier.fill_(math.log(scale))
        return blocks

    # Closed forms.

    def adjoint(self, g: KroneckerShift, X: KroneckerShift) -> KroneckerShift:
        x, y = g.left.adjoint(X.left), g.right.adjoint(X.right)
        M = g.as_matrices(g.shift)
        shift = _moved(g, X.as_matrices(X.shift)) - _velocity(x, y, M)
        return KroneckerShift(*x, *y, shift.reshape(g.shift.shape))

    def bracket(self, X: KroneckerShift, Y: KroneckerShift) -> KroneckerShift:
        shift = _velocity(X.left, X.right, Y.as_matrices(Y.shift)) - _velocity(Y.left, Y.right, X.as_matrices(X.shift))
        return KroneckerShift(*X.left.bracket(Y.left), *X.right.bracket(Y.right), shift.reshape(X.shift.shape))

    def pullback(self, g: KroneckerShift, theta: Tensor, gradient: Tensor) -> KroneckerShift:
        return self.pullback_at_identity(g, self.act_inverse(g, theta), self.linear(g)[1](gradient))

    def pullback_at_identity(self, e: KroneckerShift, epsilon: Tensor, gradient: Tensor) -> KroneckerShift:
        w, noise = e.as_matrices(gradient), e.as_matrices(epsilon)
        left, right = outer(e.left, w, noise), outer(e.right, w.mT, noise.mT)
        return _covector(left, right, average_over_samples(gradient, e.shift.shape))

    def act_with_transpose(self, g: KroneckerShift, epsilon: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        times, transpose_times = self.linear(g)
        return times(epsilon) + g.shift, transpose_times

    def linear(self, g: KroneckerShift) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        L, R = g.left.operator, g.right.operator

        def times(W: Tensor) -> Tensor:
            return _both(L.times, R.times_right, g.as_matrices(W)).reshape(W.shape)

        def transpose_times(W: Tensor) -> Tensor:
            return _both(L.transpose_times, R.transpose_times_right, g.as_matrices(W)).reshape(W.shape)

        return times, transpose_times

    def log_jacobian(self, g: KroneckerShift, theta: Tensor) -> Tensor:
        m, n = g.sides
        return (n * g.left.log_determinant() + m * g.right.log_determinant()).sum()

    def divergence(self, g: KroneckerShift, epsilon: Tensor) -> KroneckerShift:
        m, n = g.sides
        zero = self.zero(g)
        if g.left.absent:
            return zero._replace(right_log_diagonal=zero.right_log_diagonal + m)
        return zero._replace(left_log_diagonal=zero.left_log_diagonal + n)  # m·tr Y is 0, or there is no Y

    # The Fisher form. Independent coordinates, centred at their mean: with d_ij = X_ii + Y_jj it is
    # Σ_ij (c_X·d_ij² + 2B·d_ij·Z_ij + c_y·Z_ij²) + a·(n·Σ_{i>k} X_ik² + m·Σ_{j>l} Y_jl²), with a = E[s²]·Var(ε). All other
    # products vanish: each has a factor E[s] or E[ε − μ] of a coordinate that occurs alone.

    def flat(self, X: KroneckerShift, base: Base) -> KroneckerShift:
        a, mean = mixing(base), base.mean
        c_X, B, c_y = centred_constants(base)
        x, y, (m, n) = X.left, X.right, X.sides
        d = _grid(_diagonal(x), _diagonal(y), X)
        Z = X.as_matrices(X.shift)
        if mean:
            Z = Z + mean * _grid(x.row_sums(), y.row_sums(), X)
        V, D = c_y * Z + B * d, c_X * d + B * Z
        left = _tilted(Factor(D.sum(-1), a * n * x.lower), mean * V.sum(-1))
        right = _tilted(Factor(D.sum(-2), a * m * y.lower), mean * V.sum(-2))
        return _covector(_like(x, left), _like(y, right), V.reshape(X.shift.shape))

    def sharp(self, covector: KroneckerShift, base: Base) -> KroneckerShift:
        """With tr Y = 0, Σ_j d_ij = n·X_ii, and Σ_i d_ij = m·Y_jj up to a constant, so each is solved separately."""
        a, mean = mixing(base), base.mean
        c_X, B, c_y = centred_constants(base)
        m, n = covector.sides
        V = covector.as_matrices(covector.shift)
        c = c_X - B * B / c_y  # the information about a scale, given its shift
        tilt = mean + B / c_y
        x, y = _scaled(covector.left, 1 / (n * c), 1 / (n * a)), _scaled(covector.right, 1 / (m * c), 1 / (m * a))
        if mean or B:
            rows, columns = V.sum(-1), V.sum(-2)
            x = _tilted(x, -tilt / (n * c) * rows, -mean / (n * a) * rows)
            y = _tilted(y, -tilt / (m * c) * columns, -mean / (m * a) * columns)
        if not (x.absent or y.absent):
            y = y._replace(log_diagonal=y.log_diagonal - y.log_diagonal.mean(-1, keepdim=True))
        Z = V / c_y
        if B:
            Z = Z - B / c_y * _grid(_diagonal(x), _diagonal(y), covector)
        if mean:
            Z = Z - mean * _grid(x.row_sums(), y.row_sums(), covector)
        return KroneckerShift(*x, *y, Z.reshape(covector.shift.shape))

    def variance(self, g: KroneckerShift, variance: float) -> Tensor:
        return self.stddev(g, 1.0).square() * variance

    def stddev(self, g: KroneckerShift, stddev: float) -> Tensor:
        m, n = g.sides
        return (g.left.row_norms(m).unsqueeze(-1) * g.right.row_norms(n).unsqueeze(-2) * stddev).reshape(g.shift.shape)

    def spread(self, g: KroneckerShift, variance: float) -> KroneckerShift:
        """‖R‖²·LᵀL and ‖L‖²·RᵀR: the derivative of ½‖L ⊗ R‖² = ½‖L‖²·‖R‖² along both."""
        m, n = g.sides
        left, right = g.left.gram(), g.right.gram()
        rows, columns = (gram.trace(side) * variance for gram, side in ((left, m), (right, n)))
        return _covector(left.weighted(columns), right.weighted(rows), torch.zeros_like(g.shift))

    def average_precision(self, g: KroneckerShift, curvature: KroneckerShift, rate: float) -> KroneckerShift:
        """Both factors, each by its own S: the left one's is a mean over columns, the right one's over rows.

        Their common size goes into the left factor; the right one's S has mean 1 on its diagonal, and its determinant is then
        set to 1 again.
        """
        left, right, (m, n) = g.left, g.right, g.sides
        S, T = curvature.left, curvature.right
        if left.absent:
            return KroneckerShift(*left, *right.average_precision(_scaled(T, 1 / m, 1 / m), rate), g.shift)
        S = _scaled(S, 1 / n, 1 / n)
        left = left.average_precision(S, rate)
        if not right.absent:
            size = S.log_diagonal.mean(-1, keepdim=True)  # what the gauge has taken from T: both have one trace
            T = Factor(T.log_diagonal / (m * size) + 1, T.lower / T.beside(m * size))
            right = right.average_precision(T, rate)
            excess = right.log_diagonal.mean(-1, keepdim=True)
            right, left = right.dilated(-excess), left.dilated(excess)
        return KroneckerShift(*left, *right, g.shift)

    def covariance(self, g: KroneckerShift, variance: float) -> Tensor:
        if len(g.shift.shape) > 1:
            raise ValueError(
                f"The covariance of matrices is LLᵀ ⊗ RRᵀ, one number for each pair of the {g.shift.numel()} coordinates. "
                "Take it from the element's factors, `g.left.matrix` and `g.right.matrix`."
            )
        one = torch.ones_like(g.shift)
        L = g.left.operator.times(torch.diag_embed(one)) * g.right.operator.times(one[:1, None])
        return L @ L.mT * variance


def _both(left: Callable[[Tensor], Tensor], right: Callable[[Tensor], Tensor], W: Tensor) -> Tensor:
    """L·W·Rᵀ, or the same with the factors' transposes or inverses."""
    return right(left(W))


def _moved(g: KroneckerShift, W: Tensor) -> Tensor:
    """L·W·Rᵀ."""
    return _both(g.left.operator.times, g.right.operator.times_right, W)


def _velocity(x: Factor, y: Factor, W: Tensor) -> Tensor:
    """X·W + W·Yᵀ."""
    return x.velocity(W) + y.velocity_right(W)  # type: ignore[return-value]  # one of them is there


def _without_trace(X: KroneckerShift) -> tuple[Factor, Factor]:
    """X and Y with the trace of Y moved to X: the same action, in the gauge."""
    x, y = X.left, X.right
    if x.absent or y.absent:
        return x, y
    mean = y.log_diagonal.mean(-1, keepdim=True)
    return x._replace(log_diagonal=x.log_diagonal + mean), y._replace(log_diagonal=y.log_diagonal - mean)


def _covector(left: Factor, right: Factor, shift: Tensor) -> KroneckerShift:
    """Of all covectors that agree on the algebra, the one without a trace on the right."""
    if not (left.absent or right.absent):
        right = right._replace(log_diagonal=right.log_diagonal - right.log_diagonal.mean(-1, keepdim=True))
    return KroneckerShift(*left, *right, shift)


def _diagonal(x: Factor) -> Tensor | float:
    return 0.0 if x.absent else x.log_diagonal


def _grid(rows: Tensor | float, columns: Tensor | float, like: KroneckerShift) -> Tensor:
    """rows_i + columns_j as a matrix."""
    down = rows.unsqueeze(-1) if isinstance(rows, Tensor) else rows
    across = columns.unsqueeze(-2) if isinstance(columns, Tensor) else columns
    return (down + across) + like.as_matrices(torch.zeros_like(like.shift))


def _like(kind: Factor, full: Factor) -> Factor:
    """The blocks that a factor of this kind has."""
    return Factor(kind.log_diagonal if kind.absent else full.log_diagonal, full.lower)


def _scaled(x: Factor, diagonal: float, below: float) -> Factor:
    return Factor(x.log_diagonal * diagonal, x.lower * below)


def _tilted(x: Factor, rows: Tensor, below: Tensor | None = None) -> Factor:
    """x with a number added to every entry of a row, or one number on the diagonal and another below it."""
    if x.absent:
        return x
    below = rows if below is None else below
    lower = (x.lower + x.split(below).unsqueeze(-1)).tril(-1) if x.triangular else x.lower
    return Factor(x.log_diagonal + rows, lower)
