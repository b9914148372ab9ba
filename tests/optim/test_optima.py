"""Each optimizer reaches its own family's optimum on Bayesian linear regression, through the optimizer interface.

ℓ(θ) = Σ ½(y − xθ)² + ½δ‖θ‖² = ½θᵀHθ − cᵀθ + const with H = XᵀX + δI, c = Xᵀy, and we minimise E[ℓ] − τ·H(q). The optimizers
see the mean loss over the data, and divide prior and entropy by N themselves.

- Shifts (even bases): E[ℓ] has its minimum over b at b* = H⁻¹c, whatever the width.
- Diagonal scales: E[ℓ] = … + ½ Σ H_ii A_i² Var(ε) and H(q) = Σ log A_i + const, so A_i² = τ/(H_ii·Var ε).
- Triangular scales: LLᵀ·Var(ε) = τH⁻¹.
- Multiplicative: θ_i = g_i ε_i with independent ε_i of mean μ and second moment m. Stationarity E[θ_i ∂_iℓ] = τ reads
  H_ii g_i² m + Σ_{j≠i} H_ij g_i g_j μ² − c_i g_i μ = τ for every i. The objective
  ½gᵀ(μ²H + (m − μ²)·diag H)g − μcᵀg − τ Σ log g_i is strictly convex on g > 0: the root is unique, and Newton finds it.

Every run is 200 runs at once, the rows of one parameter, each with noise of its own. Their spread gives the CLT bound for
their mean; what a step size above zero leaves of bias is allowed for by BIAS.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Base, Exponential, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.groups import TriangularAffine
from liebayes.rule import Absorbed, Adaptive, Fisher

N, DIM, PRECISION = 100, 4, 5.0
RUNS, STEPS, BIAS = 200, 600, 0.01


def regression(positive: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N, DIM, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.7 * x[:, 0]  # correlated features
    x = x * torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64)  # of different sizes
    weights = torch.tensor([1.0, 0.5, 0.3, 2.0] if positive else [1.0, -0.5, 0.3, -2.0], dtype=torch.float64)
    return x, x @ weights + torch.randn(N, generator=generator, dtype=torch.float64)


def quadratic(positive: bool) -> tuple[Tensor, Tensor]:
    x, y = regression(positive)
    return x.T @ x + PRECISION * torch.eye(DIM, dtype=torch.float64), x.T @ y


def start_near(point: Tensor, away: float) -> nn.Parameter:
    return nn.Parameter((point + away).expand(RUNS, DIM).clone())


def trained(optimizer: Any, weights: nn.Parameter, positive: bool = False, batch: int = N) -> Any:
    """The families after a run whose step size falls to zero in a straight line; every row has its own minibatches."""
    x, y = regression(positive)
    generator = torch.Generator().manual_seed(0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / STEPS)

    def closure() -> Tensor:
        optimizer.zero_grad()
        errors = (y - weights @ x.T).square()  # (runs, data)
        if batch < N:
            errors = errors.gather(1, torch.rand(errors.shape, generator=generator).argsort(1)[:, :batch])
        loss = 0.5 * errors.mean(1).sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
        scheduler.step()
    return optimizer.families()[weights]


def assert_mean(runs: Tensor, expected: Tensor, unit: Tensor) -> None:
    """The mean over runs is the expected value, within four of its standard errors and a bias of BIAS units."""
    error = runs.std(0) / math.sqrt(RUNS)
    assert float(error.div(unit).max()) < 4 * BIAS, f"too noisy to tell: {error / unit}"
    excess = (runs.mean(0) - expected).abs() - 4 * error - BIAS * unit
    assert bool((excess <= 0).all()), f"{runs.mean(0)} instead of {expected}, standard error {error}"


@pytest.mark.parametrize("base", [Normal(0.1), Laplace(0.1), Uniform(0.2)], ids=repr)
def test_additive(base: Base) -> None:
    H, c = quadratic(positive=False)
    p = start_near(torch.linalg.solve(H, c), 0.3)
    family = trained(lb.AdditiveBLR([p], 0.2, data_size=N, base=base, prior=PRECISION, mc_samples=1), p)
    assert_mean(p.detach(), torch.linalg.solve(H, c), torch.full((DIM,), math.sqrt(base.variance)))
    torch.testing.assert_close(family.variance, torch.full((RUNS, DIM), base.variance, dtype=torch.float64))


@pytest.mark.parametrize(
    ("base", "metric", "lr", "temperature"),
    [
        (Normal(0.2), Fisher(), 0.1 * N, 1.0),
        (Laplace(0.1), Fisher(), 0.05 * N, 3.0),
        (StudentT(6.0, 0.2), Fisher(), 0.05 * N, 1.0),
        (Normal(0.2), Absorbed(), 0.05 * N, 3.0),
        (Laplace(0.2), Absorbed(), 0.03 * N, 1.0),
        (Uniform(0.2), Absorbed(), 0.1 * N, 1.0),
        (Uniform(0.5), Absorbed(), 0.05 * N, 3.0),
    ],
    ids=str,
)
def test_affine(base: Base, metric: Any, lr: float, temperature: float) -> None:
    H, c = quadratic(positive=False)
    p = start_near(torch.linalg.solve(H, c), 0.3)
    # Where the Fisher constants are left to the step sizes, the shift's has the base's variance in it.
    scale_lr = None if isinstance(metric, Fisher) else lr
    lr = lr if isinstance(metric, Fisher) else lr * base.variance
    optimizer = lb.AffineBLR(
        [p], lr, data_size=N, scale_lr=scale_lr, base=base, temperature=temperature, momentum=0.9, scale_momentum=0.9,
        prior=PRECISION, mc_samples=1, metric=metric, max_step=0.5,
    )  # fmt: skip
    family = trained(optimizer, p)
    A_squared = temperature / (H.diagonal() * base.variance)
    assert_mean(family.element.scale.square(), A_squared, A_squared)
    assert_mean(p.detach(), torch.linalg.solve(H, c), (temperature / H.diagonal()).sqrt())
    assert_mean(family.variance, temperature / H.diagonal(), temperature / H.diagonal())


def stationary_point(mixed: Tensor, linear: Tensor, temperature: float) -> Tensor:
    """The minimum of ½gᵀMg − lᵀg − τ Σ log g_i over g > 0, by damped Newton steps.

    Divided by τ the objective is self-concordant: steps of 1/(1 + λ), λ the Newton decrement, stay at g > 0 and converge from
    anywhere, at last quadratically. Every coordinate is within a relative λ/(1 − λ) of the minimum's: the distance in the
    metric of the Hessian, of which the logarithms are a part. So its own λ says how far this oracle has come.
    """
    g, decrement = torch.ones_like(linear), math.inf
    for _ in range(100):
        slope = (mixed @ g - linear) / temperature - 1 / g
        step = torch.linalg.solve(mixed / temperature + torch.diag(g**-2), slope)
        decrement = math.sqrt(max(float(slope @ step), 0.0))
        g = g - step / (1 + decrement if decrement > 0.25 else 1)
    assert decrement < 1e-10
    return g


@pytest.mark.parametrize(
    ("base", "metric", "lr", "samples"),
    [
        (Rayleigh(), Adaptive(), 0.05, 2),
        (Rayleigh(0.3), Fisher(), 0.004 * N, 2),
        (Exponential(), Fisher(), 0.001 * N, 6),
        (LogNormal(0.3), Fisher(), 0.01 * N, 2),
        (Rayleigh(), Absorbed(), 0.001 * N, 2),
    ],
    ids=str,
)
def test_multiplicative(base: Base, metric: Any, lr: float, samples: int) -> None:
    H, c = quadratic(positive=True)
    temperature = 2.0
    mean, second = base.mean, base.variance + base.mean**2
    mixed = mean**2 * H + torch.diag((second - mean**2) * H.diagonal())

    expected = stationary_point(mixed, mean * c, temperature)
    p = start_near(expected * mean, 0.3)
    optimizer = lb.MultiplicativeBLR(
        [p], lr, data_size=N, base=base, temperature=temperature, prior=PRECISION, mc_samples=samples, metric=metric,
        max_step=None,
    )  # fmt: skip
    g = trained(optimizer, p, positive=True).element.scale
    assert_mean(g, expected, expected)
    torch.testing.assert_close(p.detach(), g * mean)


@pytest.mark.parametrize(("base", "lr"), [(Normal(0.2), 0.04 * N), (Laplace(0.1), 0.07 * N)], ids=str)
def test_triangular(base: Base, lr: float) -> None:
    H, c = quadratic(positive=False)
    p = start_near(torch.linalg.solve(H, c), 0.3)
    optimizer = lb.LieGroupBLR(
        [p], TriangularAffine(), base, lr, data_size=N, prior=PRECISION, mc_samples=2, metric=Fisher(), max_step=3.0
    )
    family = trained(optimizer, p)
    covariance = torch.linalg.inv(H)
    widths = covariance.diagonal().sqrt()
    assert_mean(p.detach(), torch.linalg.solve(H, c), widths)
    # Entries in units of the widths, so that one tolerance serves correlations and variances.
    scaled = torch.outer(widths, widths)
    assert_mean(family.covariance, covariance, scaled)
    assert abs(float(covariance[0, 1] / scaled[0, 1])) > 10 * BIAS  # a diagonal family would not do


def test_minibatches_reach_the_same_optimum() -> None:
    """The mean over a minibatch and τ/N: the batch size must not change the posterior."""
    H, c = quadratic(positive=False)
    p = start_near(torch.linalg.solve(H, c), 0.3)
    optimizer = lb.AffineBLR(
        [p], 0.08 * N, data_size=N, scale_lr=None, base=Normal(0.5), prior=PRECISION, mc_samples=2, metric=Fisher(),
        scale_momentum=0.9, max_step=0.3,
    )  # fmt: skip
    family = trained(optimizer, p, batch=20)
    assert_mean(family.variance, 1 / H.diagonal(), 1 / H.diagonal())
    assert_mean(p.detach(), torch.linalg.solve(H, c), 1 / H.diagonal().sqrt())


def test_the_affine_defaults_bear_a_long_run_at_a_constant_step() -> None:
    """Steps on b grow with the square of A: with the shift's step size for A too, this network is lost after 40 epochs."""
    torch.manual_seed(0)
    digits = lb.data.load("digits")
    batches = lb.data.Batches(digits, batch_size=32)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10)
    )  # fmt: skip
    optimizer = lb.AffineBLR(model.parameters(), data_size=len(digits.train_labels))
    for epoch in range(50):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            with optimizer.sampled():
                loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    found = optimizer.posterior(model).predict(digits.normalize(digits.test_images), samples=32).probabilities
    # 0.94 is three standard errors of 360 images below 0.97; a network that is lost has less than a half.
    assert lb.metrics.accuracy(found, digits.test_labels) > 0.94
