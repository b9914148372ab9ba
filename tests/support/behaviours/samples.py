"""Behaviours of samples: when one is in the module, and which gradients belong to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from .adapters import Adapter
from .checks import (
    InterruptError,
    X,
    behaviour,
    built,
    close,
    closure_for,
    equal,
    expect,
    gradient_at,
    gradients,
    here,
    loss_of,
    moved,
    refused,
    refused_unmoved,
    step_on,
    train,
    two_runs,
    values,
)  # fmt: skip


@behaviour("exception in the block", "weights are exactly restored after an exception between forward and step")
def exception_in_block(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a, 1)
    before, storage = values(model), [p.data_ptr() for p in model.parameters()]
    try:
        with a.block(optimizer):
            expect(not equal(values(model), before), "the module holds no sample inside the block")
            loss_of(model).backward()
            raise InterruptError
    except InterruptError:
        pass
    expect(equal(values(model), before), "weights stay perturbed")
    expect([p.data_ptr() for p in model.parameters()] == storage, "parameters lost their storage")
    train(a, optimizer, model)
    expect(not equal(values(model), before), "training does not go on")


@behaviour("exception in the closure", "weights are exactly restored after an exception in step(closure)")
def exception_in_closure(a: Adapter) -> None:
    model, optimizer = built(a)
    optimizer.step(a.closure(optimizer, closure_for(optimizer, model)))
    before = values(model)

    def closure() -> Tensor:
        loss_of(model).backward()
        raise InterruptError

    with suppress(InterruptError):
        optimizer.step(a.closure(optimizer, closure))
    expect(equal(values(model), before), "weights stay perturbed")
    optimizer.step(a.closure(optimizer, closure_for(optimizer, model)))
    expect(not equal(values(model), before), "training does not go on")


@behaviour("step without a sample", "a step with gradients taken at the point is refused, and says what to do")
def step_without_sample(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a)
    for _ in range(2):
        loss_of(model).backward()
        refused_unmoved(model, optimizer.step, "sample")
        optimizer.zero_grad()


@behaviour("closure protocol", "step(closure) draws the samples itself and equals the explicit loop")
def protocols(a: Adapter) -> None:
    def explicit(optimizer: Any, model: nn.Module) -> None:
        train(a, optimizer, model, 5)

    def by_closure(optimizer: Any, model: nn.Module) -> None:
        for _ in range(5):
            optimizer.step(closure_for(optimizer, model))

    expect(equal(*two_runs(a, explicit, by_closure)), "the two protocols differ")


@behaviour("closure protocol, several samples", "the same with mc_samples=3; the loss returned is the mean")
def protocols_several(a: Adapter) -> None:
    a.require_samples()
    losses: list[float] = []

    def explicit(optimizer: Any, model: nn.Module) -> None:
        for _ in range(4):
            for _ in range(3):
                optimizer.zero_grad()
                with a.block(optimizer):
                    loss = loss_of(model)
                    loss.backward()
                losses.append(float(loss.detach()))
            optimizer.step()

    returned: list[float] = []

    def by_closure(optimizer: Any, model: nn.Module) -> None:
        for _ in range(4):
            returned.append(float(optimizer.step(closure_for(optimizer, model)).detach()))

    expect(equal(*two_runs(a, explicit, by_closure, mc_samples=3)), "the two protocols differ")
    for i, value in enumerate(returned):
        expect(math.isclose(value, sum(losses[3 * i : 3 * i + 3]) / 3, rel_tol=1e-6), "step does not return the mean loss")


@behaviour("backward after the block", "a backward pass after the block gives the gradient at the sample")
def late_backward(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a)
    for _ in range(3):
        optimizer.zero_grad()
        with a.block(optimizer):
            sample = here(model)
            loss = loss_of(model)
        loss.backward()
        expect(close(gradients(model), gradient_at(model, sample)), "not the gradient at the sample")
        optimizer.step()


@behaviour("backward after the block counts", "a step with a late backward equals one with backward inside")
def late_backward_counts(a: Adapter) -> None:
    a.require_samples()

    def late(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            with a.block(optimizer):
                loss = loss_of(model)
            optimizer.zero_grad()  # between forward and backward, as many loops have it
            loss.backward()
            optimizer.step()

    expect(equal(*two_runs(a, lambda o, m: train(a, o, m, 3), late)), "a late backward changes the step")


@behaviour("retained graph of a closure", "a later backward through it raises or is right; never a silently wrong gradient")
def retained_closure_graph(a: Adapter) -> None:
    model, optimizer = built(a)
    kept: list[Any] = []
    optimizer.step(a.closure(optimizer, closure_for(optimizer, model, kept, retain=True)))
    sample, loss = kept[0]
    if a.ours:
        train(a, optimizer, model)
    for p in model.parameters():
        p.grad = None
    try:
        loss.backward()
    except RuntimeError:
        return
    expect(close(gradients(model), gradient_at(model, sample)), "a silently wrong gradient")


@behaviour("graph of an earlier block", "differentiated after later steps, it raises or gives the gradient at its own sample")
def old_graph(a: Adapter) -> None:
    a.require_samples()
    weight = nn.Parameter(a.tensor(8, 4) * 0.3)
    optimizer = a.make([weight])

    def output(w: Tensor) -> Tensor:
        return ((X @ w.t()).tanh() @ w.view(8, 4)).sum()  # saves views only

    with a.block(optimizer):
        sample = weight.detach().clone()
        old = output(weight)
        if not a.ours:
            weight.sum().backward()
    for _ in range(2):
        step_on(a, optimizer, lambda: (X @ weight.t()).square().mean())
    leaf = sample.clone().requires_grad_()
    right = torch.autograd.grad(output(leaf), leaf)[0]
    try:
        found = torch.autograd.grad(old, weight)[0]
    except RuntimeError:
        return
    expect(torch.allclose(found, right, rtol=1e-5, atol=1e-5), "a silently wrong gradient")


@behaviour("graph of an earlier sample of a step", "a closure that differentiates the last sample's graph is stopped")
def graph_between_samples(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a, mc_samples=2)
    kept: list[Any] = []
    inner = closure_for(optimizer, model, kept, retain=True)

    def closure() -> Tensor:
        loss = inner()
        if len(kept) == 2:
            (sample, old), _ = kept
            optimizer.zero_grad()
            old.backward()
            expect(close(gradients(model), gradient_at(model, sample)), "a silently wrong gradient")
        return loss

    with suppress(RuntimeError):
        optimizer.step(a.closure(optimizer, closure))


@behaviour("two blocks, one backward", "the sum of two blocks' losses is refused, not taken for the last sample's")
def two_blocks_one_backward(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a)

    def attempt() -> None:
        with a.block(optimizer):
            first = loss_of(model)
        with a.block(optimizer):
            second = loss_of(model)
        (first + second).backward()
        optimizer.step()

    refused_unmoved(model, attempt, "block")


@behaviour("inside the block", "steps, new parameters, nested blocks and snapshots inside a block are refused")
def inside_block(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a)
    before = values(model)
    extra = nn.Parameter(a.tensor(3))
    attempts: list[Callable[[], Any]] = [optimizer.step, lambda: optimizer.add_param_group({"params": [extra]})]
    attempts.append(lambda: a.block(optimizer).__enter__())
    if a.ours:
        attempts.append(lambda: optimizer.posterior(model))
    with a.block(optimizer):
        loss_of(model).backward()
        for attempt in attempts:
            refused(attempt, "block", errors=RuntimeError)
    expect(equal(values(model), before), "weights have changed")
    optimizer.step()
    expect(moved(values(model), before), "the block's sample was lost")


@behaviour("fresh samples", "every block has another sample, also one that no gradient follows")
def fresh_samples(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = built(a)
    seen = []
    for _ in range(3):
        block = optimizer.sampled() if a.ours else optimizer.sampled_params(train=False)
        with block, torch.no_grad():
            model(X)
            seen.append(values(model))
    expect(moved(seen[0], seen[1]) and moved(seen[1], seen[2]), "the same sample twice")
