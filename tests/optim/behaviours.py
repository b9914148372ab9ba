"""What users rely on in an optimizer, one function for each point: it returns, or raises what went wrong.

The registry runs on every optimizer through its adapter: `tests/optim/test_behaviours.py` for ours,
`benchmarks/behaviours.py` for the table of who passes what.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from adapters import Adapter, NotApplicableError
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.bases import Exponential, Laplace, Normal
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.optim import buckets

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(100))
Y = torch.arange(16) % 3


@dataclass(frozen=True)
class Behaviour:
    name: str
    meaning: str
    check: Callable[[Adapter], None]
    slow: bool = False

    def __str__(self) -> str:
        return self.name


REGISTRY: list[Behaviour] = []


def behaviour(name: str, meaning: str, slow: bool = False) -> Callable[[Callable[[Adapter], None]], Callable[[Adapter], None]]:
    def register(check: Callable[[Adapter], None]) -> Callable[[Adapter], None]:
        REGISTRY.append(Behaviour(name, meaning, check, slow))
        return check

    return register


def verdict(case: Behaviour, adapter: Adapter) -> tuple[str, str]:
    """("yes" | "no" | "–", why)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.check(adapter)
    except NotApplicableError as reason:
        return "–", str(reason)
    except Exception as problem:
        return "no", f"{type(problem).__name__}: {problem}".split("\n")[0][:160]
    return "yes", ""


# Words of the checks.


class InterruptError(Exception):
    pass


def expect(condition: Any, problem: str) -> None:
    if not bool(condition):
        raise AssertionError(problem)


