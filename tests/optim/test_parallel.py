"""Samples in threads give what samples one after the other give, and fall back to the loop wherever they would not."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import liebayes as lb
from liebayes.threads import shared_workers

Make = Callable[..., Any]
RULES = {"additive": lb.AdditiveBLR, "affine": lb.AffineBLR, "multiplicative": lb.MultiplicativeBLR}
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(2))


pytestmark = pytest.mark.usefixtures("threads_for_all_sizes")


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *(layers or [nn.Tanh()]), nn.Linear(16, 3))


def optimizer_for(model: nn.Module, rule: str = "affine", **settings: Any) -> lb.LieGroupBLR:
    return RULES[rule](model.parameters(), 0.1, **{"data_size": 100, "mc_samples": 7, **settings})


def closure_for(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("added", [False, True])
def test_parameters_that_join_in_mid_training(added: bool) -> None:
    """Unfrozen, or added as a group of their own; threads and the loop agree."""

    def train(parallel: bool) -> list[Tensor]:
        model = network()
        head = list(model[2].parameters())  # type: ignore[index]
        optimizer = lb.AffineBLR(model[0].parameters(), 0.1, data_size=100, mc_samples=7, parallel=parallel)  # type: ignore[index]
        if not added:
            optimizer.add_param_group({"params": head})
        for p in head:
            p.requires_grad_(False)
        for step in range(4):
            if step == 2:
                for p in head:
                    p.requires_grad_(True)
                if added:
                    optimizer.add_param_group({"params": head})
            optimizer.step(closure_for(model, optimizer))
        return values(model)

    start = values(network())
    threads, loop = train(True), train(False)
    assert not any(torch.equal(a, b) for a, b in zip(start, threads, strict=True))
    torch.testing.assert_close(threads, loop, rtol=1e-5, atol=1e-6)


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


Run = tuple[list[Tensor], list[Tensor], list[Tensor | None], lb.LieGroupBLR]


def run(
    parallel: bool | None,
    rule: str = "affine",
    make: Callable[[], nn.Module] = network,
    make_closure: Callable[[nn.Module, lb.LieGroupBLR], Callable[[], Any]] = closure_for,
    steps: int = 3,
    **settings: Any,
) -> Run:
    """Weights, losses and last gradients after a few steps."""
    model = make()
    optimizer = optimizer_for(model, rule, parallel=parallel, **settings)
    closure = make_closure(model, optimizer)
    losses = [torch.as_tensor(optimizer.step(closure)).detach() for _ in range(steps)]
    return values(model), losses, grads(model), optimizer


def assert_equal_to_the_loop(expected: str = "threads", rule: str = "affine", **options: Any) -> lb.LieGroupBLR:
    one, *rest_of_one, _ = run(False, rule, **options)
    other, *rest_of_other, optimizer = run(None, rule, **options)
    assert optimizer.evaluation.startswith(expected), optimizer.evaluation
    torch.testing.assert_close([other, *rest_of_other], [one, *rest_of_one], rtol=2e-5, atol=2e-6)
    return optimizer


def positive() -> nn.Module:
    return lb.nn.plus_minus(network())


@pytest.mark.parametrize("rule", RULES)
def test_threads_equal_the_loop(rule: str):
    assert_equal_to_the_loop(rule=rule, make=positive if rule == "multiplicative" else network)


def test_networks_with_sign_constraints():
    assert_equal_to_the_loop(make=positive)


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_the_same_bits_for_any_number_of_workers(samples: int):
    results = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        weights, losses, last, optimizer = run(True, mc_samples=samples)
        assert optimizer.evaluation == "threads"
        results.append([*weights, *losses, *last])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)


def test_sub_batches():
    whole = (X[:21], Y[:21])

    def train(parallel: bool | None) -> list[Tensor]:
        model = network()
        optimizer = optimizer_for(model, parallel=parallel)

        def closure(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses = [optimizer.step(closure, batch=whole) for _ in range(3)]
        assert parallel is False or optimizer.evaluation == "threads"
        return [*values(model), *losses]

    torch.testing.assert_close(train(None), train(False), rtol=2e-5, atol=2e-6)


def test_resumed_to_the_bit():
    _, _, _, whole = run(None, steps=4)
    model = network()
    optimizer = optimizer_for(model)
    for _ in range(2):
        optimizer.step(closure_for(model, optimizer))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    torch.set_num_threads(1)  # threads go on, with one worker
    model = network()
    optimizer = optimizer_for(model)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    for _ in range(2):
        optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation == "threads"
    expected = [p.detach() for p in whole.param_groups[0]["params"]]
    torch.testing.assert_close(values(model), expected, rtol=0, atol=0)


def test_a_loop_that_was_settled_stays_one():
    model = network()
    optimizer = optimizer_for(model)
    state = optimizer.state_dict()
    state["liebayes"]["evaluation"] = "loop"
    optimizer.load_state_dict(state)
    optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation.startswith("loop")
    del state["liebayes"]["evaluation"]  # checkpoints of earlier versions
    optimizer.load_state_dict(state)
    optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation == "threads"


def test_copies_choose_anew():
    optimizer = assert_equal_to_the_loop(steps=1)
    twin = copy.deepcopy(optimizer)
    assert twin.evaluation == "undecided"


# Closures.


def everything(queue: SimpleQueue[Any]) -> list[Any]:
    return [queue.get() for _ in range(queue.qsize())]


def test_the_closure_is_called_once_for_every_sample():
    model = network()
    optimizer = optimizer_for(model)
    calls: SimpleQueue[int] = SimpleQueue()  # a list would be a reason for the loop

    def closure() -> Tensor:
        calls.put(threading.get_ident())
        return closure_for(model, optimizer)()

    for step in range(1, 4):
        optimizer.step(closure)
        assert calls.qsize() == 7 * step
    assert optimizer.evaluation == "threads"
    assert threading.get_ident() not in everything(calls)[7:]


def clipping(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = closure_for(model, optimizer)()
        assert clip_grad_norm_(model.parameters(), 0.01) > 0.01
        return loss

    return closure


def clearing_by_the_module(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def clearing_in_place(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def never_clearing(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def in_two_backwards(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(X[part]), Y[part]) / 2 for part in (slice(0, 12), slice(12, 24))]
        for loss in losses:
            loss.backward()
        return sum(loss.detach() for loss in losses)  # pyright: ignore[reportReturnType]

    return closure


def by_autograd(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = nn.functional.cross_entropy(model(X), Y)
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        return loss

    return closure


def penalised(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    """Parameters in lists, and by their own methods."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y) + 0.1 * torch.cat([p.flatten() for p in model.parameters()]).norm()
        loss = loss + 0.1 * torch.stack(torch._foreach_norm(list(model.parameters()))).sum()
        loss.backward()
        return loss

    return closure


