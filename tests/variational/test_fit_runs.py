"""How `fit` runs: the loop over samples, seeds, the history, convergence, progress, starts and tiny steps."""

import math

import numpy as np
import pytest
import torch
from support.targets import deviations, gaussian, logistic_loss, quadratic
from torch import Tensor

import liebayes as lb
from liebayes.bases import Dirac, Exponential, Gumbel, LogNormal, Normal, Rayleigh, Uniform
from liebayes.groups import Additive, DiagonalAffine, Multiplicative, TriangularAffine


def test_loop_over_samples_equals_the_vectorised_loss() -> None:
    mean, _, precision = gaussian(4, 10.0, seed=9, dtype=torch.float64)
    start = torch.zeros(4, dtype=torch.float64)
    one, other = (
        lb.fit(quadratic(mean, precision), TriangularAffine(), Normal(), start, vectorize=v, steps=60) for v in (True, False)
    )
    torch.testing.assert_close(one.element, other.element, rtol=1e-9, atol=1e-9)


def test_loss_that_branches_on_values_runs_in_the_loop() -> None:
    def loss(t: Tensor) -> Tensor:
        return t.square().sum() if float(t.detach().sum()) > 0 else 2 * t.square().sum()

    q = lb.fit(loss, DiagonalAffine(), Normal(), torch.ones(2), vectorize=False, steps=50)
    assert torch.isfinite(q.mean).all()


def test_random_loss_has_its_own_noise_for_every_sample() -> None:
    """The mean of 16 numbers of its own has a quarter of the spread of one for all."""
    torch.manual_seed(0)
    q = lb.fit(
        lambda t: torch.randn(()) + 0 * t.sum(), DiagonalAffine(), Normal(), torch.ones(2), samples=16, steps=200,
        record_every=1, tolerance=0.0,
    )  # fmt: skip
    assert float(torch.tensor(q.history.expected_loss).std()) == pytest.approx(0.25, rel=0.25)


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
def test_a_seed_fixes_the_run_to_the_bit(group: lb.groups.LieGroup) -> None:
    def run(seed: int) -> lb.Family:
        torch.rand(3)  # the global generator plays no part
        return lb.fit(logistic_loss, group, Normal(), torch.zeros(31), steps=40, seed=seed)

    first, again, other = run(3), run(3), run(4)
    for a, b in zip(first.element, again.element, strict=True):
        assert torch.equal(a, b)
    assert first.history.objective == again.history.objective
    assert not torch.equal(first.mean, other.mean)


def test_history() -> None:
    q = lb.fit(logistic_loss, DiagonalAffine(), Normal(), torch.zeros(31), steps=55, temperature=0.5)
    history = q.history
    assert isinstance(history, lb.rule.History)
    assert history.step == [10, 20, 30, 40, 50, 55]
    figures = (history.objective, history.expected_loss, history.entropy, history.gradient_norm, history.bounded)
    assert all(len(values) == 6 for values in figures)
    assert all(math.isfinite(x) for values in figures for x in values)
    for objective, expected, entropy in zip(history.objective, history.expected_loss, history.entropy, strict=True):
        assert objective == pytest.approx(expected - 0.5 * entropy)
    assert history.objective[-1] < history.objective[0]
    assert history.bounded == sorted(history.bounded)
    assert history.bounded[0] > 0  # from a start this far, steps are bounded
    assert history.seconds > 0
    assert history.steps_per_second == pytest.approx(55 / history.seconds)
    assert history.stopped == "all 55 steps taken"


def test_the_first_objective_is_that_of_the_start() -> None:
    """Loss and entropy belong to one member, the one the samples are of."""
    q = lb.fit(
        lambda t: 0.5 * t.square().sum(), DiagonalAffine(), Normal(), torch.zeros(100), initial_scale=10.0, samples=4096,
        steps=1, lr=0.5,
    )  # fmt: skip
    start = lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(100), 10.0))
    assert q.history.entropy == pytest.approx([float(start.entropy())])
    assert q.history.objective == pytest.approx([5000 - float(start.entropy())], rel=0.01)
    assert abs(float(q.entropy() - start.entropy())) > 1


def test_the_gradient_norm_is_euclidean() -> None:
    q = lb.fit(lambda t: 3 * t[0] + 4 * t[1], Additive(), Dirac(), torch.zeros(2), metric=lb.Absorbed(), steps=1, lr=0.1)
    assert q.history.gradient_norm == pytest.approx([5.0])


