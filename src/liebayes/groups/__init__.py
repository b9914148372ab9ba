"""Lie groups and their actions (Sec. 3.1, 3.3, A.3–A.5)."""

from .additive import Additive, Shift
from .affine import Affine, MatrixShift
from .blocks import blocks_of, map_blocks, with_blocks
from .charts import (
    Chart,
    CorrelationCholesky,
    Covariance,
    Interval,
    LowerBounded,
    Ordered,
    Positive,
    Real,
    Simplex,
    UpperBounded,
)
from .conjugated import Conjugated
from .diagonal_affine import DiagonalAffine, ScaleShift
from .exponential import expm1_ratio, scale_of
from .joint import Joint
from .kronecker import Kronecker, KroneckerShift
from .lie_group import LieGroup
from .low_rank_affine import LowRankAffine, LowRankShift
from .multiplicative import LogScale, Multiplicative
from .product import Product
from .triangular_affine import TriangularAffine, TriangularShift

__all__ = [
    "Additive",
    "Affine",
    "Chart",
    "Conjugated",
    "CorrelationCholesky",
    "Covariance",
    "DiagonalAffine",
    "Interval",
    "Joint",
    "Kronecker",
    "KroneckerShift",
    "LieGroup",
    "LogScale",
    "LowRankAffine",
    "LowRankShift",
    "LowerBounded",
    "MatrixShift",
    "Multiplicative",
    "Ordered",
    "Positive",
    "Product",
    "Real",
    "ScaleShift",
    "Shift",
    "Simplex",
    "TriangularAffine",
    "TriangularShift",
    "UpperBounded",
    "blocks_of",
    "expm1_ratio",
    "map_blocks",
    "scale_of",
    "with_blocks",
]
