"""What a program does to parameters and gradients between a sample and its step is seen, and nothing is kept alive."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.baselines import IVON
from liebayes.bases import Dirac, Normal
from liebayes.groups import Additive, DiagonalAffine


def exact(*parameters: nn.Parameter, **settings: int) -> lb.LieGroupBLR:
    """Without noise and momentum a step subtracts the gradient."""
    return lb.LieGroupBLR(list(parameters), Additive(), Dirac(), lr=1.0, momentum=0.0, data_size=10, **settings)


def four() -> nn.Parameter:
    return nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("inner_first", [True, False])
def test_blocks_of_two_optimizers_with_a_late_backward(inner_first: bool) -> None:
    """Autograd asks the hooks of the inner block only, which must know of the outer one's parameters."""

    def gradients(late: bool) -> list[Tensor]:
        torch.manual_seed(0)
        parts, images = [nn.Conv2d(1, 2, 2), nn.Conv2d(2, 1, 2)], torch.randn(3, 1, 4, 4)
        outer, inner = (
            lb.LieGroupBLR(part.parameters(), DiagonalAffine(), Normal(0.5), lr=0.1, data_size=10, seed=seed)
            for seed, part in enumerate(parts if inner_first else reversed(parts))
        )
        with outer.sampled(), inner.sampled():
            loss = parts[1](parts[0](images).tanh()).square().mean()
            if not late:
                loss.backward()
        if late:
            loss.backward()
        return [p.grad for part in parts for p in part.parameters() if p.grad is not None]

    late, inside = gradients(True), gradients(False)
    assert len(late) == len(inside) == 4
    for found, expected in zip(late, inside, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_gradients_are_finite_also_if_their_sum_is_not(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = lb.LieGroupBLR([p], Additive(), Dirac(), lr=1e-38, momentum=0.0, data_size=10)
    with optimizer.sampled():
        p.grad = torch.full((4,), 2e38, dtype=dtype)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((4,), -2.0, dtype=dtype), rtol=1e-2, atol=0)


@pytest.mark.parametrize("teacher_outside", [True, False])
def test_blocks_of_a_posterior_and_an_optimizer_with_a_late_backward(teacher_outside: bool) -> None:
    """Distillation: gradients of the student's sample, and through the teacher's."""

    def gradients(late: bool) -> list[Tensor]:
        torch.manual_seed(0)
        teacher, student, x = nn.LayerNorm(5), nn.LayerNorm(5), torch.randn(3, 5, requires_grad=True)
        posterior = lb.AffineBLR(teacher.parameters(), data_size=10, base=Normal(0.5)).posterior(teacher)
        optimizer = lb.AffineBLR(student.parameters(), data_size=10, base=Normal(0.5))
        blocks = [posterior.sampled(torch.Generator().manual_seed(1)), optimizer.sampled()]
        with blocks[0 if teacher_outside else 1], blocks[1 if teacher_outside else 0]:
            loss = (student(x) * teacher(x)).square().mean()
            if not late:
                loss.backward()
        if late:
            loss.backward()
        return [g for t in (x, *student.parameters(), *teacher.parameters()) if (g := t.grad) is not None]

    late, inside = gradients(True), gradients(False)
    assert len(late) == len(inside) == 5
    for found, expected in zip(late, inside, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_step_is_seen_by_graphs_from_before() -> None:
    """As with torch's optimizers: a backward through the point of an earlier step is an error, not a wrong gradient."""
    model, x = nn.LayerNorm(3), torch.randn(2, 3)
    optimizer = lb.AffineBLR(model.parameters(), data_size=10)
    old = model(x).square().sum()
    with optimizer.sampled():
        model(x).square().sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


def test_a_sample_that_is_moved_inside_its_block_is_found() -> None:
    """share_memory_() gives the buffer, which the parameter is there, another place."""
    p = nn.Parameter(torch.zeros(1000))
    optimizer = lb.LieGroupBLR([p], DiagonalAffine(), Normal(), lr=0.1, data_size=10)
    seen = []
    for number in range(4):
        with optimizer.sampled():
            if number == 1:
                p.share_memory_()
            seen.append(p.detach().clone())
            p.square().sum().backward()
        p.grad = None
    assert all(abs(float(sample.std()) - 1) < 0.1 for sample in seen)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("change", ["metric", "group", "dtype"])
def test_states_that_do_not_fit_are_refused(change: str) -> None:
    """The kernel would follow addresses that are not there."""
    p = nn.Parameter(torch.ones(1000))
    start = Additive() if change == "group" else DiagonalAffine()
    optimizer = lb.LieGroupBLR([p], start, Normal(0.1), lr=0.1, data_size=10)

    def step() -> None:
        optimizer.zero_grad()
        with optimizer.sampled():
            p.square().sum().backward()
        optimizer.step()

    step()
    if change == "metric":
        optimizer.param_groups[0]["metric"] = lb.Adaptive()
    elif change == "group":
        optimizer.param_groups[0]["group"] = DiagonalAffine()
    else:
        state = optimizer.state[p]
        state.update({name: value.bfloat16() for name, value in state.items() if isinstance(value, Tensor)})
    if native.available() or change != "dtype":
        with pytest.raises((ValueError, KeyError), match=r"log_scale|second_moment"):
            step()


@pytest.mark.parametrize("policy", ["skip", "raise"])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_block_that_is_not_finite_is_told_with_the_step(policy: Any, bad: int) -> None:
    p = four()
    optimizer = lb.LieGroupBLR([p], Additive(), Dirac(), lr=1.0, momentum=0.0, data_size=10, nonfinite=policy)
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


def test_a_block_without_backward_has_no_gradient_of_an_earlier_one() -> None:
    p = four()
    optimizer = exact(p, mc_samples=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(RuntimeError, match="A sample ended without a gradient"), optimizer.sampled():
        pass


def test_parameters_are_replaced_by_as_many_others() -> None:
    first, second, third = (nn.Parameter(torch.ones(3)) for _ in range(3))
    optimizer = exact(first)
    optimizer.add_param_group({"params": [second]})

    def step(*parameters: nn.Parameter) -> None:
        optimizer.zero_grad()
        with optimizer.sampled():
            torch.cat(parameters).sum().backward()
        optimizer.step()

    step(first, second)
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": [third]})
    step(first, third)
    assert [float(p.detach().sum()) for p in (first, second, third)] == [-3, 0, 0]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_prior_that_fails_leaves_everything_as_it_was(samples: int) -> None:
    """A function of the user's: its gradient may be infinite, and it may raise, in the second of two groups."""
    first, second = four(), four()
    mood = "fine"

    def prior(theta: Tensor) -> Tensor:
        if mood == "raises":
            raise ValueError("outside of the support")
        return theta.sum() * (float("inf") if mood == "infinite" else 1.0)

    optimizer = exact(first, mc_samples=samples)
    optimizer.add_param_group({"params": [second], "prior": prior})

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = first.sum() + second.sum()
        loss.backward()
        return loss

    mood = "infinite"
    with pytest.raises(lb.optim.NonFiniteError):
        optimizer.step(closure)
    mood = "raises"
    with pytest.raises(ValueError, match="outside of the support"):
        optimizer.step(closure)
    assert torch.equal(torch.cat([first, second]).detach(), torch.ones(8))
    mood = "fine"
    optimizer.step(closure)
    torch.testing.assert_close(first.detach(), torch.zeros(4))
    torch.testing.assert_close(second.detach(), torch.full((4,), -0.1))  # the loss's gradient, and a tenth of the prior's


def test_a_checkpoint_leaves_the_users_own_objects() -> None:
    class Prior:
        precision = 1.0

        def __call__(self, theta: Tensor) -> Tensor:
            return self.precision * theta.square().sum()

    prior, p = Prior(), four()
    optimizer = lb.LieGroupBLR([p], Additive(), Dirac(), lr=1.0, data_size=10, prior=prior)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["prior"] is prior
    with optimizer.sampled(), pytest.raises(RuntimeError, match="A checkpoint cannot be loaded while a sample is in"):
        optimizer.load_state_dict(optimizer.state_dict())
    with optimizer.sampled(), pytest.raises(RuntimeError, match="A copy cannot be made while a sample is in"):
        copy.deepcopy((p, optimizer))


@pytest.mark.parametrize("samples", [1, 2])
def test_another_layout_before_the_step(samples: int) -> None:
    """The noise goes by memory, so the layout must be another one from the next sample on in both."""

    def train(before_step: bool) -> Tensor:
        torch.manual_seed(0)
        model, images = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
        optimizer = lb.LieGroupBLR(model.parameters(), DiagonalAffine(), Normal(0.1), lr=0.1, data_size=10, mc_samples=samples)
        for step in range(3):
            for _ in range(samples):
                with optimizer.sampled():
                    model(images).square().sum().backward()
            if step == 1 and before_step:
                model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            optimizer.step()
            if step == 1:
                model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            optimizer.zero_grad()
        return model.weight.detach().contiguous()

    torch.testing.assert_close(train(True), train(False), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("samples", [1, 2])
def test_another_layout_between_steps(samples: int) -> None:
    """Threads, where there are several samples, and the loop; the kernel and torch."""

    def train(**settings: Any) -> Tensor:
        torch.manual_seed(0)
        model, images = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
        optimizer = lb.LieGroupBLR(
            model.parameters(), DiagonalAffine(), Normal(0.1),
            lr=0.1, data_size=10, mc_samples=samples, noise="philox", **settings,
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(images).square().sum()
            loss.backward()
            return loss

        for step in range(4):
            if step == 2:
                model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            optimizer.step(closure)
        assert samples == 1 or optimizer.evaluation.startswith("threads" if settings.get("parallel") else "loop")
        return model.weight.detach().contiguous()

    expected = train(parallel=False)
    if samples > 1:
        torch.testing.assert_close(train(parallel=True), expected, rtol=1e-5, atol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "available", lambda: False)
        torch.testing.assert_close(train(parallel=False), expected, rtol=1e-5, atol=1e-6)


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


def test_a_gradient_that_is_taken_away_and_put_back_counts() -> None:
    p = four()
    optimizer = exact(p)
    with optimizer.sampled():
        loss = p.sum()
    loss.backward()
    optimizer.step()
    kept, p.grad = p.grad, None
    with optimizer.sampled():
        pass
    p.grad = kept
    with optimizer.sampled():
        (3 * p).sum().backward()
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((4,), 1.0 - 1 - (1 + 3) / 2))


def alive(references: list[weakref.ref[Tensor]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


@pytest.mark.parametrize("kind", ["rule", "baseline", "skipped"])
def test_gradients_are_not_kept_after_the_step(kind: str) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    groups = [{"params": layer.parameters()} for layer in model]
    optimizer = (
        IVON(groups, lr=0.1, data_size=10)
        if kind == "baseline"
        else lb.LieGroupBLR(groups, DiagonalAffine(), Normal(0.1), lr=0.1, data_size=10, nonfinite="skip")
    )
    for _ in range(2):  # the tables of the first step are kept for the second
        optimizer.zero_grad()
        with optimizer.sampled():
            model(torch.ones(2, 5)).square().mean().backward()
        if kind == "skipped":
            last = list(model.parameters())[-1].grad
            assert last is not None
            last[0] = torch.nan
            del last
        references = [weakref.ref(p.grad) for p in model.parameters() if p.grad is not None]
        optimizer.step()
    optimizer.zero_grad()
    assert len(references) == 4
    assert optimizer.skipped == (2 if kind == "skipped" else 0)
    assert alive(references) == 0


@pytest.mark.skipif(not native.available(), reason="needs the native kernel")
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native._library.__wrapped__() is None
    monkeypatch.undo()
    assert native._library.__wrapped__() is not None
