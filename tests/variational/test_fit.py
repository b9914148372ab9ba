"""`fit` against optima in closed form, exact posteriors, and a long MCMC run; with its defaults wherever that is possible."""

import json
import math
from pathlib import Path

import pytest
import torch
from support.targets import deviations, gaussian, logistic_loss, quadratic
from torch import Tensor

import liebayes as lb
from liebayes.bases import Cauchy, Dirac, Exponential, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.groups import Additive, Affine, DiagonalAffine, Multiplicative, Product, TriangularAffine

ORACLES = Path(__file__).parents[1] / "oracles"


# Closed-form optima, with the defaults.


@pytest.mark.parametrize("condition", [100.0, 1e4])
def test_correlated_gaussian_in_20_dimensions(condition: float) -> None:
    mean, covariance, precision = gaussian(20, condition, seed=1)
    q = lb.fit(quadratic(mean, precision), TriangularAffine(), Normal(), torch.zeros(20))
    in_mean, in_covariance = deviations(q, mean, covariance)
    assert in_mean < 0.02
    assert in_covariance < 0.02
    assert q.history.stopped.startswith("converged")


def test_diagonal_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(30, generator=generator)
    sd = torch.randn(30, generator=generator).exp()
    q = lb.fit(lambda t: 0.5 * ((t - mean) / sd).square().sum(), DiagonalAffine(), Normal(), torch.zeros(30))
    assert ((q.mean - mean) / sd).abs().max() < 0.04
    assert (q.stddev / sd - 1).abs().max() < 0.04


def test_additive_finds_the_mean() -> None:
    mean, _, precision = gaussian(5, 4.0, seed=2)
    q = lb.fit(quadratic(mean, precision), Additive(), Normal(), torch.zeros(5))
    assert (q.mean - mean).abs().max() < 0.04


@pytest.mark.parametrize("base", [Laplace(), StudentT(5.0), Laplace(0.1)], ids=str)
def test_a_base_that_is_not_the_target(base: lb.bases.Base) -> None:
    # Quadratic loss of curvature h: b* is its minimiser and A*² = τ/(h·Var ε).
    curvature = torch.tensor([0.25, 1.0, 16.0])
    target = torch.tensor([1.0, -2.0, 0.5])
    loss = lambda t: 0.5 * (curvature * (t - target).square()).sum()  # noqa: E731
    # The scale's covector goes with ε², whose variance is large where tails are heavy: more samples for the same accuracy.
    q = lb.fit(loss, DiagonalAffine(), base, torch.zeros(3), samples=128 if isinstance(base, StudentT) else 16)
    assert ((q.mean - target) * curvature.sqrt()).abs().max() < 0.04
    assert (q.element.scale.square() * curvature * base.variance - 1).abs().max() < 0.08  # 4 % of A


@pytest.mark.parametrize(("rate", "shape", "seed"), [(2.0, 3.0, 0), (0.01, 1.0, 1), (100.0, 5.0, 2), (1.0, 0.5, 3)])
def test_exponential(rate: float, shape: float, seed: int) -> None:
    loss = lambda t: (rate * t - (shape - 1) * t.log()).sum()  # noqa: E731
    q = lb.fit(loss, Multiplicative(), Exponential(), torch.ones(4), seed=seed)
    assert (q.element.scale * rate / shape - 1).abs().max() < 0.04


@pytest.mark.parametrize("rate", [2.0, 0.01, 100.0])
def test_rayleigh(rate: float) -> None:
    loss = lambda t: (0.5 * rate * t.square() - t.log()).sum()  # noqa: E731
    q = lb.fit(loss, Multiplicative(), Rayleigh(), torch.ones(4))
    assert (q.element.scale * math.sqrt(rate) - 1).abs().max() < 0.04


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_of_the_start_is_kept(dtype: torch.dtype) -> None:
    mean, covariance, precision = gaussian(4, 10.0, seed=3, dtype=dtype)
    q = lb.fit(quadratic(mean, precision), TriangularAffine(), Normal(), torch.zeros(4, dtype=dtype))
    assert q.mean.dtype == q.sample((3,)).dtype == dtype
    assert max(deviations(q, mean, covariance)) < 0.02


