"""Closures that would not be the same in threads are evaluated by the loop, with right gradients from the first step on."""

from __future__ import annotations

import random
import types
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import liebayes as lb
from liebayes import threads
from liebayes.optim import parallel

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(2))
Closure = Callable[[], Any]


pytestmark = pytest.mark.usefixtures("threads_for_all_sizes")


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, 3))


def closure_for(model: Callable[..., Any], optimizer: lb.LieGroupBLR) -> Closure:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def assert_falls_back(
    match: str,
    make: Callable[[], nn.Module],
    make_closure: Callable[[Any, lb.LieGroupBLR], Closure] = closure_for,
    calls: int = 15,
) -> None:
    """Three steps are those of the loop, and the closure is called once for each sample."""
    results = []
    for setting in (False, None):
        model = make()
        optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=5, parallel=setting)
        closure, counted = make_closure(model, optimizer), SimpleQueue[None]()  # a list would be a reason for the loop

        def counting(closure: Closure = closure, counted: SimpleQueue[None] = counted) -> Any:
            counted.put(None)
            return closure()

        torch.manual_seed(5)
        random.seed(5)
        losses = [torch.as_tensor(optimizer.step(counting)).detach() for _ in range(3)]
        assert counted.qsize() == (15 if setting is False else calls)
        results.append([*(p.detach() for p in model.parameters()), *model.buffers(), *losses])
    assert optimizer.evaluation.startswith("loop"), optimizer.evaluation
    assert match in optimizer.evaluation
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-6)
    model = make()
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=5, parallel=True)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="parallel=True, but"):
        optimizer.step(make_closure(model, optimizer))
    torch.testing.assert_close([p.detach() for p in model.parameters()], before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (lambda: nn.BatchNorm1d(16), "running statistics"),
        (lambda: nn.Dropout(0.3), "random"),
        (lambda: nn.BatchNorm1d(16, track_running_stats=False), ""),
    ],
)
def test_layers(layer: Callable[[], nn.Module], match: str):
    if match:
        assert_falls_back(match, lambda: network(layer()))
    else:
        assert_takes_threads(network(layer()))
    assert_takes_threads(network(layer()).eval())


def assert_takes_threads(model: nn.Module) -> None:
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=5)
    for _ in range(2):
        optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation == "threads"


def test_modules_with_hooks():
    def hooked() -> nn.Module:
        model = network()
        model[0].register_forward_hook(lambda *_: None)  # pyright: ignore[reportIndexIssue]
        return model

    assert_falls_back("hooks", hooked)


def test_parameters_with_hooks():
    def hooked() -> nn.Module:
        model = network()
        model[0].weight.register_hook(lambda gradient: 2 * gradient)  # pyright: ignore[reportIndexIssue]
        return model

    assert_falls_back("hooks", hooked)


def test_spectral_norm():
    """Its vectors are buffers that every forward pass moves."""

    def normed() -> nn.Module:
        model = network()
        nn.utils.parametrizations.spectral_norm(model[0])  # pyright: ignore[reportIndexIssue]
        return model

    assert_falls_back("", normed)


