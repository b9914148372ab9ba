"""Mean-field fits under correlation: the best diagonal Gaussian is found whatever the condition number."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from support.registry import WHOLE_GRID
from torch import Tensor

import liebayes as lb
from liebayes.bases import Laplace, Normal
from liebayes.groups import Additive, DiagonalAffine, LowRankAffine, Positive
from liebayes.variational import verdict
from liebayes.variational.newton import newton_step
from liebayes.variational.verdict import Examination


def regression(dim: int, condition: float, cases: int = 200) -> tuple[Tensor, Tensor]:
    """Features whose Gram matrix has the condition number, in units that differ by up to its root."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(cases, dim, generator=generator, dtype=torch.float64)
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    x = 30 * left * torch.logspace(0, -0.5 * math.log10(condition), dim, dtype=torch.float64) @ right
    y = x @ torch.randn(dim, generator=generator, dtype=torch.float64)
    return x, y + 0.5 * torch.randn(cases, generator=generator, dtype=torch.float64)


KNOWN_NOISE = [(5, 1e6), (30, 1e2), (30, 1e4), (100, 1e6)]
if WHOLE_GRID:
    KNOWN_NOISE = list(itertools.product((5, 30, 100), (1e2, 1e4, 1e6)))


@pytest.mark.parametrize(("dim", "condition"), KNOWN_NOISE)
def test_regression_with_known_noise(dim: int, condition: float) -> None:
    """The best diagonal Gaussian has the posterior's mean, and the inverse roots of the precision's diagonal as widths."""
    x, y = regression(dim, condition)
    precision = x.mT @ x / 0.25
    mean, sd = torch.linalg.solve(precision, x.mT @ y / 0.25), precision.diagonal().rsqrt()
    q = lb.fit(
        lambda w: 0.5 * ((y - x @ w) / 0.5).square().sum(), DiagonalAffine(), start=torch.zeros(dim, dtype=torch.float64)
    )
    assert ((q.mean - mean) / sd).abs().max() < 0.02
    assert (q.stddev / sd - 1).abs().max() < 0.02
    assert q.history.converged
    if condition == 1e6:
        assert q.history.newton_steps > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_low_rank_regression(condition: float, dtype: torch.dtype) -> None:
    """The best Gaussian of rank k: the posterior's mean; given the first k, the inverse roots of the precision's diagonal as
    widths, and the posterior's own covariance of the first k with all (each column is the best without the others)."""
    dim, rank = 12, 2
    x, y = regression(dim, condition)
    precision = x.mT @ x / 0.25
    covariance = torch.linalg.inv(precision)
    mean, sd = covariance @ (x.mT @ y / 0.25), precision.diagonal().rsqrt()
    x, y = x.to(dtype), y.to(dtype)
    loss = lambda w: 0.5 * ((y - x @ w) / 0.5).square().sum()  # noqa: E731
    q = lb.fit(loss, LowRankAffine(rank), start=torch.zeros(dim, dtype=dtype))
    # Lᵀ of the posterior's covariance L Lᵀ, whose first columns are the best ones as they are.
    L = torch.linalg.cholesky(covariance)
    widths = (L[:, :rank].square().sum(1) + torch.cat([torch.zeros(rank), sd[rank:].square()])).sqrt()
    # Of a width of the family; float32 knows the loss's slopes to 1e−7 of their parts, times the root of the condition.
    most = 0.02 if dtype == torch.float64 else 0.1
    assert ((q.mean.double() - mean) / widths).abs().max() < most
    assert (q.stddev.double() / widths - 1).abs().max() < most
    assert q.history.converged
    if condition == 1e6:
        assert q.history.newton_steps > 0


def test_regression_with_unknown_noise() -> None:
    """The optimum in closed form: the weights' mean is that of least squares, and E[σ⁻²] follows from the residuals."""
    dim = 30
    x, y = regression(dim, 1e6)

    def loss(theta: dict[str, Tensor]) -> Tensor:
        w, s = theta["w"], theta["s"]
        return 0.5 * ((y - x @ w) / s).square().sum() + len(y) * s.log()

    start = {"w": torch.zeros(dim, dtype=torch.float64), "s": torch.tensor(1.0, dtype=torch.float64)}
    q = lb.fit(loss, DiagonalAffine(), start=start, supports={"s": Positive()})
    gram = x.mT @ x
    mean = torch.linalg.solve(gram, x.mT @ y)
    # log σ ~ N(m, v): E[loss] = ½S·e^(−2m + 2v) + (n − 1)m with S = E‖y − xw‖², and −½ log v: S·e^(−2m + 2v) = n − 1 = 1/(2v),
    # where w ~ N(mean, 1/(gram_ii·E[σ⁻²])) adds P/E[σ⁻²] to S.
    n, rss = len(y), float((y - x @ mean).square().sum())
    inverse_square = (n - 1 - dim) / rss  # E[σ⁻²], from S·E[σ⁻²] = n − 1
    sd = (gram.diagonal() * inverse_square).rsqrt()
    assert ((q.mean["w"] - mean) / sd).abs().max() < 0.05
    assert (q.stddev["w"] / sd - 1).abs().max() < 0.03
    v = 1 / (2 * (n - 1))
    m = v - 0.5 * math.log(inverse_square)  # E[σ⁻²] = e^(−2m + 2v)
    assert float(q.real.mean[-1]) == pytest.approx(m, abs=0.1 * math.sqrt(v))
    assert float(q.real.stddev[-1]) == pytest.approx(math.sqrt(v), rel=0.03)


