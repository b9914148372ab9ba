"""The optimizers against what they must equal: SGD, noise injection, and Alg. 1–3 as the paper prints them.

The algorithms are written here once more, from the paper, in float64 and one tensor at a time. Their noise is recovered from
the samples that the optimizer puts into the module; everything else they compute themselves.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.problems import closure_for
from support.tolerances import roundings
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Base, Cauchy, Dirac, Exponential, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.rule import Absorbed, Fisher

N = 50


# SGD.


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 16), nn.Tanh(),
        nn.Linear(16, 10),
    )  # fmt: skip


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(y)


def losses_and_weights(build: Callable[[Any], Any], steps: int = 100) -> tuple[list[float], list[Tensor]]:
    model, (x, y) = convolutional(), digits()
    optimizer = build(model.parameters())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    losses = []
    for step in range(steps):
        batch = order[step * 16 % 1600 :][:16]
        losses.append(float(optimizer.step(closure_for(optimizer, model, x[batch], y[batch])).detach()))
    return losses, [t.detach() for t in model.state_dict().values()]


@pytest.mark.parametrize("precision", [0.0, 5.0])
@pytest.mark.parametrize("foreach", [True, False])
def test_additive_dirac_is_sgd_to_the_bit(foreach: bool, precision: float) -> None:
    ours = losses_and_weights(
        lambda p: lb.AdditiveBLR(p, 0.1, data_size=1437, base=Dirac(), momentum=0.0, prior=precision, foreach=foreach)
    )
    decay = precision / 1437
    theirs = losses_and_weights(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=decay))
    assert ours[0] == theirs[0]
    assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
    assert theirs[0][-1] < 0.5 * theirs[0][0]


def test_additive_dirac_with_momentum_is_sgd_with_momentum() -> None:
    alpha, beta = 0.1, 0.9
    ours = losses_and_weights(lambda p: lb.AdditiveBLR(p, alpha, data_size=1437, base=Dirac(), momentum=beta, prior=0.0), 50)
    theirs = losses_and_weights(lambda p: torch.optim.SGD(p, lr=alpha * (1 - beta), momentum=beta), 50)
    # A few roundings in each of 50 steps, which training carries on.
    for a, b in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(a, b, **roundings(50 * 4))


def test_additive_with_one_sample_is_anticorrelated_noise_injection() -> None:
    """The weights θ_t = g_t + ε_t move by −α∇ℓ(θ_t) + ε_{t+1} − ε_t: SGD with noise that each next step takes back."""
    torch.manual_seed(0)
    target = torch.randn(5, dtype=torch.float64)

    def run(lr: float) -> Tensor:
        p = nn.Parameter(torch.zeros(5, dtype=torch.float64))
        optimizer = lb.AdditiveBLR([p], lr, data_size=N, base=Normal(0.3), momentum=0.0, prior=0.0)
        thetas = []
        for _ in range(40):
            optimizer.zero_grad()
            with optimizer.sampled():
                thetas.append(p.detach().clone())
                (p - target).pow(4).sum().backward()
            optimizer.step()
        return torch.stack(thetas)

    noise = run(0.0)  # g stays at zero: these are the ε_t
    thetas = run(0.05)
    theta = noise[0]
    for t in range(39):
        theta = theta - 0.05 * 4 * (theta - target).pow(3) + noise[t + 1] - noise[t]
        torch.testing.assert_close(thetas[t + 1], theta, **roundings(40 * 8, torch.float64))
    # The base's noise (200 numbers of scale 0.3), whose increments are anticorrelated by −½.
    assert abs(float(noise.std()) - 0.3) < 4 * 0.3 / math.sqrt(2 * 200)
    increments = noise[1:] - noise[:-1]
    anti = torch.corrcoef(torch.stack([increments[:-1].flatten(), increments[1:].flatten()]))[0, 1]
    assert abs(float(anti) + 0.5) < 4 / math.sqrt(190)


# Alg. 1–3 as printed.


def additive_as_printed(g, M, thetas, gradients, *, alpha, beta, c, slope):
    """Alg. 1, lines 6–8; `c` is c_F of A.3, 1 where it is absorbed."""
    U = sum(grad + slope(theta) / N for theta, grad in zip(thetas, gradients, strict=True)) / len(thetas)
    M = (1 - beta) * (U / c) + beta * M
    return g - alpha * M, M


def multiplicative_as_printed(g, M, thetas, gradients, *, alpha, beta, c, tau, slope):
    """Alg. 2, lines 6–9."""
    U = sum(
        theta * grad + theta * slope(theta) / N - tau / N * torch.ones_like(theta)
        for theta, grad in zip(thetas, gradients, strict=True)
    ) / len(thetas)
    M = (1 - beta) * (U / c) + beta * M
    return g * torch.exp(-alpha * M), M


def affine_as_printed(A, b, M_U, M_V, thetas, gradients, *, alpha, scale_alpha, beta_1, beta_2, c_X, c_y, tau, slope):
    """Alg. 3, lines 7–14; with a second step size for the scale, as the paper's experiments have it (α there is α_A)."""
    K = len(thetas)
    U = V = torch.zeros_like(b)
    for theta, grad in zip(thetas, gradients, strict=True):
        A_epsilon = theta - b
        U = U + A_epsilon * grad + A_epsilon * slope(theta) / N - tau / N * torch.ones_like(b)
        V = V + A * grad + A * slope(theta) / N
    M_V = (1 - beta_1) * V / (c_y * K) + beta_1 * M_V
    M_U = (1 - beta_2) * U / (c_X * K) + beta_2 * M_U
    x, y = -scale_alpha * M_U, -alpha * M_V
    b = b + A * torch.where(x == 0, torch.ones_like(x), torch.expm1(x) / torch.where(x == 0, 1.0, x)) * y
    return A * torch.exp(x), b, M_U, M_V


