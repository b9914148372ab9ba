"""What row 2 consists of: its parts alone, beside the whole and its peer."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import torch
from torch import nn

import liebayes as lb
from liebayes import native
from liebayes.optim.protocol import GradientMarks

from . import steps
from .contest import Here, Row
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

    def kernel() -> None:
        for job, table in jobs:
            native.run(job, table)

    def install() -> None:
        with optimizer._stores.installed(None):
            pass

    def current() -> None:
        for _ in range(2):  # before a draw and before a step
            optimizer._stores.require(parameters)

    def gradients() -> None:
        GradientMarks(parameters).changed(parameters)

    parts = [
        Here("the kernel", kernel),
        Here("exchanging storages, there and back", install),
        Here("are parameters and states as they were?", current),
        Here("are gradients new?", gradients),
    ]
    return Row("parts-small", f"ResNet-20's {len(shapes)} tensors, affine, sample + step", whole.name, [*parts, whole, peer])


def recorded(optimizer: lb.LieGroupBLR) -> list[tuple[native.Job, array[int]]]:
    """The kernel's jobs of one step, to be run again. Their tables belong to the optimizer."""
    jobs: list[tuple[native.Job, array[int]]] = []
    run = native.run

    def noted(job: native.Job, table: array[int]) -> None:
        jobs.append((job, table))
        run(job, table)

    for _ in range(2):  # in the first one states are made
        jobs.clear()
        native.run = noted
        try:
            with optimizer.sampled():
                pass
            optimizer.step()
        finally:
            native.run = run
    return jobs


ROWS: dict[str, Callable[[Sizes], Row]] = {"parts-small": small_tensors}
