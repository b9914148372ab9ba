"""What rows 2 and 4 consist of: their parts alone, and grown part by part, beside the whole and its peer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes import native
from liebayes.optim import gradients
from liebayes.threads import affordable_workers
from liebayes.threads.workers import shared_workers

from . import networks, steps
from .contest import Contender, Here, Row
from .sizes import Sizes


def small_tensors(sizes: Sizes) -> Row:
    """Row 2: what the kernel takes, and what Python takes tensor by tensor."""
    shapes = steps.resnet_shapes(sizes)
    whole, peer = steps.optimizers(shapes, only=("AffineBLR", "fused SGD"))
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(*shape) * 0.1) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-3
    optimizer = lb.AffineBLR(parameters, data_size=steps.DATA_SIZE)
    jobs = recorded(optimizer)
    exchanges, buffers = list(optimizer._buffers._exchanges), optimizer._buffers
    (records,), settings = optimizer._memo.values(), optimizer.param_groups[0]

    def kernel() -> None:
        for job in jobs:
            native.run(job)

    def exchange() -> None:
        for p, _, sample in exchanges:
            p.data = sample
        for p, point, _ in exchanges:
            p.data = point

    def places() -> None:
        buffers.require(parameters)
        for _ in range(2):  # before a draw and before a step
            records.serve(parameters, settings)

    def looks_at_gradients() -> None:
        marks = gradients.GradientMarks(parameters)
        marks.changed(parameters)
        found: dict[Tensor, Tensor] = {p: gradient for p in parameters if (gradient := p.grad) is not None}
        gradients.require_dense(optimizer.param_groups, found)
        records.put_gradients(found)
        records.drop_gradients()

    parts = [
        Here("the kernel", kernel),
        Here("exchanging storages, there and back", exchange),
        Here("are parameters and states where they were?", places),
        Here("are gradients new, dense, and where?", looks_at_gradients),
    ]
    return Row("parts-small", f"ResNet-20's {len(shapes)} tensors, affine, sample + step", whole.name, [*parts, whole, peer])


def recorded(optimizer: lb.LieGroupBLR) -> list[native.Job]:
    """The kernel's jobs of one step, to be run again. Their tables belong to the optimizer."""
    jobs: list[native.Job] = []
    run = native.run

    def noted(job: native.Job) -> None:
        jobs.append(job)
        run(job)

    for _ in range(2):  # in the first one tables are made
        jobs.clear()
        native.run = noted
        try:
            with optimizer.sampled():
                pass
            optimizer.step()
        finally:
            native.run = run
    return jobs


def samples_of_mlp(sizes: Sizes) -> Row:
    """Row 4: K samples in threads, from matrix products alone to the whole step."""
    row = networks.additive(sizes)
    whole, peer = row.contenders
    model, images, labels = networks.mlp_and_batch(sizes)
    workers = affordable_workers(sum(p.numel() for p in model.parameters()))
    copies = [copy.deepcopy(model) for _ in range(workers)]
    optimizer = lb.AdditiveBLR(model.parameters(), data_size=networks.DATA_SIZE, base=lb.bases.Normal(networks.DEVIATION))
    optimizer._start_states()
    targets = [dict(zip(model.parameters(), each.parameters(), strict=True)) for each in copies]
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    pairs = [(torch.randn(len(images), m.in_features), torch.randn(len(images), m.out_features)) for m in layers]

    def products(worker: int, number: int, _: None) -> None:
        with torch.no_grad():
            for i, (m, (x, e)) in enumerate(zip(layers, pairs, strict=True)):
                torch.mm(x, m.weight.T)
                torch.mm(e.T, x)
                if i:  # nobody asks for the gradient of the images
                    torch.mm(e, m.weight)

    def passes(worker: int, number: int, _: None) -> None:
        copies[worker].zero_grad()
        cross_entropy(copies[worker](images), labels).backward()

    def noise_and_passes(worker: int, number: int, _: None) -> None:
        with torch.no_grad():
            optimizer._draw_into({p: q.data for p, q in targets[worker].items()}, number)
        passes(worker, number, None)

    def in_threads(compute: Callable[[int, int, None], None]) -> Callable[[], None]:
        return lambda: shared_workers().run(sizes.samples, workers, lambda _: None, compute, lambda *_: None)

    parts: list[Contender] = [
        Here("matrix products", in_threads(products)),
        Here("forward and backward", in_threads(passes)),
        Here("with noise", in_threads(noise_and_passes)),
    ]
    return Row("parts-mlp", row.work, row.ours, [*parts, whole, peer])


ROWS: dict[str, Callable[[Sizes], Row]] = {"parts-small": small_tensors, "parts-mlp": samples_of_mlp}

