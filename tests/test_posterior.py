"""The posterior that training leaves: its weights, its predictions, its files; and the module it must not change."""

import json
import math
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.user_defined import Logistic
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import Normal as TorchNormal
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import liebayes as lb
from liebayes.bases import (
    HALF_LINE,
    Base,
    Cauchy,
    Dirac,
    Exponential,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Rayleigh,
    StudentT,
    Uniform,
)
from liebayes.groups import Additive, DiagonalAffine, LieGroup, Multiplicative, TriangularAffine
from liebayes.posterior import Posterior
from liebayes.rule import Family

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(20) % 3


class Net(nn.Module):
    """Batch norm, dropout, a frozen parameter and a tie; one submodule stays in evaluation mode."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.module = nn.Linear(4, outputs)  # named like a wrapper's prefix
        self.again.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.drop(self.again(self.norm(self.first(x)).tanh())))


def trained(model: nn.Module, steps: int = 3, kind: Any = lb.AffineBLR, **options: Any) -> Any:
    optimizer = kind(model.parameters(), **{"lr": 0.1, "data_size": 20, "base": Normal(0.2), "mc_samples": 1, **options})

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


def posterior_of(model: nn.Module, **options: Any) -> Posterior:
    return trained(model, **options).posterior(model)


def snapshot(model: nn.Module) -> dict[str, Any]:
    modes = {f"mode {name}": module.training for name, module in model.named_modules()}
    places = {f"place {name}": p.data_ptr() for name, p in model.named_parameters()}
    return {**{name: value.clone() for name, value in model.state_dict().items()}, **modes, **places}


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = snapshot(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name], name


class HalfCauchy(Base):
    """A positive base without a mean."""

    support = HALF_LINE

    def sample(self, shape: Any, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
        return (torch.rand(shape, generator=generator, dtype=dtype, device=device) * (math.pi / 2)).tan().clamp(1e-3, 10.0)

    def log_prob(self, x: Tensor) -> Tensor:
        return math.log(2 / math.pi) - torch.log1p(x.square())

    @property
    def mean(self) -> float:
        raise ValueError("HalfCauchy has no mean.")


class Failure(Exception):  # noqa: N818
    pass


# Weights.


def test_a_sample_has_every_parameter_and_the_right_distribution() -> None:
    model = Net()
    posterior = posterior_of(model)
    names = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    draws = [posterior.sample(generator) for _ in range(2000)]
    assert all(draw.keys() == names.keys() for draw in draws[:2])
    assert torch.equal(draws[0]["again.bias"], model.again.bias)  # frozen
    std, mean = posterior.std(), posterior.mean()
    assert std.keys() == names.keys() - {"again.bias"}
    for name in std:
        values = torch.stack([draw[name] for draw in draws])
        error = std[name] / math.sqrt(len(draws))
        assert bool(((values.mean(0) - mean[name]).abs() < 5 * error).all())
        assert bool(((values.std(0) / std[name] - 1).abs() < 5 / math.sqrt(2 * len(draws))).all())
    again = posterior.sample(torch.Generator().manual_seed(0))
    assert all(torch.equal(again[name], draws[0][name]) for name in again)


def test_mean_and_point_are_what_the_module_holds() -> None:
    model = Net()
    posterior = posterior_of(model)
    for name, p in model.named_parameters():
        assert torch.equal(posterior.point()[name], p)
        assert torch.equal(posterior.mean()[name], p)  # a Normal base has its mean at the shift


def test_the_mean_of_a_skew_base_is_not_the_point() -> None:
    model = nn.Linear(4, 3)
    posterior = posterior_of(model, kind=lb.LieGroupBLR, group=DiagonalAffine(), base=Gumbel(0.2))
    family = posterior.families["weight"]
    assert torch.equal(posterior.point()["weight"], model.weight)
    torch.testing.assert_close(posterior.mean()["weight"] - model.weight.detach(), family.element.scale * Gumbel(0.2).mean)


def test_point_of_the_multiplicative_group() -> None:
    heavy = HalfCauchy()
    for base in (Rayleigh(), LogNormal(0.5), heavy):
        layer = nn.Linear(4, 3)
        for p in layer.parameters():
            p.data = p.data.abs() + 0.1
        posterior = posterior_of(layer, kind=lb.MultiplicativeBLR, base=base)
        torch.testing.assert_close(posterior.point()["weight"], layer.weight.detach())
        if base is heavy:
            torch.testing.assert_close(posterior.families["weight"].element.scale, layer.weight.detach())
            with pytest.raises(ValueError, match="mean"):
                posterior.mean()
        else:
            torch.testing.assert_close(posterior.mean()["weight"], layer.weight.detach())


def test_log_prob_against_torch_distributions() -> None:
    model = Net()
    for base, kind in ((Normal(0.2), TorchNormal), (Laplace(0.2), TorchLaplace)):
        posterior = posterior_of(model, base=base)
        weights = posterior.sample(torch.Generator().manual_seed(0))
        expected = torch.zeros(())
        for name, family in posterior.families.items():
            width = family.element.scale * base.scale  # type: ignore[attr-defined]
            expected = expected + kind(dict(model.named_parameters())[name].detach(), width).log_prob(weights[name]).sum()
        torch.testing.assert_close(posterior.log_prob(weights), expected)
        with pytest.raises(ValueError, match=r"first\.weight"):
            posterior.log_prob({name: value for name, value in weights.items() if name != "first.weight"})


PAIRS: list[tuple[LieGroup[Any], Base]] = [
    *((group, base) for group in (Additive(), DiagonalAffine()) for base in (
        Normal(0.3), Laplace(0.3), Uniform(0.3), Cauchy(0.3), StudentT(4.0, 0.3), Gumbel(0.3))),
    *((Multiplicative(), base) for base in (Rayleigh(0.7), Exponential(0.7), LogNormal(0.4))),
    (TriangularAffine(), Normal(0.3)),
]  # fmt: skip


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=str)
def test_as_distribution_agrees_with_the_family(group: LieGroup[Any], base: Base) -> None:
    layer = nn.Linear(4, 3).double()
    for p in layer.parameters():
        p.data = p.data.abs() + 0.1
    x = X.double()
    optimizer = lb.LieGroupBLR(layer.parameters(), group, base, 0.1, data_size=20)
    for _ in range(3):
        optimizer.step(lambda: optimizer.zero_grad() or nn.functional.cross_entropy(layer(x), Y).backward())
    posterior = optimizer.posterior(layer)
    weights = posterior.sample(torch.Generator().manual_seed(0))
    distributions = posterior.as_distribution()
    assert distributions.keys() == {"weight", "bias"}
    for name, distribution in distributions.items():
        family = posterior.families[name]
        assert distribution.event_shape == family.event_shape
        torch.testing.assert_close(distribution.log_prob(weights[name]), family.log_prob(weights[name]), rtol=1e-6, atol=1e-8)
        if not isinstance(base, (Cauchy,)):
            torch.testing.assert_close(distribution.mean, family.mean, rtol=1e-6, atol=1e-8)
        assert isinstance(distribution, (Independent, MultivariateNormal))


def test_families_without_a_distribution_say_so() -> None:
    posterior = posterior_of(nn.Linear(4, 3), kind=lb.LieGroupBLR, group=TriangularAffine(), base=Laplace(0.2))
    with pytest.raises(ValueError, match="TriangularAffine"):
        posterior.as_distribution()
    with pytest.raises(ValueError, match="Dirac"):
        posterior_of(nn.Linear(4, 3), kind=lb.AdditiveBLR, base=Dirac()).as_distribution()


def test_a_snapshot_does_not_follow_training() -> None:
    model = Net()
    optimizer = trained(model)
    posterior = optimizer.posterior(model)
    weights = posterior.sample(torch.Generator().manual_seed(0))
    before = posterior.predict(X, samples=4)
    kept = {name: value.clone() for name, value in weights.items()}
    buffers = {name: value.clone() for name, value in posterior.buffers.items()}

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    model.again.bias.data.add_(1)
    assert not torch.equal(model.norm.running_mean, buffers["norm.running_mean"])  # type: ignore[arg-type]
    again = posterior.sample(torch.Generator().manual_seed(0))
    assert all(torch.equal(again[name], value) for name, value in kept.items())
    assert all(torch.equal(posterior.buffers[name], value) for name, value in buffers.items())
    assert torch.equal(posterior.predict(X, samples=4).probabilities, before.probabilities)
    posterior.point()["first.weight"].zero_()  # what it hands out is not what it holds
    assert not torch.equal(posterior.point()["first.weight"], torch.zeros(4, 4))


def test_sampled_restores_also_after_an_exception() -> None:
    model = Net()
    posterior = posterior_of(model)
    with torch.no_grad():
        model.norm.running_mean.add_(5)  # type: ignore[union-attr]
    before = snapshot(model)
    with posterior.sampled(torch.Generator().manual_seed(0)) as inside:
        assert inside is model
        drawn = posterior.sample(torch.Generator().manual_seed(0))
        assert all(torch.equal(p, drawn[name]) for name, p in model.named_parameters())
        assert torch.equal(model.norm.running_mean, posterior.buffers["norm.running_mean"])  # type: ignore[arg-type]
        model.train()
        model(X)  # moves the running statistics of the block only
    assert_untouched(model, before)
    with pytest.raises(Failure), posterior.sampled():
        raise Failure
    assert_untouched(model, before)
    held = posterior.buffers["norm.running_mean"].clone()
    with posterior.sampled():
        model(X)
    assert torch.equal(posterior.buffers["norm.running_mean"], held)


@pytest.mark.parametrize("model", [nn.Conv2d(1, 2, 2), nn.LayerNorm(3)], ids=["convolution", "norm"])
def test_a_gradient_after_the_block_is_that_of_the_sample(model: nn.Module) -> None:
    x = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight, bias = model.parameters()

    def gradients(loss: Tensor) -> tuple[Tensor, ...]:
        """First and second order."""
        first = torch.autograd.grad(loss, [x, weight, bias], create_graph=True)
        return (*first, *torch.autograd.grad(first[0].square().sum(), [x, weight]))

    with posterior_of(model, steps=0).sampled(torch.Generator().manual_seed(3)) as inside:
        expected, loss = gradients(inside(x).square().sum()), inside(x).square().sum()
    for found, wanted in zip(gradients(loss), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_under_autocast_every_sample_is_itself_and_the_point_comes_back() -> None:
    """Autocast keeps casts of weights, by the parameter they belong to."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    posterior, again = (posterior_of(model, base=Normal(1.0)) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        point = model(X)
        outputs = []
        for seed in range(2):
            with posterior.sampled(torch.Generator().manual_seed(seed)) as inside:
                outputs.append(inside(X))
                weights = posterior.sample(torch.Generator().manual_seed(seed))
                torch.testing.assert_close(outputs[-1], functional_call(model, weights, (X,)), rtol=0.1, atol=0.1)
        assert not torch.equal(outputs[0], outputs[1])
        assert torch.equal(model(X), point)
        posterior.recompute_statistics([X], sample=True, seed=1)
    again.recompute_statistics([X], sample=True, seed=1)
    torch.testing.assert_close(posterior.buffers["1.running_mean"], again.buffers["1.running_mean"], rtol=0.05, atol=0.05)


