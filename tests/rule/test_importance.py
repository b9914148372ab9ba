"""Importance weights: the Pareto fit against scipy and ArviZ, and a family's diagnosis against exact posteriors."""

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import liebayes as lb
from liebayes.bases import Laplace, Normal, Rayleigh
from liebayes.groups import DiagonalAffine, Joint, Multiplicative, Positive, Product, TriangularAffine
from liebayes.rule import pareto_fit, pareto_smoothed
from liebayes.rule.importance import worst_tail


@pytest.mark.parametrize("k", [-0.3, 0.01, 0.3, 0.7, 1.5])
def test_pareto_fit_recovers_the_shape(k: float) -> None:
    """The spread of an efficient estimate is (1 + k)/√n in k and about √2 in log σ; one like it has no more than that."""
    n = 4000
    x = torch.tensor(stats.genpareto(k, scale=2.0).rvs(n, random_state=1)).sort().values
    found, scale = pareto_fit(x)
    drawn_to_a_half = 10 * abs(0.5 - k) / n
    assert found == pytest.approx(k, abs=4 * max(1 + k, 0.5) / math.sqrt(n) + drawn_to_a_half)
    assert scale == pytest.approx(2.0, rel=4 * math.sqrt(2 * max(1 + k, 0.5) / n))


def test_pareto_fit_is_near_the_maximum_of_the_likelihood() -> None:
    x = torch.tensor(stats.genpareto(0.4, scale=3.0).rvs(500, random_state=2)).sort().values
    shape, _, scale = stats.genpareto.fit(x.numpy(), floc=0)
    found, width = pareto_fit(x)
    assert found == pytest.approx(float(shape), abs=0.3 * 1.4 / math.sqrt(500))  # a third of its standard error
    assert width == pytest.approx(float(scale), rel=0.03)


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0, 3.0])
def test_smoothing_is_that_of_arviz(spread: float) -> None:
    arviz = pytest.importorskip("arviz")
    weights = spread * torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, k = pareto_smoothed(weights)
    theirs, their_k = arviz.psislw(weights.numpy().copy())
    assert k == pytest.approx(float(their_k), abs=1e-9)
    torch.testing.assert_close(ours - torch.logsumexp(ours, 0), torch.from_numpy(theirs), rtol=1e-9, atol=1e-9)


def test_smoothing_changes_the_tail_only() -> None:
    weights = 2 * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smoothed, _ = pareto_smoothed(weights)
    tail = math.ceil(3 * math.sqrt(1000))
    order = weights.argsort()
    torch.testing.assert_close(smoothed[order[:-tail]], weights[order[:-tail]], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(smoothed[order[-tail:]], weights[order[-tail:]])
    assert float(smoothed.max()) <= float(weights.max()) + 1e-12
    assert bool((smoothed[order].diff() >= -1e-12).all())  # in the same order


def test_smoothing_where_there_is_no_tail() -> None:
    assert pareto_smoothed(torch.zeros(100))[1] == -math.inf
    assert math.isnan(pareto_smoothed(torch.randn(20))[1])


@pytest.mark.parametrize(("own", "target"), [(4.0, 3.0), (6.0, 5.5), (3.0, 2.5)])
def test_the_tail_that_a_width_rests_on(own: float, target: float) -> None:
    """Draws of density ∝ x^(−a−1) for one ∝ x^(−b−1) have w ∝ x^(a−b), with k = (a − b)/a, and wx² has k = (a − b + 2)/a."""
    generator = torch.Generator().manual_seed(0)
    log_x = torch.empty(400_000, dtype=torch.float64).exponential_(own, generator=generator)
    # Both signs, so that the mean is next to 0: about any other, squares have that tail far out only.
    x = log_x.exp() * torch.where(torch.rand(len(log_x), generator=generator) < 0.5, -1.0, 1.0)
    ratios = (own - target) * log_x
    smoothed, k = pareto_smoothed(ratios)
    other = torch.rand(len(log_x), 2, dtype=torch.float64, generator=generator)  # numbers whose deviations are bounded
    found, deviations = worst_tail({"bounded": other, "x": x}, ratios, torch.softmax(smoothed, 0))
    error = 4 * (1 + (own - target + 2) / own) / math.sqrt(3 * math.sqrt(400_000))
    assert k == pytest.approx((own - target) / own, abs=error)
    assert found == pytest.approx((own - target + 2) / own, abs=error)
    torch.testing.assert_close(deviations - deviations[0], x - x[0])  # those of x


def test_a_narrowing_posterior_is_followed_or_reported() -> None:
    """x | v ~ N(0, e^−v) in eight dimensions and v ~ N(0, 1): sd 1 of v, exactly; the Gaussian is far too narrow in v."""

    def loss(t: dict[str, Tensor]) -> Tensor:
        return 0.5 * t["v"].square() + 0.5 * t["v"].exp() * t["x"].square().sum() - 4 * t["v"]

    q = lb.fit(loss, start={"v": torch.tensor(0.0, dtype=torch.float64), "x": torch.zeros(8, dtype=torch.float64)})
    found = q.diagnose(loss)
    assert float(q.stddev["v"]) < 0.9
    assert found.misses
    assert not found.reliable or float(found.stddev["v"]) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("wider", "k"), [(1.0, -math.inf), (0.8, 0.0), (1.4, 0.49), (2.0, 0.75)])
