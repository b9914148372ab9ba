"""VOGN's squares against torch.func, its step against numpy, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from oracle_steps import Newton
from support.tolerances import roundings
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, linear

from liebayes.baselines import VOGN, PerExampleError, per_example
from liebayes.baselines.per_example import SquaredGradients
from liebayes.nn import lenet, mlp, resnet20

Loss = Callable[[Tensor, Tensor], Tensor]


def gradients_of_examples(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> dict[str, Tensor]:
    """The oracle: torch.func, one example at a time."""

    def one(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (image[None],)), label[None])

    return vmap(grad(one), (None, 0, 0))({n: p.detach() for n, p in model.named_parameters()}, x, y)


def mean_squares(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> dict[str, Tensor]:
    squares = SquaredGradients()
    with squares.of(model.parameters()):
        value = loss(model(x), y)
    value.backward()
    squares.require(list(model.parameters()))
    return {name: squares.examples * squares.sum_of(p) for name, p in model.named_parameters()}


def require_equal(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> None:
    expected = gradients_of_examples(model, x, y, loss)
    for name, found in mean_squares(model, x, y, loss).items():
        right = expected[name].square().mean(0)
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-14, msg=lambda text, name=name: f"{name}: {text}")


def perturbed(model: nn.Module) -> nn.Module:
    """In float64, and away from biases and thresholds of zero."""
    generator = torch.Generator().manual_seed(0)
    for p in model.double().parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((3, 16, 16), hidden=(20, 10)),
    "lenet": lambda: lenet((3, 16, 16), filters=(8, 12), hidden=(20,)),
    "resnet20": lambda: resnet20((3, 16, 16), width=4),
}


@pytest.mark.parametrize("piece", [1, per_example.PIECE])
@pytest.mark.parametrize("name", NETWORKS)
def test_squares_match_torch_func(name: str, piece: int) -> None:
    """All of the paper's networks, also with examples one by one."""
    model = perturbed(NETWORKS[name]())
    x = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with mock.patch.object(per_example, "PIECE", piece):
        require_equal(model, x, torch.arange(7) % 10)