class Linear(torch.autograd.Function):
    """A custom function gets its arguments as they are, past torch's modes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


def custom(model: nn.Sequential, optimizer: lb.LieGroupBLR, limit: float | None = None) -> Closure:
    def closure() -> Tensor:
        optimizer.zero_grad()
        first, *others = model
        h: Any = Linear.apply(X, first.weight) + first.bias
        for layer in others:
            h = layer(h)
        loss = nn.functional.cross_entropy(h, Y) + first.weight.square().sum()  # by both ways
        loss.backward()
        if limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        return loss

    return closure


def test_custom_functions_of_parameters():
    assert_falls_back("past torch's functions", network, custom)


def test_custom_functions_of_parameters_with_clipping():
    assert_falls_back("past torch's functions", network, lambda m, o: custom(m, o, 0.01))


def test_custom_functions_of_activations_are_fine():
    model: Any = network()
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=5)
    fixed = torch.eye(16)

    class Wrapped(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return model[2](Linear.apply(model[0](x).tanh(), fixed))

    optimizer.step(closure_for(Wrapped(), optimizer))
    assert optimizer.evaluation == "threads"


def test_a_custom_function_that_comes_later():
    """The probe has not seen it; the step is taken again by the loop."""
    results = []
    for setting in (False, None):
        model: Any = network()
        optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=5, parallel=setting)
        usual, other = closure_for(model, optimizer), custom(model, optimizer)
        late = [False]

        def closure(usual: Closure = usual, other: Closure = other, late: list[bool] = late) -> Any:
            return other() if late[0] else usual()

        optimizer.step(closure)
        assert optimizer.evaluation == ("threads" if setting is None else "loop: parallel=False")
        late[0] = True
        optimizer.step(closure)
        results.append([p.detach() for p in model.parameters()])
    assert "past torch's functions" in optimizer.evaluation
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-6)


def test_backward_for_inputs_that_are_parameters():
    """No mode sees the engine itself being called. The one sample this is found out with is evaluated again."""

    def directly(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(X), Y)
            inputs = tuple(model.parameters())
            _engine_run_backward(
                (loss,), (torch.ones(()),), False, False, inputs, allow_unreachable=True, accumulate_grad=True
            )
            return loss

        return closure

    assert_falls_back("gradients came for other parameters", network, directly, calls=16)


def test_compiled_models():
    compiled: dict[int, Any] = {}

    def compiling(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        fast = compiled.setdefault(id(model), torch.compile(model, backend="eager"))
        return closure_for(fast, optimizer)

    assert_falls_back("compiled", network, compiling)


def test_compiled_functions():
    def compiling(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        hidden = {"call": torch.compile(lambda x: model(x) * 1.0, backend="eager")}  # not among the closure's variables
        return closure_for(lambda x: hidden["call"](x), optimizer)

    assert_falls_back("compiled", network, compiling)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool):
    def checkpointing(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        x = X.clone().requires_grad_() if reentrant else X
        return closure_for(lambda _: checkpoint(model, x, use_reentrant=reentrant), optimizer)

    assert_falls_back("checkpointing", network, checkpointing)


def test_scripted_models():
    def scripted() -> Any:
        with pytest.warns(DeprecationWarning, match="jit"):
            return torch.jit.script(network())

    assert_falls_back("past torch's functions", scripted)


# State that one call leaves for the next.


class Remembering(nn.Module):
    """A network that hands out part of its loss by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.penalty: Any = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        self.penalty = h.square().mean()
        return h


def test_modules_that_keep_something():
    def with_penalty(model: Remembering, optimizer: lb.LieGroupBLR) -> Closure:
        return closure_for(lambda x: model(x) + model.penalty, optimizer)

    assert_falls_back("changes when it is called", Remembering, with_penalty)


def test_caches_that_are_filled_once_are_fine():
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()
            self.cache: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            if len(x) not in self.cache:
                self.cache[len(x)] = torch.ones(len(x), 1)
            return self.layers(x * self.cache[len(x)])

    assert_takes_threads(Caching())


def drawing(draw: Callable[[], Any]) -> Callable[[Any, lb.LieGroupBLR], Closure]:
    return lambda model, optimizer: closure_for(lambda x: model(x + float(draw())), optimizer)


GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()), random.random, lambda: torch.rand((), generator=GENERATOR)],
    ids=["torch", "python", "generator"],
)
def test_random_closures(draw: Callable[[], Any]):
    def start(model: Any, optimizer: lb.LieGroupBLR) -> Closure:
        GENERATOR.manual_seed(3)
        return drawing(draw)(model, optimizer)

    assert_falls_back("random", network, start)


def test_random_closures_of_numpy():
    def start(model: Any, optimizer: lb.LieGroupBLR) -> Closure:
        np.random.seed(3)
        return drawing(np.random.rand)(model, optimizer)

    assert_falls_back("random", network, start)