def test_k_of_a_gaussian_that_is_too_narrow(wider: float, k: float) -> None:
    """With q = N(0, 1) and p = N(0, s²) the weights' tail has the shape 1 − 1/s²; it is found from finitely many draws."""
    q = lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(1, dtype=torch.float64)))
    found = q.diagnose(lambda t: 0.5 * (t / wider).square().sum(), draws=100_000)
    if wider == 1.0:
        assert found.pareto_k < 0
    elif wider < 1:
        assert found.pareto_k < 0.1  # bounded weights
    else:
        assert found.pareto_k == pytest.approx(k, abs=0.15)  # the largest of 1e5 draws are not yet in the limit
    # A family matched to the draws has the right width, whose tails are those of Student's t: its weights are bounded.
    assert found.reliable
    error = math.sqrt(0.5 / found.effective)  # of a Normal's standard deviation, relative
    assert float(found.stddev) == pytest.approx(wider, rel=4 * error)
    exact = math.log(wider * math.sqrt(2 * math.pi))
    assert found.log_evidence == pytest.approx(exact, abs=4 * found.log_evidence_error + 1e-9)
    assert bool(found.misses) == (wider != 1.0)


# Families.


def skewed(theta: dict[str, Tensor]) -> Tensor:
    """Minus a log density that integrates to e^−3: an exponential, and a Student t shifted by its logarithm."""
    s, x = theta["s"], theta["x"]
    t = torch.distributions.StudentT(8.0, validate_args=False)  # the validation of torch 2.6 cannot be vectorised
    return 3 + s - t.log_prob(x - s.log()) + 0 * x


def test_diagnosis_of_a_fit() -> None:
    start = {"s": torch.tensor(1.0, dtype=torch.float64), "x": torch.tensor(0.0, dtype=torch.float64)}
    q = lb.fit(skewed, start=start, supports={"s": Positive()})
    found = q.diagnose(skewed, draws=20_000)
    assert found.reliable
    # Exact: E s = 1 and sd 1; E x = E log s = −γ, Var x = π²/6 + 8/6.
    assert float(found.mean["s"]) == pytest.approx(1.0, abs=0.05)
    assert float(found.stddev["s"]) == pytest.approx(1.0, abs=0.1)
    assert float(found.mean["x"]) == pytest.approx(-0.5772, abs=0.05)
    assert float(found.stddev["x"]) == pytest.approx(math.sqrt(math.pi**2 / 6 + 8 / 6), rel=0.05)
    assert found.log_evidence == pytest.approx(-3.0, abs=5 * found.log_evidence_error)
    assert found.log_evidence > -q.history.final_objective  # the objective is a bound
    assert 1000 < found.effective < len(found.weights)
    draws = q.reweighted(skewed, (5000,), draws=20_000)
    assert float(draws["s"].mean()) == pytest.approx(1.0, abs=0.1)
    assert draws["x"].shape == (5000,)
    assert str(found).startswith(("A good fit (Pareto k = ", "Use the weighted figures, not the family's own (Pareto k = "))
    assert "log evidence -" in str(found)


def test_a_bad_fit_is_reported() -> None:
    """A mean-field fit of a narrow ridge: its tails are too short by a factor of ten."""
    precision = torch.tensor([[1.0, 0.995], [0.995, 1.0]], dtype=torch.float64)
    q = lb.fit(lambda t: 0.5 * t @ precision @ t, DiagonalAffine(), Normal(), torch.zeros(2, dtype=torch.float64))
    found = q.diagnose(lambda t: 0.5 * t @ precision @ t)
    assert found.pareto_k > 0.7
    assert "% too narrow" in found.misses[0]
    assert found.verdict.startswith("Use the weighted figures") if found.reliable else "Do not trust" in found.verdict
    if found.reliable:  # matched families have found the ridge
        sd = torch.linalg.inv(precision).diagonal().sqrt()
        torch.testing.assert_close(found.stddev, sd, rtol=0.1, atol=0)


def test_what_no_weights_repair_is_reported() -> None:
    """In forty dimensions a family of half the width has none of the mass: k is far out, and there is nothing to match."""
    q = lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(40, dtype=torch.float64), 0.5))
    found = q.diagnose(lambda t: 0.5 * t.square().sum())
    assert found.pareto_k > 0.7
    assert not found.reliable
    assert found.verdict.startswith("Do not trust this fit")