def test_additive_family_under_correlation() -> None:
    x, y = regression(10, 1e4)
    precision = x.mT @ x / 0.25
    mean = torch.linalg.solve(precision, x.mT @ y / 0.25)
    base = Normal(0.01)
    q = lb.fit(lambda w: 0.5 * ((y - x @ w) / 0.5).square().sum(), Additive(), base, torch.zeros(10, dtype=torch.float64))
    assert ((q.mean - mean) / 0.01).abs().max() < 0.05


def test_a_run_that_has_hardly_begun_is_not_refined() -> None:
    x, y = regression(5, 1e4)
    loss = lambda w: 0.5 * ((y - x @ w) / 0.5).square().sum()  # noqa: E731
    q = lb.fit(loss, DiagonalAffine(), start=torch.zeros(5, dtype=torch.float64), steps=200, lr=1e-6)
    assert q.history.newton_steps == 0
    assert not q.history.converged


@pytest.mark.parametrize("in_pairs", [True, False])
def test_newton_step_is_exact_for_a_quadratic_loss(in_pairs: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    H = (axes * torch.logspace(-6, 0, 6, dtype=torch.float64)) @ axes.mT
    away = torch.randn(6, generator=generator, dtype=torch.float64)
    epsilon = torch.randn(10, 4, 6, generator=generator, dtype=torch.float64)
    if in_pairs:
        epsilon = torch.cat([epsilon, -epsilon], 1)
    found = newton_step(epsilon, (epsilon - away) @ H, in_pairs, 0.0, 1.0)
    assert found is not None
    # Rounding times the condition number.
    torch.testing.assert_close(found.shift, away, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.log_scale, -0.5 * H.diagonal().log(), rtol=1e-8, atol=1e-8)
    assert float(found.shift_error.max()) < 1e-8


def test_errors_of_newton_steps_are_true() -> None:
    """A loss beyond second order, ∂ℓ = Cᵀtanh(Cε) + 0.2(ε² − 1): the spread over 200 repetitions is as said."""
    generator = torch.Generator().manual_seed(0)
    C = torch.tensor([[1.0, 0.3], [0.0, 1.0]], dtype=torch.float64)
    found = []
    for _ in range(200):
        half = torch.randn(40, 8, 2, generator=generator, dtype=torch.float64)
        epsilon = torch.cat([half, -half], 1)
        gradient = torch.tanh(epsilon @ C.mT) @ C + 0.2 * (epsilon.square() - 1)
        one = newton_step(epsilon, gradient, True, 0.0, 1.0, rank=1)
        assert one is not None
        found.append(one)
    for name in ("shift", "log_scale", "columns"):
        true = torch.stack([getattr(one, name) for one in found]).std(0)
        claimed = torch.stack([getattr(one, f"{name}_error") for one in found]).mean(0)
        there = true > 0  # the column has nothing on the diagonal
        assert int(there.sum()) == (1 if name == "columns" else 2)
        ratio = claimed[there] / true[there]
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=0.2)  # 200 know it to 5 %


def test_too_few_samples_give_no_step() -> None:
    epsilon = torch.randn(1, 8, 6, dtype=torch.float64)
    assert newton_step(epsilon, epsilon, False, 0.0, 1.0) is None
    assert newton_step(torch.zeros(20, 8, 2), torch.zeros(20, 8, 2), False, 0.0, 1.0) is None


def test_other_bases() -> None:
    """Laplace noise on a correlated quadratic: the same mean; A² = τ/(h_ii·Var ε)."""
    x, y = regression(8, 1e5)
    precision = x.mT @ x / 0.25
    mean, sd = torch.linalg.solve(precision, x.mT @ y / 0.25), precision.diagonal().rsqrt()
    q = lb.fit(
        lambda w: 0.5 * ((y - x @ w) / 0.5).square().sum(), DiagonalAffine(), Laplace(), torch.zeros(8, dtype=torch.float64)
    )
    assert ((q.mean - mean) / sd).abs().max() < 0.05
    assert (q.stddev / sd - 1).abs().max() < 0.08


@pytest.mark.parametrize("there", ["an outlier", "not a number", "an error"])
def test_a_newton_step_that_is_not_seen_to_be_good_is_taken_back(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw with a loss of 10⁹ makes the standard error as large as the mean: no reason to go there."""
    run = lb.Fit(lambda t: t.square().sum(), DiagonalAffine(), start=torch.zeros(2, dtype=torch.float64))
    step = torch.ones(2, dtype=torch.float64)
    values = torch.randn(64, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = Examination(values, False, False, [([step, step], [1e-3 * step, 1e-3 * step])])

    def examine(*_: object) -> Examination:
        if there == "an error":
            raise ValueError("not defined at this draw")
        worse = values.clone()
        worse[0, 0] = 1e9 if there == "an outlier" else math.nan
        return replace(first, values=worse)

    monkeypatch.setattr(verdict, "examine", examine)
    state = run.factors[0].state
    found = verdict.refine(run.factors, run.settings, run._values, 100, 10.0, run.history, first)
    assert found is first
    assert run.factors[0].state is state
    assert run.history.newton_steps == 0
