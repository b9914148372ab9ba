"""Bad input to `fit`: one clear `ValueError` each, that says what was expected, what came and what to do."""

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.bases import Exponential, Gumbel, Laplace, LogNormal, Normal, Rayleigh, Uniform
from liebayes.groups import (
    Additive,
    Affine,
    DiagonalAffine,
    LogScale,
    Multiplicative,
    Product,
    ScaleShift,
    Shift,
    TriangularAffine,
)


def bowl(theta: Tensor) -> Tensor:
    return theta.square().sum()


def refused(*words: str, loss: Any = bowl, group: Any = None, base: Any = None, start: Any = None, **options: Any) -> None:
    """`fit` raises a ValueError before the first step, and its message has all the words."""
    group = DiagonalAffine() if group is None else group
    base = Normal() if base is None else base
    start = torch.zeros(3) if start is None else start
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        lb.fit(loss, group, base, start, **options)
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert not isinstance(caught.value, lb.FitError)


# Supports.


def test_negative_start_for_the_multiplicative_group() -> None:
    start = torch.tensor([1.0, -0.25])
    refused(
        "Multiplicative", "positive", "-0.25", "Give a positive point", group=Multiplicative(), base=Rayleigh(), start=start
    )
    refused("positive", "value of 0", group=Multiplicative(), base=Rayleigh(), start=torch.zeros(2))


@pytest.mark.parametrize("base", [Normal(), Uniform(), Gumbel()], ids=str)
def test_base_on_the_real_line_for_a_positive_group(base: lb.bases.Base) -> None:
    refused("Multiplicative", "positive", str(base), "Use Rayleigh", group=Multiplicative(), base=base, start=torch.ones(2))


@pytest.mark.parametrize("group", [Additive(), DiagonalAffine(), TriangularAffine(), Affine()], ids=str)
@pytest.mark.parametrize("base", [Rayleigh(), Exponential(), LogNormal()], ids=str)
def test_base_on_the_half_line_for_a_group_of_the_real_line(group: lb.groups.LieGroup, base: lb.bases.Base) -> None:
    refused(str(group), "real line", str(base), "Use Normal", group=group, base=base)


# Structures and shapes.


def test_structures_that_do_not_fit_a_product() -> None:
    by_place, by_name = Product(Additive(), Additive()), Product(a=Additive(), b=Additive())
    refused("tuple of 2 parts", "3 parts", group=by_place, start=(torch.zeros(2),) * 3)
    refused("tuple of 2 parts", "Tensor", group=by_place, start=torch.zeros(2))
    refused("the base", "tuple of 2 parts", "1 parts", group=by_place, base=(Normal(),), start=(torch.zeros(2),) * 2)
    wrong = {"a": torch.zeros(2), "c": torch.zeros(2)}
    refused("the start of a Product", "keys ['a', 'b']", "['a', 'c']", group=by_name, start=wrong)
    refused("keys ['a', 'b']", "tuple", group=by_name, start=(torch.zeros(2),) * 2)
    right = {"a": torch.zeros(2), "b": torch.zeros(2)}
    refused("the base of a Product", "keys ['a', 'b']", "['a']", group=by_name, base={"a": Normal()}, start=right)


def test_product_with_a_wrong_base_names_the_part() -> None:
    refused(
        "Multiplicative",
        "Normal",
        group=Product(Multiplicative(), Additive()),
        base=Normal(),
        start=(torch.ones(1), torch.ones(1)),
    )


@pytest.mark.parametrize("group", [TriangularAffine(), Affine()], ids=str)
def test_matrix_groups_want_vectors(group: lb.groups.LieGroup) -> None:
    refused(type(group).__name__, "vectors", "scalar", "shape (P,)", group=group, start=torch.tensor(1.0))


def test_shape_that_does_not_fit_the_loss_is_reported_by_torch_itself() -> None:
    x = torch.randn(10, 4)
    with pytest.raises(RuntimeError, match=r"size mismatch|shapes"):
        lb.fit(lambda w: (x @ w).square().sum(), DiagonalAffine(), Normal(), torch.zeros(3))