def with_autocast(model: nn.Module, optimizer: lb.LieGroupBLR) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(X)
            assert outputs.dtype == torch.bfloat16
            loss = nn.functional.cross_entropy(outputs.float() + model(X).float(), Y)  # casts of weights are used twice
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize(
    "make_closure",
    [clipping, clearing_by_the_module, clearing_in_place, never_clearing, in_two_backwards, by_autograd, penalised],
    ids=lambda f: f.__name__,
)
def test_closures(make_closure: Any):
    assert_equal_to_the_loop(make_closure=make_closure)


def test_autocast_inside_the_closure():
    one, *_ = run(False, make_closure=with_autocast)
    other, _, _, optimizer = run(None, make_closure=with_autocast)
    assert optimizer.evaluation == "threads"
    torch.testing.assert_close(other, one, rtol=0.02, atol=2e-3)


def test_the_callers_contexts_hold_in_workers():
    model = network()
    optimizer = optimizer_for(model)
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen: SimpleQueue[Any] = SimpleQueue()

    def closure() -> Tensor:
        optimizer.zero_grad()
        outputs = model(X)
        seen.put((outputs.dtype, variable.get(), torch.is_grad_enabled()))
        loss = nn.functional.cross_entropy(outputs.float(), Y)
        loss.backward()
        return loss

    token = variable.set(3)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        for _ in range(2):
            optimizer.step(closure)
    variable.reset(token)
    assert optimizer.evaluation == "threads"
    assert everything(seen) == [(torch.bfloat16, 3, True)] * 14


