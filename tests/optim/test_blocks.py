"""Samples in blocks, micro-batches, and what a program does to parameters and gradients between a sample and its step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.problems import parameters_of
from support.tolerances import roundings
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.baselines import IVON
from liebayes.bases import Dirac, Normal
from liebayes.groups import Additive, DiagonalAffine


def exact(*parameters: nn.Parameter, **settings: Any) -> lb.LieGroupBLR:
    """Without noise and momentum a step subtracts the gradient."""
    return lb.LieGroupBLR(list(parameters), Additive(), Dirac(), **{"lr": 1.0, "momentum": 0.0, "data_size": 10, **settings})


def four() -> nn.Parameter:
    return nn.Parameter(torch.ones(4))


# Micro-batches: one sample over several blocks.


def problem(**settings: Any) -> tuple[nn.Module, lb.LieGroupBLR, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = lb.AffineBLR(model.parameters(), 0.1, data_size=20, base=Normal(0.2), **settings)
    return model, optimizer, torch.randn(12, 3, dtype=torch.float64)


def whole_batch() -> list[Tensor]:
    """The parameters after two steps on the whole batch."""
    model, optimizer, x = problem()
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            model(x).square().mean().backward()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.parametrize("late", [False, True])
def test_blocks_of_one_sample_equal_the_whole_batch(late: bool) -> None:
    model, optimizer, x = problem()
    for _ in range(2):
        optimizer.zero_grad()
        for part in x.chunk(3):
            with optimizer.sampled(again=True):
                loss = model(part).square().mean() / 3
                if not late:
                    loss.backward()
            if late:
                loss.backward()
        optimizer.step()
    torch.testing.assert_close(
        parameters_of(model), whole_batch(), **roundings(16, torch.float64)
    )  # sums of three parts, in two steps


def test_a_step_inside_a_block_runs_its_closure_on_the_sample() -> None:
    """How a trainer uses it: the closure leaves the block."""
    model, optimizer, x = problem()
    for _ in range(2):
        block = optimizer.sampled(again=True)
        block.__enter__()

        def closure(block: Any = block) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            block.__exit__(None, None, None)
            return loss

        assert optimizer.step(closure) > 0
    torch.testing.assert_close(parameters_of(model), whole_batch(), rtol=0, atol=0)


def test_a_closure_that_does_not_leave_the_block_is_refused() -> None:
    model, optimizer, x = problem()
    before = parameters_of(model)
    with optimizer.sampled(), pytest.raises(RuntimeError, match="Leave the block"):
        optimizer.step(lambda: model(x).square().mean().backward())
    torch.testing.assert_close(parameters_of(model), before, rtol=0, atol=0)


def test_several_samples_have_no_micro_batches() -> None:
    _, optimizer, _ = problem(mc_samples=2)
    with pytest.raises(ValueError, match="needs mc_samples=1"), optimizer.sampled(again=True):
        pass


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_gradients_taken_off_a_sample_are_refused(mc_samples: int) -> None:
    model, optimizer, x = problem(mc_samples=mc_samples)
    before = parameters_of(model)
    model(x).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"sampled\(again=True\)"):
        optimizer.step(lambda: model(x).square().mean().backward())
    torch.testing.assert_close(parameters_of(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("clear", ["before", "inside", "model", "in place"])
def test_gradients_taken_off_a_sample_and_cleared_do_no_harm(clear: str) -> None:
    model, optimizer, x = problem()
    for _ in range(2):
        model(x).square().mean().backward()
        if clear == "before":
            optimizer.zero_grad()
        elif clear == "in place":
            model.zero_grad(set_to_none=False)

        def closure() -> None:
            if clear in ("inside", "model"):
                optimizer.zero_grad() if clear == "inside" else model.zero_grad()
            model(x).square().mean().backward()

        optimizer.step(closure)
    torch.testing.assert_close(parameters_of(model), whole_batch(), rtol=0, atol=0)


# Nested blocks, and a backward pass after them.


def two_optimizers(seed: int) -> tuple[list[Any], Callable[[], Tensor], list[Tensor]]:
    parts, images = [nn.Conv2d(1, 2, 2), nn.Conv2d(2, 1, 2)], torch.randn(3, 1, 4, 4)
    blocks = [lb.AffineBLR(p.parameters(), data_size=10, base=Normal(0.5), seed=k).sampled() for k, p in enumerate(parts)]
    leaves = [p for part in parts for p in part.parameters()]
    return blocks, lambda: parts[1](parts[0](images).tanh()).square().mean(), leaves


def distillation(seed: int) -> tuple[list[Any], Callable[[], Tensor], list[Tensor]]:
    """Gradients of the student's sample, and through the teacher's."""
    teacher, student, x = nn.LayerNorm(5), nn.LayerNorm(5), torch.randn(3, 5, requires_grad=True)
    posterior = lb.AffineBLR(teacher.parameters(), data_size=10, base=Normal(0.5)).posterior(teacher)
    optimizer = lb.AffineBLR(student.parameters(), data_size=10, base=Normal(0.5))
    blocks = [posterior.sampled(torch.Generator().manual_seed(seed)), optimizer.sampled()]
    return blocks, lambda: (student(x) * teacher(x)).square().mean(), [x, *student.parameters(), *teacher.parameters()]


@pytest.mark.parametrize("first_outside", [True, False])
@pytest.mark.parametrize("setting", [two_optimizers, distillation])
def test_nested_blocks_with_a_late_backward(setting: Callable[[int], Any], first_outside: bool) -> None:
    """Autograd asks only the hooks of the inner block, which must know of the outer one's parameters."""

    def gradients(late: bool) -> list[Tensor]:
        torch.manual_seed(0)
        blocks, loss_of, leaves = setting(1)
        with blocks[0 if first_outside else 1], blocks[1 if first_outside else 0]:
            loss = loss_of()
            if not late:
                loss.backward()
        if late:
            loss.backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    late, inside = gradients(True), gradients(False)
    assert len(late) == len(inside) >= 4
    torch.testing.assert_close(late, inside, rtol=0, atol=0)


