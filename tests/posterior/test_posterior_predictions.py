"""Predictions: averages and uncertainties over draws, against the plainest code there is; and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.posteriors import Net, X, Y, assert_untouched, posterior_of, snapshot
from support.tolerances import roundings
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import liebayes as lb
from liebayes.bases import Dirac, Normal
from liebayes.posterior import Posterior


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
    torch.testing.assert_close(prediction.mutual_information, (entropy - expected_entropy).float(), **roundings(8))
    torch.testing.assert_close(prediction.aleatoric, expected_entropy.float(), **roundings(8))
    assert torch.equal(prediction.epistemic, prediction.mutual_information)
    assert bool((prediction.mutual_information > 0).all())  # 16 different draws differ
    assert bool((prediction.entropy <= math.log(3) + 1e-6).all())
    torch.testing.assert_close(prediction.probabilities.sum(-1), torch.ones(20))


def test_no_mutual_information_without_spread() -> None:
    model = Net()
    for posterior, samples in ((posterior_of(model, kind=lb.AdditiveBLR, base=Dirac()), 8), (posterior_of(model), 0)):
        prediction = posterior.predict(X, samples=samples)
        torch.testing.assert_close(prediction.mutual_information, torch.zeros(20), **roundings(1))
        model.eval()
        with torch.no_grad():
            expected = functional_call(model, {**posterior.point(), **posterior.buffers}, (X,)).softmax(-1)
        torch.testing.assert_close(prediction.probabilities, expected)
        model.train()


@pytest.mark.parametrize("extreme", [0.0, 1e4])
def test_certain_and_single_logits(extreme: float) -> None:
    """Logits of ±1e4 have an entropy of exactly zero, not NaN; one logit stands for two classes."""
    model = nn.Linear(4, 1)
    posterior = posterior_of(model, steps=0)
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


@pytest.mark.parametrize("batch_size", [1, 7, 20, 100])
def test_batches_do_not_change_the_prediction(batch_size: int) -> None:
    posterior = posterior_of(Net())
    whole = posterior.predict(X, samples=5)
    parts = posterior.predict(X, samples=5, batch_size=batch_size)
    loader = posterior.predict(DataLoader(TensorDataset(X, Y), batch_size=batch_size), samples=5)
    bare = posterior.predict(list(X.split(batch_size)), samples=5)
    for other in (parts, loader, bare):
        torch.testing.assert_close(other.probabilities, whole.probabilities)
        torch.testing.assert_close(other.mutual_information, whole.mutual_information, **roundings(8))


def test_all_batches_of_a_call_share_the_draws() -> None:
    """Two equal inputs in different batches see the same functions; another seed gives others."""
    posterior = posterior_of(Net())
    twice = posterior.predict(torch.cat([X, X]), samples=3, batch_size=20)
    torch.testing.assert_close(twice.probabilities[:20], twice.probabilities[20:])
    again = posterior.predict(X, samples=3)
    assert torch.equal(again.probabilities, posterior.predict(X, samples=3).probabilities)
    assert not torch.allclose(again.probabilities, posterior.predict(X, samples=3, seed=1).probabilities)


def test_regression_variance_is_the_variance_over_draws() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    posterior = posterior_of(model, steps=0)
    prediction = posterior.predict(X, samples=12, task="regression", seed=2)
    outputs = explicit_outputs(model, posterior, 12, 2, X).double()
    torch.testing.assert_close(prediction.mean, outputs.mean(0).float())
    torch.testing.assert_close(prediction.epistemic, outputs.var(0, correction=0).float(), **roundings(16, size=1e-3))
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
    posterior = posterior_of(model, steps=0, base=Normal(0.01))
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


@pytest.mark.parametrize(
    ("inputs", "settings", "said"),
    [
        (X, {"task": "ranking"}, "ranking"),
        (X, {"samples": -1}, "-1"),
        (X, {"samples": None}, "samples must be a whole number.*None"),
        (X, {"samples": 10**400}, "samples must be a whole number.*far larger"),
        (X, {"samples": 1e30}, "samples must be a whole number.*far larger"),
        (X, {"seed": None}, "seed must be a whole number, but got None"),
        (X, {"seed": 1.5}, "seed must be a whole number, but got 1.5"),
        (torch.tensor(1.0), {}, "inputs must have one dimension at least"),
        (X, {"batch_size": True}, "batch_size must be at least 1, but got True"),
        (X, {"batch_size": 0}, "batch_size must be at least 1"),
        (X, {"batch_size": "3"}, "batch_size must be at least 1, but got '3'"),
        (X[:0], {}, "empty"),
        ([], {}, "no batch"),
        ((X, X), {}, "but is a tuple"),
        (X.split(5), {}, r"but is a tuple.*list\(\.\.\.\)"),
        ({"x": 1}, {}, "must have a tensor at least, but has: x"),
        ({"x": X[:0]}, {}, "empty"),
        ({"x": X, "y": X[:3]}, {"batch_size": 2}, "of one length, but they have"),
        (None, {}, "but is a NoneType"),
        ([(X, X, Y)], {}, "but has: Tensor, Tensor, Tensor"),
        ([{}], {}, "must have a tensor at least, but has: nothing"),
        (X, {"output": "logits"}, "output must be a function"),
    ],
    ids=lambda value: None if isinstance(value, Tensor) else type(value).__name__,
)
def test_what_cannot_be_predicted_is_refused(inputs: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        posterior_of(Net(), steps=0).predict(inputs, **settings)


def test_other_arguments_are_checked_too() -> None:
    posterior = posterior_of(Net(), steps=0)
    with pytest.raises(ValueError, match=r"but is a tuple.*list\(\.\.\.\)"):
        posterior.recompute_statistics(X.split(5))
    for value, said in ((torch.ones(7), r"\(4,\) for first\.bias.*\(7,\)"), (1.0, "for first.bias, but got float")):
        with pytest.raises(ValueError, match=said):
            posterior.log_prob({**posterior.sample(), "first.bias": value})  # type: ignore[dict-item]


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
        ("classification", lambda y: {"scores": y}, "have logits in its output, but has: scores"),
        ("classification", lambda y: y.view(-1, 2, 3), r"the shape is \(20, 2, 3\)"),
        ("regression", lambda y: (y, y, y), "a mean, or a pair .* returned a tuple"),
        ("regression", lambda y: (y, 1.0), "a variance as a tensor, but returned a float"),
    ],
)
def test_model_outputs_that_are_no_predictions_are_refused(task: Any, answer: Callable[[Tensor], Any], said: str) -> None:
    model = Answering(answer)
    with pytest.raises(ValueError, match=said):
        posterior_of(model, steps=0).predict(X, 2, task=task)


def test_arrays_of_numpy_are_tensors() -> None:
    pytest.importorskip("numpy")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    posterior = lb.AffineBLR(model.parameters(), data_size=9).posterior(model)
    x = torch.randn(6, 3)
    expected = posterior.predict(x, 4).probabilities
    whole, wide = x.numpy(), x.double().numpy()  # float64 is what numpy makes of numbers
    for inputs in (whole, wide, [whole[:4], wide[4:]], [(whole, [0] * 6)]):
        assert torch.equal(posterior.predict(inputs, 4).probabilities, expected)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, reduction="sum")

    labels = torch.zeros(6, dtype=torch.int64)
    by_tensors = posterior.free_energy([(x, labels)], loss, prior=1.0, samples=2)
    assert posterior.free_energy([(whole, labels.numpy())], loss, prior=1.0, samples=2) == by_tensors