def test_bad_numbers_in_the_start_are_refused() -> None:
    refused("floating-point", "torch.int64", "Convert", start=torch.arange(3))
    refused("floating-point", "torch.complex64", start=torch.zeros(2, dtype=torch.complex64))
    refused("finite", start=torch.tensor([1.0, math.nan]))
    refused("finite", start=torch.tensor([1.0, math.inf]))


def test_element_of_another_group() -> None:
    refused("ScaleShift", "TriangularAffine", "at(point)", group=TriangularAffine(), start=DiagonalAffine().at(torch.zeros(2)))
    refused("Shift", "a ScaleShift", start=Shift(torch.zeros(2)))
    refused("Shift", "LogScale", group=Multiplicative(), base=Rayleigh(), start=Shift(torch.ones(2)))
    refused("log_scale", "(3,)", "(2,)", start=ScaleShift(torch.zeros(2), torch.zeros(3)))
    refused("floating-point", start=ScaleShift(torch.zeros(2, dtype=torch.int64), torch.zeros(2)))
    refused("log_scale", "finite", group=Multiplicative(), base=Rayleigh(), start=LogScale(torch.tensor([math.inf])))


def test_classes_and_texts_are_no_groups_or_bases() -> None:
    refused("A group was expected", "DiagonalAffine", "Pass an instance", group=DiagonalAffine)
    distribution = torch.distributions.Normal(0.0, 1.0)
    refused("A base distribution was expected", "liebayes.bases.from_distribution", base=distribution)
    refused("A base distribution was expected", "Pass an instance", base=Normal)
    refused("A base distribution was expected", "liebayes.bases.parse", base="Normal()")


@pytest.mark.parametrize("start", [None, "0", [None], object()], ids=["None", "text", "list", "object"])
def test_bad_starts_are_refused(start: Any) -> None:
    with pytest.raises(ValueError, match=r"start must be a point, such as .* or an element of DiagonalAffine"):
        lb.fit(bowl, DiagonalAffine(), Normal(), start)


# Settings.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -1.0, ("temperature", "zero or positive", "-1")),
        ("temperature", math.nan, ("temperature", "nan")),
        ("temperature", math.inf, ("temperature", "inf")),
        ("lr", 0.0, ("lr", "positive", "0.0")),
        ("lr", -0.1, ("lr", "positive", "-0.1")),
        ("scale_lr", math.inf, ("scale_lr", "finite", "inf")),
        ("max_step", 0.0, ("max_step", "positive")),
        ("max_shift", -1.0, ("max_shift", "positive")),
        ("initial_scale", 0.0, ("initial_scale", "positive")),
        ("momentum", 1.0, ("momentum", "[0, 1)", "1.0")),
        ("momentum", -0.1, ("momentum", "[0, 1)", "-0.1")),
        ("samples", 0, ("samples", "whole number", "0")),
        ("samples", 2.5, ("samples", "whole number", "2.5")),
        ("steps", 0, ("steps", "at least 1", "0")),
        ("record_every", 0, ("record_every", "at least 1")),
        ("schedule", "cosin", ("schedule", "constant, cosine, linear", "'cosin'")),
        ("entropy", "sampled", ("entropy", "auto, exact, samples", "'sampled'")),
        ("tempering", "prior", ("tempering", "entropy, kl", "'prior'")),
        ("samples", "16", ("samples must be a number", "'16'")),
        ("lr", "0.1", ("lr must be a number", "'0.1'")),
        ("lr", None, ("lr must be a number", "None")),
        ("momentum", None, ("momentum must be a number", "None")),
        ("tolerance", None, ("tolerance must be a number", "None")),
        ("seed", None, ("seed must be a number", "None")),
        ("seed", 0.5, ("seed must be a whole number", "0.5")),
        ("schedule", None, ("schedule must be a function", "None")),
        ("regulariser", 3, ("regulariser must be a function", "3")),
        ("loss", torch.ones(()), ("loss must be a function", "tensor(1.)")),
        ("metric", "fisher", ("metric must be an instance", "Fisher()", "'fisher'")),
        ("metric", lb.Fisher, ("metric must be an instance", "Fisher()")),
    ],
)
def test_settings(name: str, value: Any, words: tuple[str, ...]) -> None:
    refused(*words, **{name: value})