MATRIX = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 0.7]], dtype=torch.float64)


def loss_of(parameters: list[Tensor]) -> Tensor:
    """Not quadratic, and it couples the two tensors."""
    p, q = parameters
    return 0.5 * p @ MATRIX @ p + (p.sum() - q.sin().sum()).square() + (1 + q * q).log().sum()


def gradients_at(thetas: list[Tensor]) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in thetas]
    return list(torch.autograd.grad(loss_of(leaves), leaves))


def fisher_constants(base: Base) -> tuple[float, float]:
    """c_X and c_y by the integrals of Alg. 3 with the lemma's density factor, by scipy and not by us."""
    from scipy import integrate

    def density(x: float) -> float:
        return float(base.log_prob(torch.tensor(x, dtype=torch.float64)).exp())

    def score(x: float) -> float:
        h = 1e-5 * max(abs(x), 1e-3)
        low, high = (float(base.log_prob(torch.tensor(x + d, dtype=torch.float64))) for d in (-h, h))
        return (high - low) / (2 * h)

    low, high = base.support
    pieces = [(max(low, 0.0), high)] if low >= 0 else [(-math.inf, 0.0), (0.0, math.inf)]
    c_X = sum(integrate.quad(lambda x: (1 + x * score(x)) ** 2 * density(x), *piece)[0] for piece in pieces)
    c_y = math.nan if low >= 0 else sum(integrate.quad(lambda x: score(x) ** 2 * density(x), *piece)[0] for piece in pieces)
    return c_X, c_y


PRIORS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "none": (0.0, torch.zeros_like),
    "precision": (7.0, lambda theta: 7.0 * theta),
    "callable": (lambda theta: torch.log(1 + theta.square()).sum(), lambda theta: 2 * theta / (1 + theta.square())),
}


def start(positive: bool) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    points = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3,), (2, 2))]
    return [nn.Parameter(0.5 * p.abs() + 0.1 if positive else 0.5 * p) for p in points]


def samples_of_a_step(optimizer: Any, parameters: list[nn.Parameter]) -> list[list[Tensor]]:
    """One step of the optimizer; returns the samples it took, for each tensor."""
    seen: list[list[Tensor]] = []

    def closure() -> None:
        optimizer.zero_grad()
        seen.append([p.detach().clone() for p in parameters])
        loss_of(list(parameters)).backward()

    optimizer.step(closure)
    return seen