def test_inference_mode_leaves_a_model_that_can_be_trained() -> None:
    model = Net()
    posterior = posterior_of(model)
    before, expected = snapshot(model), posterior.predict(X, samples=4).probabilities
    with torch.inference_mode():
        assert torch.equal(posterior.predict(X, samples=4).probabilities, expected)
        with posterior.sampled():
            model(X)
    assert_untouched(model, before)
    model(X).sum().backward()


def test_models_that_keep_parameters_in_a_list_are_sampled() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.pair = (self.layer.weight, self.layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, *self.pair)

    model = Listed()
    posterior = posterior_of(model, base=Normal(0.5))
    plain = nn.Sequential()
    plain.layer = nn.Linear(4, 3)
    expected = Posterior(plain, posterior.families).predict(X, samples=8)
    found = posterior.predict(X, samples=8)
    assert float(found.mutual_information.min()) > 0
    torch.testing.assert_close(found.probabilities, expected.probabilities)


def test_a_model_on_another_device_is_refused() -> None:
    posterior = posterior_of(nn.Linear(4, 3))
    posterior.model = nn.Linear(4, 3, device="meta")
    with pytest.raises(ValueError, match=r"weight of the model is on meta, that of the posterior on cpu\. Move the model"):
        posterior.predict(X)


