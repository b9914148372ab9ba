"""Widths learned from squares of gradients: they reach the optimum of the objective in any group, and travel."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.problems import closure_for
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes import native
from liebayes.bases import Base, Cauchy, Gumbel, Laplace, Normal, StudentT, Uniform
from liebayes.groups import Additive, Affine, DiagonalAffine, Kronecker, LieGroup, Multiplicative, TriangularAffine
from liebayes.optim.rule import GaussNewtonRule

GROUPS: list[LieGroup[Any]] = [DiagonalAffine(), TriangularAffine(), Kronecker(), Kronecker(right="diagonal")]


def optimizer_for(params: Any, group: LieGroup[Any], base: Base | None = None, **settings: Any) -> lb.LieGroupBLR:
    given = {"data_size": 100, "prior": 1.0, "curvature": "gauss-newton", "start_width": 0.01, **settings}
    return lb.LieGroupBLR(params, group, Normal() if base is None else base, given.pop("lr", 2.5), **given)


def train(optimizer: Any, loss: Callable[[Tensor], Tensor], epochs: int, size: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(size / batch))
    for _ in range(epochs):
        for chosen in torch.randperm(size, generator=generator).split(batch):

            def closure(chosen: Tensor = chosen) -> Tensor:
                optimizer.zero_grad()
                value = loss(chosen)
                value.backward()
                return value

            optimizer.step(closure)
            schedule.step()


# Optima.


@pytest.mark.parametrize("base", [Normal(), Laplace(), Uniform(1.0), StudentT(5.0), Gumbel()], ids=repr)
def test_the_width_of_a_quadratic_loss(base: Base) -> None:
    """Regression with noise 1: the mean is the ridge solution, the variance 1/(Σx² + δ) for every base with one."""
    generator = torch.Generator().manual_seed(0)
    N, scales = 400, torch.tensor([0.5, 1.0, 2.0])
    x = torch.linalg.qr(torch.randn(N, 3, generator=generator)).Q * math.sqrt(N) * scales  # orthogonal: diagonal is exact
    y = x @ torch.tensor([1.0, -0.5, 0.25]) + torch.randn(N, generator=generator)
    p = nn.Parameter(torch.full((3,), 0.1))
    optimizer = optimizer_for([p], DiagonalAffine(), base, data_size=N, lr=1.0, width_rate=0.01)
    train(optimizer, lambda i: 0.5 * (x[i] @ p - y[i]).square().mean(), 60, N, 20)
    precision = x.square().sum(0) + 1.0
    family = optimizer.families()[p]
    mean = (x.mT @ y) / precision
    assert float(((family.mean - mean) * precision.sqrt()).abs().max()) < 0.5  # of a standard deviation
    # The level is estimated from a hundred draws of three numbers, and averaged over as many steps.
    assert float((family.stddev * precision.sqrt()).log().abs().max()) < 0.25


def digits() -> tuple[Tensor, Tensor]:
    data = lb.data.load("digits")
    images = data.normalize(data.train_images).flatten(1)
    return torch.cat([images, torch.ones(len(images), 1)], 1), data.train_labels


def free_energy(family: Any, x: Tensor, y: Tensor) -> float:
    """E_q[Σ loss] + KL to N(0, 1)."""
    draws = family.sample((64,), torch.Generator().manual_seed(0))
    fit = float(torch.stack([cross_entropy(x @ W.mT, y, reduction="sum") for W in draws]).mean())
    prior = 0.5 * (family.mean.square() + family.variance + math.log(2 * math.pi)).sum()
    return fit + float(prior - family.entropy())


@pytest.mark.parametrize(("kind", "limit"), [("affine", 860), ("kronecker", 500)])
def test_ten_epochs_on_the_digits(kind: str, limit: float) -> None:
    """Softmax regression at temperature 1, prior precision 1. The optima are 751 and 447; scales learned by samples: 1,480."""
    x, y = digits()
    torch.manual_seed(0)
    model = nn.Linear(65, 10, bias=False)
    if kind == "affine":
        optimizer = lb.AffineBLR(model.parameters(), data_size=len(y), prior=1.0)
    else:
        optimizer = lb.KroneckerBLR(model.parameters(), data_size=len(y), prior=1.0)
    train(optimizer, lambda i: cross_entropy(model(x[i]), y[i]), 10, len(y), 32)
    with torch.no_grad():
        assert free_energy(optimizer.families()[model.weight], x, y) < limit


# By the kernel and in torch.


def all_tensors(
    base: Base, samples: int, prior: float | None, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch, fast: bool
) -> dict[str, Tensor]:
    """What five steps leave; after the second the settings are changed."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((40, 60), (7,), (5000,), (2, 3, 4, 5))]
    parameters[3].data = parameters[3].data.to(memory_format=torch.channels_last)
    optimizer = optimizer_for(parameters, DiagonalAffine(), base, lr=0.1, noise="philox", mc_samples=samples, prior=prior)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([((p - 0.5).square() * 3 + p.sin()).mean() for p in parameters]).sum()
        loss.backward()
        return loss

    with monkeypatch.context() as patch:
        if not fast:
            patch.setattr(native, "available", lambda: False)
        for step in range(5):
            if step == 2:
                optimizer.param_groups[0].update(then)
            optimizer.step(closure)
    states = {f"{key} {i}": value for i, p in enumerate(parameters) for key, value in optimizer.state[p].items()}
    return {f"point {i}": p.detach() for i, p in enumerate(parameters)} | {k: torch.as_tensor(v) for k, v in states.items()}


@pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("prior", [1.0, None])
@pytest.mark.parametrize("then", [{}, {"prior": 30.0, "temperature": 0.5, "data_size": 70, "width_rate": 0.1}], ids=str)
@pytest.mark.parametrize("base", [Normal(0.3), Laplace(0.2)], ids=repr)
def test_the_kernel_agrees(
    base: Base, samples: int, prior: float | None, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, expected = (all_tensors(base, samples, prior, then, monkeypatch, fast) for fast in (True, False))
    # Without a prior steps see 1 − A²·floor, of which SEEN or more is left: its relative error is that much larger.
    eps = torch.finfo(torch.float32).eps / (GaussNewtonRule.SEEN if prior is None else 1.0)
    for name, value in expected.items():
        # A few roundings a step of the largest number of the tensor; traces are sums of thousands of signed numbers.
        atol = 1e-6 if "traces" in name else float(16 * eps * value.abs().max())
        torch.testing.assert_close(mine[name].double(), value.double(), rtol=64 * eps, atol=atol, msg=name)


@pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")
def test_the_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            parameters = [nn.Parameter(torch.linspace(0.1, 2.0, n)) for n in (5, 3000, 100_000, 17)]
            optimizer = optimizer_for(parameters, DiagonalAffine(), lr=0.1)
            for k in range(3):
                with optimizer.sampled():
                    pass
                for p in parameters:
                    p.grad = torch.linspace(-1.0, 1.0, p.numel()) * (k + 1)
                optimizer.step()
            runs.append([v for p in parameters for v in (p.detach(), *optimizer.state[p].values()) if isinstance(v, Tensor)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


# As an optimizer.


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


X, Y = torch.randn(8, 1, 3, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def steps(model: nn.Module, optimizer: Any, count: int) -> None:
    x = X.to(next(model.parameters()).dtype)
    for _ in range(count):
        optimizer.step(closure_for(optimizer, model, x, Y, lambda output, y: cross_entropy(output.float(), y)))


@pytest.mark.parametrize("age", [5, 2000], ids=["young", "old"])  # old factors move every fourth step only
@pytest.mark.parametrize("samples", [1, 3])
def test_a_run_goes_on_from_a_checkpoint(samples: int, age: int) -> None:
    model = network()
    optimizer = lb.KroneckerBLR(model.parameters(), data_size=100, mc_samples=samples)
    steps(model, optimizer, 5)
    for state in optimizer.state.values():
        state["steps"] = age
    other = network()
    again = lb.KroneckerBLR(other.parameters(), data_size=100, mc_samples=samples)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, optimizer, 5)
    steps(other, again, 5)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        for name, value in optimizer.state[p].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(again.state[q][name])), name


def test_no_curvature_is_lost_while_it_waits() -> None:
    """A running mean: what the moves keep of the past is what the rates of all steps keep of it."""
    rule, rate = GaussNewtonRule(), 0.005
    kept, steps_since = 1.0, 0
    for t in range(1, 1500):
        share, count = rule.waiting(t, rate)
        steps_since += 1
        assert count == steps_since
        if share >= rule.TOGETHER:
            kept, steps_since = kept * (1 - share), 0
            assert kept == pytest.approx(rule.left_of_start(t + 1, rate), rel=1e-9)  # 1,500 roundings of 2⁻⁵³
    assert rule.waiting(1000, rate)[1] <= rule.TOGETHER / rate


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("prior", [None, 2.0])
def test_the_data_s_part_of_a_precision_follows_the_level(
    prior: float | None, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a prior A⁻² = c·mean(w²/A²)·N/τ + the floor, with the c of the last step, however c has changed before. With a
    prior it is a mean of c·w²/A²."""
    if not fast:
        monkeypatch.setattr(native, "available", lambda: False)
    levels = [0.0, 1.0, 2.0, 0.5, 3.0, 1.5]

    def given_level(self: GaussNewtonRule, traces: Tensor, steps: list[int], samples: int) -> Tensor:
        return torch.tensor([levels[steps[0]]], dtype=torch.float64)

    monkeypatch.setattr(GaussNewtonRule, "levels", given_level)
    p = nn.Parameter(torch.tensor([0.5, -0.5, 0.25]))
    optimizer = lb.AffineBLR([p], lr=0.0, data_size=100, prior=prior, momentum=0.0)
    gradients = torch.randn(len(levels), 3, generator=torch.Generator().manual_seed(0))
    squares, size, point = torch.zeros(3).double(), float(p.detach().square().mean().sqrt()), p.detach().double()
    temperature, pull = optimizer.param_groups[0]["temperature"], 0.7 if prior is None else prior
    given = 1 / (0.01 * size) ** 2
    for t, gradient in enumerate(gradients):
        with optimizer.sampled():
            pass
        p.grad = gradient.clone()
        optimizer.step()
        if t:
            rate = max(0.005, min(0.15, 5 / (t + 10)))
            level = 1.0 if prior is None else levels[t]
            squares = (1 - rate) * squares + rate * level * (gradient.double() + pull / 100 * point).square()
            given = (1 - rate) * given + rate * (1 / size**2 if prior is None else prior / temperature)
    expected = (levels[-1] if prior is None else 1.0) * 100 / temperature * squares + given
    found = optimizer.families()[p].variance.double().reciprocal()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0.0)  # six float32 steps on logarithms of some ten


@pytest.mark.parametrize("together", [0.0, 0.02])
def test_every_gradient_counts(together: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old factors, and gradients that alternate between two columns: both columns are narrower than the third."""
    monkeypatch.setattr(GaussNewtonRule, "TOGETHER", together)
    p = nn.Parameter(torch.ones(2, 3))
    optimizer = lb.KroneckerBLR([p], lr=0.0, data_size=100, prior=1.0, temperature=1.0, start_width=None)
    for t in range(400):
        with optimizer.sampled():
            pass
        p.grad = torch.zeros(2, 3)
        p.grad[t % 2, t % 2] = 1.0 if t % 4 < 2 else -1.0
        optimizer.step()
        optimizer.state[p]["steps"] += 1000 if t == 0 else 0
    widths = optimizer.families()[p].stddev
    assert float(widths[:, :2].max()) < 0.7 * float(widths[:, 2].min())
    torch.testing.assert_close(widths[0, 0], widths[1, 1], rtol=0.05, atol=0.0)  # the last of 400 steps, at a rate of 0.005


def test_matrices_with_two_long_sides_have_a_width_for_every_weight() -> None:
    """And steps of `AffineBLR`'s length."""
    model = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 2))
    optimizer = lb.KroneckerBLR(model.named_parameters(), lr=0.1, data_size=100, max_side=5)
    names = [settings["param_names"] for settings in optimizer.param_groups]
    assert names == [["1.weight"], ["0.weight"], ["0.bias", "1.bias"]]
    assert [type(settings["group"]) for settings in optimizer.param_groups] == [Kronecker, DiagonalAffine, DiagonalAffine]
    assert [settings["lr"] for settings in optimizer.param_groups] == [0.1, 0.4, 0.1]
    assert optimizer.param_groups[0]["typical_unit"] == optimizer.param_groups[2]["typical_unit"]
    with optimizer.sampled():
        model(torch.ones(3, 9)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("change", ["bfloat16", "channels_last"])
def test_other_dtypes_and_layouts(change: str) -> None:
    model = network()
    optimizer = lb.KroneckerBLR(model.parameters(), data_size=100)
    steps(model, optimizer, 2)
    if change == "bfloat16":
        model.bfloat16()
    else:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    steps(model, optimizer, 3)
    assert all(bool(value.isfinite().all()) for value in optimizer.posterior(model).std().values())


def test_vectors_are_a_group_of_their_own() -> None:
    model = network()
    optimizer = lb.KroneckerBLR(model.named_parameters(), data_size=100)
    assert [type(settings["group"]) for settings in optimizer.param_groups] == [Kronecker, DiagonalAffine]
    assert [len(settings["params"]) for settings in optimizer.param_groups] == [2, 2]
    assert optimizer.param_groups[1]["param_names"] == ["0.bias", "3.bias"]
    assert optimizer.param_groups[0]["typical_size"] == optimizer.param_groups[1]["typical_size"]
    assert [optimizer.param_groups[0][name] for name in ("temperature", "prior", "lr")] == [0.01, None, 0.5]
    assert lb.KroneckerBLR(network().parameters(), data_size=9, prior=2.0).param_groups[0]["temperature"] == 1.0


def test_a_step_on_a_large_embedding_is_no_longer_than_on_other_matrices() -> None:
    """Steps are in units of size/√inputs, and embeddings start with a size of 1: no unit is above 1/inputs."""
    embedding, linear = nn.Embedding(50, 16), nn.Linear(16, 4, bias=False)
    size = float(linear.weight.detach().square().mean().sqrt())
    optimizer = lb.AffineBLR([embedding.weight, linear.weight], data_size=10)
    with optimizer.sampled():
        linear(embedding(torch.arange(50))).square().mean().backward()
    optimizer.step()
    units = [optimizer.state[p]["unit"] for p in (embedding.weight, linear.weight)]
    assert units[0] == 1 / 16
    assert units[1] == pytest.approx(size / math.sqrt(16), rel=1e-5)  # float32
    assert units[1] < 1 / 16


@pytest.mark.parametrize("named", [False, True])
def test_parameters_from_a_generator(named: bool) -> None:
    """Which is used up by looking at it: matrices alone, vectors alone, and both."""
    for model, counts in ((nn.Linear(3, 2, bias=False), [1]), (nn.LayerNorm(3), [2]), (nn.Linear(3, 2), [1, 1])):
        parameters = model.named_parameters() if named else model.parameters()
        optimizer = lb.KroneckerBLR([{"params": parameters}], data_size=10)
        assert [len(settings["params"]) for settings in optimizer.param_groups] == counts


def test_a_new_layout_between_two_samples_keeps_the_traces() -> None:
    """What the first sample has added up is there after the stores were built anew. Σw² of a linear loss has no noise."""

    def squares(change: bool) -> float:
        p = nn.Parameter(torch.ones(4, 3, 2, 2))
        optimizer = optimizer_for([p], DiagonalAffine(), lr=0.1, mc_samples=2, prior=0.0)
        for slope in (6.0, 1.0):
            with optimizer.sampled():
                (slope * p).sum().backward()
            if change:
                p.data = p.data.to(memory_format=torch.channels_last)
        optimizer.step()
        return float(optimizer.state[p]["traces"][1])

    assert squares(True) == pytest.approx(squares(False), rel=1e-5)


@pytest.mark.parametrize("group", [DiagonalAffine(), Kronecker()], ids=repr)
def test_widths_turn_about_the_mean(group: LieGroup[Any]) -> None:
    """On a base whose mean is not 0, learning a width leaves the posterior's mean where it is."""
    p = nn.Parameter(torch.ones(3, 4))
    optimizer = optimizer_for([p], group, Gumbel(), lr=0.0, start_width=1.0)
    before = optimizer.families()[p]
    for _ in range(5):
        optimizer.zero_grad()
        with optimizer.sampled():
            (p * torch.linspace(0.1, 1.0, 12).view(3, 4)).square().sum().backward()
        optimizer.step()
    after = optimizer.families()[p]
    assert float((after.stddev / before.stddev).log().abs().max()) > 0.1
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [TriangularAffine(), Kronecker()], ids=repr)
@pytest.mark.parametrize("width", [1e-2, 1e-4])
def test_a_small_step_is_not_rounded_as_the_weights_are(group: LieGroup[Any], width: float) -> None:
    """The first step is along the gradient, whatever the widths: AAᵀM, far smaller than the weights, keeps its digits."""
    shape = (6,) if isinstance(group, TriangularAffine) else (2, 3)
    p = nn.Parameter(torch.ones(shape))
    optimizer = optimizer_for([p], group, prior=0.0, start_width=width, lr=1.0)
    gradient = torch.linspace(-1.0, 2.0, 6).reshape(shape)

    def closure() -> None:
        p.grad = gradient.clone()

    optimizer.step(closure)
    expected = gradient / gradient.square().mean().sqrt() * optimizer.state[p]["unit"]
    rounding = 8 * torch.finfo(p.dtype).eps  # of the weight and of the few products that make a step, all of them near 1
    torch.testing.assert_close(1.0 - p.detach(), expected, rtol=0.0, atol=rounding)


@pytest.mark.parametrize("group", [DiagonalAffine(), Kronecker()], ids=repr)
def test_the_length_of_a_step(group: LieGroup[Any]) -> None:
    """lr over the inputs, or times size/√inputs, whatever the loss, N and the width are; elementwise it grows to that."""
    unit = 0.2 / math.sqrt(5) / GaussNewtonRule.STEPS_UP if group.elementwise else 1 / 5
    for scale, N in ((1.0, 100), (1e6, 100), (1.0, 10**6)):
        p = nn.Parameter(torch.full((4, 5), 0.2))
        optimizer = optimizer_for([p], group, data_size=N, lr=0.1, momentum=0.0, prior=0.0)
        with optimizer.sampled():
            (scale * (p * torch.arange(20.0).view(4, 5)).sum()).backward()
        optimizer.step()
        assert float((p.detach() - 0.2).square().mean().sqrt()) == pytest.approx(0.1 * unit, rel=1e-5)


@pytest.mark.parametrize(
    ("group", "settings", "said"),
    [
        (Additive(), {}, "needs a group with a shift and scales|no average of precisions"),
        (Affine(), {}, "no average of precisions"),
        (DiagonalAffine(), {"base": Cauchy()}, "variance"),
        (DiagonalAffine(), {"temperature": 0.0}, "positive temperature"),
        (DiagonalAffine(), {"width_rate": 0.0}, r"width_rate must be in \(0, 1\]"),
        (DiagonalAffine(), {"start_width": -1.0}, "start_width must be positive"),
        (DiagonalAffine(), {"curvature": "hessian"}, '"samples" or "gauss-newton"'),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(group: LieGroup[Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        optimizer_for([nn.Parameter(torch.ones(3))], group, **settings)
    with pytest.raises(ValueError, match="needs a group with a shift"):
        optimizer_for([nn.Parameter(torch.ones(3))], Multiplicative(), base=lb.bases.Rayleigh())


def test_what_the_affine_rule_is() -> None:
    """Widths from squares of gradients; an option of Alg. 3 makes it that, with its defaults."""

    def settings(**given: Any) -> dict[str, Any]:
        return lb.AffineBLR(network().parameters(), data_size=9, **given).param_groups[0]

    plain, printed = settings(), settings(scale_lr=0.1)
    assert (plain["curvature"], plain["lr"], plain["prior"], plain["temperature"]) == ("gauss-newton", 2.0, None, 0.01)
    assert settings(prior=3.0)["temperature"] == 1.0
    assert (printed["curvature"], printed["lr"], printed["prior"], printed["max_step"]) == ("samples", 1.0, 0.1, 0.2)
    assert settings(max_step=None)["max_step"] is None  # which is not the default
    with pytest.raises(TypeError, match=r'scale_lr: an option of Alg\. 3.*curvature="samples"'):
        settings(scale_lr=0.1, curvature="gauss-newton")
    with pytest.raises(ValueError, match="prior must be a precision"):
        lb.LieGroupBLR(network().parameters(), DiagonalAffine(), Normal(), 0.1, data_size=9, prior=None)


def test_without_a_prior_widths_stay_within_the_size_of_their_tensor() -> None:
    """Of weights on which nothing depends the width is the limit, and steps of the others are Adam's."""
    p = nn.Parameter(torch.cat([torch.full((2, 50), 0.3), torch.full((2, 50), -0.3)]))
    optimizer = lb.AffineBLR([p], data_size=1000)
    for _ in range(300):
        with optimizer.sampled():
            (p[:2] * torch.linspace(0.5, 500, 50)).sum().div(100).backward()
        optimizer.step()
        optimizer.zero_grad()
    width = optimizer.families()[p].stddev
    torch.testing.assert_close(width[2:], torch.full((2, 50), 0.3), rtol=0.01, atol=0.0)  # what is left of the start: 1e-3
    assert bool((width <= 0.3 * 1.0001).all())
    moved = 0.3 - p.detach()[:2]
    assert float(moved.max() / moved.min()) < 1.5  # gradients differ by a thousand
