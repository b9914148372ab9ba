"""Behaviours between backward and step: clipping, scaling, hooks, micro-batches, several samples."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import checks
from .adapters import Adapter
from .checks import X, Y, behaviour, expect


@behaviour("clipping after the block", "clip_grad_norm_ between backward and step counts")
def clipping(a: Adapter) -> None:
    def clipped(optimizer: Any, model: nn.Module, inside: bool) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                checks.loss_of(model).backward()
                if inside:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if not inside:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    expect(
        checks.equal(*checks.two_runs(a, lambda o, m: clipped(o, m, False), lambda o, m: clipped(o, m, True))),
        "clipping is ignored",
    )


@behaviour("GradScaler", "scale, unscale_ and step of a gradient scaler give the step without it")
def grad_scaler(a: Adapter) -> None:
    a.require_gradients_alone()

    def scaled(optimizer: Any, model: nn.Module) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                loss = checks.loss_of(model)
                scaler.scale(loss).backward()
            if step == 1:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    plain = checks.two_runs(a, lambda o, m: checks.train(a, o, m, 3), scaled)
    expect(checks.close(*plain, tolerance=1e-6), "unscaling is ignored")


@behaviour("a step GradScaler skips", "changes nothing, and its sample is dropped")
def skipped_by_scaler(a: Adapter) -> None:
    a.require_gradients_alone()

    def overflow(optimizer: Any, model: nn.Module) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        before = checks.values(model)
        for factor in (math.inf, 1.0):
            optimizer.zero_grad()
            with a.block(optimizer):
                scaler.scale(checks.loss_of(model) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            if factor == math.inf:
                expect(checks.equal(checks.values(model), before), "a skipped step moved the weights")

    def dropped(optimizer: Any, model: nn.Module) -> None:
        if a.has_samples:  # a sample that no gradient follows
            with optimizer.sampled() if a.ours else optimizer.sampled_params(train=False):
                pass
        checks.train(a, optimizer, model)

    expect(
        checks.close(*checks.two_runs(a, overflow, dropped), tolerance=1e-6), "the skipped step's sample is in the next step"
    )


@behaviour("GradScaler, several samples", "gradients that were folded in with their scale are refused, not used")
def scaler_with_several(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        with a.block(optimizer):
            scaler.scale(checks.loss_of(model)).backward()
    checks.refused_unmoved(model, lambda: scaler.step(optimizer))


@behaviour("hooks", "hooks on gradients and on steps run, and what they do counts")
def hooks(a: Adapter) -> None:
    a.require_gradients_alone()
    calls: list[str] = []

    def hooked(optimizer: Any, model: nn.Module) -> None:
        for p in model.parameters():
            p.register_hook(lambda g: g * 4)

            def halve(q: Tensor) -> None:
                q.grad = q.grad / 2  # type: ignore[operator]

            p.register_post_accumulate_grad_hook(halve)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        checks.train(a, optimizer, model, 2)

    def doubled(optimizer: Any, model: nn.Module) -> None:
        for _ in range(2):
            checks.step_on(a, optimizer, lambda: 2 * checks.loss_of(model))

    expect(checks.close(*checks.two_runs(a, hooked, doubled)), "hooks are ignored")
    expect(calls == ["before", "after"] * 2, f"step hooks ran as {calls}")


def _in_parts(a: Adapter, late: bool) -> None:
    def parts(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            waiting = []
            with a.block(optimizer):
                for x, y in zip(X.chunk(4), Y.chunk(4), strict=True):
                    waiting.append(checks.loss_of(model, x, y) / 4)
                    waiting.pop().backward() if not late else None
            for loss in waiting:
                loss.backward()
            optimizer.step()

    expect(
        checks.close(*checks.two_runs(a, lambda o, m: checks.train(a, o, m, 3), parts), tolerance=1e-4),
        "parts differ from the whole",
    )


behaviour("micro-batches", "several backwards in one block add up")(partial(_in_parts, late=False))
behaviour("micro-batches, late", "so do backwards after the block")(partial(_in_parts, late=True))


def _average(a: Adapter, zero_between: bool) -> None:
    """Two blocks with the slopes 1 and 3 must be one with the slope 2."""
    a.require_samples()
    p, optimizer = checks.single(a, 2)
    q, other = checks.single(a, 2)
    for slope in (1.0, 3.0):
        if zero_between:
            optimizer.zero_grad()
        with a.block(optimizer):
            (slope * p.sum()).backward()
    optimizer.step()
    checks.step_on(a, other, lambda: 2 * q.sum())
    step, right = p.detach() - a.tensor(2), q.detach() - a.tensor(2)
    expect(torch.allclose(step, right, rtol=1e-2), f"moved by {step.tolist()}, not by {right.tolist()}")


behaviour("several blocks", "the samples of several blocks before a step are averaged; zero_grad discards none")(
    partial(_average, zero_between=True)
)
behaviour("several blocks without zero_grad", "they are averaged all the same; no gradient counts twice")(
    partial(_average, zero_between=False)
)


@behaviour("late changes, several samples", "a gradient changed after its sample was folded in is refused")
def late_change(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a, mc_samples=2)
    for _ in range(2):
        with a.block(optimizer):
            checks.loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    checks.refused_unmoved(model, optimizer.step, "inside")


@behaviour("sub-batches", "step(closure, batch=...) gives every sample its part of the minibatch")
def sub_batches(a: Adapter) -> None:
    a.require_samples()

    def by_hand(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            for x, y in zip(X.chunk(2), Y.chunk(2), strict=True):
                optimizer.zero_grad()
                with a.block(optimizer):
                    checks.loss_of(model, x, y).backward()
            optimizer.step()

    def split(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.step(checks.closure_for(optimizer, model), batch=(X, Y))

    expect(checks.equal(*checks.two_runs(a, by_hand, split, mc_samples=2)), "parts differ from blocks")


@behaviour("closure without a loss", "a closure may return nothing, or a number")
def closure_results(a: Adapter) -> None:
    for result in (None, 1.5):
        model, optimizer = checks.built(a)
        before = checks.values(model)

        def closure(result: Any = result, model: nn.Module = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            checks.loss_of(model).backward()
            return result

        expect(optimizer.step(a.closure(optimizer, closure)) == result, "the result is lost")
        expect(checks.moved(checks.values(model), before), "no step was taken")