class Positions(nn.Module):
    """A linear layer at several positions of an example, a scale for each feature, and arithmetic of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.floor = nn.Parameter(torch.zeros(1, 5, 1))
        self.shift = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return (self.shift - torch.maximum(self.linear(x) / self.scale, self.floor) * 2).sum(1)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "positions": (Positions, (5, 4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 3, 3, stride=2, padding=1), nn.Flatten()), (4, 9)),
    "conv2d, groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, dilation=2), nn.Flatten()), (4, 7, 8)),
    "conv2d, reflected, no bias": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect", bias=False), nn.Flatten()), (2, 5, 5)
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.Flatten()), (2, 3, 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_squares_of_other_layers(name: str) -> None:
    build, shape = LAYERS[name]
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    require_equal(perturbed(build()), x, torch.arange(6) % 3)


def test_micro_batches_and_channels_last() -> None:
    """Parts of a batch add up, whether backward runs at once or later."""
    model = perturbed(NETWORKS["resnet20"]()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = torch.randn(8, 3, 16, 16, dtype=torch.float64).to(memory_format=torch.channels_last), torch.arange(8)
    whole = mean_squares(model, x, y)
    for late in (False, True):
        squares, losses = SquaredGradients(), []
        with squares.of(model.parameters()):
            for part in (slice(0, 4), slice(4, 8)):
                losses.append(cross_entropy(model(x[part]), y[part]) / 2)
                losses.pop().backward() if not late else None
        for loss in losses:
            loss.backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(
                squares.examples * squares.sum_of(p), whole[name], **roundings(256, torch.float64, size=0.1)
            )


def test_bfloat16() -> None:
    """Squares are taken in float32."""
    model, x, y = mlp((4,), 3, hidden=(8,)), torch.randn(64, 4), torch.arange(64) % 3
    right = mean_squares(model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found = mean_squares(model, x, y)
    for name, square in found.items():
        assert square.dtype == torch.float32
        torch.testing.assert_close(square, right[name], rtol=0.1, atol=0.02 * float(right[name].max()))


# Steps.


def classifier() -> nn.Module:
    return perturbed(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64), torch.arange(12) % 3


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_step_matches_the_paper(mc_samples: int) -> None:
    model = classifier()
    settings: dict[str, Any] = {"prior": 2.0, "damping": 0.3, "momentum": 0.8, "scale_momentum": 0.9, "mc_samples": mc_samples}
    optimizer = VOGN(model.parameters(), 0.1, data_size=50, initial_curvature=0.5, **settings)
    parameters = dict(model.named_parameters())
    oracles = {
        n: Newton(p.detach().numpy().copy(), np.full(p.shape, 0.5), 50, 2.0, 0.3, 0.1, 0.8, 0.9) for n, p in parameters.items()
    }
    for _ in range(10):
        seen: list[dict[str, Tensor]] = []

        def closure(seen: list[dict[str, Tensor]] = seen) -> None:
            optimizer.zero_grad()
            cross_entropy(model(X), Y).backward()
            seen.append({n: p.detach().clone() for n, p in parameters.items()})

        optimizer.step(closure)
        kept = {n: p.detach().clone() for n, p in parameters.items()}
        for name, oracle in oracles.items():
            examples = []
            for weights in seen:
                model.load_state_dict(weights)
                examples.append(gradients_of_examples(model, X, Y)[name].numpy())
            oracle.vogn(np.stack(examples))
        model.load_state_dict(kept)
        std = optimizer.posterior(model).std()
        for name, oracle in oracles.items():
            np.testing.assert_allclose(kept[name].numpy(), oracle.m, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(std[name].numpy(), oracle.precision**-0.5, rtol=1e-9)


def test_parameters_without_gradient_do_not_move() -> None:
    used, unused = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    used.bias.requires_grad_(False)
    before = used.bias.clone(), unused.weight.detach().clone(), used.weight.detach().clone()
    optimizer = VOGN([*used.parameters(), *unused.parameters()], 0.1, data_size=50)
    optimizer.step(lambda: cross_entropy(used(X), Y).backward())
    assert torch.equal(used.bias, before[0])
    assert torch.equal(unused.weight, before[1])
    assert not torch.equal(used.weight, before[2])


@pytest.mark.parametrize("damping", [0.25, 0.0])
def test_without_gradient_and_memory_the_damping_is_the_precision(damping: float) -> None:
    """And where that is zero too, a width is left that is finite and large."""
    layer = nn.Linear(2, 1)
    settings = {"damping": damping, "initial_curvature": 1.0, "prior": 0.0, "scale_momentum": 0.0}
    optimizer = VOGN(layer.parameters(), 0.1, data_size=100, **settings)
    optimizer.step(lambda: (0 * layer(torch.ones(3, 2))).mean().backward())
    width = optimizer.posterior(layer).std()["weight"]
    if damping:
        torch.testing.assert_close(width, torch.full((1, 2), 0.2))
    else:
        assert bool(width.isfinite().all())
        assert float(width.min()) > 1


# Refusals.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.reshape(-1, 2)).reshape(-1, 4))


class View(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.T)


class Uses(nn.Module):
    """A scale that is used in a way of its own beside one that is known."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.use = nn.Parameter(torch.ones(1, 4)), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.scale, x).sum() + self.scale * x


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "batch norm": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "batch norm in training mode mixes examples"),
    "batch norm without parameters": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)), "mixes examples"),
    "frozen batch norm": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval(), "batch_norm of a parameter"),
    "batch norm of torch": (
        Uses(lambda p, x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)),
        "mixes examples",
    ),
    "another order": (Uses(lambda p, x: x.view(-1, 2, 2) * p.view(2, 2).T), "dimensions in another order"),
    "as an input": (Uses(lambda p, x: linear(p, torch.ones(4, 4))), "input of a layer to be examples"),
    "layer norm": (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), "layer_norm of a parameter"),
    "a layer used twice": (Tied(), "used twice in one backward pass"),
    "examples in other dimensions": (Reshaped(), r"different numbers of examples: \[12, 24\]"),
    "a view": (View(), "not views of them"),
    "in a list": (Uses(lambda p, x: torch.cat([p, x])), "torch.cat of a parameter"),
    "as a keyword": (Uses(lambda p, x: torch.mul(x, other=p)), "torch.mul of a parameter"),
    "in place": (Uses(lambda p, x: (x * 1).add_(p)), "add_ of a parameter"),
    "without examples": (Uses(lambda p, x: p * 2), "the same for all examples"),
    "a part of it": (Uses(lambda p, x: x[:, :2] * p[:, :2]), "the same for all examples"),
    "padding in words": (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3, padding="same")), "as numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    model, text = REFUSED[name]
    optimizer = VOGN(model.parameters(), data_size=10)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(PerExampleError, match=text):
        optimizer.step(lambda: model(X.float()).square().mean().backward())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_scalar_is_not_taken_for_examples() -> None:
    p = nn.Parameter(torch.ones(()))
    with pytest.raises(PerExampleError, match="the same for all examples"):
        VOGN([p], data_size=10).step(lambda: (p * torch.tensor(2.0)).backward())


