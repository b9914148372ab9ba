"""What `fit` says of its result: converged, still moving, without bound, lost; its objective with an error that is true."""

import math
import warnings
from typing import Any

import pytest
import torch
from support import targets
from support.targets import quadratic
from torch import Tensor
from torch.distributions import Normal as TorchNormal

import liebayes as lb
from liebayes.bases import Dirac, Laplace, Normal, Uniform
from liebayes.groups import Additive, DiagonalAffine, LieGroup, Positive, TriangularAffine
from liebayes.rule import Convergence


def gaussian(dim: int, condition: float) -> tuple[Tensor, Tensor]:
    """A mean and a precision."""
    mean, _, precision = targets.gaussian(dim, condition, seed=0, dtype=torch.float64)
    return mean, precision


def modes(theta: Tensor) -> Tensor:
    """Half the mass at 5 and half at −5, in every coordinate; −log of a density that integrates to 1."""
    ends = [TorchNormal(end, 1.0).log_prob(theta).sum() for end in (-5.0, 5.0)]
    return math.log(2) - torch.logaddexp(*ends)


def quietly(*arguments: Any, **settings: Any) -> Any:
    """A fit that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return lb.fit(*arguments, **settings)


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
@pytest.mark.parametrize("base", [Normal(), Normal(0.01), Laplace(3.0)], ids=str)
def test_converged(group: LieGroup, base: lb.bases.Base) -> None:
    mean, precision = gaussian(5, 4.0)
    q = quietly(quadratic(mean, precision), group, base, torch.zeros(5, dtype=torch.float64))
    assert q.history.converged is Convergence.CONVERGED
    assert q.history.converged  # in a condition
    assert q.history.verdict == Convergence.CONVERGED.value


@pytest.mark.parametrize("steps", [3, 20, 60])
def test_still_moving(steps: int) -> None:
    mean, precision = gaussian(5, 100.0)
    with pytest.warns(lb.FitWarning, match=r"still moving: one full step would move the .* of theta\[\d\] by .* more steps"):
        q = lb.fit(
            quadratic(mean + 30, precision), TriangularAffine(), Normal(), torch.zeros(5, dtype=torch.float64), steps=steps
        )
    assert q.history.converged is Convergence.MOVING
    assert not q.history.converged
    assert q.history.stopped == f"all {steps} steps taken"


def test_the_step_that_is_left_is_the_distance_to_the_optimum() -> None:
    """A full-rank family: what one full step would move is the error itself."""
    with pytest.warns(lb.FitWarning, match=r"the mean of a by 0\.\d+ standard deviations") as caught:
        q = lb.fit(
            lambda t: 0.5 * ((t["a"] - 0.6) / 2).square() + 0.5 * t["b"].square().sum(),
            start=lb.fit(
                lambda t: 0.5 * (t["a"] / 2).square() + 0.5 * t["b"].square().sum(),
                start={"a": torch.tensor(0.0), "b": torch.zeros(2)},
            ),
            steps=100,
            lr=1e-6,
        )
    words = next(str(w.message) for w in caught if issubclass(w.category, lb.FitWarning))
    assert float(words.split(" by ")[1].split()[0]) == pytest.approx(0.3, abs=0.02)
    assert float(q.mean["a"]) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("loss", "group", "direction"),
    [
        (lambda t: 0.5 * (t[0] - 1).square(), DiagonalAffine(), r"\+1\.00·theta\[1\]"),
        (lambda t: 0.5 * (t[0] + t[1] - 1).square(), TriangularAffine(), r"0\.71·theta\[0\] [+-]0\.71·theta\[1\]"),
    ],
    ids=["one coordinate", "a difference"],
)
def test_improper_target(loss: Any, group: LieGroup, direction: str) -> None:
    with pytest.warns(lb.FitWarning, match=f"grows without bound.*{direction}.*a prior"):
        q = lb.fit(loss, group, Normal(), torch.zeros(2, dtype=torch.float64))
    assert q.history.converged is Convergence.UNBOUNDED


def test_a_wide_target_is_no_improper_one() -> None:
    q = quietly(lambda t: 0.5 * (t / 1e9).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(q.stddev, torch.full((2,), 1e9, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("group", "dim"), [(DiagonalAffine(), 1), (DiagonalAffine(), 2), (TriangularAffine(), 2)], ids=str)
def test_between_symmetric_modes(group: LieGroup, dim: int) -> None:
    """From the middle one of the modes is found: KL = log 2, where the best Gaussian in the middle has more than 3."""
    q = quietly(modes, group, Normal(), torch.zeros(dim, dtype=torch.float64))
    torch.testing.assert_close(q.mean.abs(), torch.full((dim,), 5.0, dtype=torch.float64), rtol=0.01, atol=0)
    assert q.history.final_objective == pytest.approx(math.log(2), abs=0.01)


def test_symmetric_optima_are_kept() -> None:
    q = quietly(lambda t: t.abs().sum(), DiagonalAffine(), Normal(), torch.zeros(3, dtype=torch.float64))
    assert float(q.mean.abs().max()) < 0.02
    # E|sε| − log s is least at s = √(π/2).
    torch.testing.assert_close(q.stddev, torch.full((3,), math.sqrt(math.pi / 2), dtype=torch.float64), rtol=0.03, atol=0)


def test_several_starts_keep_the_best() -> None:
    """A deep mode at 6, a shallow one at −2 next to the start."""

    def loss(t: Tensor) -> Tensor:
        return -torch.logaddexp(TorchNormal(-2.0, 0.5).log_prob(t) - 4, TorchNormal(6.0, 1.0).log_prob(t)).sum()

    start = torch.tensor([-1.0], dtype=torch.float64)
    one = quietly(loss, DiagonalAffine(), Normal(), start, initial_scale=0.1)
    assert float(one.mean) == pytest.approx(-2, abs=0.1)
    assert one.history.starts == []
    wide = DiagonalAffine().at(start, 4.0)
    q = lb.fit(loss, DiagonalAffine(), Normal(), wide, starts=8, steps=300)
    assert len(q.history.starts) == 8
    assert q.history.final_objective == min(q.history.starts)
    assert float(q.mean) == pytest.approx(6, abs=0.1)
    again = lb.fit(loss, DiagonalAffine(), Normal(), wide, starts=8, steps=300)
    assert again.history.starts == q.history.starts


def test_starts_that_end_in_several_modes_are_told() -> None:
    """Two equal modes have equal objectives: it is their places that differ."""
    with pytest.warns(lb.FitWarning, match="several modes"):
        q = lb.fit(modes, TriangularAffine(), Normal(), torch.zeros(2, dtype=torch.float64), starts=8)
    assert q.history.converged
    assert q.history.modes > 0
    assert max(q.history.starts) - min(q.history.starts) < 0.01
    one = quietly(lambda t: (t - 3).square().sum(), TriangularAffine(), Normal(), torch.zeros(2), starts=3)
    assert one.history.modes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_that_runs_to_the_edge_of_its_support(dtype: torch.dtype) -> None:
    """1/s² has infinite mass at 0: in log s the target is a slope, and the fit runs down it until s is 0."""
    start = {"s": torch.ones((), dtype=dtype), "b": torch.zeros((), dtype=dtype)}
    with pytest.warns(lb.FitWarning, match="no finite mass: s has run"):
        q = lb.fit(lambda t: 2 * t["s"].log() + t["b"].square(), start=start, supports={"s": Positive()})
    assert q.history.converged is Convergence.UNBOUNDED


def test_a_start_that_fails_is_left_out() -> None:
    def loss(t: Tensor) -> Tensor:
        return torch.where(t > 0.5, math.nan, (t + 1).square()).sum() * 50

    start = DiagonalAffine().at(torch.zeros(1, dtype=torch.float64), 0.01)
    q = lb.fit(loss, DiagonalAffine(), Normal(), start, starts=3, steps=300)
    assert float(q.mean) == pytest.approx(-1, abs=0.01)
    with pytest.raises(lb.FitError):
        lb.fit(lambda t: loss(t) * math.nan, DiagonalAffine(), Normal(), start, starts=3)


@pytest.mark.parametrize(("group", "temperature"), [(DiagonalAffine(), 1.0), (TriangularAffine(), 0.2)], ids=str)
def test_the_error_of_the_final_objective_is_true(group: LieGroup, temperature: float) -> None:
    """Against the closed form at the element that was found, over 40 seeds: z-scores of mean 0 and spread 1."""
    mean, precision = gaussian(3, 4.0)
    scores = []
    for seed in range(40):
        q = lb.fit(
            quadratic(mean, precision), group, Normal(), torch.zeros(3, dtype=torch.float64),
            steps=40, seed=seed, temperature=temperature, lr=0.02,
        )  # fmt: skip
        away = q.mean - mean
        exact = 0.5 * float(away @ precision @ away + (precision * q.covariance).sum()) - temperature * float(q.entropy())
        scores.append((q.history.final_objective - exact) / q.history.final_error)
    z = torch.tensor(scores)
    assert abs(float(z.mean())) < 4 / math.sqrt(40)
    assert 0.6 < float(z.std()) < 1.6  # 40 spreads with 8 rounds each: within four of its own errors


def test_the_final_objective_has_no_noise_in_the_family() -> None:
    """Minus the log evidence, to rounding: loss + log q is the same at every sample."""
    target = torch.distributions.LogNormal(torch.tensor(1.0, dtype=torch.float64), 0.5)
    q = quietly(lambda t: 7 - target.log_prob(t), start=torch.tensor(1.0, dtype=torch.float64), supports=Positive())
    assert q.history.final_objective == pytest.approx(7, abs=1e-4)
    assert q.history.final_error < 1e-4


def test_bases_without_a_metric_are_judged_by_the_objective() -> None:
    loss = lambda t: 0.5 * (t - 3).square().sum()  # noqa: E731
    q = quietly(loss, DiagonalAffine(), Uniform(), torch.zeros(2), metric=lb.Absorbed())
    assert q.history.converged
    with pytest.warns(lb.FitWarning, match="the objective fell by"):
        q = lb.fit(
            loss, DiagonalAffine(), Uniform(), torch.zeros(2), metric=lb.Absorbed(), lr=1e-3, schedule="constant", steps=500
        )
    quietly(loss, Additive(), Dirac(), torch.zeros(2), metric=lb.Absorbed(), temperature=0.0)


# Errors on the way.


def test_an_exception_on_the_way_leaves_the_last_good_member() -> None:
    calls = 0

    def loss(t: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls >= 8:
            torch.linalg.cholesky(-torch.eye(2))
        return (t - 1).square().sum()

    with pytest.raises(lb.FitError, match=r"The loss raised _LinAlgError .* at step 8.*last good member") as caught:
        lb.fit(loss, DiagonalAffine(), Normal(), torch.zeros(2))
    assert isinstance(caught.value.__cause__, torch.linalg.LinAlgError)
    assert caught.value.step == 8
    assert caught.value.family.history.converged is Convergence.LOST
    calls = -1000
    with lb.Fit(loss, DiagonalAffine(), Normal(), torch.zeros(2)) as run:
        for _ in range(6):  # the member at which the loss had a value for the last time
            run.step()
    assert torch.equal(caught.value.family.mean, run.family.mean)


# Steps.


def test_steps_are_the_run() -> None:
    mean, precision = gaussian(4, 10.0)
    loss, start = quadratic(mean, precision), torch.zeros(4, dtype=torch.float64)
    whole = lb.fit(loss, TriangularAffine(), Normal(), start, steps=50)
    seen = []
    with lb.Fit(loss, TriangularAffine(), Normal(), start, steps=50) as run:
        while run.step():
            seen.append(run.family.mean)
        q = run.finish()
    assert run.steps == 50
    assert len(seen) == 49
    assert not torch.equal(seen[0], seen[-1])
    for ours, theirs in zip(q.element, whole.element, strict=True):
        assert torch.equal(ours, theirs)
    assert q.history.objective == whole.history.objective
    assert run.step() is False  # nothing is left to do
    assert run.steps == 50


def test_a_run_that_is_broken_off() -> None:
    with lb.Fit(lambda t: (t - 50).square().sum(), start=torch.zeros(2), steps=500) as run:
        for _ in range(5):
            run.step()
        with pytest.warns(lb.FitWarning):
            q = run.finish()
    assert q.history.stopped == "stopped after 5 steps"


def test_settings_of_a_run() -> None:
    with pytest.raises(ValueError, match="lr must be positive"):
        lb.Fit(lambda t: t.sum(), start=torch.zeros(2), lr=-1.0)
    with pytest.raises(TypeError, match="learning_rate"):
        lb.Fit(lambda t: t.sum(), start=torch.zeros(2), learning_rate=0.1)
    with pytest.raises(ValueError, match="starts must be a whole number"):
        lb.fit(lambda t: t.sum(), start=torch.zeros(2), starts=0)
