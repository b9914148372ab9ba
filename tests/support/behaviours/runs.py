"""Behaviours of a whole run: checkpoints, copies, schedulers, non-finite gradients, learning."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from liebayes.optim import layout

from .adapters import Adapter, NotApplicableError
from .checks import (
    X,
    behaviour,
    built,
    close,
    equal,
    expect,
    half_squares,
    loss_of,
    moved,
    refused,
    single,
    step_on,
    train,
    values,
)  # fmt: skip


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
            expect(torch.allclose(p, posterior.point()[name], rtol=1e-6), "point()")


@behaviour("edited parameters", "editing a parameter between steps moves the posterior with it")
def edited(a: Adapter) -> None:
    p, optimizer = single(a, 3)
    for _ in range(2):
        step_on(a, optimizer, lambda: half_squares([p]))
    edit = torch.tensor([10.0, 20.0, 30.0])
    with torch.no_grad():
        p.copy_(edit)
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def loss() -> Tensor:
        expect(torch.allclose(p, edit, rtol=1e-3), "samples are elsewhere")
        return 0 * p.sum()

    step_on(a, optimizer, loss)
    expect(torch.allclose(p, edit, rtol=1e-3), "a step forgets the edit")
    if a.ours:
        (family,) = optimizer.families().values()
        expect(torch.allclose(family.mean, edit, rtol=1e-3), "the posterior is elsewhere")


@behaviour("plain state_dict", "tensors, numbers and strings only; torch.load(weights_only=True) reads it")
def plain_state(a: Adapter) -> None:
    _, optimizer = built(a, 2)

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
        model, optimizer = built(a, 5, **options)
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
    model, optimizer = built(a, 1)
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
        refused(lambda bad=bad: optimizer.load_state_dict(bad), str(value))
    refused(lambda: optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=1.0).state_dict()), "liebayes")
    expect(optimizer.steps == 1, "a refused checkpoint was loaded in part")
    optimizer.load_state_dict(good)


@behaviour("deepcopy and pickle", "a copy of model and optimizer goes on exactly as the original")
def copies(a: Adapter) -> None:
    for clone in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model, optimizer = built(a, 3)
        other_model, other = clone((model, optimizer))
        noise = torch.get_rng_state()
        train(a, optimizer, model, 3)
        torch.set_rng_state(noise)
        train(a, other, other_model, 3)
        expect(equal(values(model), values(other_model)), "the copy goes another way")


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
        p = nn.Parameter(a.tensor(3))
        optimizer = a.make([p])
        group = optimizer.param_groups[0]
        scheduler = build(optimizer)
        rates, momenta = [], []
        for _ in range(3):
            rates.append(float(group["lr"]))
            momenta.append(group.get("momentum", None))
            step_on(a, optimizer, lambda p=p: half_squares([p]))
            scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
        rates.append(float(group["lr"]))
        expect(len(set(rates)) > 1, f"{name} does not move lr")
        if name in ("OneCycleLR", "CyclicLR"):
            expect(isinstance(group.get("momentum"), float) and len(set(momenta)) > 1, f"{name} does not cycle the momentum")


@behaviour("schedulers move the scale", "where lr is 0, neither point nor width moves; scale_lr stays a multiple of lr")
def scheduled_scale(a: Adapter) -> None:
    a.require_group_and_base()
    p = nn.Parameter(a.tensor(3))
    optimizer = a.make([p], mc_samples=1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t < 2))
    ratio = optimizer.param_groups[0]["scale_lr_ratio"]
    history = []
    for _ in range(4):
        step_on(a, optimizer, lambda: half_squares([p]))
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
        model, optimizer = built(a, maximize=up)
        before = values(model)
        for _ in range(3):
            step_on(a, optimizer, lambda sign=sign, model=model: sign * loss_of(model))
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

    def loss() -> Tensor:
        drawn.append(p.detach().clone())
        return (p * math.inf).sum()

    for _ in range(2):
        step_on(a, optimizer, loss)
    expect(not torch.equal(*drawn), "the same sample again")


@behaviour("foreach", "many tensors at once give what one by one gives, to rounding")
def foreach(a: Adapter) -> None:
    if not a.ours and a.has_samples:
        raise NotApplicableError("it has one path only")

    def run(together: bool, size: int = layout.SIZE, samples: int = 1) -> list[Tensor]:
        model = a.network()
        options = {"mc_samples": samples} if a.ours else {}
        optimizer = a.make(model.parameters(), foreach=together, **options)
        with mock.patch.object(layout, "SIZE", size):
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
        model, optimizer = built(a, narrow=True)
        with mock.patch.object(layout, "SIZE", size):
            train(a, optimizer, model, 5)
        return values(model)

    expect(close(run(5), run(layout.SIZE), tolerance=1e-3), "pieces differ from the whole")


@behaviour("learning", "the loss of a small network falls by half in 300 steps")
def learning(a: Adapter) -> None:
    model, optimizer = built(a, narrow=True, lr=0.5)
    y = (X[:, 0] > 0).long()
    start = float(loss_of(model, X, y))
    train(a, optimizer, model, 300, X, y)
    expect(float(loss_of(model, X, y)) < start / 2, f"from {start} to {float(loss_of(model, X, y))}")
