"""When a run ends: the trend of the objective against its noise, averaged steps, and samples that suit the dimension."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.groups import DiagonalAffine, TriangularAffine
from liebayes.rule import Convergence
from liebayes.variational.stopping import ACCURACY, Stopping


def _noise(seed: int) -> list[float]:
    return torch.randn(400, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_a_falling_objective_is_not_settled_and_a_noisy_one_is(rate: float) -> None:
    """Whatever the size of the fall: the test is by ranks. Steps keep their schedule until then."""
    stopping = Stopping(0.1, 10, 100_000)
    for number in range(1, 41):
        assert not stopping.see(10 * number, 0.5, 1e6 * math.exp(-rate * number), 0.0)
    assert stopping.rate(410, 0.5) == 0.5
    for number, value in enumerate(_noise(0)[:60], start=41):
        stopping.see(10 * number, 0.5, value, 1.0)
    assert stopping.rate(1010, 0.5) < 0.5


def test_chance_alone_settles_nearly_always_at_the_first_full_window() -> None:
    """The rank test is wrong for one series in forty, in expectation: 1,000 series, five standard deviations."""
    wrong = 0
    for seed in range(1000):
        stopping = Stopping(0.1, 10, 100_000)
        for number, value in enumerate(_noise(seed)[:20], start=1):
            stopping.see(10 * number, 1.0, value, 1.0)
        wrong += stopping.rate(210, 1.0) == 1.0
    assert wrong < 1000 * 0.025 + 5 * math.sqrt(1000 * 0.025)


def test_steps_after_settling_average_the_noise() -> None:
    """x ← x − αₜ(x + ξₜ) with these steps ends at minus the mean of the ξ, the first 1/α of them taken as what x was."""
    stopping, alpha = Stopping(0.1, 10, 100_000), 0.1
    for number, value in enumerate(_noise(3)[:100], start=1):
        stopping.see(number, 1.0, value, 1.0)
        if stopping.rate(number + 1, 1.0) < 1:
            break
    x, kicks = 2.0, _noise(1)
    for t, kick in enumerate(kicks, start=1):
        x -= alpha * stopping.rate(number + t, 1.0) * (x + kick)
    assert x == pytest.approx((2.0 / alpha - sum(kicks)) / (1 / alpha + len(kicks)), rel=1e-9)


def test_a_noisy_run_ends_early_and_right() -> None:
    """A Laplace target, which is not in the family: the best Gaussian has E[∇²ℓ] = 1/σ², so 2φ(0)/σ = 1/σ², σ = √(π/2)."""
    q = lb.fit(lambda t: t.abs().sum(), start=torch.full((3,), 4.0, dtype=torch.float64), samples=64, seed=1)
    assert q.history.stopped.startswith("settled")
    assert q.history.converged is Convergence.CONVERGED
    assert q.history.step[-1] < 2000
    width = math.sqrt(math.pi / 2)
    # Five times the noise at which a run ends.
    assert float(q.mean.abs().max()) < 5 * ACCURACY * width
    assert float((q.stddev / width).log().abs().max()) < 5 * ACCURACY


def test_a_run_that_seems_settled_goes_on_while_a_full_step_would_move_it() -> None:
    """A mean-field family without Newton's steps (above 256 dimensions) creeps under correlation, below its own noise."""
    size = 300
    root = torch.eye(size, dtype=torch.float64) + 3 / size**0.5  # one direction in which the precision is large

    def loss(theta: Tensor) -> Tensor:
        return 0.5 * (root @ (theta - 5)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lb.FitWarning)
        q = lb.fit(loss, DiagonalAffine(), start=torch.zeros(size, dtype=torch.float64), steps=400)
    assert q.history.converged is Convergence.MOVING or float((q.mean - 5).abs().max()) < 0.1 * float(q.stddev.max())


def test_samples_follow_the_dimension_and_step_sizes_the_samples() -> None:
    """16, until a row of the matrix has too many numbers; with fewer samples the steps of the scales are shorter."""

    def run(group: lb.groups.LieGroup, size: int, **options: int) -> lb.Fit:
        return lb.Fit(lambda t: t.square().sum(), group, start=torch.zeros(size), **options)

    assert run(TriangularAffine(), 50).settings.samples == 16
    assert run(DiagonalAffine(), 5000).settings.samples == 16
    assert run(TriangularAffine(), 649).settings.samples == math.ceil(650 / 9) * 2
    assert run(TriangularAffine(), 649)._scale_lr == pytest.approx(0.1, rel=0.02)
    assert run(TriangularAffine(), 649, samples=10)._scale_lr == pytest.approx(5 / (5 + 650))


def test_full_rank_in_many_dimensions_converges() -> None:
    """160 dimensions, correlated: at 16 samples and steps of 0.1 the noise of a step would be nine times its signal.

    The target is in the family, so that nothing but the run's own convergence is left.
    """
    size, generator = 160, torch.Generator().manual_seed(0)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5 + torch.eye(size)
    precision = root @ root.mT

    def loss(theta: Tensor) -> Tensor:
        return 0.5 * theta @ precision @ theta

    for samples in (None, 16):
        q = lb.fit(loss, start=torch.ones(size, dtype=torch.float64), samples=samples, steps=1200)
        # KL(q ‖ p) = ½(tr ΛΣ − P − log det ΛΣ) + ½μΛμ
        product = precision @ q.covariance
        kl = 0.5 * (product.trace() - size - torch.linalg.slogdet(product).logabsdet + q.mean @ precision @ q.mean)
        assert float(kl) < 0.05, samples
        assert q.history.converged


def test_samples_grow_where_noise_is_all_that_is_left() -> None:
    """A loss with noise of its own, of which 16 samples leave 3/√16/√2000 widths at least after all steps: more than 0.01."""

    def loss(theta: Tensor) -> Tensor:
        return (0.5 * theta.square() + 3 * torch.randn_like(theta) * theta).sum()

    found = {}
    for samples in (None, 16):
        with lb.Fit(loss, start=torch.full((1,), 3.0, dtype=torch.float64), samples=samples) as run:
            while run.step():
                pass
            found[samples] = run.result()
    assert found[16].history.stopped.startswith("all")
    assert found[None].history.stopped.startswith("settled")
    assert float(found[None].mean.abs()) < 5 * ACCURACY
    assert float(found[None].stddev.log().abs()) < 5 * ACCURACY


def test_many_samples_do_not_grow() -> None:
    """What a step needs in many dimensions is beyond what samples grow to."""
    run = lb.Fit(lambda t: t.square().sum(), TriangularAffine(), start=torch.zeros(649))
    assert run._samples <= run._most < 2 * run._samples


def test_an_examination_that_fails_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    examine, failures = lb.Fit._examine, []

    def once(run: lb.Fit) -> object:
        if not failures:
            failures.append(run.steps)
            raise ValueError("not defined at this draw")
        return examine(run)

    monkeypatch.setattr(lb.Fit, "_examine", once)
    q = lb.fit(lambda t: t.abs().sum(), start=torch.full((3,), 4.0, dtype=torch.float64), samples=64, seed=1)
    assert q.history.converged is Convergence.CONVERGED
    assert q.history.step[-1] > failures[0]