def test_foreign_models_and_names_are_refused() -> None:
    optimizer = trained(nn.Linear(4, 3))
    with pytest.raises(ValueError, match="None of the model's parameters"):
        optimizer.posterior(nn.Linear(4, 3))
    family = Family(Additive(), Normal(), Additive().at(torch.zeros(3)))
    with pytest.raises(ValueError, match="nothing_like_it"):
        Posterior(nn.Linear(4, 3), {"nothing_like_it": family})


def test_before_any_step_the_posterior_is_the_base_at_the_weights() -> None:
    model = nn.Linear(4, 3)
    optimizer = lb.AffineBLR(model.parameters(), data_size=10, base=Normal(0.3), initial_scale=2.0)
    posterior = optimizer.posterior(model)
    assert torch.equal(posterior.mean()["weight"], model.weight)
    torch.testing.assert_close(posterior.std()["weight"], torch.full((3, 4), 0.6))


# Predictions.


def explicit_outputs(model: nn.Module, posterior: Posterior, samples: int, seed: int, x: Tensor) -> Tensor:
    """The outputs of each draw, by the plainest code there is."""
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    model.eval()
    for _ in range(samples):
        weights = posterior.sample(generator)
        with torch.no_grad():
            outputs.append(functional_call(model, {**weights, **posterior.buffers}, (x,)))
    return torch.stack(outputs)