def follow(optimizer: Any, parameters: list[nn.Parameter], states: list[Any], printed: Callable[..., Any]) -> Iterator[None]:
    """Six steps of the optimizer, and of the printed algorithm on the same samples."""
    for _ in range(6):
        seen = samples_of_a_step(optimizer, parameters)
        assert len(seen) == optimizer.mc_samples
        gradients = [gradients_at(thetas) for thetas in seen]
        for i, state in enumerate(states):
            states[i] = printed(*state, [t[i] for t in seen], [v[i] for v in gradients])
        yield


QUADRATURE = 1.5e-8
"""The error that scipy's `quad` allows in the oracle's Fisher constants."""


def six_steps(metric: Any) -> dict[str, float]:
    """Roundings; with `Fisher` also the error of its constant in each step, of up to a tenth."""
    return (
        {"rtol": 6 * QUADRATURE, "atol": 0.6 * QUADRATURE} if isinstance(metric, Fisher) else roundings(6 * 32, torch.float64)
    )


several_samples = pytest.mark.parametrize("samples", [1, 3])
every_prior = pytest.mark.parametrize("prior", PRIORS)


@several_samples
@every_prior
@pytest.mark.parametrize(("base", "metric"), [(Normal(0.2), Absorbed()), (Uniform(0.3), Absorbed()), (Laplace(0.2), Fisher())])
def test_algorithm_1(base: Base, metric: Any, prior: str, samples: int) -> None:
    parameters, (given, slope) = start(positive=False), PRIORS[prior]
    settings = {"data_size": N, "momentum": 0.8, "mc_samples": samples, "prior": given}
    optimizer = lb.AdditiveBLR(parameters, 0.05, base=base, metric=metric, **settings)
    c = fisher_constants(base)[1] if isinstance(metric, Fisher) else 1.0
    states: list[Any] = [(p.detach().clone(), torch.zeros_like(p)) for p in parameters]
    for _ in follow(optimizer, parameters, states, partial(additive_as_printed, alpha=0.05, beta=0.8, c=c, slope=slope)):
        for p, (g, _M) in zip(parameters, states, strict=True):
            torch.testing.assert_close(p.detach(), g, **six_steps(metric))


@several_samples
@every_prior
@pytest.mark.parametrize(
    ("base", "metric"),
    [(Rayleigh(), Absorbed()), (Exponential(0.5), Fisher()), (Rayleigh(0.7), Fisher()), (LogNormal(0.5), Fisher())],
)
def test_algorithm_2(base: Base, metric: Any, prior: str, samples: int) -> None:
    parameters, (given, slope) = start(positive=True), PRIORS[prior]
    settings = {"data_size": N, "temperature": 3.0, "momentum": 0.8, "mc_samples": samples, "prior": given, "max_step": None}
    optimizer = lb.MultiplicativeBLR(parameters, 0.2, base=base, metric=metric, **settings)
    c = fisher_constants(base)[0] if isinstance(metric, Fisher) else 1.0
    states: list[Any] = [(p.detach() / base.mean, torch.zeros_like(p)) for p in parameters]
    printed = partial(multiplicative_as_printed, alpha=0.2, beta=0.8, c=c, tau=3.0, slope=slope)
    for _ in follow(optimizer, parameters, states, printed):
        for p, (g, _M) in zip(parameters, states, strict=True):
            torch.testing.assert_close(p.detach(), g * base.mean, **six_steps(metric))