def test_batched_shapes_and_scalars() -> None:
    target = torch.arange(6.0).reshape(2, 3)
    q = lb.fit(lambda t: (t - target).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2, 3))
    assert q.mean.shape == (2, 3)
    assert (q.mean - target).abs().max() < 0.04
    scalar = lb.fit(lambda t: (t - 2).square(), DiagonalAffine(), Normal(), torch.tensor(0.0))
    assert scalar.mean.shape == ()
    assert scalar.sample((5,)).shape == (5,)
    assert float(scalar.mean) == pytest.approx(2, abs=0.04)


# Exact posteriors.


def regression(cases: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(cases, 4, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.8 * x[:, 0]  # correlated features
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    return x, y + 0.7 * torch.randn(cases, generator=generator, dtype=torch.float64)


def test_bayesian_linear_regression() -> None:
    x, y = regression(60, seed=0)
    sigma, prior = 0.7, 1.0
    covariance = torch.linalg.inv(x.mT @ x / sigma**2 + prior * torch.eye(4, dtype=torch.float64))
    mean = covariance @ x.mT @ y / sigma**2

    def loss(w: Tensor) -> Tensor:
        return 0.5 * ((y - x @ w) / sigma).square().sum() + 0.5 * prior * w.square().sum()

    q = lb.fit(loss, TriangularAffine(), Normal(), torch.zeros(4, dtype=torch.float64))
    assert max(deviations(q, mean, covariance)) < 0.02
    # At the optimum E[loss] − H is minus the log evidence.
    n = len(y)
    marginal = sigma**2 * torch.eye(n, dtype=torch.float64) + x @ x.mT / prior
    evidence = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=torch.float64), marginal).log_prob(y)
    constant = 0.5 * n * math.log(2 * math.pi * sigma**2) + 0.5 * 4 * math.log(2 * math.pi / prior)
    draws = q.sample((20_000,), generator=torch.Generator().manual_seed(0))
    objective = float(torch.func.vmap(loss)(draws).mean() - q.entropy())
    assert objective + constant == pytest.approx(-float(evidence), abs=5 * math.sqrt(4 / 2 / 20_000))