def test_class_probabilities_and_uncertainties() -> None:
    model = Net()
    posterior = posterior_of(model)
    prediction = posterior.predict(X, samples=16, seed=3)
    log_p = explicit_outputs(model, posterior, 16, 3, X).double().log_softmax(-1)
    p = log_p.exp()
    mean = p.mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    expected_entropy = -(p * log_p).sum(-1).mean(0)
    torch.testing.assert_close(prediction.probabilities, mean.float())
    torch.testing.assert_close(prediction.entropy, entropy.float())
    torch.testing.assert_close(prediction.mutual_information, (entropy - expected_entropy).float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(prediction.aleatoric, expected_entropy.float(), rtol=1e-4, atol=1e-6)
    assert torch.equal(prediction.epistemic, prediction.mutual_information)
    assert bool((prediction.mutual_information > 0).all())  # 16 different draws differ
    assert bool((prediction.entropy <= math.log(3) + 1e-6).all())
    torch.testing.assert_close(prediction.probabilities.sum(-1), torch.ones(20))


def test_no_information_without_spread() -> None:
    model = Net()
    for posterior, samples in ((posterior_of(model, kind=lb.AdditiveBLR, base=Dirac()), 8), (posterior_of(model), 0)):
        prediction = posterior.predict(X, samples=samples)
        torch.testing.assert_close(prediction.mutual_information, torch.zeros(20), rtol=0, atol=1e-7)
        model.eval()
        with torch.no_grad():
            expected = functional_call(model, {**posterior.point(), **posterior.buffers}, (X,)).softmax(-1)
        torch.testing.assert_close(prediction.probabilities, expected)
        model.train()


@pytest.mark.parametrize("extreme", [0.0, 1e4])
def test_certain_and_single_logits(extreme: float) -> None:
    """Logits of ±1e4 have an entropy of exactly zero, not NaN; one logit stands for two classes."""
    model = nn.Linear(4, 1)
    posterior = posterior_of_regressor(model)
    with torch.no_grad():
        for family in posterior.families.values():
            family.element.shift.add_(extreme)
    prediction = posterior.predict(X.abs(), samples=4)
    assert prediction.probabilities.shape == (20, 2)
    assert all(bool(torch.isfinite(t).all()) for t in (prediction.entropy, prediction.mutual_information))
    logits = explicit_outputs(model, posterior, 4, 0, X.abs()).squeeze(-1)
    torch.testing.assert_close(prediction.probabilities[:, 1], logits.sigmoid().mean(0))
    if extreme:
        torch.testing.assert_close(prediction.entropy, torch.zeros(20))


def posterior_of_regressor(model: nn.Module) -> Posterior:
    optimizer = lb.AffineBLR(model.parameters(), 0.05, data_size=20, base=Normal(0.2), mc_samples=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        output = model(X)
        loss = (output[0] if isinstance(output, tuple) else output).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return optimizer.posterior(model)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 100])
def test_batches_do_not_change_the_prediction(batch_size: int) -> None:
    posterior = posterior_of(Net())
    whole = posterior.predict(X, samples=5)
    parts = posterior.predict(X, samples=5, batch_size=batch_size)
    loader = posterior.predict(DataLoader(TensorDataset(X, Y), batch_size=batch_size), samples=5)
    bare = posterior.predict(list(X.split(batch_size)), samples=5)
    for other in (parts, loader, bare):
        torch.testing.assert_close(other.probabilities, whole.probabilities)
        torch.testing.assert_close(other.mutual_information, whole.mutual_information, rtol=1e-3, atol=1e-6)


def test_one_set_of_draws_for_a_call() -> None:
    """Two equal inputs in different batches see the same functions; another seed gives others."""
    posterior = posterior_of(Net())
    twice = posterior.predict(torch.cat([X, X]), samples=3, batch_size=20)
    torch.testing.assert_close(twice.probabilities[:20], twice.probabilities[20:])
    again = posterior.predict(X, samples=3)
    assert torch.equal(again.probabilities, posterior.predict(X, samples=3).probabilities)
    assert not torch.allclose(again.probabilities, posterior.predict(X, samples=3, seed=1).probabilities)


def test_regression_variance_is_that_of_the_draws() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    posterior = posterior_of_regressor(model)
    prediction = posterior.predict(X, samples=12, task="regression", seed=2)
    outputs = explicit_outputs(model, posterior, 12, 2, X).double()
    torch.testing.assert_close(prediction.mean, outputs.mean(0).float())
    torch.testing.assert_close(prediction.epistemic, outputs.var(0, correction=0).float(), rtol=1e-4, atol=1e-9)
    assert torch.equal(prediction.aleatoric, torch.zeros(20, 2))
    assert torch.equal(prediction.variance, prediction.epistemic)


class Heteroscedastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.noise = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(x) + 1000, nn.functional.softplus(self.noise(x))


def test_regression_with_predicted_noise() -> None:
    model = Heteroscedastic()
    optimizer = lb.AffineBLR(model.parameters(), data_size=20, base=Normal(0.01), mc_samples=1)
    posterior = optimizer.posterior(model)
    prediction = posterior.predict(X, samples=8, task="regression")
    generator = torch.Generator().manual_seed(0)
    draws = [functional_call(model, posterior.sample(generator), (X,)) for _ in range(8)]
    means, noises = (torch.stack([d[i].detach() for d in draws]).double() for i in (0, 1))
    torch.testing.assert_close(prediction.aleatoric, noises.mean(0).float())
    # A mean of 1000 and a deviation of 0.02: the naive E[y²] − E[y]² would be lost in float32.
    torch.testing.assert_close(prediction.epistemic, means.var(0, correction=0).float(), rtol=1e-3, atol=0)
    torch.testing.assert_close(prediction.variance, prediction.aleatoric + prediction.epistemic)


def test_prediction_leaves_the_model_as_it_was() -> None:
    model = Net()
    posterior = posterior_of(model)
    model.train()
    model.drop.eval()  # a mixture of modes, all of which come back
    before = snapshot(model)
    first = posterior.predict(X, samples=3)
    assert_untouched(model, before)
    assert torch.equal(first.probabilities, posterior.predict(X, samples=3).probabilities)  # no dropout
    assert all(p.grad is None or not p.grad.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError):
        posterior.predict(torch.ones(3, 7), samples=2)  # the wrong width
    assert_untouched(model, before)


def test_predictions_refuse_what_they_cannot_do() -> None:
    posterior = posterior_of(Net())
    for call, word in (
        (lambda: posterior.predict(X, task="ranking"), "ranking"),  # type: ignore[call-overload]
        (lambda: posterior.predict(X, samples=-1), "-1"),
        (lambda: posterior.predict(X[:0]), "empty"),
        (lambda: posterior.predict([]), "no batch"),
        (lambda: posterior.predict(X, batch_size=0), "batch_size must be at least 1"),
        (lambda: posterior.predict((X, X)), "but is a tuple"),
        (lambda: posterior.predict(X.split(5)), r"but is a tuple.*list\(\.\.\.\)"),
        (lambda: posterior.recompute_statistics(X.split(5)), r"but is a tuple.*list\(\.\.\.\)"),
        (lambda: posterior.predict(X.numpy()), r"but is a ndarray.*torch\.as_tensor"),
        (lambda: posterior.predict([X.numpy()]), r"torch\.as_tensor"),
        (lambda: posterior.predict(X, samples=None), "samples must be a whole number.*None"),  # type: ignore[arg-type]
        (lambda: posterior.predict(X, batch_size="3"), "batch_size must be at least 1, but got '3'"),  # type: ignore[arg-type]
        (lambda: posterior.log_prob({**posterior.sample(), "first.bias": torch.ones(7)}), r"\(4,\) for first\.bias.*\(7,\)"),
        (lambda: posterior.log_prob({**posterior.sample(), "first.bias": 1.0}), "for first.bias, but got float"),
        (lambda: posterior.predict({"x": X}), "but is a dict"),
        (lambda: posterior.predict(None), "but is a NoneType"),
        (lambda: posterior.predict([(X, X, Y)]), "but has: Tensor, Tensor, Tensor"),
        (lambda: posterior.predict([{"x": X}]), "but has: dict"),
        (lambda: posterior.predict([X.numpy()]), "but has: ndarray"),
    ):
        with pytest.raises(ValueError, match=word):
            call()


