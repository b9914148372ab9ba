"""The affine groups as matrices (A.5): (A, b) is [[A, b], [0, 1]] in GL(P + 1), (X, y) is [[X, y], [0, 0]].

Everything is dense and in numpy. A product, like a batch, is one affine group on all its coordinates in a row.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from torch import Tensor

Matrix = NDArray[np.float64]


def _column(t: Tensor) -> Matrix:
    return t.detach().double().numpy().reshape(-1)


def _blocks(matrix: Tensor) -> Matrix:
    """A batch of matrices as one block-diagonal matrix."""
    array = matrix.detach().double().numpy()
    return block_diag(*array.reshape(-1, *array.shape[-2:]))


def _linear_and_shift(g: Any, in_algebra: bool) -> tuple[Matrix, Matrix]:
    """A and b of an element, or X and y of a vector."""
    scale = (lambda x: x) if in_algebra else np.exp
    match type(g).__name__:
        case "Shift":
            b = _column(g.shift)
            return np.zeros((b.size, b.size)) if in_algebra else np.eye(b.size), b
        case "LogScale":
            a = _column(g.log_scale)
            return np.diag(scale(a)), np.zeros(a.size)
        case "ScaleShift":
            return np.diag(scale(_column(g.log_scale))), _column(g.shift)
        case "Dilation":  # the user's isotropic group: one scale for all
            b = _column(g.shift)
            return np.diag(scale(_column(g.log_scale)) * np.ones(b.size)), b
        case "MatrixShift":
            return _blocks(g.matrix), _column(g.shift)
        case "TriangularShift":
            return np.tril(_blocks(g.lower), -1) + np.diag(scale(_column(g.log_diagonal))), _column(g.shift)
        case "LowRankShift":
            rows, rank = g.columns.shape[-2:]
            lower = np.pad(g.columns.detach().double().numpy(), [(0, 0)] * (g.columns.ndim - 1) + [(0, rows - rank)])
            lower = block_diag(*lower.reshape(-1, rows, rows))
            return np.tril(lower, -1) + np.diag(scale(_column(g.log_diagonal))), _column(g.shift)
        case "KroneckerShift":
            return _kronecker(g, in_algebra)
    parts = [_linear_and_shift(part, in_algebra) for part in (g.values() if isinstance(g, dict) else g)]
    return block_diag(*(A for A, _ in parts)), np.concatenate([b for _, b in parts])


def _kronecker(g: Any, in_algebra: bool) -> tuple[Matrix, Matrix]:
    """L ⊗ R on the coordinates of a matrix, row by row; X ⊗ 1 + 1 ⊗ Y in the algebra."""
    scale = (lambda x: x) if in_algebra else np.exp
    sides = g.shift.shape[0], g.shift.numel() // g.shift.shape[0]
    factors = []
    for diagonal, lower, side in zip(g[0:3:2], g[1:4:2], sides, strict=True):
        factor = np.diag(scale(_column(diagonal) if diagonal.numel() else np.zeros(side)))
        if lower.numel():  # one matrix, or one for every block
            below = lower.detach().double().numpy()
            factor = factor + np.tril(block_diag(*below) if below.ndim == 3 else below, -1)
        factors.append(factor)
    L, R = factors
    return np.kron(L, np.eye(sides[1])) + np.kron(np.eye(sides[0]), R) if in_algebra else np.kron(L, R), _column(g.shift)


def embed(g: Any) -> Matrix:
    """The matrix of an element."""
    A, b = _linear_and_shift(g, in_algebra=False)
    return np.block([[A, b[:, None]], [np.zeros((1, b.size)), np.ones((1, 1))]])


def embed_vector(X: Any) -> Matrix:
    """The matrix of a vector of the algebra."""
    A, b = _linear_and_shift(X, in_algebra=True)
    return np.block([[A, b[:, None]], [np.zeros((1, b.size + 1))]])


def embed_point(theta: Any) -> Matrix:
    """θ with a one below it."""
    if isinstance(theta, Tensor):
        return np.append(_column(theta), 1.0)
    parts = theta.values() if isinstance(theta, dict) else theta
    return np.append(np.concatenate([embed_point(part)[:-1] for part in parts]), 1.0)
