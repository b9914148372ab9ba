"""Every base against scipy: draws, density, score, moments and Fisher constants (3.2, A.4)."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from oracles.expectation import QUADRATURE, nodes_and_weights
from scipy import integrate, stats
from support.registry import BASES, SMOOTH, BaseCase
from support.user_defined import Logistic

from liebayes import bases
from liebayes.bases.law import Draw, Law
from liebayes.bases.parsing import parse


@pytest.mark.parametrize("case", BASES, ids=str)
def test_a_scaled_base_is_the_base_of_scaled_draws(case: BaseCase) -> None:
    """q(x/a)/a is the density of aε, and its draws are those of ε, scaled."""
    scaled, x = case.base.scaled(2.5), torch.from_numpy(case.scipy.ppf([0.1, 0.3, 0.5, 0.8]))
    torch.testing.assert_close(scaled.log_prob(2.5 * x), case.base.log_prob(x) - math.log(2.5))
    draws = [
        base.sample((100,), generator=torch.Generator().manual_seed(0), dtype=torch.float64) for base in (scaled, case.base)
    ]
    torch.testing.assert_close(draws[0], 2.5 * draws[1])


@pytest.mark.parametrize("text", ["LogNormal(mu=0.3, 0.6)", "Laplace(0.1, scale=0.2)", "Normal(,0.5)", "Normal(0.5,)"])
def test_texts_that_could_mean_two_things_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice, or a number after a name|is not a number"):
        parse(text)


@pytest.mark.parametrize("text", ["", " ", "()", "Normal(", "Gauss", "Base", None, 3], ids=repr)
def test_what_names_no_base_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not a base\. Write one such as Laplace"):
        parse(text)  # pyright: ignore[reportArgumentType]


def test_numbers_of_numpy_are_numbers() -> None:
    assert bases.Normal(np.float32(0.5)) == bases.Normal(0.5)
    assert repr(bases.StudentT(np.int64(3), np.float32(0.5))) == "StudentT(df=3.0, scale=0.5)"


every_base = pytest.mark.parametrize("case", BASES, ids=str)
DRAWS = 200_000


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inside(case: BaseCase, count: int = 201) -> torch.Tensor:
    """Points spread over the support by quantiles."""
    return torch.from_numpy(case.scipy.ppf(np.linspace(1e-4, 1 - 1e-4, count)))


def expectation(case: BaseCase, f) -> float:
    """E[f(ε)] by scipy's adaptive quadrature, in pieces between quantiles."""
    knots = case.scipy.ppf([0.0, 1e-9, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-3, 1 - 1e-6, 1 - 1e-9, 1.0])
    if not case.half_line and math.isinf(knots[0]):
        knots = np.sort(np.append(knots, 0.0))  # the kink of a Laplace density

    def weighted(x: float) -> float:
        density = case.scipy.pdf(x)
        return f(x) * density if density > 1e-200 else 0.0

    pieces = [
        integrate.quad(weighted, a, b, epsabs=1e-13, epsrel=1e-12, limit=400)[0] for a, b in itertools.pairwise(knots) if b > a
    ]
    return sum(pieces)


def numeric_score(case: BaseCase, x: float) -> float:
    """d/dx log q₀ by a five-point difference of scipy's log-density."""
    h = 1e-3 * max(min(abs(x), 1.0), 1e-8)
    log = case.scipy.logpdf
    return float((-log(x + 2 * h) + 8 * log(x + h) - 8 * log(x - h) + log(x - 2 * h)) / (12 * h))


# Draws.


