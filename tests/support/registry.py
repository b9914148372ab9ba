"""Every group and every base, one line each: a new one is added here, and all laws run over it."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch.distributions import Gamma as TorchGamma
from torch.distributions import Gumbel as TorchGumbel

from liebayes.bases import (
    Base,
    Cauchy,
    Exponential,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Rayleigh,
    StudentT,
    Uniform,
    from_distribution,
)
from liebayes.groups import (
    Additive,
    Affine,
    Conjugated,
    CorrelationCholesky,
    Covariance,
    DiagonalAffine,
    Interval,
    Kronecker,
    LieGroup,
    LowerBounded,
    LowRankAffine,
    Multiplicative,
    Ordered,
    Positive,
    Product,
    Simplex,
    TriangularAffine,
    UpperBounded,
)

from .user_defined import IsotropicAffine, Logistic, PlainDiagonalAffine, SinhShift


def _like(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@dataclass(frozen=True)
class GroupCase:
    """A group, tensors of the shapes it is tested on, and what is true of it."""

    name: str
    group: LieGroup[Any]
    likes: tuple[Any, ...]
    size: float = 2.0
    """How far from the identity elements are drawn; matrix groups stay where their matrices are well conditioned."""
    embeds: bool = True
    """It is a subgroup of GL(P + 1)."""
    bases: bool = True
    """There are bases of one number where it acts."""

    @property
    def exp_tolerance(self) -> float:
        """Rounding; or the error of torch.linalg.matrix_exp on one matrix, up to 2.5e-10 (pytorch issue 196592)."""
        inner = self.group.group if isinstance(self.group, Conjugated) else self.group
        return 1e-9 if isinstance(inner, (Affine, LowRankAffine, Product, TriangularAffine)) else 1e-11

    @property
    def is_product(self) -> bool:
        return isinstance(self.group, Product)

    @property
    def is_matrix(self) -> bool:
        inner = self.group.group if isinstance(self.group, Conjugated) else self.group
        return isinstance(inner, (Affine, Kronecker, LowRankAffine, TriangularAffine))

    @property
    def rounding(self) -> float:
        """Of an action that changes nothing: a chart's φ⁻¹(φ(θ)) rounds several times, more so near edges."""
        return 1e-13 if isinstance(self.group, Conjugated) else 1e-15

    def __str__(self) -> str:
        return self.name


ELEMENTWISE = (_like(), _like(3), _like(2, 2))
VECTORS = (_like(1), _like(3), _like(2, 2))  # the last: a batch of two
MATRICES = (_like(2), _like(2, 3), _like(2, 1, 3), _like(3, 2))  # a vector is one column, a convolution's weight a matrix

GROUPS = [
    GroupCase("Additive", Additive(), ELEMENTWISE),
    GroupCase("Multiplicative", Multiplicative(), ELEMENTWISE),
    GroupCase("DiagonalAffine", DiagonalAffine(), ELEMENTWISE),
    GroupCase("Affine", Affine(), VECTORS, size=0.5),
    GroupCase("TriangularAffine", TriangularAffine(), VECTORS, size=0.7),
    GroupCase("LowRankAffine", LowRankAffine(2), (_like(1), _like(4), _like(2, 3)), size=0.7),
    GroupCase("Product", Product(Multiplicative(), TriangularAffine()), ((_like(2), _like(2)), (_like(), _like(2, 2))), 0.7),
    GroupCase(
        "NamedProduct",
        Product(rate=Multiplicative(), rest=Product(DiagonalAffine(), Affine())),
        ({"rate": _like(2), "rest": (_like(1, 2), _like(2))},),
        size=0.5,
    ),
    GroupCase("IsotropicAffine", IsotropicAffine(), VECTORS),
    GroupCase("PlainDiagonalAffine", PlainDiagonalAffine(), ELEMENTWISE),
    GroupCase("SinhShift", SinhShift(), ELEMENTWISE, embeds=False),
    GroupCase("Kronecker", Kronecker(), MATRICES, size=0.5),
    GroupCase("KroneckerOfRows", Kronecker(right="none"), MATRICES, size=0.5),
    GroupCase("KroneckerOfColumns", Kronecker("none"), MATRICES, size=0.5),
    GroupCase("KroneckerWithLongSides", Kronecker(max_side=2), MATRICES, size=0.5),
    GroupCase("KroneckerOfBlocks", Kronecker(block=2), (*MATRICES, _like(4, 6)), size=0.5),
    GroupCase("DiagonalKronecker", Kronecker("diagonal", "diagonal"), MATRICES, size=0.5),
]


