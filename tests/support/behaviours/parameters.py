"""Behaviours of parameters: groups, shapes, dtypes, layouts, and what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.bases import Exponential, Laplace, Normal
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.optim import layout

from . import checks
from .adapters import Adapter, NotApplicableError
from .checks import X, Y, behaviour, expect


@behaviour("groups and bases by parameter group", "multiplicative, affine and additive parameters in one optimizer")
def product_of_groups(a: Adapter) -> None:
    a.require_group_and_base()
    rate, weight, bias = nn.Parameter(torch.full((3,), 2.0)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    own = nn.Parameter(a.tensor(3))
    optimizer = a.make([own])
    optimizer.add_param_group({"params": [rate], "group": Multiplicative(), "base": Exponential(), "temperature": 1.0})
    optimizer.add_param_group({"params": [weight], "group": DiagonalAffine(), "base": Laplace(0.1), "metric": lb.Fisher()})
    optimizer.add_param_group({"params": [bias], "group": Additive(), "base": Normal(0.1), "metric": lb.Absorbed()})
    before = checks.values([own, rate, weight, bias])

    def loss() -> Tensor:
        expect((rate > 0).all(), "a negative rate")
        return rate.sum() + (weight - 1).square().sum() + (bias + own - 3).square().sum()

    for _ in range(20):
        checks.step_on(a, optimizer, loss)
    expect(checks.moved(checks.values([own, rate, weight, bias]), before), "a group was not trained")
    kinds = [(type(f.group), type(f.base)) for f in optimizer.families().values()][1:]
    expect(kinds == [(Multiplicative, Exponential), (DiagonalAffine, Laplace), (Additive, Normal)], f"families {kinds}")


@behaviour("step sizes by parameter group", "a group with lr 0 stays, the other moves")
def learning_rates(a: Adapter) -> None:
    p, q = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(3, seed=1))
    optimizer = a.make([{"params": [p], "lr": 0.01}, {"params": [q]}])
    optimizer.param_groups[0]["lr"] = 0.0
    before = checks.values([p, q])
    for _ in range(3):
        checks.step_on(a, optimizer, lambda: checks.half_squares([p, q]))
    expect(torch.equal(p, before[0]), "lr 0 moved")
    expect(not torch.equal(q, before[1]), "lr 0.05 did not")


@behaviour("parameter without gradient", "stays as it is, and disturbs nothing")
def no_gradient(a: Adapter) -> None:
    for several in (False, True):
        p, unused = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(2))
        optimizer = a.make([p, unused], mc_samples=2) if several else a.make([p, unused])
        before = checks.values([p, unused])
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
    before = checks.values(model)
    checks.train(a, optimizer, model, 2)
    expect(torch.equal(weight, before[0]), "a frozen parameter moved")
    expect(checks.moved(checks.values(model)[1:], before[1:]), "the others did not")
    weight.requires_grad_(True)
    checks.train(a, optimizer, model, 2)
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
    checks.step_on(a, optimizer, lambda: model(x).square().mean())
    leaf = nn.Parameter(start.clone())
    checks.step_on(a, a.make([leaf], narrow=True), lambda: (x @ leaf.t() @ leaf.t()).square().mean())
    expect(first.weight is second.weight, "the tie is broken")
    expect(torch.allclose(first.weight, leaf, rtol=1e-4, atol=1e-5), "a tied weight is not trained as one")
    expect(not torch.equal(first.weight, start), "it did not move")


@behaviour("add_param_group in mid-training", "new parameters join, the old ones go on as before")
def added(a: Adapter) -> None:
    p, q = nn.Parameter(a.tensor(3)), nn.Parameter(a.tensor(2, seed=1))
    optimizer = a.make([p])
    for _ in range(2):
        checks.step_on(a, optimizer, lambda: checks.half_squares([p]))
    optimizer.add_param_group({"params": [q], "lr": 0.1})
    before = checks.values([p, q])
    for _ in range(2):

        def loss(start: Tensor = before[1]) -> Tensor:
            expect(not (a.has_samples and torch.equal(q, start)), "the new parameter is not sampled")
            return checks.half_squares([p, q])

        checks.step_on(a, optimizer, loss)
        expect(checks.moved(checks.values([p, q]), before), "a parameter was not trained")
        before = checks.values([p, q])


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
    before = checks.values(parameters)

    def loss() -> Tensor:
        expect(parameters[-1].stride() == strides[-1], "the sample has other strides")
        return checks.half_squares(parameters)

    checks.step_on(a, optimizer, loss)
    expect([p.stride() for p in parameters] == strides, "strides have changed")
    # One step on ½p²: against the same numbers in plain order.
    plain = [nn.Parameter(t.clone(memory_format=torch.contiguous_format)) for t in before]
    checks.step_on(a, a.make(plain, narrow=True), lambda: checks.half_squares(plain))
    expect(checks.moved(checks.values(parameters), before), "not trained")
    expect(checks.close(checks.values(parameters), checks.values(plain), tolerance=1e-4), "the layout changes the step")


@behaviour("layout changed in mid-training", "model.to(memory_format=...) between steps loses nothing")
def layout_changed(a: Adapter) -> None:
    def run(change: bool) -> list[Tensor]:
        layer = nn.Conv2d(3, 4, 3)
        for p in layer.parameters():
            p.data = a.tensor(*p.shape)
        optimizer = a.make(layer.parameters(), narrow=True)
        with mock.patch.object(layout, "SIZE", 16):
            for step in range(4):
                if change and step == 2:
                    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                checks.step_on(a, optimizer, lambda: checks.half_squares(layer.parameters()))
        return checks.values(layer)

    expect(checks.close(run(True), run(False), tolerance=1e-4), "the change of layout changes the training")


@behaviour("bfloat16 parameters", "steps below the rounding of the parameter add up")
def bfloat16(a: Adapter) -> None:
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = a.make([p], narrow=True, lr=1e-3)
        for _ in range(200):  # a step of 1e-3, where neighbours of 1 are 4e-3 below
            checks.step_on(a, optimizer, lambda p=p: p.sum())
        expect(p.dtype == dtype, "the dtype has changed")
        results.append(p.detach().float())
    expect(bool((results[0] < 0.9).all()), "the test does not move its parameter")
    expect(torch.allclose(*results, rtol=0, atol=2**-7), f"{results[1].tolist()} instead of {results[0].tolist()}")


@behaviour("autocast", "casts cached for one sample are not used for the next")
def autocast(a: Adapter) -> None:
    a.require_samples()
    model, optimizer = checks.built(a)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            model(X)  # fills the cache
            optimizer.zero_grad()
            with a.block(optimizer):
                sample = checks.here(model)
                checks.loss_of(model).backward()
            found = [gradient.clone() for gradient in checks.gradients(model)]
            optimizer.step()
            with torch.autocast("cpu", torch.bfloat16):
                right = checks.gradient_at(model, sample)
            expect(checks.close(found, right, tolerance=2**-7), "the gradient of another sample")
            expect(torch.equal(model(X), copy.deepcopy(model)(X)), "the network after a step has the casts of before")


def train_compiled(a: Adapter, backend: str) -> None:
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
            optimizer.step(checks.closure_for(optimizer, network))  # type: ignore[arg-type]
        return checks.values(model)

    expect(checks.close(run(True), run(False), tolerance=1e-4), "a compiled model trains differently")


@behaviour("torch.compile, aot_eager", "a compiled model trains as the plain one does", slow=True)
def compiled_eager(a: Adapter) -> None:
    train_compiled(a, "aot_eager")


@behaviour("empty parameter list", "is refused")
def empty_list(a: Adapter) -> None:
    checks.refused(lambda: a.make([]), "empty")


@behaviour("complex parameters", "are trained right or refused by name")
def complex_parameters(a: Adapter) -> None:
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    if a.has_samples:
        checks.refused(lambda: a.make([("z", z)] if a.ours else [z]), "complex", *(["z"] if a.ours else []))
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
    checks.refused(lambda: a.make([("n", n)] if a.ours else [n]), "int64", *(["n"] if a.ours else []))


@behaviour("sparse gradients", "are trained right or refused by name, before anything changes")
def sparse_gradients(a: Adapter) -> None:
    if a.single_examples:
        raise NotApplicableError("it refuses embeddings")
    table = nn.Embedding(5, 2, sparse=True)
    table.weight.data = a.tensor(5, 2)
    other = nn.Parameter(a.tensor(3))
    optimizer = a.make([other, table.weight], **({} if a.has_samples else {"momentum": 0.0}))
    before = checks.values([other, table.weight])
    try:
        with a.block(optimizer):
            (table(torch.tensor([1])).sum() + other.sum()).backward()
        optimizer.step()
    except (ValueError, RuntimeError) as problem:
        expect("sparse" in str(problem) and len(str(problem)) < 300, f"the error does not name it: {str(problem)[:80]}")
        expect(checks.equal(checks.values([other, table.weight]), before), "the refused step moved something")
        return
    expect(torch.equal(table.weight[0], before[1][0]) and not torch.equal(table.weight[1], before[1][1]), "trained wrongly")


@behaviour("values outside the group's domain", "negative parameters of a positive group are refused with the remedy")
def negative_parameters(a: Adapter) -> None:
    if not a.positive:
        raise NotApplicableError("it takes all numbers")
    for bad in (-1.0, 0.0, math.nan):
        checks.refused(
            lambda bad=bad: a.make([("w", nn.Parameter(torch.tensor([1.0, bad])))]), "w ", "positive", "sign constraint"
        )


@behaviour("bad settings", "are refused at construction, with the value and what was expected")
def bad_settings(a: Adapter) -> None:
    cases: list[tuple[str, Any]] = [("lr", -1.0)]
    if a.ours:
        cases += [("data_size", 0), ("momentum", 1.0), ("mc_samples", 0), ("prior", -1.0)]
        cases += [("nonfinite", "ignore"), ("lr", math.nan)]
        cases += [("max_step", 0.0), ("metric", "fisher"), ("base", 3)] if a.group_and_base else [("damping", -1.0)]
    for name, value in cases:
        p = nn.Parameter(a.tensor(3))
        checks.refused(lambda name=name, value=value, p=p: a.make([p], **{name: value}), str(value))