class Mirrored(lb.bases.Base):
    """−ε for an exponential ε: smooth under scalings, with an edge under shifts."""

    support = (-math.inf, 0.0)

    def sample(self, shape: Any, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
        return -Exponential().sample(shape, generator=generator, dtype=dtype, device=device)

    def log_prob(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, x, -math.inf)


def test_an_edge_at_the_origin_is_an_edge_under_shifts() -> None:
    """E[θ²] of b − aE has its minimum over log a and b at b = a and a² = ½: a divided by the width of the loss."""
    options: dict[str, Any] = {"metric": lb.Absorbed(), "steps": 2000}
    q = lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Mirrored(), torch.ones(1), **options)
    assert float(q.stddev) == pytest.approx(math.sqrt(0.5), rel=0.02)
    assert float(q.mean) == pytest.approx(0.0, abs=0.02)
    with pytest.raises(ValueError, match=r'entropy="samples" needs a smooth base'):
        lb.fit(lambda t: t.square().sum(), DiagonalAffine(), Mirrored(), torch.ones(1), entropy="samples", **options)


def test_entropy_at_the_samples_needs_a_smooth_base() -> None:
    refused("smooth", "Uniform", 'entropy="exact"', base=Uniform(), entropy="samples", metric=lb.Absorbed())


def test_an_element_without_an_inverse() -> None:
    element = Affine().at(torch.zeros(2))._replace(matrix=torch.zeros(2, 2))
    refused("no inverse", "Affine().at(point)", group=Affine(), base=Laplace(), start=element)


# Metrics.


def test_pairs_without_a_metric() -> None:
    """All of them are in tests/rule/test_metric.py."""
    refused("Uniform", "no Fisher metric", "does not vanish at its edge", "Absorbed()", base=Uniform())
    refused("singular", "rotations", "Normal", "TriangularAffine", "Absorbed()", group=Affine())


# Losses.


def test_loss_that_returns_a_vector() -> None:
    refused("loss", "one value", "shape (3,)", "Sum or average", loss=lambda t: t.square())
    refused("loss", "one value", "shape (3,)", "Sum or average", loss=lambda t: t.square(), vectorize=False)


def test_loss_that_returns_no_tensor() -> None:
    refused("loss", "tensor", "float", loss=lambda t: 1.0)
    refused("loss", "tensor", "NoneType", loss=lambda t: None)
    refused("regulariser", "tensor", "tuple", regulariser=lambda t: (t, t))


def test_loss_without_a_gradient() -> None:
    refused("differentiable", "no gradient", "detach()", loss=lambda t: t.detach().sum())
    refused("differentiable", "no gradient", loss=lambda t: (t > 0).sum())


def test_loss_that_cannot_be_vectorised() -> None:
    refused("vectorised", "vectorize=False", loss=lambda t: t.sum() if t.sum() > 0 else -t.sum())
    refused("vectorised", "vectorize=False", loss=lambda t: torch.tensor(t.detach().sum().item()) + t.sum())
    refused("vectorised", "vectorize=False", loss=lambda t: torch.zeros(t.shape).add_(t).sum())
    recurrent = torch.nn.LSTM(1, 1)
    refused("vectorised", "vectorize=False", loss=lambda t: recurrent(t.reshape(-1, 1, 1))[0].sum())


@pytest.mark.parametrize("vectorize", [True, False])
def test_loss_that_writes_into_its_argument(vectorize: bool) -> None:
    refused("loss writes into θ", "θ.clone()", loss=lambda t: t.mul_(2).sum(), vectorize=vectorize)


def test_loss_of_shape_one_is_a_number() -> None:
    q = lb.fit(lambda t: t.square().sum().reshape(1, 1), DiagonalAffine(), Normal(), torch.zeros(2), steps=5)
    assert torch.isfinite(q.mean).all()


def test_an_error_inside_the_loss_is_not_hidden() -> None:
    def broken(t: Tensor) -> Tensor:
        raise KeyError("a bug of the user's")

    with pytest.raises(KeyError, match="a bug of the user's"):
        lb.fit(broken, DiagonalAffine(), Normal(), torch.zeros(2))