CONJUGATED = [
    GroupCase("Positive", Conjugated(DiagonalAffine(), Positive()), ELEMENTWISE, size=0.7, embeds=False),
    GroupCase("LowerBounded", Conjugated(Additive(), LowerBounded(-2.0)), ELEMENTWISE, 0.7, embeds=False, bases=False),
    GroupCase("UpperBounded", Conjugated(Affine(), UpperBounded(3.0)), VECTORS, 0.4, embeds=False, bases=False),
    GroupCase("Interval", Conjugated(TriangularAffine(), Interval(-1, 2)), VECTORS, 0.4, embeds=False, bases=False),
    GroupCase("Simplex", Conjugated(TriangularAffine(), Simplex()), (_like(2), _like(3), _like(2, 3)), 0.4, False, False),
    GroupCase("Ordered", Conjugated(TriangularAffine(), Ordered()), VECTORS, 0.4, embeds=False, bases=False),
    GroupCase(
        "CorrelationCholesky",
        Conjugated(DiagonalAffine(), CorrelationCholesky()),
        (_like(2, 2), _like(3, 3), _like(2, 3, 3)),
        0.4,
        False,
        False,
    ),
    GroupCase(
        "Covariance", Conjugated(DiagonalAffine(), Covariance()), (_like(1, 1), _like(2, 2), _like(2, 2, 2)), 0.4, False, False
    ),
]
"""Groups on supports. Elements are near enough to the identity that points stay away from edges, where digits are lost."""

ON_SUPPORTS_TOO = [*GROUPS, *CONJUGATED]


@dataclass(frozen=True)
class BaseCase:
    """A base and the same distribution in scipy."""

    name: str
    base: Base
    scipy: Any
    fisher_shift: bool = True
    fisher_scale: bool = True
    variance: bool = True
    """Whether each of these exists."""

    @property
    def half_line(self) -> bool:
        return self.base.support[0] >= 0

    def __str__(self) -> str:
        return self.name


def _torch_gamma() -> Base:
    return from_distribution(TorchGamma(torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)))


def _torch_gumbel() -> Base:
    return from_distribution(TorchGumbel(torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64)))


BASES = [
    BaseCase("Normal", Normal(), stats.norm()),
    BaseCase("Normal(0.6)", Normal(0.6), stats.norm(scale=0.6)),
    BaseCase("Laplace(1.3)", Laplace(1.3), stats.laplace(scale=1.3)),
    BaseCase("Uniform(1.5)", Uniform(1.5), stats.uniform(-1.5, 3.0), fisher_shift=False, fisher_scale=False),
    BaseCase("Cauchy(0.8)", Cauchy(0.8), stats.cauchy(scale=0.8), variance=False),
    BaseCase("StudentT(5, 1.2)", StudentT(5, 1.2), stats.t(5, scale=1.2)),
    BaseCase("StudentT(2)", StudentT(2), stats.t(2), variance=False),
    BaseCase("Gumbel", Gumbel(), stats.gumbel_r()),
    BaseCase("Gumbel(0.7)", Gumbel(0.7), stats.gumbel_r(scale=0.7)),
    BaseCase("Rayleigh", Rayleigh(), stats.rayleigh(), fisher_shift=False),
    BaseCase("Rayleigh(1.4)", Rayleigh(1.4), stats.rayleigh(scale=1.4), fisher_shift=False),
    BaseCase("Exponential(1.7)", Exponential(1.7), stats.expon(scale=1.7), fisher_shift=False),
    BaseCase("LogNormal(0.6, 0.3)", LogNormal(0.6, 0.3), stats.lognorm(0.6, scale=1.3498588075760032)),
    BaseCase("Logistic", Logistic(), stats.logistic()),
    BaseCase("torch Gumbel(0.5, 1.5)", _torch_gumbel(), stats.gumbel_r(0.5, 1.5)),
    BaseCase("torch Gamma(3, 2)", _torch_gamma(), stats.gamma(3, scale=0.5)),
]

SMOOTH = [case for case in BASES if case.fisher_scale]
"""Bases with a Fisher metric under the groups that act where they live."""


def smooth_bases_of(case: GroupCase) -> list[BaseCase]:
    """The smooth bases on which a group (not a product) has a Fisher form; matrix groups need a variance."""
    here = [b for b in SMOOTH if b.half_line == case.group.positive]
    return [b for b in here if b.variance] if case.is_matrix else here


WHOLE_GRID = os.environ.get("LIEBAYES_TEST_GRID") == "whole"
"""All pairs and all lengths of runs, as in the cell `grid` of `make test-matrix`; otherwise some that cover them."""

_MEET_EVERY_BASE = {"Additive", "Multiplicative", "DiagonalAffine", "TriangularAffine"}
_OF_EACH_KIND = {"Normal(0.6)", "Laplace(1.3)", "Gumbel(0.7)", "torch Gumbel(0.5, 1.5)"}
"""Even; with a kink; not even; with a mean, and constants from quadrature."""


def _in_the_grid(group: GroupCase, base: BaseCase) -> bool:
    return WHOLE_GRID or group.name in _MEET_EVERY_BASE or base.name in _OF_EACH_KIND or base.half_line


PAIRS = [(g, b) for g in GROUPS if not g.is_product for b in smooth_bases_of(g) if _in_the_grid(g, b)]
"""(group, smooth base) pairs: every base with some groups, and every group with a base of each kind."""

PAIRS_ON_SUPPORTS_TOO = [*PAIRS, *((g, b) for g in CONJUGATED if g.bases for b in smooth_bases_of(g))]


def singular(group: GroupCase, base: BaseCase) -> bool:
    """Rotations leave an isotropic Normal where it is."""
    return isinstance(group.group, Affine) and isinstance(base.base, Normal)