@several_samples
@every_prior
@pytest.mark.parametrize(
    ("base", "metric", "scale_lr"),
    [
        (Normal(0.2), Absorbed(), None),
        (Laplace(0.2), Absorbed(), 0.002),
        (Uniform(0.3), Absorbed(), 0.01),
        (Normal(0.2), Fisher(), None),
        (Laplace(0.2), Fisher(), 0.01),
        (Cauchy(0.02), Fisher(), None),
        (StudentT(4.0, 0.2), Fisher(), 0.5),
    ],
)
def test_algorithm_3(base: Base, metric: Any, scale_lr: float | None, prior: str, samples: int) -> None:
    parameters, (given, slope) = start(positive=False), PRIORS[prior]
    settings = {"data_size": N, "temperature": 3.0, "mc_samples": samples, "prior": given, "max_step": None}
    momenta = {"momentum": 0.8, "scale_momentum": 0.5}
    optimizer = lb.AffineBLR(parameters, 0.1, scale_lr=scale_lr, base=base, metric=metric, **momenta, **settings)
    c_X, c_y = fisher_constants(base) if isinstance(metric, Fisher) else (1.0, 1.0)
    rates = {"alpha": 0.1, "scale_alpha": 0.1 if scale_lr is None else scale_lr, "beta_1": 0.8, "beta_2": 0.5}
    zeros = [torch.zeros_like(p) for p in parameters]
    states: list[Any] = [(1 + zero, p.detach().clone(), zero, zero) for p, zero in zip(parameters, zeros, strict=True)]
    for _ in follow(
        optimizer, parameters, states, partial(affine_as_printed, **rates, c_X=c_X, c_y=c_y, tau=3.0, slope=slope)
    ):
        families = optimizer.families()
        for p, (A, b, *_momenta) in zip(parameters, states, strict=True):
            torch.testing.assert_close(p.detach(), b, **six_steps(metric))
            torch.testing.assert_close(families[p].element.scale, A, **six_steps(metric))
    assert not torch.allclose(states[0][0], torch.ones(3, dtype=torch.float64), rtol=1e-3)  # the scale has moved


def test_the_noise_of_the_oracle_is_the_base() -> None:
    """What the oracles take for samples are such: g⁻¹·θ has the base's distribution (Kolmogorov–Smirnov)."""
    from scipy import stats

    p = nn.Parameter(torch.full((20_000,), 2.0, dtype=torch.float64))
    for optimizer, standard, name in (
        (lb.AdditiveBLR([p], data_size=N, base=Laplace(0.5), mc_samples=1), lambda t: (t - 2) / 0.5, "laplace"),
        (lb.AffineBLR([p], data_size=N, base=Normal(0.1), initial_scale=3.0, mc_samples=1), lambda t: (t - 2) / 0.3, "norm"),
        (
            lb.MultiplicativeBLR([p], data_size=N, base=Rayleigh(), mc_samples=1),
            lambda t: t / (2 / math.sqrt(math.pi / 2)),
            "rayleigh",
        ),
    ):
        with optimizer.sampled():
            noise = standard(p.detach())
        assert stats.kstest(noise.numpy(), name).pvalue > 1e-3


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", [lb.AdditiveBLR, partial(lb.AffineBLR, curvature="samples"), lb.MultiplicativeBLR])
def test_a_callable_prior_equals_its_precision(kind: Any, foreach: bool) -> None:
    results = []
    for prior in (30.0, lambda theta: 15.0 * theta.square().sum()):
        parameters = start(positive=True)
        optimizer = kind(parameters, 0.05, data_size=N, prior=prior, mc_samples=2, foreach=foreach)
        for _ in range(5):
            samples_of_a_step(optimizer, parameters)
        results.append([p.detach() for p in parameters])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **roundings(5 * 16, torch.float64))


def test_max_step_bounds_the_step() -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = lb.MultiplicativeBLR([p], 1.0, data_size=N, metric=Absorbed(), momentum=0.0, max_step=0.3, mc_samples=1)
    with optimizer.sampled():
        (p * torch.tensor([1e6, 0.0])).sum().backward()
    optimizer.step()
    # −α(θ·1e6 − 1/N + …) is bounded; α/N·(τ − prior θ²) is not.
    assert math.isclose(p[0].item(), math.exp(-0.3), rel_tol=1e-12)
    assert 0.9 < p[1].item() < 1.1
    assert int(optimizer.bounded) == 1