@pytest.mark.parametrize("kind", ["lstm", "attention", "convolution", "embedding"])
def test_networks(kind: str):
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(3, 6)
            self.lstm = nn.LSTM(6, 5, batch_first=True)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.convolution = nn.Conv1d(1, 5, 3)
            self.last = nn.LazyLinear(3)
            self(X)

        def forward(self, x: Tensor) -> Tensor:
            if kind == "lstm":
                x = self.lstm(x.view(24, 1, 6).expand(24, 3, 6))[0]
            elif kind == "attention":
                x = self.attention(x[None], x[None], x[None])[0]
            elif kind == "convolution":
                x = self.convolution(x.view(24, 1, 6)).relu_()
            else:
                x = self.embedding(Y) * x
            return self.last(x.reshape(24, -1))

    optimizer = assert_equal_to_the_loop(make=Network, steps=2)
    unused = [p for p in optimizer.param_groups[0]["params"] if p.grad is None]
    assert unused
    assert all(optimizer.state[p]["steps"] == 0 for p in unused)


def test_frozen_parameters_stay():
    def half_frozen() -> nn.Module:
        model = network()
        model[0].requires_grad_(False)  # pyright: ignore[reportIndexIssue]
        return model

    optimizer = assert_equal_to_the_loop(make=half_frozen)
    first = optimizer.param_groups[0]["params"][0]
    torch.testing.assert_close(first, network()[0].weight, rtol=0, atol=0)  # pyright: ignore[reportIndexIssue]


def test_channels_last_and_double_parameters():
    def strided() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(8, 3)
        return nn.Sequential(nn.Unflatten(1, (2, 1, 3)), nn.ZeroPad2d((0, 0, 0, 1)), *layers).to(
            memory_format=torch.channels_last
        )

    assert_equal_to_the_loop(make=strided)


def test_gradients_of_no_sample_are_refused_or_cleared():
    model = network()
    optimizer = optimizer_for(model)
    closure = closure_for(model, optimizer)
    optimizer.step(closure)
    nn.functional.cross_entropy(model(X), Y).backward()
    with pytest.raises(RuntimeError, match="taken at the point the module holds"):
        optimizer.step(never_clearing(model, optimizer))
    assert optimizer.evaluation == "threads"
    optimizer.step(closure)
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step(closure)


def test_gradients_that_are_not_finite():
    model = network()
    optimizer = optimizer_for(model, nonfinite="skip")
    bad = [False]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y) * (float("inf") if bad[0] else 1.0)
        loss.backward()
        return loss

    optimizer.step(closure)
    before = values(model)
    bad[0] = True
    optimizer.step(closure)
    assert (optimizer.skipped, optimizer.evaluation) == (1, "threads")
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    bad[0] = False
    optimizer.step(closure)
    assert optimizer.steps == 2


@pytest.mark.parametrize("when", [0, 1, 2, 5, 9, 13])
def test_an_exception_leaves_everything_as_it_was(when: int):
    """In the loop, in the probe and in workers; the step after it goes on as if it had not been tried."""

    def train(failing: bool) -> list[Tensor]:
        model = network()
        optimizer = optimizer_for(model)
        calls: list[None] = []
        failed = []

        def closure() -> Tensor:
            calls.append(None)
            if failing and len(calls) == when + 1:
                failed.append(values(model))
                raise ZeroDivisionError("now")
            return closure_for(model, optimizer)()

        before: list[Tensor] = []
        while optimizer.steps < 3:
            before = values(model)
            try:
                optimizer.step(closure)
            except ZeroDivisionError:
                assert failing
                torch.testing.assert_close(values(model), before, rtol=0, atol=0)
                failing = False
        return values(model)

    torch.testing.assert_close(train(True), train(False), rtol=2e-5, atol=2e-6)