def test_a_backward_through_the_point_of_an_earlier_step_is_an_error() -> None:
    """As with torch's optimizers: not a wrong gradient."""
    model, x = nn.LayerNorm(3), torch.randn(2, 3)
    optimizer = lb.AffineBLR(model.parameters(), data_size=10)
    old = model(x).square().sum()
    with optimizer.sampled():
        model(x).square().sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


# Which gradients count.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_gradients_are_finite_even_if_their_sum_is_not(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = exact(p, lr=1e-38)
    with optimizer.sampled():
        p.grad = torch.full((4,), 2e38, dtype=dtype)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((4,), -2.0, dtype=dtype), **roundings(4, dtype))  # lr is denormal


@pytest.mark.parametrize("policy", ["skip", "raise"])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_block_that_is_not_finite_is_reported_by_the_step(policy: Any, bad: int) -> None:
    p = four()
    optimizer = exact(p, nonfinite=policy)
    for number in range(2):
        with optimizer.sampled():
            (p * (float("inf") if number == bad else 1.0)).sum().backward()
    if policy == "raise":
        with pytest.raises(lb.optim.NonFiniteError):
            optimizer.step()
    else:
        optimizer.step()
    assert optimizer.steps == 0
    assert torch.equal(p.detach(), torch.ones(4))
    optimizer.zero_grad()
    with optimizer.sampled():
        p.sum().backward()
    optimizer.step()
    assert torch.equal(p.detach(), torch.zeros(4))


@pytest.mark.parametrize("held", [False, True])
def test_an_earlier_sample_counts_though_its_graph_is_held(held: bool) -> None:
    p = four()
    optimizer = exact(p)
    with optimizer.sampled():
        loss = (p * p).sum() / 2
    loss.backward(retain_graph=held)
    optimizer.zero_grad()  # folds it in
    with optimizer.sampled():
        (3 * p * p).sum().div(2).backward()
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((4,), 1.0 - (1 + 3) / 2))


def test_a_parameter_frozen_for_one_sample_keeps_the_others() -> None:
    p, q = four(), four()
    optimizer = exact(p, q, mc_samples=3)
    for sample in range(3):
        q.requires_grad_(sample != 1)
        with optimizer.sampled():
            (p + 6 * q).sum().backward()
    optimizer.step()
    torch.testing.assert_close(q.detach(), torch.full((4,), 1.0 - (6 + 6) / 3))


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_sample_without_backward_is_refused(mc_samples: int) -> None:
    """Also if .grad still holds the gradient of an earlier one."""
    p, frozen = four(), nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = exact(p, frozen, mc_samples=mc_samples)
    with pytest.raises(RuntimeError, match="A sample ended without a gradient"):
        optimizer.step(lambda: p.square().sum())
    assert optimizer.steps == 0
    optimizer.step(lambda: optimizer.zero_grad() or p.sum().backward())
    torch.testing.assert_close(p.detach(), torch.zeros(4))
    if mc_samples == 2:
        with pytest.raises(RuntimeError, match="A sample ended without a gradient"), optimizer.sampled():
            pass
    p.requires_grad_(False)
    if mc_samples == 1:
        optimizer.step(lambda: p.square().sum())  # all are frozen: there is nothing to train