class Answering(nn.Module):
    """A linear model that returns what it is told to."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(4, 6), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@pytest.mark.parametrize(
    ("task", "answer", "said"),
    [
        ("classification", lambda y: {"logits": y}, "logits as a tensor, but returned a dict"),
        ("classification", lambda y: y.view(-1, 2, 3), r"the shape is \(20, 2, 3\)"),
        ("regression", lambda y: (y, y, y), "a mean, or a pair .* returned a tuple"),
        ("regression", lambda y: (y, 1.0), "a variance as a tensor, but returned a float"),
    ],
)
def test_outputs_that_are_no_predictions(task: Any, answer: Callable[[Tensor], Any], said: str) -> None:
    model = Answering(answer)
    posterior = lb.AffineBLR(model.parameters(), data_size=20).posterior(model)
    with pytest.raises(ValueError, match=said):
        posterior.predict(X, 2, task=task)


def test_what_is_handed_out_may_be_written_to() -> None:
    """The snapshot stays as it is: fixed weights, and buffers that a model counts with."""

    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    posterior = posterior_of(Counting())
    fixed = {name: value.clone() for name, value in posterior.fixed.items()}
    assert fixed, "Net has a frozen parameter"
    for weights in (posterior.sample(), posterior.mean(), posterior.point()):
        for value in weights.values():
            value.zero_()
    with posterior.sampled() as model, torch.no_grad():
        for p in model.parameters():
            p.data.zero_()
    calls = float(posterior.buffers["calls"])
    posterior.predict(X, samples=5)
    assert all(torch.equal(value, fixed[name]) for name, value in posterior.fixed.items())
    assert float(posterior.buffers["calls"]) == calls


# Batch norm.


def test_in_training_statistics_come_from_the_samples() -> None:
    model = Net()
    optimizer = lb.AffineBLR(model.parameters(), data_size=20, base=Normal(0.3), mc_samples=2)
    expected = torch.zeros(4)

    def closure() -> Tensor:
        nonlocal expected
        optimizer.zero_grad()
        hidden = (X @ model.first.weight.T + model.first.bias).detach()  # at the sample
        expected = 0.9 * expected + 0.1 * hidden.mean(0)
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    torch.testing.assert_close(model.norm.running_mean, expected)
    assert torch.equal(optimizer.posterior(model).buffers["norm.running_mean"], model.norm.running_mean)  # type: ignore[arg-type]
    assert int(model.norm.num_batches_tracked) == 6  # type: ignore[arg-type]


def test_statistics_take_one_batch_at_a_time() -> None:
    drawn: list[int] = []

    class Watched(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            assert len(drawn) == len(x)
            return super().forward(x)

    model = Watched(4)
    posterior = posterior_of(model, steps=0)

    def loader():
        for count in (2, 3):
            drawn[:] = range(count)
            yield torch.randn(count, 4)

    posterior.recompute_statistics(loader())
    assert int(posterior.buffers["num_batches_tracked"]) == 2


@pytest.mark.parametrize("sample", [False, True])
def test_recomputed_statistics(sample: bool) -> None:
    model = Net()
    posterior = posterior_of(model)
    before = snapshot(model)
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    posterior.recompute_statistics(batches, sample=sample, seed=4)
    assert_untouched(model, before)
    assert model.norm.momentum == 0.1
    weights = posterior.sample(torch.Generator().manual_seed(4)) if sample else posterior.point()
    hidden = [x @ weights["first.weight"].T + weights["first.bias"] for x, _ in batches]
    mean = torch.stack([h.mean(0) for h in hidden]).mean(0)
    variance = torch.stack([h.var(0) for h in hidden]).mean(0)
    torch.testing.assert_close(posterior.buffers["norm.running_mean"], mean)
    torch.testing.assert_close(posterior.buffers["norm.running_var"], variance)
    assert not torch.allclose(model.norm.running_mean, mean)  # type: ignore[arg-type]


def test_recomputing_restores_after_an_exception() -> None:
    model = Net()
    posterior = posterior_of(model)
    before, held = snapshot(model), posterior.buffers["norm.running_mean"].clone()
    with pytest.raises(RuntimeError):
        posterior.recompute_statistics([torch.ones(3, 7)])
    assert_untouched(model, before)
    assert model.norm.momentum == 0.1
    assert torch.equal(posterior.buffers["norm.running_mean"], held)
    plain = nn.Linear(4, 3)
    posterior_of(plain).recompute_statistics([X])  # nothing to do


# Files.


def assert_same(a: Posterior, b: Posterior) -> None:
    assert a.families.keys() == b.families.keys()
    assert a.temperature == b.temperature
    for name, family in a.families.items():
        assert (family.group, repr(family.base)) == (b.families[name].group, repr(b.families[name].base))
        for block, other in zip(family.element, b.families[name].element, strict=True):
            assert block.dtype == other.dtype
            assert torch.equal(block, other)
    for kept, other in ((a.fixed, b.fixed), (a.buffers, b.buffers)):
        assert kept.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in kept.items())


@pytest.mark.parametrize(("group", "base"), [*PAIRS, (Additive(), Dirac())], ids=str)
def test_save_and_load(group: LieGroup[Any], base: Base, tmp_path: Path) -> None:
    model = Net()
    for p in model.parameters():
        p.data = p.data.abs() + 0.1
    posterior = posterior_of(model, kind=lb.LieGroupBLR, group=group, base=base, temperature=0.7, initial_scale=1.3)
    posterior.save(tmp_path / "q.safetensors")
    other = Net()
    loaded = Posterior.load(tmp_path / "q.safetensors", other)
    assert_same(posterior, loaded)
    before = snapshot(other)
    expected = posterior.predict(X, samples=3).probabilities
    assert torch.equal(loaded.predict(X, samples=3).probabilities, expected)
    assert_untouched(other, before)
    assert os.listdir(tmp_path) == ["q.safetensors"]


def test_the_header_is_readable_and_nothing_is_pickled(tmp_path: Path) -> None:
    posterior = posterior_of(Net(), base=Laplace(0.25), temperature=0.5)
    posterior.save(tmp_path / "q.safetensors")
    raw = (tmp_path / "q.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])["__metadata__"]
    assert header["format"] == "liebayes posterior 1"
    assert header["liebayes"] == lb.__version__
    assert header["torch"] == torch.__version__
    assert header["temperature"] == "0.5"
    assert json.loads(header["families"])["first.weight"] == {"group": "DiagonalAffine()", "base": "Laplace(scale=0.25)"}
    source = (Path(lb.__file__).parent / "posterior.py").read_text()
    assert "pickle" not in source.replace("without pickle", "")
    assert "eval(" not in source.replace("model.eval()", "")


def test_files_that_are_not_posteriors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no tensors at all")
    with pytest.raises(ValueError, match=r"other\.safetensors is not"):
        Posterior.load(path, Net())
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="not a posterior of liebayes"):
        Posterior.load(path, Net())
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "missing.safetensors", Net())
    posterior_of(Net()).save(path)
    path.write_bytes(path.read_bytes()[:-10])  # cut short
    with pytest.raises(ValueError, match=r"other\.safetensors is not"):
        Posterior.load(path, Net())


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"is a directory\. Give the file"):
        Posterior.load(tmp_path, Net())


def test_without_safetensors_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = posterior_of(Net())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (posterior.save, lambda path: Posterior.load(path, Net())):
        with pytest.raises(ImportError, match=r"pip install 'liebayes\[files\]'"):
            call(tmp_path / "q.safetensors")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.safetensors"
    posterior_of(Net()).save(path)

    def without_buffers() -> nn.Module:
        model = Net()
        model.norm = nn.BatchNorm1d(4, track_running_stats=False)
        return model

    def more_frozen() -> nn.Module:
        model = Net()
        model.extra = nn.Linear(2, 2)
        return model

    def other_statistics() -> nn.Module:
        model = Net()
        model.norm.running_mean = torch.zeros(7)
        return model

    cases: list[tuple[Callable[[], nn.Module], str]] = [
        (lambda: Net(outputs=5), r"module\.weight.*\(5, 4\)"),
        (lambda: nn.Linear(4, 3), r"first\.weight"),
        (without_buffers, r"norm\.num_batches_tracked.*is missing in the model"),
        (more_frozen, r"extra\.bias.* is missing there, and has the shape \(2,\) in the model"),
        (other_statistics, r"norm\.running_mean.*\(7,\)"),
    ]
    for build, message in cases:
        with pytest.raises(ValueError, match=message):
            Posterior.load(path, build())


def test_bases_and_groups_of_the_users_own(tmp_path: Path) -> None:
    class Mirrored(DiagonalAffine):
        pass

    model = nn.Linear(4, 3)
    path = tmp_path / "q.safetensors"
    posterior = posterior_of(model, kind=lb.LieGroupBLR, group=Mirrored(), base=Logistic())
    posterior.save(path)
    with pytest.raises(ValueError, match=r"Mirrored\(\).*groups="):
        Posterior.load(path, model)
    with pytest.raises(ValueError, match=r"Logistic\(\).*bases="):
        Posterior.load(path, model, groups=[Mirrored()])
    assert_same(posterior, Posterior.load(path, model, groups=[Mirrored()], bases=[Logistic()]))


def test_bases_and_groups_are_known_by_their_attributes(tmp_path: Path) -> None:
    """As users write them, without a text of their own. What quadrature has found is no attribute."""

    class Tanh(Base):
        def __init__(self, width: float) -> None:
            self.width = width

        def sample(self, shape: Any, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
            return self.width * torch.rand(shape, generator=generator, dtype=dtype, device=device).logit(1e-6)

        def log_prob(self, x: Tensor) -> Tensor:
            return -2 * (x / (2 * self.width)).cosh().log() - math.log(4 * self.width)

    class Numbered(DiagonalAffine):
        def __init__(self, number: int) -> None:
            self.number = number

    assert math.isfinite(Tanh(0.1).variance)
    model, path = nn.Linear(4, 3), tmp_path / "q.safetensors"
    optimizer = lb.LieGroupBLR(model.parameters(), Numbered(1), Tanh(0.1), lr=0.1, data_size=10, metric=lb.rule.Fisher())
    optimizer.posterior(model).save(path)
    loaded = Posterior.load(path, model, groups=[Numbered(1)], bases=[Tanh(0.1)])
    assert repr(loaded.families["weight"].base) == "Tanh(width=0.1)"
    for group, base in ((Numbered(2), Tanh(0.1)), (Numbered(1), Tanh(0.2))):
        with pytest.raises(ValueError, match=r"Numbered\(number=1\)|Tanh\(width=0\.1\)"):
            Posterior.load(path, model, groups=[group], bases=[base])
    other = lb.LieGroupBLR(model.parameters(), Numbered(1), Tanh(0.1), lr=0.1, data_size=10, metric=lb.rule.Fisher())
    other.load_state_dict(optimizer.state_dict())


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    posterior = posterior_of(Net())
    path = tmp_path / "q.safetensors"
    posterior.save(path)
    good = path.read_bytes()

    def broken(tensors: Any, filename: Any, metadata: Any) -> None:
        Path(filename).write_bytes(b"half a fi")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        posterior.save(path)
    assert os.listdir(tmp_path) == ["q.safetensors"]
    assert path.read_bytes() == good


# Wrappers and dtypes.


def test_compiled_models(tmp_path: Path) -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = lb.AffineBLR(compiled.parameters(), data_size=20, base=Normal(0.2), mc_samples=1)  # type: ignore[attr-defined]
    posterior = optimizer.posterior(compiled)  # type: ignore[arg-type]
    assert posterior.families.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert posterior.predict(X, samples=2).probabilities.shape == (20, 3)
    posterior.save(tmp_path / "q.safetensors")
    assert_same(posterior, Posterior.load(tmp_path / "q.safetensors", Net()))
    assert_same(posterior, Posterior.load(tmp_path / "q.safetensors", compiled))  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_predictions_of_compiled_models_are_compiled(samples: int) -> None:
    """By one graph for all draws; `Net` has a batch norm and dropout, which a graph of training would get wrong."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(0)
        which = len(graphs) - 1

        def run(*inputs: object) -> object:
            graphs[which] += 1
            return graph.forward(*inputs)

        return run

    torch.compiler.reset()
    model = Net()
    compiled = torch.compile(model, backend=backend)
    compiled(X)
    optimizer = lb.AffineBLR(model.parameters(), data_size=20, base=Normal(0.2), mc_samples=1)
    graphs.clear()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = optimizer.posterior(compiled).predict(X, samples=samples, batch_size=10)  # type: ignore[arg-type]
    assert graphs == [2 * max(samples, 1)]
    expected = optimizer.posterior(model).predict(X, samples=samples, batch_size=10)
    torch.testing.assert_close(found.probabilities, expected.probabilities)
    threaded = optimizer.posterior(compiled).predict(X, samples=samples, batch_size=10, parallel=samples > 1)  # type: ignore[arg-type]
    torch.testing.assert_close(threaded.probabilities, expected.probabilities)
    assert graphs == [2 * max(samples, 1) * (1 if samples > 1 else 2)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_tied_weights_are_one() -> None:
    model = Net()
    posterior = posterior_of(model)
    assert "again.weight" not in posterior.families
    with posterior.sampled():
        assert torch.equal(model.again.weight, model.first.weight)
        assert model.again.weight is model.first.weight
    # functional_call follows the tie: by hand with both names.
    weights = posterior.sample(torch.Generator().manual_seed(0))
    model.eval()
    both = functional_call(model, {**weights, "again.weight": weights["first.weight"], **posterior.buffers}, (X,))
    torch.testing.assert_close(posterior.predict(X, samples=1).probabilities, both.detach().softmax(-1))


def test_bfloat16_keeps_the_remainder(tmp_path: Path) -> None:
    model = nn.Linear(4, 3).bfloat16()
    optimizer = lb.AffineBLR(model.parameters(), 1e-3, data_size=20, base=Normal(0.01), mc_samples=1)
    with optimizer.sampled():
        model(X.bfloat16()).float().square().mean().backward()
    optimizer.step()
    posterior = optimizer.posterior(model)
    assert posterior.families["weight"].dtype == torch.float32
    assert posterior.sample()["weight"].dtype == torch.bfloat16
    assert torch.equal(posterior.point()["weight"], model.weight)
    assert not torch.equal(posterior.families["weight"].element.shift, model.weight.float())  # what rounding has lost
    posterior.save(tmp_path / "q.safetensors")
    assert_same(posterior, Posterior.load(tmp_path / "q.safetensors", nn.Linear(4, 3).bfloat16()))


def test_repr_says_what_it_is() -> None:
    assert repr(posterior_of(nn.Linear(4, 3))) == "Posterior(15 weights: DiagonalAffine() on Normal(scale=0.2))"