@pytest.mark.parametrize("model", [nn.Linear(4, 3), nn.Sequential(nn.Unflatten(0, (1, 4)), nn.Conv1d(1, 2, 3))])
def test_an_example_without_a_batch_is_refused(model: nn.Module) -> None:
    with pytest.raises(PerExampleError, match=r"first dimension, but a layer gets the shape .* of a single one"):
        VOGN(model.parameters(), data_size=10).step(lambda: model(X[0].float()).square().mean().backward())


def test_two_backward_passes_through_one_forward_pass_are_refused() -> None:
    model = nn.Linear(4, 3)

    def closure() -> None:
        output = model(X.float())
        output.square().mean().backward(retain_graph=True)
        output.abs().mean().backward()

    with pytest.raises(PerExampleError, match="Two backward passes through one forward pass"):
        VOGN(model.parameters(), data_size=10).step(closure)


def test_layers_called_by_keyword() -> None:
    x, results = X.float(), []
    for call in (lambda m: m(x), lambda m: linear(input=x, weight=m.weight, bias=m.bias)):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = VOGN(model.parameters(), data_size=10)
        optimizer.step(lambda call=call, model=model: call(model).square().mean().backward())
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


def test_a_regulariser_in_the_loss_is_refused() -> None:
    model = classifier()
    optimizer = VOGN(model.parameters(), data_size=10)
    with pytest.raises(PerExampleError, match=r"torch.Tensor.square of a parameter"):
        optimizer.step(lambda: sum(p.square().sum() for p in model.parameters()).backward())  # type: ignore[union-attr]


def test_a_forward_pass_outside_the_block_is_refused() -> None:
    """Nothing is known of its examples; and the next step is taken as if it had not been."""
    model = classifier()
    optimizer = VOGN(model.parameters(), data_size=10)
    with optimizer.sampled():
        pass
    cross_entropy(model(X), Y).backward()
    with pytest.raises(PerExampleError, match="inside the block or closure"):
        optimizer.step()
    optimizer.zero_grad()
    with optimizer.sampled():
        cross_entropy(model(X), Y).backward()
    optimizer.step()
    assert optimizer.steps == 1


@pytest.mark.parametrize("unscale", [False, True])
def test_a_gradient_scaler_is_refused(unscale: bool) -> None:
    model = classifier()
    optimizer = VOGN(model.parameters(), data_size=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with optimizer.sampled():
        scaler.scale(cross_entropy(model(X), Y)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="without GradScaler"):
        scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
