"""Base distributions q₀ (Sec. 3.2, A.4)."""

from .base import Base
from .half_line import Exponential, LogNormal, Rayleigh
from .parsing import parse
from .quadrature import HALF_LINE, REAL_LINE, Support
from .real_line import Cauchy, Dirac, Gumbel, Laplace, Normal, StudentT, Uniform
from .wrapped import Wrapped, from_distribution

__all__ = [
    "HALF_LINE",
    "REAL_LINE",
    "Base",
    "Cauchy",
    "Dirac",
    "Exponential",
    "Gumbel",
    "Laplace",
    "LogNormal",
    "Normal",
    "Rayleigh",
    "StudentT",
    "Support",
    "Uniform",
    "Wrapped",
    "from_distribution",
    "parse",
]