@every_base
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_draws_follow_the_distribution(case: BaseCase, dtype: torch.dtype) -> None:
    draws = case.base.sample((DRAWS // 4, 4), generator=generator(1), dtype=dtype)
    assert draws.shape == (DRAWS // 4, 4)
    assert draws.dtype == dtype
    assert stats.kstest(draws.reshape(-1).double().numpy(), case.scipy.cdf).pvalue > 1e-3


@every_base
def test_draws_are_independent_of_their_neighbours(case: BaseCase) -> None:
    """A sign for above or below the median: neighbours in either direction agree half of the time."""
    draws = case.base.sample((400, 400), generator=generator(2), dtype=torch.float64)
    sign = torch.where(draws > case.scipy.median(), 1.0, -1.0)
    for product in (sign[1:] * sign[:-1], sign[:, 1:] * sign[:, :-1]):
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


@every_base
def test_moments_of_draws(case: BaseCase) -> None:
    if not case.variance:
        return
    draws = case.base.sample((DRAWS,), generator=generator(3), dtype=torch.float64)
    mean, variance, kurtosis = case.base.mean, case.base.variance, float(case.scipy.stats("k"))
    assert abs(float(draws.mean()) - mean) < 5 * math.sqrt(variance / DRAWS)
    spread = variance * math.sqrt((kurtosis + 2) / DRAWS)
    assert abs(float((draws - mean).square().mean()) - variance) < 5 * spread


@every_base
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_generator_fixes_the_draws(case: BaseCase, dtype: torch.dtype) -> None:
    for shape in ((), (0,), (7,), (2, 3, 4)):
        first = case.base.sample(shape, generator=generator(4), dtype=dtype)
        again = case.base.sample(shape, generator=generator(4), dtype=dtype)
        assert first.shape == shape
        assert first.dtype == dtype
        assert torch.equal(first, again)
    assert not torch.equal(
        case.base.sample((50,), generator=generator(4), dtype=dtype),
        case.base.sample((50,), generator=generator(5), dtype=dtype),
    )
    same = generator(6)
    assert not torch.equal(
        case.base.sample((50,), generator=same, dtype=dtype), case.base.sample((50,), generator=same, dtype=dtype)
    )


@every_base
def test_a_generator_leaves_the_global_one_alone(case: BaseCase) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    case.base.sample((5,), generator=generator(0))
    assert torch.equal(before, torch.get_rng_state())
    case.base.sample((5,))
    assert not torch.equal(before, torch.get_rng_state())


@every_base
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_draws_are_finite_and_inside_the_support(case: BaseCase, dtype: torch.dtype) -> None:
    draws = case.base.sample((100_000,), generator=generator(7), dtype=dtype)
    assert bool(torch.isfinite(draws).all())
    if case.half_line:
        assert bool((draws > 0).all())


@every_base
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_rarest_draws_are_finite_and_inside_too(case: BaseCase, dtype: torch.dtype) -> None:
    """The smallest and largest uniform numbers there are, which no test draws by chance."""
    if not isinstance(case.base, Law):
        return

    class Rarest(Draw):
        def uniform(self) -> torch.Tensor:
            wide, bits = (torch.float64, 53) if self.dtype == torch.float64 else (torch.float32, 24)
            return torch.tensor([2.0 ** -(bits + 1), 1 - 2.0**-bits], dtype=wide)

    draws = case.base._draw(Rarest((2,), None, dtype, None)).to(dtype)
    assert bool(torch.isfinite(draws).all())
    if case.half_line:
        assert bool((draws > 0).all())


def test_the_default_dtype_is_used() -> None:
    assert {case.base.sample((2,)).dtype for case in BASES} == {torch.get_default_dtype()}


# Density and score.


@every_base
def test_density_is_that_of_scipy(case: BaseCase) -> None:
    x = inside(case)
    expected = torch.from_numpy(case.scipy.logpdf(x.numpy()))
    torch.testing.assert_close(case.base.log_prob(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in BASES if not math.isinf(c.base.support[0])], ids=str)
def test_density_is_zero_outside_the_support(case: BaseCase) -> None:
    low, high = case.base.support
    outside = [low - 1e-3, low - 5] + ([] if math.isinf(high) else [high + 1e-3])
    assert bool((case.base.log_prob(torch.tensor(outside, dtype=torch.float64)) == -math.inf).all())


@every_base
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_density_at_infinity_is_zero(case: BaseCase, dtype: torch.dtype) -> None:
    """Not ∞ − ∞; and the largest float has a density, if only 0."""
    far = torch.tensor([math.inf, -math.inf], dtype=dtype)
    assert bool((case.base.log_prob(far) == -math.inf).all())
    large = torch.tensor([1.0, -1.0], dtype=dtype) * torch.finfo(dtype).max
    assert not bool(case.base.log_prob(large).isnan().any())


@every_base
def test_score_is_the_derivative_of_the_density(case: BaseCase) -> None:
    x = inside(case)
    if isinstance(case.base, bases.Uniform):
        assert bool((case.base.score(x) == 0).all())
        return
    derived = bases.Base.score(case.base, x)
    torch.testing.assert_close(case.base.score(x), derived, rtol=1e-9, atol=1e-12)
    x = x[x.abs() > 1e-3]
    expected = torch.tensor([numeric_score(case, float(v)) for v in x], dtype=torch.float64)
    torch.testing.assert_close(case.base.score(x), expected, rtol=1e-6, atol=1e-6)


def test_score_works_without_a_graph_and_leaves_none() -> None:
    with torch.no_grad():
        score = bases.Base.score(bases.Normal(), torch.ones(3))
    assert not score.requires_grad
    torch.testing.assert_close(score, -torch.ones(3))


# Moments and Fisher constants.


@every_base
def test_moments_and_entropy(case: BaseCase) -> None:
    assert case.base.entropy == pytest.approx(float(case.scipy.entropy()), abs=QUADRATURE)
    if case.variance:
        assert case.base.mean == pytest.approx(float(case.scipy.mean()), abs=QUADRATURE)
        assert case.base.variance == pytest.approx(float(case.scipy.var()), rel=QUADRATURE)


CLOSED = [case for case in BASES if dataclasses.is_dataclass(case.base)]
"""The bases of the library, which give closed forms; the others have nothing but quadrature."""


@pytest.mark.parametrize("case", CLOSED, ids=str)
def test_quadrature_gives_the_closed_constants(case: BaseCase) -> None:
    """What a user's base would get, from the same density."""
    names = ["entropy", *(["mean", "variance"] if case.variance else []), *(["fisher_scale"] if case.fisher_scale else [])]
    names += ["fisher_shift", "fisher_cross"] if case.fisher_shift else []
    for name in names:
        by_quadrature = getattr(bases.Base, name).fget(dataclasses.replace(case.base))
        assert by_quadrature == pytest.approx(getattr(case.base, name), rel=QUADRATURE, abs=QUADRATURE), name


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_fisher_constants_against_scipy(case: BaseCase) -> None:
    """The score is judged above, the density is scipy's, the quadrature too."""

    def score(x: float) -> float:
        return float(case.base.score(torch.tensor(x, dtype=torch.float64)))

    assert case.base.fisher_scale == pytest.approx(expectation(case, lambda x: (1 + x * score(x)) ** 2), rel=10 * QUADRATURE)
    if case.fisher_shift:
        assert case.base.fisher_shift == pytest.approx(expectation(case, lambda x: score(x) ** 2), rel=10 * QUADRATURE)
        cross = expectation(case, lambda x: (1 + x * score(x)) * score(x))
        assert case.base.fisher_cross == pytest.approx(cross, abs=10 * QUADRATURE)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_the_oracle_of_other_tests_integrates(case: BaseCase) -> None:
    x, w = nodes_and_weights(case)
    assert float(w.sum()) == pytest.approx(1, abs=1e-6 if case.name == "Cauchy(0.8)" else 1e-10)
    assert float((w * (1 + x * case.base.score(x)).square()).sum()) == pytest.approx(case.base.fisher_scale, rel=1e-6)


def test_constants_of_the_paper_and_of_the_design() -> None:
    assert (bases.Normal(0.5).fisher_scale, bases.Normal(0.5).fisher_shift) == (2, 4)
    assert (bases.Laplace(0.5).fisher_scale, bases.Laplace(0.5).fisher_shift) == (1, 4)
    assert (bases.Cauchy(0.5).fisher_scale, bases.Cauchy(0.5).fisher_shift) == (0.5, 2)
    assert (bases.Exponential(3.0).fisher_scale, bases.Rayleigh(3.0).fisher_scale, bases.LogNormal(0.5).fisher_scale) == (
        1,
        4,
        4,
    )
    for df, scale in ((1, 1.0), (3, 2.0), (30, 0.1)):
        base = bases.StudentT(df, scale)
        assert base.fisher_scale == pytest.approx(2 * df / (df + 3))
        assert base.fisher_shift == pytest.approx((df + 1) / ((df + 3) * scale**2))


def test_gumbel_block() -> None:
    base = bases.Gumbel(1)
    assert base.fisher_scale == pytest.approx(1.82368, abs=5e-6)
    assert base.fisher_shift == 1
    assert base.fisher_cross == pytest.approx(-0.42278, abs=5e-6)


# What does not exist.


def test_cauchy_says_that_it_has_no_mean() -> None:
    for base in (bases.Cauchy(), bases.StudentT(1)):
        with pytest.raises(ValueError, match="no mean"):
            _ = base.mean
    for base in (bases.Cauchy(), bases.StudentT(2)):
        with pytest.raises(ValueError, match="no variance"):
            _ = base.variance


def test_quadrature_sees_what_does_not_exist() -> None:
    """A user's heavy tails: no number where there is none."""

    class Heavy(bases.Base):
        sample = bases.Cauchy.sample

        def log_prob(self, x: torch.Tensor) -> torch.Tensor:
            return -torch.log1p(x.square()) - math.log(math.pi)

    base = Heavy()
    for what in ("mean", "variance"):
        with pytest.raises(ValueError, match="no finite mean"):
            getattr(base, what)
    assert base.entropy == pytest.approx(math.log(4 * math.pi), abs=1e-8)
    assert base.fisher_scale == pytest.approx(0.5, abs=1e-8)


@pytest.mark.parametrize(("base", "what"), [(bases.Uniform(), "fisher_shift"), (bases.Uniform(2.0), "fisher_scale")])
def test_uniform_has_no_fisher_metric(base: bases.Base, what: str) -> None:
    with pytest.raises(ValueError, match=r"Uniform\(.*edge"):
        getattr(base, what)


def test_exponential_has_none_under_shifts() -> None:
    with pytest.raises(ValueError, match=r"Exponential\(.*shifts.*edge"):
        _ = bases.Exponential().fisher_shift
    assert bases.Exponential().fisher_scale == 1


def test_rayleigh_has_none_under_shifts() -> None:
    """Its density vanishes at 0, but E[s²] has 1/x there."""
    with pytest.raises(ValueError, match=r"Rayleigh\(.*no finite.*shifts"):
        _ = bases.Rayleigh().fisher_shift


def test_dirac_has_neither_density_nor_metric() -> None:
    base = bases.Dirac()
    assert torch.equal(base.sample((2, 3)), torch.zeros(2, 3))
    assert (base.mean, base.variance, base.entropy) == (0, 0, -math.inf)
    for ask in (lambda: base.log_prob(torch.zeros(())), lambda: base.score(torch.zeros(())), lambda: base.fisher_scale):
        with pytest.raises(ValueError, match="Dirac has no"):
            ask()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1"])
def test_scales_must_be_positive(value: float) -> None:
    for make in (
        bases.Normal,
        bases.Laplace,
        bases.Uniform,
        bases.Cauchy,
        bases.StudentT,
        bases.Gumbel,
        bases.Rayleigh,
        bases.Exponential,
        bases.LogNormal,
    ):
        with pytest.raises(ValueError, match=f"{make.__name__} needs a positive"):
            make(value)


def test_moments_beyond_the_largest_float() -> None:
    for moment in ("mean", "variance"):
        with pytest.raises(ValueError, match=f"The {moment} of LogNormal.* exceeds the largest float"):
            getattr(bases.LogNormal(40.0), moment)
    assert torch.isfinite(bases.LogNormal(40.0).log_prob(torch.ones(3))).all()


# Positional arguments stand in the order of the documentation.


def test_positional_arguments() -> None:
    assert bases.StudentT(3, 2.0) == bases.StudentT(df=3, scale=2.0)
    assert bases.LogNormal(0.5, 1.0) == bases.LogNormal(sigma=0.5, mu=1.0)
    assert bases.Uniform(2.0) == bases.Uniform(half_width=2.0)
    for make in (bases.Normal, bases.Laplace, bases.Cauchy, bases.Gumbel, bases.Rayleigh, bases.Exponential):
        assert make() == make(scale=1.0)


# KL divergences between two members of a location-scale family.


@pytest.mark.parametrize("case", BASES, ids=str)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, 0.0), (0.7, 0.0), (1.6, 0.4), (3.0, -1.1)])
def test_kl_is_an_integral(case: BaseCase, scale: float, shift: float) -> None:
    if case.half_line and shift:
        return
    log_scale, b = torch.tensor(scale, dtype=torch.float64).log(), torch.tensor(shift, dtype=torch.float64)
    if isinstance(case.base, (bases.StudentT, Logistic, bases.Wrapped)):
        with pytest.raises(ValueError, match="Estimate it from samples"):
            case.base.kl(log_scale, b)
        return
    closed = float(case.base.kl(log_scale, b))
    if isinstance(case.base, bases.Uniform) and scale < 1:
        assert closed == math.inf
        return
    log = case.scipy.logpdf
    assert closed == pytest.approx(expectation(case, lambda x: log(x) - log((x - shift) / scale) + math.log(scale)), abs=1e-7)