def test_the_earliest_samples_exception_is_raised():
    model = network()
    optimizer = optimizer_for(model, mc_samples=2)
    step = closure_for(model, optimizer)
    optimizer.step(lambda x: step(), batch=(torch.arange(2),))

    def closure(part: Tensor) -> Tensor:
        if failing:
            time.sleep(0.1 if part[0] == 0 else 0)
            raise ValueError(f"sample {int(part[0])}")
        return step()

    failing: list[int] = []
    optimizer.step(closure, batch=(torch.arange(2),))
    assert optimizer.evaluation == "threads"
    failing.append(1)
    with pytest.raises(ValueError, match="sample 0"):
        optimizer.step(closure, batch=(torch.arange(2),))


def test_what_a_closure_must_not_do():
    model = network()
    optimizer = optimizer_for(model)
    step = closure_for(model, optimizer)
    nested: list[Callable[[], Any]] = []

    def closure() -> Tensor:
        for call in nested:
            call()
        return step()

    optimizer.step(closure)
    for call in (optimizer.step, lambda: optimizer.posterior(model), lambda: optimizer.sampled().__enter__()):
        nested[:] = [call]
        with pytest.raises(RuntimeError, match="while a sample is in the module"):
            optimizer.step(closure)
    nested.clear()
    optimizer.step(closure)
    assert optimizer.evaluation == "threads"


# The process.


def numbers_of_threads() -> tuple[int, int]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return torch.get_num_threads(), found[0]


def test_the_number_of_threads_is_left_alone():
    torch.set_num_threads(3)
    inside: SimpleQueue[int] = SimpleQueue()
    model = network()
    optimizer = optimizer_for(model)

    def closure() -> Tensor:
        inside.put(torch.get_num_threads())
        return closure_for(model, optimizer)()

    for _ in range(2):
        optimizer.step(closure)
        assert numbers_of_threads() == (3, 3)
    assert everything(inside) == [1] * 14
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("liebayes")]
    optimizer.step(closure)
    assert workers == [thread for thread in threading.enumerate() if thread.name.startswith("liebayes")]
    assert all(thread.daemon for thread in workers)


def test_workers_keep_no_model_alive():
    model = network()
    optimizer = optimizer_for(model)
    optimizer.step(closure_for(model, optimizer))
    assert optimizer.evaluation == "threads"
    reference = weakref.ref(model)
    del model, optimizer
    time.sleep(0.05)
    gc.collect()
    assert reference() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own():
    expected, *_ = run(True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)  # a child that waits for ever would be the parent's trouble
            torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork, and torch would wait for them
            weights, _, _, optimizer = run(True)
            same = all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
            results: list[int] = []
            workers = shared_workers()
            workers.run(5, 2, lambda number: number, lambda _, number, begun: begun, lambda _, number: results.append(number))
            os.write(writing, f"{optimizer.evaluation} {same} {results}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    assert answer == "threads True [0, 1, 2, 3, 4]"


def test_an_interrupt_does_not_hang():
    model = network()
    optimizer = optimizer_for(model, mc_samples=4)
    slow: list[float] = []

    def closure() -> Tensor:
        for pause in slow:
            time.sleep(pause)
        return closure_for(model, optimizer)()

    optimizer.step(closure)
    before = values(model)
    slow.append(0.3)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(closure)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, inherited)
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    slow.clear()
    optimizer.step(closure)
    assert (optimizer.evaluation, optimizer.steps) == ("threads", 2)


def test_sizes_of_gradients_may_be_summed_by_other_threads() -> None:
    """The first two samples are evaluated with one thread, and looked at again with all: their sums round differently."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = lb.nn.mlp((1, 16, 16), 10)
        optimizer = lb.AffineBLR(model.parameters(), data_size=1000, mc_samples=2)
        images = torch.randn(20, 1, 16, 16)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(images).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    finally:
        torch.set_num_threads(before)
    assert optimizer.steps == 3