def values(model: nn.Module | list[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in (model.parameters() if isinstance(model, nn.Module) else model)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(s, t, rtol=tolerance, atol=tolerance) for s, t in zip(a, b, strict=True))


def moved(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(not torch.equal(s, t) for s, t in zip(a, b, strict=True) if s.numel())


def loss_of(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    return cross_entropy(model(x), y)


def train(a: Adapter, optimizer: Any, model: nn.Module, steps: int = 1, x: Tensor = X, y: Tensor = Y) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with a.block(optimizer):
            loss_of(model, x, y).backward()
        optimizer.step()


def closure_for(optimizer: Any, model: nn.Module, kept: list[Any] | None = None, retain: bool = False) -> Callable[..., Any]:
    def closure(x: Tensor = X, y: Tensor = Y) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=retain)
        if kept is not None:
            kept.append(({n: p.detach().clone() for n, p in model.named_parameters()}, loss))
        return loss

    return closure


def gradient_at(model: nn.Module, weights: dict[str, Tensor], x: Tensor = X, y: Tensor = Y) -> list[Tensor]:
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    return list(torch.autograd.grad(cross_entropy(functional_call(model, leaves, (x,)), y), list(leaves.values())))


def here(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def two_runs(
    a: Adapter, first: Callable[[Any, nn.Module], None], second: Callable[[Any, nn.Module], None], **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters after each of two ways to train the same network with the same noise."""
    results = []
    for way in (first, second):
        model = a.network()
        way(a.make(model.parameters(), **options), model)
        results.append(values(model))
    expect(moved(results[0], values(a.network())), "training did not move the parameters")
    return results[0], results[1]


def single(a: Adapter, *shape: int, **options: Any) -> tuple[nn.Parameter, Any]:
    """One parameter with its optimizer, and samples next to it: what a linear loss does to it is known."""
    p = nn.Parameter(a.tensor(*shape))
    return p, a.make([p], narrow=True, **options)


# Samples.


@behaviour("exception in the block", "weights are exactly restored after an exception between forward and step")
def exception_in_block(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    train(a, optimizer, model)
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
    model = a.network()
    optimizer = a.make(model.parameters())
    optimizer.step(closure_for(optimizer, model))
    before = values(model)

    def closure() -> Tensor:
        loss_of(model).backward()
        raise InterruptError

    with suppress(InterruptError):
        optimizer.step(closure)
    expect(equal(values(model), before), "weights stay perturbed")
    optimizer.step(closure_for(optimizer, model))
    expect(not equal(values(model), before), "training does not go on")


@behaviour("step without a sample", "a step with gradients taken at the point is refused, and says what to do")
def step_without_sample(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    before = values(model)
    for _ in range(2):
        loss_of(model).backward()
        try:
            optimizer.step()
        except Exception as problem:
            expect("sample" in str(problem), f"the error does not name the reason: {problem!r}")
        else:
            raise AssertionError("accepted")
        expect(equal(values(model), before), "the refused step moved the weights")
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
    model = a.network()
    optimizer = a.make(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        with a.block(optimizer):
            sample = here(model)
            loss = loss_of(model)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        expect(close(gradients, gradient_at(model, sample)), "not the gradient at the sample")
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
    model = a.network()
    optimizer = a.make(model.parameters())
    kept: list[Any] = []
    inner = closure_for(optimizer, model, kept, retain=True)

    def closure() -> Tensor:  # IVON's closures sample themselves
        with a.block(optimizer) if not a.ours else mock.MagicMock():
            return inner()

    optimizer.step(closure)
    sample, loss = kept[0]
    if a.ours:
        train(a, optimizer, model)
    for p in model.parameters():
        p.grad = None
    try:
        loss.backward()
    except RuntimeError:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    expect(close(gradients, gradient_at(model, sample)), "a silently wrong gradient")


@behaviour("graph of an earlier block", "differentiated after later steps, it raises or gives the gradient at its own sample")
def old_graph(a: Adapter) -> None:
    a.require_samples()
    weight = nn.Parameter(a.tensor(8, 4))
    optimizer = a.make([weight])
    x = X.clone().requires_grad_()
    with a.block(optimizer):
        sample = weight.detach().clone()
        old = (x @ weight.t()).tanh().sum() + (x * weight[0]).square().sum()  # saves views only
        if not a.ours:
            weight.sum().backward()
    for _ in range(2):
        optimizer.zero_grad()
        with a.block(optimizer):
            (X @ weight.t()).square().mean().backward()
        optimizer.step()
    leaf = sample.clone().requires_grad_()
    right = torch.autograd.grad((X @ leaf.t()).tanh().sum() + (X * leaf[0]).square().sum(), leaf)[0]
    try:
        found = torch.autograd.grad(old, weight)[0]
    except RuntimeError:
        return
    expect(torch.allclose(found, right, rtol=1e-5, atol=1e-5), "a silently wrong gradient")


@behaviour("two blocks, one backward", "the sum of two blocks' losses is refused, not taken for the last sample's")
def two_blocks_one_backward(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    before = values(model)
    try:
        with a.block(optimizer):
            first = loss_of(model)
        with a.block(optimizer):
            second = loss_of(model)
        (first + second).backward()
        optimizer.step()
    except (RuntimeError, AttributeError) as problem:
        expect("block" in str(problem), f"the error does not name the reason: {problem!r}")
        expect(equal(values(model), before), "the refused step moved the weights")
        return
    raise AssertionError("accepted")


@behaviour("inside the block", "steps, new parameters, nested blocks and snapshots inside a block are refused")
def inside_block(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    before = values(model)
    extra = nn.Parameter(a.tensor(3))
    attempts: list[Callable[[], Any]] = [optimizer.step, lambda: optimizer.add_param_group({"params": [extra]})]
    attempts.append(lambda: a.block(optimizer).__enter__())
    if a.ours:
        attempts.append(lambda: optimizer.posterior(model))
    accepted = 0
    with a.block(optimizer):
        loss_of(model).backward()
        for attempt in attempts:
            try:
                attempt()
            except RuntimeError as problem:
                expect("block" in str(problem), f"the error does not name the reason: {problem!r}")
            else:
                accepted += 1
    expect(not accepted, "accepted")
    expect(equal(values(model), before), "weights have changed")
    optimizer.step()
    expect(moved(values(model), before), "the block's sample was lost")


@behaviour("fresh samples", "every block has another sample, also one that no gradient follows")
def fresh_samples(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    seen = []
    for _ in range(3):
        block = optimizer.sampled() if a.ours else optimizer.sampled_params(train=False)
        with block, torch.no_grad():
            model(X)
            seen.append(values(model))
    expect(moved(seen[0], seen[1]) and moved(seen[1], seen[2]), "the same sample twice")


# What happens between backward and step.


@behaviour("clipping after the block", "clip_grad_norm_ between backward and step counts")
def clipping(a: Adapter) -> None:
    def after(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    def inside(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                loss_of(model).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    expect(equal(*two_runs(a, after, inside)), "clipping is ignored")


@behaviour("GradScaler", "scale, unscale_ and step of a gradient scaler give the step without it")
def grad_scaler(a: Adapter) -> None:
    def scaled(optimizer: Any, model: nn.Module) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                loss = loss_of(model)
                scaler.scale(loss).backward()
            if step == 1:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    plain = two_runs(a, lambda o, m: train(a, o, m, 3), scaled)
    expect(close(*plain, tolerance=1e-6), "unscaling is ignored")


@behaviour("a step GradScaler skips", "changes nothing, and its sample is dropped")
def skipped_by_scaler(a: Adapter) -> None:
    def overflow(optimizer: Any, model: nn.Module) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        before = values(model)
        for factor in (math.inf, 1.0):
            optimizer.zero_grad()
            with a.block(optimizer):
                scaler.scale(loss_of(model) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            if factor == math.inf:
                expect(equal(values(model), before), "a skipped step moved the weights")

    def dropped(optimizer: Any, model: nn.Module) -> None:
        if a.has_samples:  # a sample that no gradient follows
            with optimizer.sampled() if a.ours else optimizer.sampled_params(train=False):
                pass
        train(a, optimizer, model)

    expect(close(*two_runs(a, overflow, dropped), tolerance=1e-6), "the skipped step's sample is in the next step")


@behaviour("GradScaler, several samples", "gradients that were folded in with their scale are refused, not used")
def scaler_with_several(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = values(model)
    for _ in range(2):
        with a.block(optimizer):
            scaler.scale(loss_of(model)).backward()
    try:
        scaler.step(optimizer)
    except RuntimeError:
        expect(equal(values(model), before), "the refused step moved the weights")
        return
    raise AssertionError("accepted")


@behaviour("hooks", "hooks on gradients and on steps run, and what they do counts")
def hooks(a: Adapter) -> None:
    calls: list[str] = []

    def hooked(optimizer: Any, model: nn.Module) -> None:
        for p in model.parameters():
            p.register_hook(lambda g: g * 4)

            def halve(q: Tensor) -> None:
                q.grad = q.grad / 2  # type: ignore[operator]

            p.register_post_accumulate_grad_hook(halve)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        train(a, optimizer, model, 2)

    def doubled(optimizer: Any, model: nn.Module) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            with a.block(optimizer):
                (2 * loss_of(model)).backward()
            optimizer.step()

    expect(close(*two_runs(a, hooked, doubled)), "hooks are ignored")
    expect(calls == ["before", "after"] * 2, f"step hooks ran as {calls}")


@behaviour("micro-batches", "several backwards in one block add up")
def micro_batches(a: Adapter) -> None:
    def parts(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                for i in range(4):
                    (loss_of(model, X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]) / 4).backward()
            optimizer.step()

    expect(close(*two_runs(a, lambda o, m: train(a, o, m, 3), parts), tolerance=1e-4), "parts differ from the whole")


@behaviour("micro-batches, late", "so do backwards after the block")
def micro_batches_late(a: Adapter) -> None:
    def parts(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                losses = [loss_of(model, X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]) / 2 for i in range(2)]
            for loss in losses:
                loss.backward()
            optimizer.step()

    expect(close(*two_runs(a, lambda o, m: train(a, o, m, 3), parts), tolerance=1e-4), "parts differ from the whole")


def _average(a: Adapter, zero_between: bool) -> None:
    """Two blocks with the slopes 1 and 3 must be one with the slope 2."""
    a.require_samples()
    p, optimizer = single(a, 2)
    q, other = single(a, 2)
    for slope in (1.0, 3.0):
        if zero_between:
            optimizer.zero_grad()
        with a.block(optimizer):
            (slope * p.sum()).backward()
    optimizer.step()
    with a.block(other):
        (2 * q.sum()).backward()
    other.step()
    step, right = p.detach() - a.tensor(2), q.detach() - a.tensor(2)
    expect(torch.allclose(step, right, rtol=1e-2), f"moved by {step.tolist()}, not by {right.tolist()}")


@behaviour("several blocks", "the samples of several blocks before a step are averaged; zero_grad discards none")
def several_blocks(a: Adapter) -> None:
    _average(a, zero_between=True)


@behaviour("several blocks without zero_grad", "they are averaged all the same; no gradient counts twice")
def several_blocks_without_zero(a: Adapter) -> None:
    _average(a, zero_between=False)


@behaviour("late changes, several samples", "a gradient changed after its sample was folded in is refused")
def late_change(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters(), mc_samples=2)
    before = values(model)
    for _ in range(2):
        with a.block(optimizer):
            loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    try:
        optimizer.step()
    except RuntimeError as problem:
        expect("inside" in str(problem), f"the error does not say what to do: {problem!r}")
        expect(equal(values(model), before), "the refused step moved the weights")
        return
    raise AssertionError("accepted, and ignored")


@behaviour("sub-batches", "step(closure, batch=...) gives every sample its part of the minibatch")
def sub_batches(a: Adapter) -> None:
    a.require_samples()

    def by_hand(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            for i in range(2):
                optimizer.zero_grad()
                with a.block(optimizer):
                    loss_of(model, X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]).backward()
            optimizer.step()

    def split(optimizer: Any, model: nn.Module) -> None:
        for _ in range(3):
            optimizer.step(closure_for(optimizer, model), batch=(X, Y))

    expect(equal(*two_runs(a, by_hand, split, mc_samples=2)), "parts differ from blocks")


@behaviour("closure without a loss", "a closure may return nothing, or a number")
def closure_results(a: Adapter) -> None:
    for result in (None, 1.5):
        model = a.network()
        optimizer = a.make(model.parameters())
        before = values(model)

        def closure(result: Any = result, model: nn.Module = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss_of(model).backward()
            return result

        expect(optimizer.step(closure) == result, "the result is lost")
        expect(moved(values(model), before), "no step was taken")


# Parameters.


@behaviour("groups and bases by parameter group", "multiplicative, affine and additive parameters in one optimizer")
def product_of_groups(a: Adapter) -> None:
    a.require_ours()
    rate, weight, bias = nn.Parameter(torch.full((3,), 2.0)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    own = nn.Parameter(a.tensor(3))
    optimizer = a.make([own])
    optimizer.add_param_group({"params": [rate], "group": Multiplicative(), "base": Exponential(), "temperature": 1.0})
    optimizer.add_param_group({"params": [weight], "group": DiagonalAffine(), "base": Laplace(0.1), "metric": lb.Fisher()})
    optimizer.add_param_group({"params": [bias], "group": Additive(), "base": Normal(0.1), "metric": lb.Absorbed()})
    before = values([own, rate, weight, bias])
    for _ in range(20):
        optimizer.zero_grad()
        with optimizer.sampled():
            expect((rate > 0).all(), "a negative rate")
            (rate.sum() + (weight - 1).square().sum() + (bias + own - 3).square().sum()).backward()
        optimizer.step()
    expect(moved(values([own, rate, weight, bias]), before), "a group was not trained")
    kinds = [(type(f.group), type(f.base)) for f in optimizer.families().values()][1:]
    expect(kinds == [(Multiplicative, Exponential), (DiagonalAffine, Laplace), (Additive, Normal)], f"families {kinds}")


@behaviour("step sizes by parameter group", "a group with lr 0 stays, the other moves")
def learning_rates(a: Adapter) -> None:
    p, q = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(3, seed=1))
    optimizer = a.make([{"params": [p], "lr": 0.01}, {"params": [q]}])
    optimizer.param_groups[0]["lr"] = 0.0
    before = values([p, q])
    for _ in range(3):
        optimizer.zero_grad()
        with a.block(optimizer):
            (p.square().sum() + q.square().sum()).backward()
        optimizer.step()
    expect(torch.equal(p, before[0]), "lr 0 moved")
    expect(not torch.equal(q, before[1]), "lr 0.05 did not")


@behaviour("parameter without gradient", "stays as it is, and disturbs nothing")
def no_gradient(a: Adapter) -> None:
    for several in (False, True):
        p, unused = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(2))
        optimizer = a.make([p, unused], mc_samples=2) if several else a.make([p, unused])
        before = values([p, unused])
        for _ in range(2 if several else 1):
            with a.block(optimizer):
                p.square().sum().backward()
        optimizer.step()
        expect(torch.equal(unused, before[1]), "it moved")
        expect(not torch.equal(p, before[0]), "the other one did not")
        if not a.has_samples:
            return


@behaviour("parameter used by some samples", "a gradient that only one of two samples has counts half, its prior whole")
def gradient_in_one_sample(a: Adapter) -> None:
    a.require_ours()
    results = []
    for used in (True, False):
        p, q = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(3, seed=1))
        optimizer = a.make([p, q], mc_samples=2, prior=50.0)
        for sample in range(2):
            with optimizer.sampled():
                loss = p.square().sum()
                if sample == 0:
                    loss = loss + q.square().sum()
                elif not used:
                    loss = loss + 0 * q.sum()
                loss.backward()
        optimizer.step()
        results.append(q.detach().clone())
    expect(torch.equal(*results), f"{results[0]}, but with a zero gradient {results[1]}")


@behaviour("frozen parameters", "stay, and train from where they are once they are unfrozen")
def frozen(a: Adapter) -> None:
    model = a.network()
    weight = next(model.parameters())
    weight.requires_grad_(False)
    optimizer = a.make(model.parameters())
    before = values(model)
    train(a, optimizer, model, 2)
    expect(torch.equal(weight, before[0]), "a frozen parameter moved")
    expect(moved(values(model)[1:], before[1:]), "the others did not")
    weight.requires_grad_(True)
    train(a, optimizer, model, 2)
    expect(not torch.equal(weight, before[0]), "an unfrozen parameter did not move")


@behaviour("tied parameters", "one tensor in two places has one posterior and both gradients")
def tied(a: Adapter) -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    first.weight.data = a.tensor(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    x = X[:, :3]
    optimizer = a.make(model.parameters(), narrow=True)
    start = first.weight.detach().clone()
    with a.block(optimizer):
        model(x).square().mean().backward()
    optimizer.step()
    leaf = nn.Parameter(start.clone())
    other = a.make([leaf], narrow=True)
    with a.block(other):
        (x @ leaf.t() @ leaf.t()).square().mean().backward()
    other.step()
    expect(first.weight is second.weight, "the tie is broken")
    expect(torch.allclose(first.weight, leaf, rtol=1e-4, atol=1e-5), "a tied weight is not trained as one")
    expect(not torch.equal(first.weight, start), "it did not move")


@behaviour("add_param_group in mid-training", "new parameters join, the old ones go on as before")
def added(a: Adapter) -> None:
    p, q = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(2, seed=1))
    optimizer = a.make([p])
    for _ in range(2):
        with a.block(optimizer):
            p.square().sum().backward()
        optimizer.step()
    optimizer.add_param_group({"params": [q], "lr": 0.1})
    before = values([p, q])
    for _ in range(2):
        optimizer.zero_grad()
        with a.block(optimizer):
            if a.has_samples:
                expect(not torch.equal(q, before[1]), "the new parameter is not sampled")
            (p.square().sum() + q.square().sum()).backward()
        optimizer.step()
        expect(moved(values([p, q]), before), "a parameter was not trained")
        before = values([p, q])


@behaviour("shapes and strides", "scalar, empty, transposed, strided and channels-last tensors train and keep their layout")
def layouts(a: Adapter) -> None:
    wide = a.tensor(4, 6)
    tensors = [
        *([] if a.vectors else [a.tensor()]),
        torch.empty(0, 3),
        a.tensor(5, 3).t(),
        wide[:, ::2],
        a.tensor(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ]
    parameters = [nn.Parameter(t) for t in tensors]
    expect(parameters[-2].stride() == wide[:, ::2].stride(), "the test lost its strides")
    strides = [p.stride() for p in parameters]
    optimizer = a.make(parameters, narrow=True)
    before = values(parameters)
    with a.block(optimizer):
        expect([p.stride() for p in parameters[2:]][-1] == strides[-1], "the sample has other strides")
        sum((p.square().sum() / 2 for p in parameters), torch.zeros(())).backward()
    optimizer.step()
    expect([p.stride() for p in parameters] == strides, "strides have changed")
    # One step on ½p²: against the same numbers in plain order.
    plain = [nn.Parameter(t.clone(memory_format=torch.contiguous_format)) for t in before]
    other = a.make(plain, narrow=True)
    with a.block(other):
        sum((p.square().sum() / 2 for p in plain), torch.zeros(())).backward()
    other.step()
    expect(moved(values(parameters), before), "not trained")
    expect(close(values(parameters), values(plain), tolerance=1e-4), "the layout changes the step")


@behaviour("layout changed in mid-training", "model.to(memory_format=...) between steps loses nothing")
def layout_changed(a: Adapter) -> None:
    def run(change: bool) -> list[Tensor]:
        layer = nn.Conv2d(3, 4, 3)
        layer.weight.data, assert_bias = a.tensor(4, 3, 3, 3), a.tensor(4)
        layer.bias.data = assert_bias  # type: ignore[union-attr]
        optimizer = a.make(layer.parameters(), narrow=True)
        with mock.patch.object(buckets, "SIZE", 16):
            for step in range(4):
                if change and step == 2:
                    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                optimizer.zero_grad()
                with a.block(optimizer):
                    sum((p.square().sum() / 2 for p in layer.parameters()), torch.zeros(())).backward()
                optimizer.step()
        return values(layer)

    expect(close(run(True), run(False), tolerance=1e-4), "the change of layout changes the training")


@behaviour("bfloat16 parameters", "steps below the rounding of the parameter add up")
def bfloat16(a: Adapter) -> None:
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = a.make([p], narrow=True, lr=1e-3)
        for _ in range(200):  # a step of 1e-3, where neighbours of 1 are 4e-3 below
            optimizer.zero_grad()
            with a.block(optimizer):
                p.sum().backward()
            optimizer.step()
        expect(p.dtype == dtype, "the dtype has changed")
        results.append(p.detach().float())
    expect(bool((results[0] < 0.9).all()), "the test does not move its parameter")
    expect(torch.allclose(*results, rtol=0, atol=2**-7), f"{results[1].tolist()} instead of {results[0].tolist()}")


@behaviour("autocast", "casts cached for one sample are not used for the next")
def autocast(a: Adapter) -> None:
    a.require_samples()
    model = a.network()
    optimizer = a.make(model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            model(X)  # fills the cache
            optimizer.zero_grad()
            with a.block(optimizer):
                sample = here(model)
                loss_of(model).backward()
            found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
            with torch.autocast("cpu", torch.bfloat16):
                right = gradient_at(model, sample)
            expect(close(found, right, tolerance=2**-7), "the gradient of another sample")
            expect(torch.equal(model(X), copy.deepcopy(model)(X)), "the network after a step has the casts of before")


def _compiled(a: Adapter, backend: str) -> None:
    def run(compiled: bool) -> list[Tensor]:
        torch._dynamo.reset()
        model = a.network()
        network = torch.compile(model, backend=backend) if compiled else model
        optimizer = a.make(model.parameters())
        for late in (False, True, False):
            if late and not a.has_samples:
                continue
            optimizer.zero_grad()
            with a.block(optimizer):
                loss = cross_entropy(network(X), Y)
                if not late or not a.ours:
                    loss.backward()
            if late and a.ours:
                loss.backward()
            optimizer.step()
        if a.ours:
            optimizer.step(closure_for(optimizer, network))  # type: ignore[arg-type]
        return values(model)

    expect(close(run(True), run(False), tolerance=1e-4), "a compiled model trains differently")


@behaviour("torch.compile, aot_eager", "a compiled model trains as the plain one does", slow=True)
def compiled_eager(a: Adapter) -> None:
    _compiled(a, "aot_eager")


# Refusals.


def _refused(attempt: Callable[[], Any], *words: str) -> None:
    try:
        attempt()
    except (ValueError, TypeError) as problem:
        for word in words:
            expect(word in str(problem), f"the error does not say {word!r}: {problem}")
        return
    raise AssertionError("accepted")


@behaviour("empty parameter list", "is refused")
def empty_list(a: Adapter) -> None:
    _refused(lambda: a.make([]), "empty")


@behaviour("complex parameters", "are trained right or refused by name")
def complex_parameters(a: Adapter) -> None:
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    if a.has_samples:
        _refused(lambda: a.make([("z", z)] if a.ours else [z]), "complex", *(["z"] if a.ours else []))
        return
    optimizer = a.make([z])
    z.abs().square().sum().backward()
    optimizer.step()
    expect((z.abs() < 1).all(), "not trained")


@behaviour("integer parameters", "are refused by name")
def integer_parameters(a: Adapter) -> None:
    n = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    if not a.has_samples:
        raise NotApplicableError("it never writes a tensor without gradient")
    _refused(lambda: a.make([("n", n)] if a.ours else [n]), "int64", *(["n"] if a.ours else []))


@behaviour("sparse gradients", "are trained right or refused by name, before anything changes")
def sparse_gradients(a: Adapter) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table.weight.data = a.tensor(5, 2)
    other = nn.Parameter(a.tensor(3))
    optimizer = a.make([other, table.weight], **({} if a.has_samples else {"momentum": 0.0}))
    before = values([other, table.weight])
    try:
        with a.block(optimizer):
            (table(torch.tensor([1])).sum() + other.sum()).backward()
        optimizer.step()
    except (ValueError, RuntimeError) as problem:
        expect("sparse" in str(problem) and len(str(problem)) < 300, f"the error does not name it: {str(problem)[:80]}")
        expect(equal(values([other, table.weight]), before), "the refused step moved something")
        return
    expect(torch.equal(table.weight[0], before[1][0]) and not torch.equal(table.weight[1], before[1][1]), "trained wrongly")


@behaviour("values outside the group's domain", "negative parameters of a positive group are refused with the remedy")
def negative_parameters(a: Adapter) -> None:
    if not a.positive:
        raise NotApplicableError("it takes all numbers")
    for bad in (-1.0, 0.0, math.nan):
        _refused(lambda bad=bad: a.make([("w", nn.Parameter(torch.tensor([1.0, bad])))]), "w ", "positive", "sign constraint")


@behaviour("bad settings", "are refused at construction, with the value and what was expected")
def bad_settings(a: Adapter) -> None:
    cases: list[tuple[str, Any]] = [("lr", -1.0)]
    if a.ours:
        cases += [("data_size", 0), ("momentum", 1.0), ("mc_samples", 0), ("prior", -1.0), ("max_step", 0.0)]
        cases += [("nonfinite", "ignore"), ("metric", "fisher"), ("base", 3), ("lr", math.nan)]
    for name, value in cases:
        p = nn.Parameter(a.tensor(3))
        _refused(lambda name=name, value=value, p=p: a.make([p], **{name: value}), str(value))


# Between steps.


@behaviour("the point between steps", "construction changes nothing; the module holds a documented point, never a sample")
def point_between_steps(a: Adapter) -> None:
    model = a.network()
    before = values(model)
    optimizer = a.make(model.parameters())
    expect(equal(values(model), before), "construction has changed the weights")
    for _ in range(3):
        held = values(model)
        with a.block(optimizer):
            if a.has_samples:
                expect(moved(values(model), held), "no sample in the block")
            loss_of(model).backward()
        expect(equal(values(model), held), "a sample is left in the module")
        optimizer.step()
    if a.ours:
        posterior = optimizer.posterior(model)
        for name, p in model.named_parameters():
            family = posterior.families[name]
            # The mean is g·E[ε] for scalings; for shifts the point is b, whatever the base's mean.
            documented = family.element.shift if hasattr(family.element, "shift") else family.mean
            expect(torch.allclose(p, documented, rtol=1e-6), "not the documented point")
            expect(torch.equal(p, posterior.point()[name]) or torch.allclose(p, posterior.point()[name], rtol=1e-6), "point()")


@behaviour("edited parameters", "editing a parameter between steps moves the posterior with it")
def edited(a: Adapter) -> None:
    p, optimizer = single(a, 3)
    for _ in range(2):
        with a.block(optimizer):
            p.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        p.copy_(torch.tensor([10.0, 20.0, 30.0]))
    with a.block(optimizer):
        expect(torch.allclose(p, torch.tensor([10.0, 20.0, 30.0]), rtol=1e-3), "samples are elsewhere")
        (0 * p.sum()).backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    expect(torch.allclose(p, torch.tensor([10.0, 20.0, 30.0]), rtol=1e-3), "a step forgets the edit")
    if a.ours:
        (family,) = optimizer.families().values()
        expect(torch.allclose(family.mean, torch.tensor([10.0, 20.0, 30.0]), rtol=1e-3), "the posterior is elsewhere")


# Checkpoints.


@behaviour("plain state_dict", "tensors, numbers and strings only; torch.load(weights_only=True) reads it")
def plain_state(a: Adapter) -> None:
    model = a.network()
    optimizer = a.make(model.parameters())
    train(a, optimizer, model, 2)

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                expect(isinstance(key, (str, int)), f"a key of type {type(key)}")
                walk(value)
        elif isinstance(node, (list, tuple)):
            for value in node:
                walk(value)
        else:
            expect(node is None or isinstance(node, (Tensor, int, float, str)), f"a {type(node)}")

    walk(optimizer.state_dict())
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)


def _saved(optimizer: Any, model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "noise": torch.get_rng_state()}, file)
    file.seek(0)
    return file


@behaviour("resuming", "10 steps = 5 + save + load + 5, to the bit, noise and counters included")
def resuming(a: Adapter) -> None:
    for options in ({}, {"mc_samples": 2}) if a.has_samples else ({},):
        model = a.network()
        optimizer = a.make(model.parameters(), **options)
        train(a, optimizer, model, 5)
        if a.ours:
            with optimizer.sampled() if not options else mock.MagicMock():
                pass  # a sample that waits is no part of the run
        file = _saved(optimizer, model)
        train(a, optimizer, model, 5)
        loaded = torch.load(file, weights_only=True)
        again = a.network()
        resumed = a.make(again.parameters(), **options)
        again.load_state_dict(loaded["model"])
        resumed.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(loaded["noise"])  # for optimizers that draw from torch's own generator
        train(a, resumed, again, 5)
        expect(equal(values(again), values(model)), "the resumed run differs")
        if a.ours:
            expect((resumed.steps, resumed.clock) == (optimizer.steps, optimizer.clock) == (10, optimizer.clock), "counters")


@behaviour("foreign checkpoints", "another noise stream, base, group, metric or prior is an error, and changes nothing")
def foreign(a: Adapter) -> None:
    a.require_ours()
    model = a.network()
    optimizer = a.make(model.parameters())
    train(a, optimizer, model)
    good = optimizer.state_dict()
    for path, value in (
        (("liebayes", "noise"), "another"),
        (("param_groups", 0, "base"), "Normal(scale=77.0)"),
        (("param_groups", 0, "group"), "Other()"),
        (("param_groups", 0, "metric"), "Other()"),
        (("param_groups", 0, "prior"), 77.0),
    ):
        bad = copy.deepcopy(good)
        node: Any = bad
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        _refused(lambda bad=bad: optimizer.load_state_dict(bad), str(value))
    _refused(lambda: optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=1.0).state_dict()), "liebayes")
    expect(optimizer.steps == 1, "a refused checkpoint was loaded in part")
    optimizer.load_state_dict(good)


@behaviour("deepcopy and pickle", "a copy of model and optimizer goes on exactly as the original")
def copies(a: Adapter) -> None:
    for clone in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model = a.network()
        optimizer = a.make(model.parameters())
        train(a, optimizer, model, 3)
        other_model, other = clone((model, optimizer))
        noise = torch.get_rng_state()
        train(a, optimizer, model, 3)
        torch.set_rng_state(noise)
        train(a, other, other_model, 3)
        expect(equal(values(model), values(other_model)), "the copy goes another way")


# Settings.

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.5**t),
    "MultiplicativeLR": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda t: 0.5),
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1]),
    "ConstantLR": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.1, 1),
    "LinearLR": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
    "PolynomialLR": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)], [1]
    ),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=4),
}


@behaviour("schedulers", "every scheduler of torch works; OneCycle and CyclicLR cycle the momentum too")
def schedulers(a: Adapter) -> None:
    for name, build in SCHEDULERS.items():
        p, optimizer = nn.Parameter(a.tensor(3)), None
        optimizer = a.make([p])
        group = optimizer.param_groups[0]
        scheduler = build(optimizer)
        rates, momenta = [], []
        for _ in range(3):
            rates.append(float(group["lr"]))
            momenta.append(group.get("momentum", None))
            with a.block(optimizer):
                p.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
        rates.append(float(group["lr"]))
        expect(len(set(rates)) > 1, f"{name} does not move lr")
        if name in ("OneCycleLR", "CyclicLR"):
            expect(isinstance(group.get("momentum"), float) and len(set(momenta)) > 1, f"{name} does not cycle the momentum")


@behaviour("schedulers move the scale", "where lr is 0, neither point nor width moves; scale_lr stays a multiple of lr")
def scheduled_scale(a: Adapter) -> None:
    a.require_ours()
    p = nn.Parameter(a.tensor(3))
    optimizer = a.make([p], mc_samples=1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t < 2))
    ratio = optimizer.param_groups[0]["scale_lr_ratio"]
    history = []
    for _ in range(4):
        with optimizer.sampled():
            p.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        (family,) = optimizer.families().values()
        history.append([block.clone() for block in family.element])
    expect(not close(history[0], history[1], 1e-6), "it does not train at all")
    expect(close(history[1], history[2], 1e-6) and close(history[2], history[3], 1e-6), "something moves at lr 0")
    expect(optimizer.param_groups[0]["scale_lr_ratio"] == ratio, "the ratio has changed")


@behaviour("maximize", "ascending −ℓ is descending ℓ")
def maximize(a: Adapter) -> None:
    results = []
    for sign, up in ((1, False), (-1, True)):
        model = a.network()
        optimizer = a.make(model.parameters(), maximize=up)
        before = values(model)
        for _ in range(3):
            optimizer.zero_grad()
            with a.block(optimizer):
                (sign * loss_of(model)).backward()
            optimizer.step()
        expect(moved(values(model), before), "not trained")
        results.append(values(model))
    expect(equal(*results), "the two differ")


def _state(optimizer: Any) -> list[Tensor]:
    return [v.detach().clone() for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]


@behaviour("non-finite gradients", "raise or skip, as asked, with weights and state as they were; training goes on")
def nonfinite(a: Adapter) -> None:
    for policy in ("raise", "skip"):
        for samples in (1, 2):
            model = a.network()
            options = {"nonfinite": policy, "mc_samples": samples} if a.ours else {}
            optimizer = a.make(model.parameters(), **options)

            def one(factor: float, optimizer: Any = optimizer, model: nn.Module = model, samples: int = samples) -> None:
                optimizer.zero_grad()
                for i in range(samples if a.ours else 1):
                    with a.block(optimizer):
                        (loss_of(model) * (factor if i == 0 else 1.0)).backward()
                optimizer.step()

            one(1.0)
            before, state = values(model), _state(optimizer) if a.ours else []
            for bad in (math.nan, math.inf):
                try:
                    one(bad)
                except RuntimeError as problem:
                    expect(policy == "raise" and "finite" in str(problem), f"{problem!r}")
                else:
                    expect(policy == "skip" or not a.ours, "no error")
                expect(equal(values(model), before), "weights have changed")
                expect(not a.ours or equal(_state(optimizer), state), "the state has changed")
            if a.ours:
                expect(optimizer.skipped == (2 if policy == "skip" else 0), "the count of skipped steps")
            one(1.0)
            expect(not equal(values(model), before), "training does not go on")


@behaviour("noise after a skipped step", "is new: a sample that overflows is not drawn again and again")
def noise_after_skip(a: Adapter) -> None:
    a.require_ours()
    p = nn.Parameter(a.tensor(3))
    optimizer = a.make([p], nonfinite="skip")
    drawn = []
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            drawn.append(p.detach().clone())
            (p * math.inf).sum().backward()
        optimizer.step()
    expect(not torch.equal(*drawn), "the same sample again")


@behaviour("foreach", "many tensors at once give what one by one gives, to rounding")
def foreach(a: Adapter) -> None:
    if not a.ours and a.has_samples:
        raise NotApplicableError("it has one path only")

    def run(together: bool, size: int = buckets.SIZE, samples: int = 1) -> list[Tensor]:
        model = a.network()
        options = {"mc_samples": samples} if a.ours else {}
        optimizer = a.make(model.parameters(), foreach=together, **options)
        with mock.patch.object(buckets, "SIZE", size):
            for _ in range(5):
                for _ in range(samples):
                    optimizer.zero_grad()
                    with a.block(optimizer):
                        loss_of(model).backward()
                optimizer.step()
        return values(model)

    for samples in (1, 3) if a.ours else (1,):
        expect(close(run(True, samples=samples), run(False, samples=samples), tolerance=1e-5), "the two paths differ")
        # Buckets smaller than tensors, and others that hold some but not all.
        for size in (7, 40) if a.ours else ():
            small = run(True, size, samples), run(False, size, samples)
            expect(close(*small, tolerance=1e-5), f"the two paths differ with buckets of {size}")


@behaviour("buckets", "tensors larger than a bucket train as whole ones do, where noise is not the question")
def small_buckets(a: Adapter) -> None:
    a.require_ours()

    def run(size: int) -> list[Tensor]:
        model = a.network()
        optimizer = a.make(model.parameters(), narrow=True)
        with mock.patch.object(buckets, "SIZE", size):
            train(a, optimizer, model, 5)
        return values(model)

    expect(close(run(5), run(buckets.SIZE), tolerance=1e-3), "pieces differ from the whole")


@behaviour("learning", "the loss of a small network falls by half in 300 steps of the optimizer's own settings")
def learning(a: Adapter) -> None:
    model = a.network()
    optimizer = a.make(model.parameters(), narrow=True, lr=0.5)
    y = (X[:, 0] > 0).long()
    start = float(loss_of(model, X, y))
    train(a, optimizer, model, 300, X, y)
    expect(float(loss_of(model, X, y)) < start / 2, f"from {start} to {float(loss_of(model, X, y))}")
