"""Predictions of several draws in threads are those of the loop, to rounding, and to the bit for any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import threads

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads are chosen for small networks too."""
    monkeypatch.setattr(threads, "MIN_WEIGHTS", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def posterior_of(*layers: nn.Module, outputs: int = 3) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, outputs))
    return lb.AffineBLR(model.parameters(), 0.1, data_size=100).posterior(model)


def blocks(prediction: Any) -> list[Tensor]:
    return list(vars(prediction).values())


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_threads_equal_the_loop(task: str, batch_size: int | None):
    posterior = posterior_of()
    options = {"samples": 9, "task": task, "batch_size": batch_size, "seed": 4}
    loop = blocks(posterior.predict(X, parallel=False, **options))
    results = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        results.append(blocks(posterior.predict(X, parallel=True, **options)))
    torch.testing.assert_close(results[0], loop)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)


def test_hooks_see_the_draws_and_nothing_else():
    posterior, seen = posterior_of(), []
    posterior.model[0].register_forward_hook(lambda _m, _i, output: seen.append(len(output)))
    posterior.predict(X, samples=4)
    assert seen == [30] * 4


def test_pairs_of_mean_and_noise():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, raw = self.layer(x).chunk(2, -1)
            return mean, raw.exp()

    model = Noisy()
    posterior = lb.AffineBLR(model.parameters(), 0.1, data_size=100).posterior(model)
    loop, threaded = (blocks(posterior.predict(X, 5, task="regression", parallel=setting)) for setting in (False, True))
    torch.testing.assert_close(threaded, loop)


def test_buffers_are_those_of_the_snapshot():
    """The module's own have moved on since."""
    posterior = posterior_of(nn.BatchNorm1d(16))
    posterior.model.train()
    for _ in range(3):
        posterior.model(3 * X + 2)
    loop, threaded = (blocks(posterior.predict(X, 5, parallel=setting)) for setting in (False, True))
    torch.testing.assert_close(threaded, loop)
    norm = posterior.model[1]
    assert not torch.allclose(norm.running_mean, posterior.buffers["1.running_mean"])
    assert norm.training


def test_sign_constraints_dropout_and_recurrence():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))
    model = lb.nn.plus_minus(plain).train()
    posterior = lb.MultiplicativeBLR(model.parameters(), 0.1, data_size=100).posterior(model)
    loop, threaded = (blocks(posterior.predict(X, 5, parallel=setting)) for setting in (False, True))
    torch.testing.assert_close(threaded, loop)
    assert all(module.training for module in model.modules())


def test_a_module_that_refers_to_itself():
    """Functions and lists of a module have its own parameters: substitution reaches them, a copy of the module would not."""

    class Circular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
            self.order = (self.first, self.last)
            self.call: Callable[[Tensor], Tensor] = lambda x: self.order[1](self.order[0](x).tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.call(x)

    model = Circular()
    posterior = lb.AffineBLR(model.parameters(), 0.1, data_size=100).posterior(model)
    loop, threaded = (blocks(posterior.predict(X, 5, parallel=setting)) for setting in (False, True))
    torch.testing.assert_close(threaded, loop)


class Odd(nn.Module):
    """A layer that does something which threads would not get right."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.calls: Tensor
        self.last: Any = None
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "random":
            x = x + torch.rand(())
        elif self.what == "written into":
            self.calls.add_(1)
        elif self.what == "changes when it is called":
            self.last = x
        return x


@pytest.mark.parametrize("what", ["random", "written into", "changes when it is called", "hooks"])
def test_models_that_need_the_loop(what: str):
    layer = Odd(what)
    if what == "hooks":
        layer.register_forward_hook(lambda *_: None)
    posterior = posterior_of(layer)
    torch.manual_seed(1)
    posterior.buffers["1.calls"].zero_()
    loop = blocks(posterior.predict(X, 5, parallel=False))
    torch.manual_seed(1)
    torch.testing.assert_close(blocks(posterior.predict(X, 5)), loop, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=what):
        posterior.predict(X, 5, parallel=True)


def test_one_draw_is_no_matter_for_threads():
    posterior = posterior_of()
    assert torch.equal(posterior.predict(X, 0).probabilities, posterior.predict(X, 0, parallel=False).probabilities)
    with pytest.raises(RuntimeError, match="one draw"):
        posterior.predict(X, 1, parallel=True)


def test_errors_of_the_model_are_the_callers():
    posterior = posterior_of()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior.predict(torch.ones(3, 7), 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior.predict([X, X[:, :5]], 4, parallel=True)  # found out in a worker
    assert posterior.predict(X, 4, parallel=True).probabilities.shape == (30, 3)


def test_workers_that_need_workers_do_the_work_themselves():
    outer: list[Any] = []
    workers = threads.shared_workers()

    def compute(_worker: int, number: int, _: None) -> list[int]:
        inner: list[int] = []
        workers.run(3, 2, lambda n: n + number, lambda _worker, _number, begun: begun, lambda _number, n: inner.append(n))
        return inner

    workers.run(4, 2, lambda _: None, compute, lambda _number, inner: outer.append(inner))
    assert outer == [[n, n + 1, n + 2] for n in range(4)]


def test_the_number_of_threads_is_left_alone():
    posterior = posterior_of()
    posterior.predict(X, 4, parallel=True)
    assert torch.get_num_threads() == 2