def test_closures_that_read_batches_themselves():
    def reading(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        batches = iter([X + i for i in range(100)])
        return closure_for(lambda _: model(next(batches)), optimizer)

    assert_falls_back("iterator", network, reading)


def test_closures_that_count():
    def counting(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        calls = 0

        def closure() -> Any:
            nonlocal calls
            calls += 1
            return closure_for(lambda x: model(x) * (1 + calls % 3), optimizer)()

        return closure

    assert_falls_back("variables", network, counting)


@pytest.mark.parametrize("kind", ["generator", "older", "attribute"])
def test_generators_of_numpy(kind: str):
    def drawing(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        source: Any = np.random.RandomState(0) if kind == "older" else np.random.default_rng(0)
        holder = types.SimpleNamespace(source=source)
        if kind == "attribute":
            return closure_for(lambda x: model(x) * holder.source.normal(), optimizer)
        return closure_for(lambda x: model(x) * source.normal(), optimizer)

    assert_falls_back("random numbers", network, drawing)


class Meter:
    def __init__(self) -> None:
        self.total = 0.0


@pytest.mark.parametrize("kind", ["dict", "list", "empty list", "deque", "Counter", "meters"])
def test_closures_that_collect(kind: str):
    """Updates would be lost in threads, and entries come in another order."""
    collected: Any = {
        "dict": {"correct": 0}, "list": [0], "empty list": [], "deque": deque([0]), "Counter": Counter(correct=0),
        "meters": {"loss": Meter()},
    }[kind]  # fmt: skip

    def collecting(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        inner = closure_for(model, optimizer)

        def closure() -> Any:
            loss = inner()
            if kind in ("dict", "Counter"):
                collected["correct"] += 1
            elif kind == "meters":
                collected["loss"].total += loss.item()
            else:
                collected.append(loss.item())
            return loss

        return closure

    assert_falls_back("another object changes", network, collecting)


def test_closures_that_write_into_tensors():
    def averaging(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        average = torch.zeros(24, 3)

        def forward(x: Tensor) -> Tensor:
            h = model(x)
            average.mul_(0.9).add_(h.detach())
            return h + average

        return closure_for(forward, optimizer)

    assert_falls_back("written into", network, averaging)


def test_gradients_for_other_tensors():
    def attacking(model: nn.Module, optimizer: lb.LieGroupBLR) -> Closure:
        x = X.clone().requires_grad_()
        return closure_for(lambda _: model(x), optimizer)

    assert_falls_back("not trained", network, attacking)


# Settings and contexts.


def evaluation_of(model: nn.Module, **settings: Any) -> str:
    optimizer = lb.AffineBLR(model.parameters(), 0.1, **{"data_size": 100, "mc_samples": 4, **settings})
    optimizer.step(closure_for(model, optimizer))
    return optimizer.evaluation


def test_what_is_not_worth_threads(monkeypatch: pytest.MonkeyPatch):
    assert evaluation_of(network(), mc_samples=1) == "loop: there is one sample in a step"
    assert evaluation_of(network(), parallel=False) == "loop: parallel=False"
    monkeypatch.setattr(parallel, "MIN_SAMPLES", 8)
    assert evaluation_of(network(), mc_samples=7) == "loop: there are fewer than 8 samples in a step"
    assert evaluation_of(network(), mc_samples=8) == evaluation_of(network(), mc_samples=2, parallel=True) == "threads"
    monkeypatch.setattr(parallel, "MIN_SAMPLES", 0)
    monkeypatch.setattr(threads, "MIN_WEIGHTS", 10_000)
    assert "weights" in evaluation_of(network())
    monkeypatch.setattr(threads, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(threads, "MAX_WEIGHTS", 200)
    assert "memory" in evaluation_of(network())
    assert evaluation_of(network(), parallel=True) == "threads"  # with one worker
    torch.set_num_threads(1)
    assert evaluation_of(network()) == "loop: torch has one thread"
    assert evaluation_of(network(), parallel=True) == "threads"


def test_modes_of_the_calling_thread():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        assert "mode" in evaluation_of(network())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert "saved tensors" in evaluation_of(network())
    with nn.utils.parametrize.cached():
        assert "cached" in evaluation_of(network())


def test_a_mode_that_is_switched_on_later():
    """Dropout was off when the closure was watched."""
    model = network(nn.Dropout(0.5)).eval()
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=4)
    closure = closure_for(model, optimizer)
    optimizer.step(closure)
    assert optimizer.evaluation == "threads"
    model.train()
    optimizer.step(closure)
    assert optimizer.evaluation == "loop: random numbers are drawn"


def test_another_closure_is_watched_too():
    model = network()
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=100, mc_samples=4)
    optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation == "threads"

    def closure() -> Any:
        return closure_for(lambda x: model(x) + torch.rand(()), optimizer)()

    optimizer.step(closure)
    assert optimizer.evaluation == "loop: random numbers are drawn"
