"""Supports as charts φ: support → ℝᵖ (positive numbers, intervals, simplices, …), each with its inverse and its Jacobian.

A chart carries any group of ℝᵖ over to its support, g·θ = φ⁻¹(g·φ(θ)); `conjugated.py` has that group. Everything is computed
from logarithms, so points near an edge keep their digits, and gradients do not vanish before the density does.
"""

from __future__ import annotations

import math
import numbers
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from .exponential import scale_of


class Chart(ABC):
    """A smooth bijection φ from a support onto ℝᵖ, for tensors with any number of leading dimensions."""

    real_rank: ClassVar[int] = 1
    """How many trailing dimensions of φ(θ) form one point: 0 if every number has its own chart, 1 for vectors."""

    words: ClassVar[str]
    """The support in words, with the chart's settings in braces."""

    @abstractmethod
    def to_real(self, theta: Any) -> Tensor:
        """φ(θ)."""

    @abstractmethod
    def from_real(self, z: Tensor) -> Any:
        """φ⁻¹(z)."""

    @abstractmethod
    def log_jacobian(self, z: Tensor) -> Tensor:
        """log |det ∂φ⁻¹(z)/∂z|, one value for each point.

        Where θ has more numbers than the support has dimensions, the determinant is over the free ones: the first K − 1 of a
        simplex, the entries below the diagonal of a Cholesky factor of correlations, the lower triangle of a covariance.
        """

    @abstractmethod
    def contains(self, theta: Tensor) -> Tensor:
        """Whether each θ lies in the support, edges excluded."""

    def real_shape(self, theta: Any) -> torch.Size:
        """The shape of φ(θ)."""
        return theta.shape

    def event_shape(self, real_shape: torch.Size) -> Any:
        """The shape of φ⁻¹(z), from that of z."""
        return real_shape

    @property
    def support(self) -> str:
        """The support in words, for errors."""
        return self.words.format(**vars(self))

    def normal_moments(self, mean: Tensor, stddev: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of φ⁻¹(z) for Normal z, elementwise; None where they depend on correlations."""
        return None


# One chart for every number.


class Elementwise(Chart):
    """Charts of single numbers."""

    real_rank = 0

    def normal_moments(self, mean: Tensor, stddev: Tensor) -> tuple[Tensor, Tensor]:
        """By the trapezoidal rule, which is exact up to rounding for smooth integrands that vanish at both ends."""
        x = torch.linspace(-9, 9, 1025, dtype=torch.float64, device=mean.device)
        w = torch.softmax(-0.5 * x.square(), 0)
        values = self.from_real(mean.double().unsqueeze(-1) + stddev.double().unsqueeze(-1) * x)
        centre = (w * values).sum(-1)
        return centre.to(mean.dtype), (w * (values - centre.unsqueeze(-1)).square()).sum(-1).to(mean.dtype)


@dataclass(frozen=True)
class Real(Elementwise):
    """ℝ itself: φ(θ) = θ."""

    words = "real numbers"

    def to_real(self, theta: Tensor) -> Tensor:
        return theta

    def from_real(self, z: Tensor) -> Tensor:
        return z

    def log_jacobian(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def contains(self, theta: Tensor) -> Tensor:
        return theta.isfinite()

    def normal_moments(self, mean: Tensor, stddev: Tensor) -> tuple[Tensor, Tensor]:
        return mean, stddev.square()


class HalfLine(Elementwise):
    """θ = origin ± e^z. On a Normal base these are the log-normal families, shifted and mirrored."""

    sign: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _require_finite(self, **vars(self))

    @property
    @abstractmethod
    def origin(self) -> float:
        """The edge."""

    def to_real(self, theta: Tensor) -> Tensor:
        return (self.sign * (theta - self.origin)).log()

    def from_real(self, z: Tensor) -> Tensor:
        if self.origin == 0:
            return self.sign * scale_of(z) if self.sign < 0 else scale_of(z)
        theta = self.origin + self.sign * scale_of(z)
        edge = _next_to(self.origin, self.sign * math.inf, z.dtype)
        return theta.clamp_min(edge) if self.sign > 0 else theta.clamp_max(edge)

    def log_jacobian(self, z: Tensor) -> Tensor:
        return z

    def contains(self, theta: Tensor) -> Tensor:
        return self.sign * (theta - self.origin) > 0

    def normal_moments(self, mean: Tensor, stddev: Tensor) -> tuple[Tensor, Tensor]:
        square = stddev.square()
        size = (mean + square / 2).exp()
        return self.origin + self.sign * size, size.square() * torch.expm1(square)


@dataclass(frozen=True)
class Positive(HalfLine):
    """(0, ∞) with φ = log: the affine group acts as θ ↦ bθᵃ; on a Normal base, the log-normal family with a learned width.

    >>> Positive().from_real(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """

    words = "positive numbers"

    @property
    def origin(self) -> float:
        return 0.0


@dataclass(frozen=True)
class LowerBounded(HalfLine):
    """(low, ∞): θ = low + e^z."""

    low: float
    words = "numbers above {low:g}"

    @property
    def origin(self) -> float:
        return self.low


@dataclass(frozen=True)
class UpperBounded(HalfLine):
    """(−∞, high): θ = high − e^z."""

    high: float
    words = "numbers below {high:g}"
    sign = -1

    @property
    def origin(self) -> float:
        return self.high


@dataclass(frozen=True)
class Interval(Elementwise):
    """(low, high): θ = low + (high − low)·σ(z), the logistic curve.

    >>> Interval(-1, 1).from_real(torch.tensor(0.0))
    tensor(0.)
    """

    low: float = 0.0
    high: float = 1.0
    words = "numbers between {low:g} and {high:g}"

    def __post_init__(self) -> None:
        _require_finite(self, low=self.low, high=self.high)
        if not self.low < self.high:
            raise ValueError(f"Interval needs low < high, but got {self.low} and {self.high}.")

    def to_real(self, theta: Tensor) -> Tensor:
        return (theta - self.low).log() - (self.high - theta).log()

    def from_real(self, z: Tensor) -> Tensor:
        theta = self.low + (self.high - self.low) * torch.sigmoid(z)
        return theta.clamp(_next_to(self.low, self.high, z.dtype), _next_to(self.high, self.low, z.dtype))

    def log_jacobian(self, z: Tensor) -> Tensor:
        return math.log(self.high - self.low) + logsigmoid(z) + logsigmoid(-z)

    def contains(self, theta: Tensor) -> Tensor:
        return (theta > self.low) & (theta < self.high)


@cache
def _next_to(edge: float, inwards: float, dtype: torch.dtype) -> float:
    """The float next to an edge: rounding must not put a point on the edge, where losses have no value."""
    ends = torch.tensor([edge, inwards], dtype=dtype)
    tiny = math.copysign(torch.finfo(dtype).tiny, inwards - edge)
    return float(torch.nextafter(ends[0], ends[1])) if edge else tiny


# Vectors.


@dataclass(frozen=True)
class Simplex(Chart):
    """K positive numbers that sum to 1, by stick breaking: θ_k is the share σ(z_k − log(K − k)) of what is left.

    z = 0 is the centre of the simplex. The last dimension is the simplex, the others are a batch.

    >>> Simplex().from_real(torch.zeros(2))
    tensor([0.3333, 0.3333, 0.3333])
    """

    words = "vectors of positive numbers that sum to 1"

    def to_real(self, theta: Tensor) -> Tensor:
        left = theta.flip(-1).cumsum(-1).flip(-1)[..., 1:]  # what is left after a piece is broken off
        return theta[..., :-1].log() - left.log() + _log_pieces(theta[..., :-1])

    def from_real(self, z: Tensor) -> Tensor:
        return torch.cat([*self._log_shares(z)], -1).exp()

    def log_jacobian(self, z: Tensor) -> Tensor:
        free, _ = self._log_shares(z)  # the Jacobian is triangular: ∂θ_k/∂z_k = θ_k(1 − σ)
        return (free + logsigmoid(_log_pieces(z) - z)).sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        return (theta > 0).all(-1) & ((theta.sum(-1) - 1).abs() < math.sqrt(torch.finfo(theta.dtype).eps))

    def real_shape(self, theta: Tensor) -> torch.Size:
        _require_vectors(self, theta, 2)
        return torch.Size([*theta.shape[:-1], theta.shape[-1] - 1])

    def event_shape(self, real_shape: torch.Size) -> torch.Size:
        return torch.Size([*real_shape[:-1], real_shape[-1] + 1])

    @staticmethod
    def _log_shares(z: Tensor) -> tuple[Tensor, Tensor]:
        z = z - _log_pieces(z)
        left = logsigmoid(-z).cumsum(-1)  # log of what is left of the stick
        return logsigmoid(z) + pad(left[..., :-1], (1, 0)), left[..., -1:]


def _log_pieces(z: Tensor) -> Tensor:
    """log(K − k) for k = 1, …, K − 1."""
    return torch.arange(z.shape[-1], 0, -1, dtype=z.dtype, device=z.device).log()


@dataclass(frozen=True)
class Ordered(Chart):
    """Vectors with θ_1 < θ_2 < …: z_1 = θ_1 and z_k = log(θ_k − θ_{k−1})."""

    words = "vectors in increasing order"

    def to_real(self, theta: Tensor) -> Tensor:
        return torch.cat([theta[..., :1], theta.diff(dim=-1).log()], -1)

    def from_real(self, z: Tensor) -> Tensor:
        return torch.cat([z[..., :1], scale_of(z[..., 1:])], -1).cumsum(-1)

    def log_jacobian(self, z: Tensor) -> Tensor:
        return z[..., 1:].sum(-1)

    def contains(self, theta: Tensor) -> Tensor:
        return (theta.diff(dim=-1) > 0).all(-1)

    def real_shape(self, theta: Tensor) -> torch.Size:
        _require_vectors(self, theta, 1)
        return theta.shape


# Matrices.


@dataclass(frozen=True)
class CorrelationCholesky(Chart):
    """The Cholesky factor L of a K × K correlation matrix LLᵀ: tanh z are partial correlations, row by row.

    L_ij = tanh z_ij · Π_{k<j} sech z_ik below the diagonal, and L_ii = Π_{k<i} sech z_ik.
    """

    words = "Cholesky factors of correlation matrices: lower triangular, rows of length 1, a positive diagonal"

    def to_real(self, theta: Tensor) -> Tensor:
        rest = theta.square().flip(-1).cumsum(-1).flip(-1)  # Σ_{k≥j} L_ik², which is Π_{k<j} sech² z_ik
        return torch.asinh(_entries(theta[..., :, :-1], -1) / _entries(rest[..., :, 1:], -1).sqrt())

    def from_real(self, z: Tensor) -> Tensor:
        z, log_sech = self._rows(z)
        before = pad(log_sech.cumsum(-1)[..., :-1], (1, 0))  # Σ_{k<j} log sech z_ik
        eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        return (torch.tanh(z) + eye) * before.exp().tril()

    def log_jacobian(self, z: Tensor) -> Tensor:
        _, log_sech = self._rows(z)
        before = pad(log_sech.cumsum(-1)[..., :-1], (1, 0)).tril(-1)
        return (2 * log_sech + before).sum((-2, -1))  # the Jacobian is triangular: sech² z_ij times what stands before

    def contains(self, theta: Tensor) -> Tensor:
        close = math.sqrt(torch.finfo(theta.dtype).eps)
        lower = (theta.triu(1) == 0).all(-1).all(-1)
        return lower & (theta.diagonal(dim1=-2, dim2=-1) > 0).all(-1) & ((theta.square().sum(-1) - 1).abs() < close).all(-1)

    def real_shape(self, theta: Tensor) -> torch.Size:
        size = _require_square(self, theta)
        return torch.Size([*theta.shape[:-2], size * (size - 1) // 2])

    def event_shape(self, real_shape: torch.Size) -> torch.Size:
        size = _side(real_shape[-1], -1)
        return torch.Size([*real_shape[:-1], size, size])

    @staticmethod
    def _rows(z: Tensor) -> tuple[Tensor, Tensor]:
        """z in the lower triangle of a matrix, and log sech z = −log cosh z there."""
        matrix = _triangle(z, -1)
        return matrix, math.log(2) + (logsigmoid(2 * matrix) + logsigmoid(-2 * matrix)) / 2


@dataclass(frozen=True)
class Covariance(Chart):
    """Symmetric positive definite matrices Σ = LLᵀ: z holds L below its diagonal and the logarithms on it."""

    words = "symmetric positive definite matrices"

    def to_real(self, theta: Tensor) -> Tensor:
        L = torch.linalg.cholesky(theta)
        return _entries(L.tril(-1) + torch.diag_embed(L.diagonal(dim1=-2, dim2=-1).log()), 0)

    def from_real(self, z: Tensor) -> Tensor:
        z = _triangle(z, 0)
        L = z.tril(-1) + torch.diag_embed(scale_of(z.diagonal(dim1=-2, dim2=-1)))
        return L @ L.mT

    def log_jacobian(self, z: Tensor) -> Tensor:
        # Σ_{i ≥ j} from L has the determinant 2^K Π L_ii^(K − i) with i from 0, and L_ii from its logarithm L_ii.
        logs = _triangle(z, 0).diagonal(dim1=-2, dim2=-1)
        size = logs.shape[-1]
        power = torch.arange(size + 1, 1, -1, dtype=z.dtype, device=z.device)
        return (power * logs).sum(-1) + size * math.log(2)

    def contains(self, theta: Tensor) -> Tensor:
        close = math.sqrt(torch.finfo(theta.dtype).eps) * theta.abs().amax((-2, -1))
        symmetric = (theta - theta.mT).abs().amax((-2, -1)) <= close
        return symmetric & (torch.linalg.cholesky_ex(theta).info == 0)

    def real_shape(self, theta: Tensor) -> torch.Size:
        size = _require_square(self, theta)
        return torch.Size([*theta.shape[:-2], size * (size + 1) // 2])

    def event_shape(self, real_shape: torch.Size) -> torch.Size:
        size = _side(real_shape[-1], 0)
        return torch.Size([*real_shape[:-1], size, size])


@cache
def _triangle_index(count: int, offset: int) -> Tensor:
    """For every entry of the matrix its place among the entries of the triangle, row by row; `count` outside of it."""
    size = _side(count, offset)
    rows, columns = torch.tril_indices(size, size, offset)
    index = torch.full((size, size), count)
    index[rows, columns] = torch.arange(count)
    return index


def _triangle(z: Tensor, offset: int) -> Tensor:
    """A matrix with the numbers in its lower triangle, with or without the diagonal, and zeros elsewhere."""
    return pad(z, (0, 1))[..., _triangle_index(z.shape[-1], offset).to(z.device)]


def _entries(matrix: Tensor, offset: int) -> Tensor:
    """The inverse of `_triangle`."""
    rows, columns = torch.tril_indices(matrix.shape[-2], matrix.shape[-1], offset, device=matrix.device)
    return matrix[..., rows, columns]


def _side(count: int, offset: int) -> int:
    """K of the K × K matrix whose lower triangle, with (0) or without (−1) its diagonal, has `count` entries."""
    return (math.isqrt(8 * count + 1) - 1) // 2 - offset


def _require_finite(chart: Chart, **bounds: float) -> None:
    for name, bound in bounds.items():
        if not (isinstance(bound, numbers.Real) and abs(bound) <= sys.float_info.max):
            raise ValueError(f"{type(chart).__name__} needs a finite {name}, but got {bound}.")


def _require_vectors(chart: Chart, theta: Tensor, least: int) -> None:
    if theta.ndim == 0 or theta.shape[-1] < least:
        raise ValueError(
            f"{chart} holds {chart.support}, of {least} or more numbers, but got the shape {tuple(theta.shape)}. "
            "Its last dimension is the vector."
        )


def _require_square(chart: Chart, theta: Tensor) -> int:
    if theta.ndim < 2 or theta.shape[-1] != theta.shape[-2] or theta.shape[-1] == 0:
        raise ValueError(
            f"{chart} holds {chart.support}, but got the shape {tuple(theta.shape)}. Its last two dimensions are the matrix."
        )
    return theta.shape[-1]