def test_a_paused_schedule_is_not_convergence() -> None:
    q = lb.fit(
        lambda t: 0.5 * (t - 1).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2), steps=400,
        schedule=lambda done: np.float32(done >= 0.1),
    )  # fmt: skip
    assert (q.mean - 1).abs().max() < 0.05


@pytest.mark.parametrize("width", [0.001, 0.003])
def test_short_steps_of_a_narrow_base_are_not_convergence(width: float) -> None:
    """Under `Additive` with the Fisher metric steps are as short as the base is narrow: they are judged in its widths."""
    loss = lambda t: 0.5 * (t - 10).square().sum()  # noqa: E731
    q = lb.fit(loss, Additive(), Normal(width), torch.zeros(2), steps=200)
    assert q.history.stopped == "all 200 steps taken"
    q = lb.fit(loss, Additive(), Normal(width), torch.zeros(2), metric=lb.Absorbed())
    torch.testing.assert_close(q.mean, torch.full((2,), 10.0), rtol=0, atol=width)


def test_three_quiet_records_are_convergence() -> None:
    q = lb.fit(lambda t: 0 * t.sum(), Additive(), Dirac(), torch.zeros(2), metric=lb.Absorbed())
    assert q.history.step == [10, 20, 30]
    assert q.history.stopped.startswith("converged")


def test_floats_and_tensors_as_whole_numbers() -> None:
    q, same = (
        lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Normal(), torch.ones(2), **options)
        for options in (
            {"steps": 2e1, "samples": 4.0, "record_every": 5.0, "lr": torch.tensor(0.25), "max_step": torch.tensor(0.5)},
            {"steps": 20, "samples": 4, "record_every": 5, "lr": 0.25, "max_step": 0.5},
        )
    )
    assert torch.equal(q.mean, same.mean)


def test_record_every() -> None:
    q = lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Normal(), torch.ones(2), steps=7, record_every=3, tolerance=0.0)
    assert q.history.step == [3, 6, 7]


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"steps": 40, "tolerance": 0.0}
    loss = lambda t: t.square().sum()  # noqa: E731
    lb.fit(loss, DiagonalAffine(), Normal(), torch.ones(2), progress=True, **options)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("fit 10/40  objective ")
    assert lines[-1].startswith("fit 40/40  objective ")
    lb.fit(loss, DiagonalAffine(), Normal(), torch.ones(2), progress=False, **options)
    lb.fit(loss, DiagonalAffine(), Normal(), torch.ones(2), **options)  # no terminal here
    assert capsys.readouterr().err == ""


def test_live_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Normal(), torch.ones(2), steps=20, tolerance=0.0)
    assert "fit" in capsys.readouterr().err


def test_stops_early_only_when_nothing_moves() -> None:
    loss = lambda t: 0.5 * (t - 3).square().sum()  # noqa: E731
    early = lb.fit(loss, DiagonalAffine(), Normal(), torch.zeros(2))
    assert early.history.step[-1] < 2000
    assert early.history.stopped == "converged: no coordinate moves by more than 1e-05 at the full step size"
    assert (early.mean - 3).abs().max() < 1e-3
    to_the_end = lb.fit(loss, DiagonalAffine(), Normal(), torch.zeros(2), tolerance=0.0, steps=400)
    assert to_the_end.history.step[-1] == 400


def test_start_from_an_element() -> None:
    group = TriangularAffine()
    mean, covariance, precision = gaussian(3, 10.0, seed=10)
    loss = quadratic(mean, precision)
    first = lb.fit(loss, group, Normal(), torch.zeros(3), steps=100)
    before = [block.clone() for block in first.element]
    onwards = lb.fit(loss, group, Normal(), first.element)
    assert max(deviations(onwards, mean, covariance)) < 0.01
    for block, kept in zip(first.element, before, strict=True):
        assert torch.equal(block, kept)  # the start is not written to
    still = lb.fit(loss, group, Normal(), first.element, lr=1e-9, steps=1)
    torch.testing.assert_close(still.element, first.element, rtol=1e-5, atol=1e-6)


