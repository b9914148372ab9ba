"""Rows 1 to 3: sampling and stepping without a network. Gradients are there beforehand, and the same for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.optim.noise import Noise

from .contest import Here, Limit, Row
from .sizes import Sizes

DATA_SIZE = 50_000


def affine(sizes: Sizes) -> Row:
    """Row 1: many parameters, where memory is what counts."""
    return Row(
        "affine",
        f"affine rule, sample + step, {count(sizes.parameters)} parameters in {sizes.tensors} tensors",
        "AffineBLR",
        optimizers([(sizes.parameters // sizes.tensors,)] * sizes.tensors),
        [Limit("times", 4.0, "fused SGD"), Limit("faster", 30.0, "ivon-opt")],
    )


def affine_small(sizes: Sizes) -> Row:
    """Row 2: small tensors, where Python is."""
    shapes = resnet_shapes(sizes)
    return Row(
        "affine-small",
        f"the same, ResNet-20's {len(shapes)} small tensors",
        "AffineBLR",
        optimizers(shapes),
        [Limit("times", 2.0, "fused SGD")],
    )


def resnet_shapes(sizes: Sizes) -> list[torch.Size]:
    """Those of ResNet-20's parameters."""
    return [p.shape for p in lb.nn.resnet20(width=sizes.resnet_width, blocks=sizes.resnet_blocks).parameters()]


def optimizers(shapes: Sequence[Sequence[int]], *, only: Sequence[str] = ()) -> list[Here]:
    """Everyone's sample and step on tensors of these shapes, with the same values and gradients at the start."""
    torch.manual_seed(0)
    start = [torch.randn(*shape) * 0.1 for shape in shapes]
    gradients = [torch.randn(*shape) * 1e-3 for shape in shapes]  # small: hundreds of steps must not go anywhere
    makers = {
        "AffineBLR": ours,
        "fused SGD": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True).step,
        "fused Adam": lambda p: torch.optim.Adam(p, lr=1e-5, fused=True).step,
        "ivon-opt": ivon,
        "AffineBLR in torch": in_torch,
    }
    found = []
    for name, make in makers.items():
        if not only or name in only:
            parameters = [nn.Parameter(value.clone()) for value in start]
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient  # nobody writes into it
            work = make(parameters)
            if work is not None:
                found.append(Here(name, work))
    return found


def ours(parameters: list[nn.Parameter]) -> Callable[[], None]:
    """AffineBLR with its defaults."""
    optimizer = lb.AffineBLR(parameters, data_size=DATA_SIZE)

    def work() -> None:
        with optimizer.sampled():
            pass
        optimizer.step()

    return work


def in_torch(parameters: list[nn.Parameter]) -> Callable[[], None]:
    """The same without the kernel, as where there is no compiler."""
    with without_kernel():
        work = ours(parameters)

    def without() -> None:
        with without_kernel():
            work()

    return without


def ivon(parameters: list[nn.Parameter]) -> Callable[[], None] | None:
    """ivon-opt, which takes the gradients in when its block ends."""
    try:
        from ivon import IVON
    except ImportError:
        return None
    optimizer = IVON(parameters, lr=1e-5, ess=DATA_SIZE)

    def work() -> None:
        with optimizer.sampled_params(train=True):
            pass
        optimizer.step()

    return work


@contextmanager
def without_kernel() -> Iterator[None]:
    """As LIEBAYES_KERNEL=off does for a whole process."""
    kept = native.available
    native.available = lambda: False
    try:
        yield
    finally:
        native.available = kept


def noise(sizes: Sizes) -> Row:
    """Row 3: one draw of θ = b + Aε, which ours takes from log A. A and b are what they are after a step."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(sizes.noise))
    p.grad = torch.randn(sizes.noise)
    optimizer = lb.AffineBLR([p], data_size=DATA_SIZE)
    with optimizer.sampled():
        pass
    optimizer.step()
    stores, b = optimizer._stores, p.detach()
    A = optimizer.state[p]["log_scale"].exp() * optimizer.param_groups[0]["base"].scale
    steps = itertools.count()

    def kernel() -> None:
        draw = Noise(optimizer.noise, 0, next(steps), 0, stores.numbers)
        with torch.no_grad():
            stores.draw(draw)

    e: Tensor = torch.empty_like(b)

    def plain() -> None:
        e.normal_()
        torch.addcmul(b, A, e, out=e)

    contenders = [Here("kernel", kernel), Here("randn + addcmul", plain)]
    return Row(
        "noise", f"noise, θ = b + Aε, {count(sizes.noise)} numbers",
        "kernel", contenders, [Limit("faster", 4.0, "randn + addcmul")],
    )  # fmt: skip


def count(number: int) -> str:
    """A number as people say it.

    >>> count(50_000_000), count(4_194_304), count(20_000)
    ('50 M', '4.2 M', '20,000')
    """
    return f"{number / 1e6:.2g} M" if number >= 1_000_000 else f"{number:,}"


ROWS = {"affine": affine, "affine-small": affine_small, "noise": noise}
