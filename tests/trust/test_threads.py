"""Several threads on one module: each gets what it would get alone, and the module is left as it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from support.posteriors import Net, X, Y, assert_same, assert_untouched, posterior_of, snapshot, trained
from torch import Tensor

import liebayes as lb
from liebayes.bases import Base, Normal, from_distribution
from liebayes.posterior import Posterior

TIMEOUT = 300  # seconds until a deadlock is one


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], Any]) -> list[Any]:
    """The results of functions that start at the same time in threads of their own."""
    start = Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        start.wait(TIMEOUT)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(run, work) for work in works]]


def predictions(posterior: Posterior, seeds: range) -> list[Tensor]:
    return [posterior.predict(X, 8, seed=seed).probabilities for seed in seeds]


@pytest.mark.parametrize(
    "base", [Normal(0.2), from_distribution(torch.distributions.StudentT(5.0))], ids=["normal", "wrapped"]
)
def test_predictions_in_four_threads(base: Base) -> None:
    """The module is in training mode, with dropout and batch norm, and two posteriors share it."""
    model = Net()
    posteriors = [posterior_of(model, base=base), posterior_of(model, base=base)]
    works = [(posteriors[k % 2], range(8 * k, 8 * (k + 1))) for k in range(4)]
    serial = [predictions(*work) for work in works]
    before = snapshot(model)
    found = together(*(lambda work=work: predictions(*work) for work in works))
    assert_untouched(model, before)
    for one, other in zip(serial, found, strict=True):
        assert all(map(torch.equal, one, other))


def test_training_beside_predictions() -> None:
    """Training, its snapshots and the predictions of an earlier posterior are what they are alone."""

    def run(watch: Callable[[Posterior, Callable[[], Any]], Any]) -> tuple[Any, list[Posterior], Net]:
        torch.manual_seed(0)
        model = Net()
        optimizer = trained(model, steps=3)
        taken: list[Posterior] = []

        def train() -> None:
            for step in range(30):
                with optimizer.sampled():
                    loss = torch.nn.functional.cross_entropy(model(X), Y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step % 10 == 9:
                    taken.append(optimizer.posterior(model))

        return watch(optimizer.posterior(model), train), taken, model

    serial, expected, alone = run(lambda posterior, train: (train(), predictions(posterior, range(12)))[1])

    def beside(posterior: Posterior, train: Callable[[], None]) -> list[list[Tensor]]:
        over = Event()

        def predict() -> list[list[Tensor]]:
            rounds = []
            while not over.is_set() or not rounds:
                rounds.append(predictions(posterior, range(12)))
            return rounds

        return together(lambda: (train(), over.set()), predict)[1]

    rounds, taken, model = run(beside)
    for found in rounds:
        assert all(map(torch.equal, serial, found))
    for one, other in zip(expected, taken, strict=True):
        assert_same(one, other)
    assert_untouched(model, snapshot(alone) | {key: value for key, value in snapshot(model).items() if "place" in key})


def test_blocks_in_two_threads() -> None:
    """A block of sampled() keeps others out of the module until it ends."""
    model = Net().eval()
    posterior = posterior_of(model)
    model.eval()
    serial = predictions(posterior, range(10))
    inside, before = Event(), snapshot(model)

    def hold() -> tuple[Tensor, Tensor]:
        with posterior.sampled(torch.Generator().manual_seed(5)), torch.no_grad():
            first = model(X)
            inside.set()
            second = model(X)
        return first, second

    def predict() -> list[Tensor]:
        inside.wait(TIMEOUT)
        return predictions(posterior, range(10))

    (first, second), found = together(hold, predict)
    assert torch.equal(first, second)
    assert all(map(torch.equal, serial, found))
    assert_untouched(model, before)


def test_blocks_in_opposite_orders_end() -> None:
    """Each thread holds a module and needs the other's: one of them is refused, and the other goes on."""
    models = [Net().eval(), Net().eval()]
    posteriors = list(map(posterior_of, models))
    before, held = list(map(snapshot, models)), Barrier(2)

    def nested(first: Posterior, second: Posterior) -> str:
        with first.sampled():
            held.wait(TIMEOUT)
            try:
                second.predict(X, 2)
            except RuntimeError as error:
                return str(error)
        return "predicted"

    found = together(lambda: nested(*posteriors), lambda: nested(*reversed(posteriors)))
    assert sorted(text[:25] for text in found) == ["Threads would wait for ea", "predicted"]
    for model, one in zip(models, before, strict=True):
        assert_untouched(model, one)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not() -> None:
    model = Net()
    posterior = posterior_of(model)
    before, inside, over = snapshot(model), Event(), Event()

    def hold() -> None:
        with posterior.sampled():
            inside.set()
            over.wait(TIMEOUT)

    def fork() -> int:
        inside.wait(TIMEOUT)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(TIMEOUT)
                assert_untouched(model, before)
                with posterior.sampled():
                    pass
                assert_untouched(model, before)
                status = 0
            finally:
                os._exit(status)
        over.set()
        return os.waitpid(child, 0)[1]

    assert together(hold, fork)[1] == 0
    assert_untouched(model, before)


# One thread, several owners.


def test_a_second_optimizer_takes_over() -> None:
    model = Net()
    first, second = trained(model), trained(model)
    with pytest.raises(RuntimeError, match=r"Another liebayes optimizer has trained these parameters since\..* build a new"):
        first.sampled().__enter__()
    with second.sampled():
        loss = model(X).square().mean()
    loss.backward()
    second.step()


def test_a_second_optimizer_is_refused_inside_a_block() -> None:
    model = Net()
    first, second = trained(model), lb.AffineBLR(model.parameters(), data_size=20)
    before = snapshot(model)
    with first.sampled():
        held = snapshot(model)
        with pytest.raises(RuntimeError, match=r"Another optimizer cannot train these parameters.*Leave the block"):
            second.sampled().__enter__()
        assert_untouched(model, held)
    assert_untouched(model, before)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (1, 2, 0), (2, 0, 1)])
def test_interleaved_blocks_restore_the_module_in_any_order(order: tuple[int, ...]) -> None:
    model = Net()
    optimizer = trained(model)
    posteriors = [optimizer.posterior(model), posterior_of(model)]
    optimizer = trained(model)
    before = snapshot(model)
    blocks = [posteriors[0].sampled(), optimizer.sampled(), posteriors[1].sampled()]
    for block in blocks:
        block.__enter__()
    for number in order:
        blocks[number].__exit__(None, None, None)
    assert_untouched(model, before)
    optimizer.zero_grad()
    with optimizer.sampled():
        loss = model(X).square().mean()
    loss.backward()
    optimizer.step()