def test_start_is_the_mean_and_is_left_alone() -> None:
    start = torch.tensor([0.5, 3.0])
    for base in (Rayleigh(), Exponential(2.0), LogNormal(0.5)):
        q = lb.fit(lambda t: t.sum(), Multiplicative(), base, start, steps=1, lr=1e-9)
        torch.testing.assert_close(q.mean, torch.tensor([0.5, 3.0]), rtol=1e-5, atol=0)
    away = lb.bases.from_distribution(torch.distributions.Normal(10.0, 0.5))
    for group in (Additive(), DiagonalAffine(), TriangularAffine()):
        for base in (Gumbel(), away):
            q = lb.fit(lambda t: t.sum(), group, base, start, steps=1, lr=1e-9, initial_scale=1.0)
            torch.testing.assert_close(q.mean, torch.tensor([0.5, 3.0]), rtol=1e-5, atol=1e-6)
    q = lb.fit(lambda t: t.sum(), DiagonalAffine(), away, start, steps=1, lr=1e-9, initial_scale=0.1)
    torch.testing.assert_close(q.mean, torch.tensor([0.5, 3.0]), rtol=1e-5, atol=1e-6)
    leaf = torch.zeros(2, requires_grad=True)
    lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Normal(), leaf, steps=3)
    assert leaf.grad is None
    assert torch.equal(leaf.detach(), torch.zeros(2))


def test_parameters_of_a_captured_module_get_no_gradient() -> None:
    layer = torch.nn.Linear(2, 1)
    lb.fit(lambda t: layer(t).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2), steps=3)
    assert layer.weight.grad is None


def test_antithetic_pairs_cancel_the_noise_of_a_slope() -> None:
    # On a slope the scale's covector is −τ exactly; without pairs the slope's noise drowns it.
    start = DiagonalAffine().at(torch.zeros(50), scale=1.0)
    options = {"steps": 1, "lr": 0.01, "entropy": "exact", "max_step": None}
    loss = lambda t: 1e3 * t.sum()  # noqa: E731
    paired = lb.fit(loss, DiagonalAffine(), Normal(), start, **options)
    torch.testing.assert_close(paired.element.log_scale, torch.full((50,), 0.01 / 2), rtol=0, atol=1e-4)
    single = lb.fit(loss, DiagonalAffine(), Normal(), start, antithetic=False, **options)
    assert single.element.log_scale.abs().max() > 0.1


def test_only_even_bases_are_drawn_in_pairs() -> None:
    seen: list[Tensor] = []

    def loss(t: Tensor) -> Tensor:
        seen.append(t.detach())
        return t.square().sum()

    for base, paired in ((Normal(), True), (Uniform(), True), (Gumbel(), False)):
        seen.clear()
        lb.fit(loss, Additive(), base, torch.zeros(1), steps=1, samples=5, vectorize=False, metric=lb.Absorbed())
        noise = torch.stack(seen[:5]).flatten()  # the rest is for the verdict
        assert torch.equal(noise[3:], -noise[:2]) == paired


@pytest.mark.parametrize(
    ("group", "base", "start", "scale"),
    [
        (DiagonalAffine(), Normal(), 0.0, 1e-6),
        (TriangularAffine(), Normal(), 0.0, 1e-6),
        (Multiplicative(), Exponential(), 1e-6, 1.0),
    ],
    ids=str,
)
def test_tiny_steps_of_tiny_scales_add_up(group: lb.groups.LieGroup, base: lb.bases.Base, start: float, scale: float) -> None:
    # A flat loss: every step adds α/c to the logarithm of the scale, less than half a unit in the last place of log(1e-6).
    options = {"steps": 1000, "lr": 1e-7 * base.fisher_scale, "schedule": "constant", "entropy": "exact", "tolerance": 0.0}
    q = lb.fit(lambda t: 0 * t.sum(), group, base, torch.full((3,), start), initial_scale=scale, **options)
    assert q.stddev.tolist() == pytest.approx([1e-6 * math.exp(1e-4)] * 3, rel=2e-6)


def test_runs_under_no_grad() -> None:
    with torch.no_grad():
        q = lb.fit(lambda t: (t - 1).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2), steps=200)
    assert (q.mean - 1).abs().max() < 0.1


def test_a_schedule_is_a_factor_on_the_step() -> None:
    seen: list[float] = []

    def schedule(done: float) -> float:
        seen.append(done)
        return 0.0

    start = torch.tensor([1.0, 2.0])
    q = lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Normal(), start, schedule=schedule, steps=4, tolerance=0.0)
    assert seen == [0.0, 0.25, 0.5, 0.75]
    assert torch.equal(q.mean, start)