def test_nan_loss_at_the_start() -> None:
    with pytest.raises(lb.FitError, match=r"loss was not finite at step 1\..*Start closer") as caught:
        lb.fit(lambda t: (t - 5).log().sum(), DiagonalAffine(), Normal(), torch.tensor([0.5, 1.5]))
    assert isinstance(caught.value, ValueError)
    assert caught.value.step == 1
    assert torch.equal(caught.value.family.mean, torch.tensor([0.5, 1.5]))  # the start itself
    assert caught.value.family.history.stopped == "the loss was not finite at step 1"
    copy = pickle.loads(pickle.dumps(caught.value))  # as it comes back from another process
    assert (str(copy), copy.step) == (str(caught.value), 1)
    assert torch.equal(copy.family.mean, caught.value.family.mean)


def test_nan_gradient_of_a_finite_loss() -> None:
    # The value is finite everywhere, but at negative θ autodiff multiplies the branch not taken, NaN, by 0.
    with pytest.raises(lb.FitError, match="gradient was not finite at step 1"):
        lb.fit(lambda t: torch.where(t > 0, t.sqrt(), 0.0).sum(), DiagonalAffine(), Normal(), torch.zeros(20))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("last", [2, 7, 31])
@pytest.mark.parametrize(
    ("group", "base", "start"),
    [
        (DiagonalAffine(), Normal(), torch.ones(3)),
        (TriangularAffine(), Normal(), torch.ones(3)),
        (Multiplicative(), Rayleigh(), torch.ones(3)),
        (Product(Additive(), Multiplicative()), (Normal(), Rayleigh()), (torch.ones(2), torch.ones(1))),
    ],
    ids=["diagonal", "triangular", "multiplicative", "product"],
)
def test_the_last_good_member_survives_a_loss_that_turns_bad(
    group: lb.groups.LieGroup, base: Any, start: Any, last: int, bad: float
) -> None:
    calls = 0

    def loss(theta: Any) -> Tensor:
        nonlocal calls
        calls += 1  # once for each step: the samples are vectorised
        value = sum((t - 2).square().sum() for t in (theta if isinstance(theta, tuple) else (theta,)))
        return value * bad if calls >= last else value

    options = {"schedule": "constant", "tolerance": 0.0}
    with pytest.raises(lb.FitError, match=f"loss was not finite at step {last}.*last good member") as caught:
        lb.fit(loss, group, base, start, **options)
    assert caught.value.step == last
    kept = caught.value.family
    calls = -1000
    with lb.Fit(loss, group, base, start, **options) as run:
        for _ in range(last - 2):  # the member at which the loss was finite for the last time
            run.step()
        expected = run.family
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(kept.element), leaves(expected.element), strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()
    assert kept.history.stopped == f"the loss was not finite at step {last}"
    assert all(torch.isfinite(t).all() for t in leaves(kept.sample((10,))))


@pytest.mark.parametrize("group", [DiagonalAffine(), TriangularAffine()], ids=str)
def test_a_loss_that_overflows_at_the_first_width_is_tried_at_narrower_ones(group: lb.groups.LieGroup) -> None:
    """exp(60·θ) ends at θ = 1.5 in float32. The optimum of E[e^(60θ)] − 60·E[θ] has 60·width = 1 and 60·mean = −½."""
    start = torch.zeros(2)
    q = lb.fit(lambda t: (torch.exp(60 * t) - 60 * t).sum(), group, Normal(), start, steps=600)
    assert q.history.retreats >= 1
    assert q.history.converged
    assert torch.allclose(60 * q.stddev, torch.ones(2), atol=0.03)
    assert torch.allclose(60 * q.mean, torch.full((2,), -0.5), atol=0.03)


def test_a_result_with_draws_outside_the_loss_is_not_called_converged() -> None:
    calls = 0

    def loss(t: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return t.square().sum() * (math.nan if calls == 10 else 1)  # among the fresh samples after eight steps

    with pytest.warns(lb.FitWarning, match="not finite at some draws"):
        q = lb.fit(loss, DiagonalAffine(), Normal(), torch.zeros(1), steps=8)
    assert q.history.converged is lb.rule.Convergence.LOST
