"""A user's own groups, written with the five methods alone, through the whole library (see `user_defined.py`)."""

import math

import pytest
import torch
from oracles.expectation import nodes_and_weights
from support.registry import BASES
from support.user_defined import IsotropicAffine, Logistic, PlainDiagonalAffine, Rapidity, SinhShift

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import LieGroup, LogScale


class CommonScale(LieGroup[LogScale]):
    """θ ↦ aθ with one a > 0 for a vector of positive numbers."""

    positive = True
    affine_action = True

    def __init__(self, size: int) -> None:
        self.size = size

    def identity(self, like: torch.Tensor) -> LogScale:
        return LogScale(like.new_zeros(1))

    def compose(self, g: LogScale, h: LogScale) -> LogScale:
        return LogScale(g.log_scale + h.log_scale)

    def inverse(self, g: LogScale) -> LogScale:
        return LogScale(-g.log_scale)

    def act(self, g: LogScale, theta: torch.Tensor) -> torch.Tensor:
        return g.log_scale.exp() * theta

    def exp(self, X: LogScale) -> LogScale:
        return X

    def event_shape(self, g: LogScale) -> torch.Size:
        return torch.Size((self.size,))


def quiet(**settings: object) -> dict[str, object]:
    return {"progress": False, **settings}


def test_user_groups_override_nothing_that_is_derived() -> None:
    """Nothing of theirs overrides what is derived: the laws that run over them judge the defaults."""
    derived = {"adjoint", "bracket", "velocity", "pullback", "log_jacobian", "divergence", "flat", "sharp", "variance"}
    for group in (IsotropicAffine, SinhShift, PlainDiagonalAffine):
        assert not derived & set(vars(group))


def test_isotropic_fit_of_a_quadratic() -> None:
    """ℓ = Σ ½h_i(θ_i − m_i)²: b* = m, and P·τ = a²·Σh_i with a unit Normal."""
    m, h = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    q = lb.fit(
        lambda theta: (0.5 * h * (theta - m).square()).sum(),
        IsotropicAffine(),
        Normal(),
        torch.zeros(3, dtype=torch.float64),
        **quiet(steps=600, samples=32),
    )
    scale = float(q.element.log_scale.exp())
    assert scale == pytest.approx(math.sqrt(3 / float(h.sum())), rel=0.04)
    torch.testing.assert_close(q.mean, m, rtol=0, atol=0.1 * scale)
    assert float(q.entropy()) == pytest.approx(3 * (0.5 * math.log(2 * math.pi * math.e) + math.log(scale)), abs=1e-9)


def test_isotropic_fit_on_a_user_base() -> None:
    """On a logistic base: P·τ = a²·Var(ε)·Σh_i with Var(ε) = π²/3."""
    q = lb.fit(
        lambda theta: 2.0 * (theta - 1).square().sum(),
        IsotropicAffine(),
        Logistic(),
        torch.zeros(2, dtype=torch.float64),
        **quiet(steps=600, samples=32),
    )
    assert float(q.element.log_scale.exp()) == pytest.approx(math.sqrt(1 / (4 * math.pi**2 / 3)), rel=0.04)
    torch.testing.assert_close(q.mean, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.05)


@pytest.mark.parametrize("entropy", ["exact", "samples"])
def test_sinh_fit_recovers_a_member_of_its_family(entropy: str) -> None:
    """A realizable target of an action that is not affine: the fit is g*, by either estimate of the entropy's gradient."""
    group, best = SinhShift(), Rapidity(torch.tensor([0.8, -0.5], dtype=torch.float64))
    target = lb.Family(group, Normal(), best)
    q = lb.fit(
        lambda theta: -target.log_prob(theta),
        group,
        Normal(),
        torch.zeros(2, dtype=torch.float64),
        **quiet(steps=400, samples=16, entropy=entropy),
    )
    torch.testing.assert_close(q.element.rapidity, best.rapidity, rtol=0, atol=0.02 if entropy == "exact" else 1e-3)


