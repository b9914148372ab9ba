"""Behaviours of samples: when one is in the module, and which gradients belong to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from . import checks
from .adapters import Adapter
from .checks import X, behaviour, expect


@behaviour("exception in the block", "weights are exactly restored after an exception between forward and step")
def exception_in_block(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a, 1)
    before, storage = checks.values(model), [p.data_ptr() for p in model.parameters()]
    try:
        with a.block(optimizer):
            expect(not checks.equal(checks.values(model), before), "the module holds no sample inside the block")
            checks.loss_of(model).backward()
            raise checks.InterruptError
    except checks.InterruptError:
        pass
    expect(checks.equal(checks.values(model), before), "weights stay perturbed")
    expect([p.data_ptr() for p in model.parameters()] == storage, "parameters lost their storage")
    checks.train(a, optimizer, model)
    expect(not checks.equal(checks.values(model), before), "training does not go on")


@behaviour("exception in the closure", "weights are exactly restored after an exception in step(closure)")
def exception_in_closure(a: Adapter) -> None:
    model, optimizer = checks.built(a)
    optimizer.step(a.closure(optimizer, checks.closure_for(optimizer, model)))
    before = checks.values(model)

    def closure() -> Tensor:
        checks.loss_of(model).backward()
        raise checks.InterruptError

    with suppress(checks.InterruptError):
        optimizer.step(a.closure(optimizer, closure))
    expect(checks.equal(checks.values(model), before), "weights stay perturbed")
    optimizer.step(a.closure(optimizer, checks.closure_for(optimizer, model)))
    expect(not checks.equal(checks.values(model), before), "training does not go on")


@behaviour("step without a sample", "a step with gradients taken at the point is refused, and says what to do")
def step_without_sample(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    for _ in range(2):
        checks.loss_of(model).backward()
        checks.refused_unmoved(model, optimizer.step, "sample")
        optimizer.zero_grad()


@behaviour("closure protocol", "step(closure) draws the samples itself and equals the explicit loop")
def protocols(a: Adapter) -> None:
    def explicit(optimizer: Any, model: nn.Module) -> None:
        checks.train(a, optimizer, model, 5)

    def by_closure(optimizer: Any, model: nn.Module) -> None:
        for _ in range(5):
            optimizer.step(checks.closure_for(optimizer, model))

    expect(checks.equal(*checks.two_runs(a, explicit, by_closure)), "the two protocols differ")


@behaviour("closure protocol, several samples", "the same with mc_samples=3; the loss returned is the mean")
def protocols_several(a: Adapter) -> None:
    a.require_samples()
    losses: list[float] = []

    def explicit(optimizer: Any, model: nn.Module) -> None:
        for _ in range(4):
            for _ in range(3):
                optimizer.zero_grad()
                with a.block(optimizer):
                    loss = checks.loss_of(model)
                    loss.backward()
                losses.append(float(loss.detach()))
            optimizer.step()

    returned: list[float] = []

    def by_closure(optimizer: Any, model: nn.Module) -> None:
        for _ in range(4):
            returned.append(float(optimizer.step(checks.closure_for(optimizer, model)).detach()))

    expect(checks.equal(*checks.two_runs(a, explicit, by_closure, mc_samples=3)), "the two protocols differ")
    for i, value in enumerate(returned):
        expect(math.isclose(value, sum(losses[3 * i : 3 * i + 3]) / 3, rel_tol=1e-6), "step does not return the mean loss")


@behaviour("backward after the block", "a backward pass after the block gives the gradient at the sample")
def late_backward(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    for _ in range(3):
        optimizer.zero_grad()
        with a.block(optimizer):
            sample = checks.here(model)
            loss = checks.loss_of(model)
        loss.backward()
        expect(checks.close(checks.gradients(model), checks.gradient_at(model, sample)), "not the gradient at the sample")
        optimizer.step()


@behaviour("backward after the block counts", "a step with a late backward equals one with backward inside")
def late_backward_counts(a: Adapter) -> None:
    a.require_samples()

    def late(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            with a.block(optimizer):
                loss = checks.loss_of(model)
            optimizer.zero_grad()  # between forward and backward, as many loops have it
            loss.backward()
            optimizer.step()

    expect(checks.equal(*checks.two_runs(a, lambda o, m: checks.train(a, o, m, 3), late)), "a late backward changes the step")


@behaviour("retained graph of a closure", "a later backward through it raises or is right; never a silently wrong gradient")
def retained_closure_graph(a: Adapter) -> None:
    model, optimizer = checks.built(a)
    kept: list[Any] = []
    optimizer.step(a.closure(optimizer, checks.closure_for(optimizer, model, kept, retain=True)))
    sample, loss = kept[0]
    if a.ours:
        checks.train(a, optimizer, model)
    for p in model.parameters():
        p.grad = None
    try:
        loss.backward()
    except RuntimeError:
        return
    expect(checks.close(checks.gradients(model), checks.gradient_at(model, sample)), "a silently wrong gradient")


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
        checks.step_on(a, optimizer, lambda: (X @ weight.t()).square().mean())
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
    model, optimizer = checks.built(a, mc_samples=2)
    kept: list[Any] = []
    inner = checks.closure_for(optimizer, model, kept, retain=True)

    def closure() -> Tensor:
        loss = inner()
        if len(kept) == 2:
            (sample, old), _ = kept
            optimizer.zero_grad()
            old.backward()
            expect(checks.close(checks.gradients(model), checks.gradient_at(model, sample)), "a silently wrong gradient")
        return loss

    with suppress(RuntimeError):
        optimizer.step(a.closure(optimizer, closure))


@behaviour("two blocks, one backward", "the sum of two blocks' losses is refused, not taken for the last sample's")
def two_blocks_one_backward(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)

    def attempt() -> None:
        with a.block(optimizer):
            first = checks.loss_of(model)
        with a.block(optimizer):
            second = checks.loss_of(model)
        (first + second).backward()
        optimizer.step()

    checks.refused_unmoved(model, attempt, "block")


@behaviour("inside the block", "steps, new parameters, nested blocks and snapshots inside a block are refused")
def inside_block(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    before = checks.values(model)
    extra = nn.Parameter(a.tensor(3))
    attempts: list[Callable[[], Any]] = [optimizer.step, lambda: optimizer.add_param_group({"params": [extra]})]
    attempts.append(lambda: a.block(optimizer).__enter__())
    if a.ours:
        attempts.append(lambda: optimizer.posterior(model))
    with a.block(optimizer):
        checks.loss_of(model).backward()
        for attempt in attempts:
            checks.refused(attempt, "block", errors=RuntimeError)
    expect(checks.equal(checks.values(model), before), "weights have changed")
    optimizer.step()
    expect(checks.moved(checks.values(model), before), "the block's sample was lost")


@behaviour("fresh samples", "every block has another sample, also one that no gradient follows")
def fresh_samples(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    seen = []
    for _ in range(3):
        block = optimizer.sampled() if a.ours else optimizer.sampled_params(train=False)
        with block, torch.no_grad():
            model(X)
            seen.append(checks.values(model))
    expect(checks.moved(seen[0], seen[1]) and checks.moved(seen[1], seen[2]), "the same sample twice")
