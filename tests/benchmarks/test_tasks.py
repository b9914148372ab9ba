"""The benchmark's tasks: batches are fixed by the seed, held-out records are not trained on, figures follow from outputs."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import tasks

pytest.importorskip("sklearn")
SMALL = ("softmax-digits", "digits-mlp", "logistic", "diabetes", "char-gpt", "char-lstm")
TABLES = SMALL[:4]


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_fixes_the_network_and_the_batches(name: str) -> None:
    task = tasks.TASKS[name]()
    first, again, other = (next(task.batches(seed)) for seed in (1, 1, 2))
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not first[0].equal(other[0])
    one, same = task.model(1), task.model(1)
    assert all(a.equal(b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    loss = task.loss(one(first[0]), first[1])
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None for p in one.parameters())


@pytest.mark.parametrize("name", TABLES)
def test_a_run_has_the_steps_it_says(name: str) -> None:
    task = tasks.TASKS[name]()
    assert sum(1 for _ in task.batches(0)) == task.steps


@pytest.mark.parametrize("name", TABLES)
def test_held_out_records_are_not_trained_on(name: str) -> None:
    task = tasks.TASKS[name]()
    epoch = math.ceil(task.data_size / len(next(task.batches(0))[0]))
    seen = {tuple(row.tolist()) for inputs, _ in itertools.islice(task.batches(0), epoch) for row in inputs}
    assert not seen & {tuple(row.tolist()) for row in task.held_out[0]}


@pytest.mark.parametrize("name", ["diabetes", "char-lstm"])
def test_the_marginal_is_that_of_the_mixture(name: str) -> None:
    """Of equal outputs it is the NLL at the point; of different ones log-mean-exp, here written out in double precision."""
    task = tasks.TASKS[name]()
    models = [task.model(seed) for seed in (0, 1)]
    outputs = [task.predict(model) for model in models]
    point = task.evaluate(models[0])
    assert task.evaluate_marginal([outputs[0]] * 3) == pytest.approx(point, rel=1e-5)  # float32, log-likelihoods near 1
    each = [task.log_likelihood(output).double().exp() for output in outputs]
    expected = -torch.log((each[0] + each[1]) / 2).mean().item()
    assert task.evaluate_marginal(outputs) == pytest.approx(expected, rel=1e-5)
    assert models[0].training