def test_the_history_of_an_action_that_is_not_affine() -> None:
    """With minus a normalised log density as the loss, the objective is a KL divergence: 0 for a target in the family."""
    target = lb.Family(SinhShift(), Normal(), Rapidity(torch.full((2,), 0.7, dtype=torch.float64)))
    q = lb.fit(
        lambda theta: -target.log_prob(theta),
        SinhShift(),
        Normal(),
        torch.zeros(2, dtype=torch.float64),
        **quiet(steps=300, samples=4000, record_every=1),
    )
    theta = q.sample((20000,), torch.Generator().manual_seed(0))
    assert q.history.expected_loss[-1] == pytest.approx(float(-target.log_prob(theta).mean()), abs=0.1)
    assert q.history.objective[-1] == pytest.approx(0.0, abs=0.1)
    assert q.history.objective[0] > 0.3


def test_the_jacobian_of_an_affine_action_is_not_repeated_per_draw() -> None:
    """The Jacobian of an affine action is one for all draws, not a matrix for each: that would be 5 GB."""
    kept = IsotropicAffine().log_jacobian(IsotropicAffine().at(torch.zeros(100), 2.0), torch.zeros(7, 100))
    assert kept.shape == ()
    assert float(kept) == pytest.approx(100 * math.log(2), rel=1e-6)


def test_one_scale_for_positive_numbers_has_a_metric_on_a_base_with_an_edge() -> None:
    """θ ↦ aθ carries no mass over 0: ω = P·c_X, and c_X = 1 for the exponential distribution."""
    form = lb.Fisher().on(CommonScale(3), lb.bases.Exponential(), LogScale(torch.zeros(1)))
    assert float(form.flat(LogScale(torch.ones(1))).log_scale) == pytest.approx(3.0, rel=0.03)


def test_sinh_metric_by_hand() -> None:
    """r(ε) = −(ε/√(1 + ε²) + s√(1 + ε²)), from div and score of the velocity √(1 + ε²)."""
    x, w = nodes_and_weights(BASES[0])
    root = (1 + x.square()).sqrt()
    expected = float((w * (x / root - x * root).square()).sum())
    g = Rapidity(torch.zeros(2, dtype=torch.float64))
    form = lb.Fisher().on(SinhShift(), Normal(), g)
    flat = form.flat(Rapidity(torch.tensor([1.0, -2.0], dtype=torch.float64)))
    torch.testing.assert_close(flat.rapidity, torch.tensor([expected, -2 * expected], dtype=torch.float64), rtol=1e-8, atol=0)


def test_sinh_family_has_no_closed_mean() -> None:
    q = lb.Family(SinhShift(), Normal(), Rapidity(torch.ones(2)))
    with pytest.raises(ValueError, match="estimate it from samples"):
        _ = q.mean


def test_a_group_without_at_starts_from_an_element() -> None:
    with pytest.raises(ValueError, match="Implement `at"):
        lb.fit(lambda t: t.square().sum(), PlainDiagonalAffine(), Normal(), torch.zeros(2), **quiet(steps=2))
    start = PlainDiagonalAffine().identity(torch.zeros(2, dtype=torch.float64))
    q = lb.fit(lambda t: 2 * (t - 1).square().sum(), PlainDiagonalAffine(), Normal(), start, **quiet(steps=400))
    torch.testing.assert_close(q.element.log_scale.exp(), torch.full((2,), 0.5, dtype=torch.float64), rtol=0.04, atol=0)
    torch.testing.assert_close(q.mean, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.05)


def test_too_many_directions_for_a_gram_matrix() -> None:
    group = IsotropicAffine()
    with pytest.raises(ValueError, match="too many to invert"):
        lb.Fisher().on(group, Normal(), group.identity(torch.zeros(5000)))


def test_an_unfinished_group_is_refused() -> None:
    class Half(SinhShift, LieGroup):
        act = LieGroup.act

    with pytest.raises(TypeError, match="abstract"):
        Half()