def test_the_samples_of_a_failed_step_are_forgotten() -> None:
    """A closure that returns another structure for each sample fails; the next step is as if it had not been tried."""
    p = four()
    optimizer = exact(p, mc_samples=2)
    results = iter([{"loss": torch.ones(())}, [torch.ones(())] * 2])
    with pytest.raises(ValueError, match=r"dict|list"):
        optimizer.step(lambda: (3 * p).sum().backward() or next(results))
    assert optimizer.steps == 0
    optimizer.step(lambda: optimizer.zero_grad() or p.sum().backward())
    torch.testing.assert_close(p.detach(), torch.zeros(4))


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_prior_that_fails_leaves_everything_as_it_was(mc_samples: int) -> None:
    """A function of the user's: its gradient may be infinite, and it may raise, in the second of two groups."""
    first, second = four(), four()
    mood = "fine"

    def prior(theta: Tensor) -> Tensor:
        if mood == "raises":
            raise ValueError("outside of the support")
        return theta.sum() * (float("inf") if mood == "infinite" else 1.0)

    optimizer = exact(first, mc_samples=mc_samples)
    optimizer.add_param_group({"params": [second], "prior": prior})

    def step() -> None:
        optimizer.step(lambda: optimizer.zero_grad() or (first.sum() + second.sum()).backward())

    mood = "infinite"
    with pytest.raises(lb.optim.NonFiniteError):
        step()
    mood = "raises"
    with pytest.raises(ValueError, match="outside of the support"):
        step()
    assert torch.equal(torch.cat([first, second]).detach(), torch.ones(8))
    mood = "fine"
    step()
    torch.testing.assert_close(first.detach(), torch.zeros(4))
    torch.testing.assert_close(second.detach(), torch.full((4,), -0.1))  # the loss's gradient, and a tenth of the prior's


def test_parameters_are_replaced_by_as_many_others() -> None:
    first, second, third = (nn.Parameter(torch.ones(3)) for _ in range(3))
    optimizer = exact(first)
    optimizer.add_param_group({"params": [second]})

    def step(*parameters: nn.Parameter) -> None:
        optimizer.step(lambda: optimizer.zero_grad() or torch.cat(parameters).sum().backward())

    step(first, second)
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": [third]})
    step(first, third)
    assert [float(p.detach().sum()) for p in (first, second, third)] == [-3, 0, 0]


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_another_layout_before_a_step_or_after_it(mc_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise goes by memory, so both have the new layout from the next sample on; in torch as in the kernel."""

    def train(before_step: bool) -> Tensor:
        torch.manual_seed(0)
        model, images = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
        settings: dict[str, Any] = {"data_size": 10, "mc_samples": mc_samples, "noise": "philox"}
        optimizer = lb.LieGroupBLR(model.parameters(), DiagonalAffine(), Normal(0.1), lr=0.1, **settings)
        for step in range(4):
            for _ in range(mc_samples):
                optimizer.zero_grad()
                with optimizer.sampled():
                    model(images).square().sum().backward()
            if step == 1 and before_step:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            optimizer.step()
            if step == 1:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.weight.detach().contiguous()

    expected = train(False)
    torch.testing.assert_close(train(True), expected, **roundings(4 * 16))  # four steps, whose sums are in another order
    monkeypatch.setattr(native, "available", lambda: False)
    torch.testing.assert_close(train(False), expected, **roundings(4 * 16))


@pytest.mark.parametrize("kind", ["rule", "baseline", "skipped"])
def test_gradients_are_not_kept_alive_after_the_step(kind: str) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    groups = [{"params": layer.parameters()} for layer in model]
    build = IVON if kind == "baseline" else lb.AffineBLR
    optimizer = build(groups, lr=0.1, data_size=10, nonfinite="skip")
    for _ in range(2):  # what the first step has built serves the second
        optimizer.zero_grad()
        with optimizer.sampled():
            (model(torch.ones(2, 5)).square().mean() * (torch.nan if kind == "skipped" else 1.0)).backward()
        references = [weakref.ref(p.grad) for p in model.parameters() if p.grad is not None]
        optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert len(references) == 4
    assert optimizer.skipped == (2 if kind == "skipped" else 0)
    assert not [reference for reference in references if reference() is not None]