def test_mean_field_is_repaired_by_matched_families() -> None:
    """A correlation of 0.8: own widths are 0.6 of the truth, k is below 0.7, and plain weights of 4,000 draws leave 10 %."""
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance)
    element = DiagonalAffine().at(torch.zeros(2, dtype=torch.float64), 0.6)  # (1 − 0.8²)^½, the best
    found = lb.Family(DiagonalAffine(), Normal(), element).diagnose(lambda t: 0.5 * t @ precision @ t)
    assert found.reliable
    assert len(found.misses) == 2
    assert "40 % too narrow" in str(found) or "39 % too narrow" in str(found)
    error = 4 / math.sqrt(found.effective)
    torch.testing.assert_close(found.mean, torch.zeros(2, dtype=torch.float64), rtol=0, atol=error)
    torch.testing.assert_close(found.stddev, torch.ones(2, dtype=torch.float64), rtol=error, atol=0)


def test_a_loss_without_a_value() -> None:
    q = lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(2)))
    found = q.diagnose(lambda t: t.log().sum())
    assert math.isnan(found.pareto_k)
    assert not found.reliable
    assert found.verdict.startswith("No verdict")
    # A loss of +∞ is a weight of 0: half of a normal, whose mass is ½.
    half = q.diagnose(lambda t: torch.where(t[0] > 0, 0.5 * t.square().sum(), math.inf))
    assert half.log_evidence == pytest.approx(math.log(math.pi), abs=0.1)


@pytest.mark.parametrize("vectorize", [True, False])
def test_temperature_and_loops(vectorize: bool) -> None:
    """N(1, τ) itself: all weights are the same, and the evidence is √(2πτ)."""
    q = lb.Family(TriangularAffine(), Normal(), TriangularAffine().at(torch.ones(1, dtype=torch.float64), math.sqrt(0.3)))
    found = q.diagnose(lambda t: 0.5 * (t - 1).square().sum(), 200, temperature=0.3, vectorize=vectorize)
    assert found.log_evidence == pytest.approx(0.5 * math.log(2 * math.pi * 0.3), abs=1e-9)
    assert found.effective == pytest.approx(200)


FAMILIES: list[Any] = [
    lb.Family(DiagonalAffine(), Laplace(), DiagonalAffine().at(torch.zeros(2, 2))),
    lb.ProductFamily(
        Product(a=DiagonalAffine(), b=Product(Multiplicative())),
        {
            "a": lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(2))),
            "b": lb.ProductFamily(
                Product(Multiplicative()), (lb.Family(Multiplicative(), Rayleigh(), Multiplicative().at(torch.ones(1))),)
            ),
        },
    ),
    lb.JointFamily(
        lb.Family(TriangularAffine(), Normal(), TriangularAffine().at(torch.zeros(3))),
        Joint.of({"w": torch.zeros(2), "s": torch.tensor(1.0)}, {"s": Positive()}),
    ),
]
NAMES = [
    ["theta[0, 0]", "theta[0, 1]", "theta[1, 0]", "theta[1, 1]"],
    ["a[0]", "a[1]", "b.0[0]"],
    ["w[0]", "w[1]", "s"],
]


@pytest.mark.parametrize(("q", "names"), list(zip(FAMILIES, NAMES, strict=True)), ids=["family", "product", "joint"])
def test_summary(q: Any, names: list[str]) -> None:
    table = q.summary()
    assert [row.name for row in table.rows] == names
    first = table.rows[0]
    assert first.low < first.mean < first.high
    lines = str(table).splitlines()
    assert lines[0].split() == ["mean", "sd", "5", "%", "95", "%"]
    assert len(lines) == 1 + len(names)
    assert repr(table) == str(table)
    sd = {"theta[0, 0]": math.sqrt(2), "a[0]": 1.0, "w[0]": 1.0}[first.name]
    assert first.stddev == pytest.approx(sd, rel=0.1)
    flat = q.diagnose(lambda theta: 0.0 * sum(t.sum() for t in torch.utils._pytree.tree_leaves(theta)), 50)
    assert flat.own == 50
    assert len(flat.weights) % 50 == 0


def test_summary_of_many_parameters_is_cut() -> None:
    q = lb.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(1000)))
    assert len(str(q.summary(100)).splitlines()) == 62


@pytest.mark.parametrize("q", FAMILIES, ids=["family", "product", "joint"])
def test_draws_for_arviz(q: Any) -> None:
    arviz = pytest.importorskip("arviz")
    table = arviz.summary(q.to_arviz(500))
    assert len(table) == len(q.summary(30).rows)


def test_arviz_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "arviz", None)
    with pytest.raises(ModuleNotFoundError, match="pip install arviz"):
        FAMILIES[0].to_arviz()