def noise_and_weights(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Mean and sd of σ and of w under the posterior with p(σ) ∝ 1/σ, w ~ N(0, I): w is exact given σ, σ is on a grid."""
    log_sigma = torch.linspace(-3, 2, 4001, dtype=torch.float64)
    log_density, means, squares = [], [], []
    for sigma in log_sigma.exp():
        covariance = torch.linalg.inv(x.mT @ x / sigma**2 + torch.eye(4, dtype=torch.float64))
        mean = covariance @ x.mT @ y / sigma**2
        quadratic_form = (y @ y / sigma**2 - mean @ torch.linalg.solve(covariance, mean)) / 2
        log_density.append(-len(y) * sigma.log() + 0.5 * torch.logdet(covariance) - quadratic_form)
        means.append(mean)
        squares.append(covariance.diagonal() + mean.square())
    weight = torch.softmax(torch.stack(log_density), 0)
    mean, square = weight @ torch.stack(means), weight @ torch.stack(squares)
    sigma_mean = weight @ log_sigma.exp()
    sigma_sd = (weight @ (2 * log_sigma).exp() - sigma_mean**2).sqrt()
    return {"mean": mean, "sd": (square - mean.square()).sqrt(), "sigma": sigma_mean, "sigma_sd": sigma_sd}


@pytest.mark.parametrize("structure", ["tuple", "dict"])
def test_noise_scale_and_weights_together(structure: str) -> None:
    x, y = regression(100, seed=1)
    exact = noise_and_weights(x, y)
    base = LogNormal(1 / math.sqrt(2 * len(y)))  # the width of log σ; the group moves its place

    def loss(sigma: Tensor, w: Tensor) -> Tensor:
        # p(σ) ∝ 1/σ, so that σ's density and that prior give −log σ and + log σ.
        return (len(y) + 1) * sigma.log() + 0.5 * ((y - x @ w) / sigma).square().sum() + 0.5 * w.square().sum()

    start = torch.tensor(1.0, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    if structure == "tuple":
        q = lb.fit(lambda theta: loss(*theta), Product(Multiplicative(), TriangularAffine()), (base, Normal()), start)
        (sigma, w), (sigma_sd, w_sd) = q.mean, q.stddev
        assert [part.shape for part in q.sample((7,))] == [(7,), (7, 4)]
    else:
        q = lb.fit(
            lambda theta: loss(theta["sigma"], theta["w"]),
            Product(w=TriangularAffine(), sigma=Multiplicative()),
            {"sigma": base, "w": Normal()},
            {"sigma": start[0], "w": start[1]},
        )
        sigma, w, sigma_sd, w_sd = q.mean["sigma"], q.mean["w"], q.stddev["sigma"], q.stddev["w"]
        assert {name: part.shape for name, part in q.sample((7,)).items()} == {"sigma": (7,), "w": (7, 4)}
    assert isinstance(q, lb.ProductFamily)
    assert q.log_prob(q.sample((7,))).shape == (7,)
    assert float(sigma / exact["sigma"]) == pytest.approx(1, abs=0.02)
    assert float(sigma_sd / exact["sigma_sd"]) == pytest.approx(1, abs=0.05)
    assert ((w - exact["mean"]) / exact["sd"]).abs().max() < 0.05
    assert (w_sd / exact["sd"] - 1).abs().max() < 0.05


def test_one_base_serves_all_parts_of_a_product() -> None:
    loss = lambda t: 2 * (t["a"] - 1).square().sum() + 2 * (t["b"][0] + 1).square().sum() + 2 * t["b"][1].square().sum()  # noqa: E731
    group = Product(a=DiagonalAffine(), b=Product(Additive(), TriangularAffine()))
    q = lb.fit(loss, group, Normal(0.5), {"a": torch.zeros(2), "b": (torch.zeros(3), torch.ones(2))})
    assert (q.mean["a"] - 1).abs().max() < 0.02
    assert (q.mean["b"][0] + 1).abs().max() < 0.02
    assert q.mean["b"][1].abs().max() < 0.02
    assert (q.stddev["b"][1] - 0.5).abs().max() < 0.02


# Real data.


@pytest.mark.parametrize("group", [TriangularAffine(), DiagonalAffine()], ids=str)
def test_logistic_regression_on_real_data(group: lb.groups.LieGroup, record_property) -> None:
    mcmc = json.loads((ORACLES / "breast_cancer_mcmc.json").read_text())
    optima = json.loads((ORACLES / "breast_cancer_gaussian_vi.json").read_text())["gaussian_vi"]
    full = isinstance(group, TriangularAffine)
    optimum = optima["full" if full else "diagonal"]
    q = lb.fit(logistic_loss, group, Normal(), torch.zeros(31))

    def compare(reference: dict) -> tuple[float, float]:
        mean, sd = torch.tensor(reference["mean"]), torch.tensor(reference["sd"])
        return float(((q.mean - mean) / sd).abs().max()), float((q.stddev / sd - 1).abs().max())

    to_mcmc, to_optimum = compare(mcmc), compare(optimum)
    report = f"{group} to MCMC: mean {to_mcmc[0]:.3f} sd, sd {to_mcmc[1]:.1%}; to its own optimum: {to_optimum[0]:.3f} sd, "
    report += f"{to_optimum[1]:.1%}"
    record_property("deviation", report)
    print(report)
    if full:
        assert to_mcmc[0] < 0.1
        assert to_mcmc[1] < 0.1
        assert to_optimum[0] < 0.03
        assert to_optimum[1] < 0.02
    else:
        # The optimum of the diagonal family itself has standard deviations too small by half: it ignores correlations.
        assert to_optimum[0] < 0.1
        assert to_optimum[1] < 0.06
    # The ELBO with all constants, to compare with the exact optimum.
    elbo = -sum(q.history.objective[-50:]) / 50 - 0.5 * 31 * math.log(2 * math.pi)
    assert elbo == pytest.approx(optimum["elbo"], abs=0.5)


# The other settings.


def test_temperature_scales_the_variance() -> None:
    mean, covariance, precision = gaussian(4, 10.0, seed=4)
    q = lb.fit(quadratic(mean, precision), TriangularAffine(), Normal(), torch.zeros(4), temperature=0.01)
    assert max(deviations(q, mean, 0.01 * covariance)) < 0.02


@pytest.mark.parametrize("metric", [lb.Fisher(), lb.Absorbed(), lb.Adaptive()], ids=str)
def test_the_unit_of_the_loss_does_not_matter(metric: lb.rule.Metric) -> None:
    """The loss and τ a million times larger are the same problem, whatever the metric."""
    mean, _, precision = gaussian(3, 4.0, seed=6)
    plain, large = (
        lb.fit(
            lambda t, unit=unit: unit * quadratic(mean, precision)(t),
            DiagonalAffine(),
            Normal(),
            torch.zeros(3),
            temperature=unit,
            metric=metric,
            steps=200,
        )
        for unit in (1.0, 2.0**20)
    )
    torch.testing.assert_close(large.element, plain.element, rtol=1e-4, atol=1e-5)
    assert large.history.gradient_norm[0] == pytest.approx(2.0**20 * plain.history.gradient_norm[0], rel=1e-4)
    assert large.history.objective[-1] == pytest.approx(2.0**20 * plain.history.objective[-1], rel=1e-3)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("tempering", ["entropy", "kl"])
def test_tempering_of_the_entropy_or_of_the_whole_divergence(tempering: str, temperature: float) -> None:
    h, target, prior = 4.0, 1.5, 2.0
    q = lb.fit(
        lambda t: 0.5 * h * (t - target).square().sum(),
        DiagonalAffine(),
        Normal(),
        torch.zeros(2),
        regulariser=lambda t: 0.5 * prior * t.square().sum(),
        temperature=temperature,
        tempering=tempering,
    )
    weight = temperature if tempering == "kl" else 1.0  # on the regulariser
    curvature = h + weight * prior
    torch.testing.assert_close(q.mean, torch.full((2,), h * target / curvature), rtol=0.01, atol=0)
    torch.testing.assert_close(q.variance, torch.full((2,), temperature / curvature), rtol=0.02, atol=0)


def test_temperature_zero_is_optimisation() -> None:
    mean, _, precision = gaussian(3, 4.0, seed=5)
    q = lb.fit(quadratic(mean, precision), Additive(), Dirac(), torch.zeros(3), temperature=0.0, metric=lb.Absorbed())
    assert (q.sample() - mean).abs().max() < 1e-3
    assert q.history.objective == q.history.expected_loss


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
def test_both_gradients_of_the_entropy_agree(group: lb.groups.LieGroup) -> None:
    # A target outside the family, so that neither is free of noise.
    loss = lambda t: (t.square() / 2 + t.pow(4) / 4).sum()  # noqa: E731
    exact, samples = (lb.fit(loss, group, Normal(), torch.ones(2), entropy=kind) for kind in ("exact", "samples"))
    torch.testing.assert_close(exact.mean, samples.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(exact.stddev, samples.stddev, rtol=0.04, atol=0)
    # The optimum has A²·E[ℓ''] = 1: with ℓ'' = 1 + 3θ², A² + 3A⁴ = 1.
    scale = math.sqrt((math.sqrt(13) - 1) / 6)
    torch.testing.assert_close(samples.stddev, torch.full((2,), scale), rtol=0.03, atol=0)


def test_entropy_at_the_samples_leaves_no_noise_where_the_target_is_in_the_family() -> None:
    mean, covariance, precision = gaussian(3, 4.0, seed=6)
    options = {"schedule": "constant", "steps": 300, "tolerance": 0.0}
    fit = lambda kind: lb.fit(  # noqa: E731
        quadratic(mean, precision), TriangularAffine(), Normal(), torch.zeros(3), entropy=kind, **options
    )
    assert max(deviations(fit("samples"), mean, covariance)) < 1e-4
    assert max(deviations(fit("exact"), mean, covariance)) > 1e-2


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", lambda done: (1 - done) ** 2])
def test_schedules(schedule) -> None:
    mean, covariance, precision = gaussian(3, 4.0, seed=7)
    q = lb.fit(quadratic(mean, precision), TriangularAffine(), Normal(), torch.zeros(3), schedule=schedule)
    assert max(deviations(q, mean, covariance)) < 0.02


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"metric": lb.Adaptive(), "lr": 0.03},
        {"metric": lb.Absorbed(), "lr": 0.05},
        {"lr": 0.1, "scale_lr": 0.03},
        {"max_step": None},
        {"samples": 4},
        {"samples": 1, "lr": 0.03},
        {"initial_scale": 0.01},
        {"initial_scale": 30.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
def test_other_ways_to_the_same_optimum(options: dict, group: lb.groups.LieGroup) -> None:
    sd = torch.tensor([0.5, 1.0, 2.0])
    target = torch.tensor([1.0, -1.0, 0.5])
    q = lb.fit(lambda t: 0.5 * ((t - target) / sd).square().sum(), group, Normal(), torch.zeros(3), **options)
    assert max(deviations(q, target, sd.square().diag())) < 0.05


def test_uniform_base_with_the_absorbed_metric() -> None:
    curvature = torch.tensor([0.5, 4.0])
    q = lb.fit(
        lambda t: 0.5 * (curvature * (t - 1).square()).sum(), DiagonalAffine(), Uniform(), torch.zeros(2), metric=lb.Absorbed()
    )
    assert ((q.mean - 1) * curvature.sqrt()).abs().max() < 0.04
    assert (q.variance * curvature - 1).abs().max() < 0.08  # 4 % of the width
    assert (
        float(q.sample((1000,), generator=torch.Generator().manual_seed(0)).sub(q.mean).div(q.element.scale).abs().max()) <= 1
    )


def test_full_affine_group_on_a_laplace_base() -> None:
    mean, covariance, precision = gaussian(3, 10.0, seed=8)
    q = lb.fit(quadratic(mean, precision), Affine(), Laplace(), torch.zeros(3), samples=32)
    assert max(deviations(q, mean, covariance)) < 0.08  # a quadratic loss sees the covariance only


def test_base_without_a_mean() -> None:
    # The target is a Cauchy density itself, at 2 with scale ½.
    loss = lambda t: torch.log1p((2 * (t - 2)).square()).sum()  # noqa: E731
    q = lb.fit(loss, DiagonalAffine(), Cauchy(), torch.zeros(2))
    assert (q.element.shift - 2).abs().max() < 0.02
    assert (q.element.scale - 0.5).abs().max() < 0.02
    with pytest.raises(ValueError, match="no mean"):
        _ = q.mean


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize(("unit", "away"), [(1e-3, 30), (1.0, 30), (1e3, 30), (1.0, 1000), (1e-3, 1000)])
def test_far_start_and_other_units(unit: float, away: float, group: lb.groups.LieGroup) -> None:
    target, sd = away * unit * torch.tensor([1.0, -1.0, 0.5]), unit * torch.tensor([1.0, 0.5, 0.25])
    q = lb.fit(lambda t: 0.5 * ((t - target) / sd).square().sum(), group, Normal(), torch.zeros(3))
    assert ((q.mean - target) / sd).abs().max() < 0.04
    assert (q.stddev / sd - 1).abs().max() < 0.04


def test_bound_on_the_shift_grows_while_the_loss_falls() -> None:
    # A hundred thousand widths away at half a width per step would be a way of two hundred thousand steps.
    options = {"steps": 400, "schedule": "constant"}
    loss = lambda t: 0.5 * (t - 1e5).square().sum()  # noqa: E731
    start = torch.zeros(1, dtype=torch.float64)
    q = lb.fit(loss, DiagonalAffine(), Normal(), start, max_shift=1e4, **options)
    assert float(q.mean) == pytest.approx(1e5, abs=0.1)
    short = lb.fit(loss, DiagonalAffine(), Normal(), start, max_shift=0.5, **options)
    assert float(short.mean) < 1000


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
def test_bound_on_the_shift_falls_where_the_loss_rises(group: lb.groups.LieGroup) -> None:
    # A slope never says how far the optimum is: with the bound that brought them here, steps go past it for ever.
    slope = 1e3
    loss = lambda t: slope * (t - 5).abs().sum()  # noqa: E731
    q = lb.fit(loss, group, Normal(), torch.full((5,), -3000.0))
    sd = math.sqrt(math.pi / 2) / slope  # minimises slope·E|sd·ε| − log sd
    assert (q.mean - 5).abs().max() < sd
    assert (q.stddev / sd - 1).abs().max() < 0.05
