"""Warnings of runs that go wrong: each is told once, and a run that goes well has none."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.optim import TrainingWarning


def told(train: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train()
    assert all(warning.filename == __file__ for warning in found)  # they point to the line that calls step()
    return [str(warning.message) for warning in found if warning.category is TrainingWarning]


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    return nn.Linear(3, 1), x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(64, 1)


def train(
    lr: float,
    *,
    rule: Callable[..., lb.LieGroupBLR] = lb.AffineBLR,
    factor: float = 1.0,
    closure: bool = True,
    reduction: str = "mean",
    steps: int = 100,
    **options: float | None,
) -> Callable[[], object]:
    model, x, y = problem()
    optimizer = rule(model.parameters(), lr, data_size=64, **options)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.mse_loss(factor * model(x), factor * y, reduction=reduction)
        value.backward()
        return value

    def run() -> None:
        for _ in range(steps):
            if closure:
                optimizer.step(loss)
            else:
                with optimizer.sampled():
                    loss()
                optimizer.step()

    return run


@pytest.mark.parametrize("closure", [True, False])
def test_a_good_run_is_silent(closure: bool) -> None:
    assert told(train(0.3, closure=closure)) == []


@pytest.mark.parametrize("closure", [True, False])
def test_steps_that_are_mostly_bounded(closure: bool) -> None:
    [text] = told(train(3.0, factor=100.0, closure=closure, max_step=0.01))
    assert "max_step=0.01 has bounded" in text
    assert "Lower lr (now 3)" in text


@pytest.mark.parametrize("closure", [True, False])
def test_a_loss_that_rises_a_hundredfold(closure: bool) -> None:
    """Too long steps of gradient descent: errors grow by a factor that hardly depends on the noise, to 1e10 after 20 steps."""
    [text] = told(train(16.0, rule=lb.AdditiveBLR, closure=closure, steps=20))
    assert "The loss has risen from" in text
    assert "Lower lr (now 16)" in text


@pytest.mark.parametrize("closure", [True, False])
def test_a_sum_over_the_batch(closure: bool) -> None:
    [text] = told(train(0.001, closure=closure, reduction="sum", steps=3))
    assert 'Use .mean(), or reduction="mean"' in text


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by hand": lambda output, y: (output - y).square().sum(),
    "halves": lambda output, y: (0.5 * (output - y) ** 2).sum(),
    "likelihood": lambda output, y: -torch.distributions.Normal(output, 1.0).log_prob(y).sum(),
    "over targets, then over the batch": lambda output, y: (output - y).abs().sum(1).sum(),
}
MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda output, y: (output - y).square().mean(),
    "divided": lambda output, y: (output - y).square().sum() / len(y),
    "over targets, then a mean": lambda output, y: (output - y).square().sum(1).mean(),
    "a mean, then over targets": lambda output, y: (output - y).square().mean(0).sum(),
    "two losses": lambda output, y: torch.stack([(output - y).square().mean(), (output - y).abs().mean()]).sum(),
    "scaled": lambda output, y: 2.0**16 * (output - y).square().mean(),
}


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", [*SUMS, *MEANS])
def test_sums_written_by_hand(name: str, late: bool) -> None:
    """In a block of sampled(), with the backward pass inside or after it."""
    model, x, y = problem()
    optimizer = lb.AffineBLR(model.parameters(), 0.001, data_size=64)

    def run() -> None:
        with optimizer.sampled():
            loss = {**SUMS, **MEANS}[name](model(x), y)
            if not late:
                loss.backward()
        if late:
            loss.backward()
        optimizer.step()

    assert len(told(run)) == (name in SUMS)


def test_a_problem_without_data_is_no_sum_over_a_batch() -> None:
    theta = nn.Parameter(torch.zeros(5))
    optimizer = lb.AffineBLR([theta], 0.001, data_size=1)

    def run() -> None:
        with optimizer.sampled():
            (theta - 3).square().sum().backward()
        optimizer.step()

    assert told(run) == []


def test_nothing_is_left_on_the_parameters() -> None:
    model, x, y = problem()
    optimizer = lb.AffineBLR(model.parameters(), 0.001, data_size=64)
    with optimizer.sampled():
        (model(x) - y).square().mean().backward()
    optimizer.step()
    assert all(not p._backward_hooks for p in model.parameters())
