"""A posterior in its module: samples in it and out again, batch statistics, compiled models."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.posteriors import Net, X, Y, assert_same, assert_untouched, posterior_of, snapshot
from support.problems import closure_for
from support.tolerances import roundings
from torch import Tensor, nn
from torch.func import functional_call

import liebayes as lb
from liebayes.bases import Normal
from liebayes.posterior import Posterior


def test_sampled_restores_the_module() -> None:
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
    with pytest.raises(KeyError), posterior.sampled():
        raise KeyError("of the user")
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


def test_casts_cached_by_autocast_are_not_reused() -> None:
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
                torch.testing.assert_close(outputs[-1], functional_call(model, weights, (X,)), **roundings(4, torch.bfloat16))
        assert not torch.equal(outputs[0], outputs[1])
        assert torch.equal(model(X), point)
        posterior.recompute_statistics([X], sample=True, seed=1)
    again.recompute_statistics([X], sample=True, seed=1)
    torch.testing.assert_close(
        posterior.buffers["1.running_mean"], again.buffers["1.running_mean"], **roundings(4, torch.bfloat16)
    )


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


def test_a_model_that_keeps_its_parameters_in_a_tuple_is_sampled() -> None:
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


def test_batch_statistics_are_taken_at_the_samples() -> None:
    model = Net()
    optimizer = lb.AffineBLR(model.parameters(), data_size=20, base=Normal(0.3), mc_samples=2)
    expected = torch.zeros(4)

    def watched(x: Tensor) -> Tensor:
        nonlocal expected
        hidden = (x @ model.first.weight.T + model.first.bias).detach()  # at the sample
        expected = 0.9 * expected + 0.1 * hidden.mean(0)
        return model(x)

    for _ in range(3):
        optimizer.step(closure_for(optimizer, watched, X, Y))
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

    def loader() -> Iterator[Tensor]:
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
    """One graph serves all draws; a graph of training would get `Net`'s batch norm and dropout wrong."""
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
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
