"""What each of two ranks does with DistributedDataParallel. The tests compare with one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from small_problem import BASELINES, OPTIMIZERS, batches, largest_difference, network, optimizer_for, own_part, states, train
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import liebayes as lb


def trained(kind: str, mc_samples: int) -> dict[str, Tensor]:
    model = lb.optim.local_gradients(DistributedDataParallel(network(kind == "multiplicative")))
    optimizer = optimizer_for(kind, model, mc_samples=mc_samples)
    train(model, optimizer, own_part(batches()), split=mc_samples > 1)
    return states(model, optimizer)


def blocks() -> dict[str, Tensor]:
    """The other protocol, with backward after the block."""
    model = lb.optim.local_gradients(DistributedDataParallel(network()))
    optimizer = optimizer_for("affine", model)
    for x, y in own_part(batches()):
        optimizer.zero_grad()
        with optimizer.sampled():
            loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return states(model, optimizer)


def averaged_gradients() -> None:
    model = DistributedDataParallel(network())
    optimizer = optimizer_for("affine", model)
    train(model, optimizer, own_part(batches()))


def uneven_blocks() -> dict[str, Tensor]:
    """The first rank has two blocks in a step, the second one."""
    model = network()
    optimizer = optimizer_for("affine", model)
    model.float()
    for x, y in own_part(batches()):
        for _ in range(2 - dist.get_rank()):
            with optimizer.sampled():
                nn.functional.mse_loss(model(x.float()), y.float()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return states(model, optimizer)


def noise_of_blocks() -> list[float]:
    p = nn.Parameter(torch.zeros(1))
    optimizer = lb.AffineBLR([p], data_size=10, base=lb.bases.Normal())
    drawn = []
    for _ in range(4):
        with optimizer.sampled():
            drawn.append(float(p))
            p.sum().backward()
    return drawn


def not_a_member() -> dict[str, Tensor]:
    model = network()
    optimizer = optimizer_for("affine", model, process_group=dist.new_group([0]))
    train(model, optimizer, own_part(batches()))
    return states(model, optimizer)


def nonfinite(mc_samples: int, policy: str) -> dict[str, Any]:
    model = lb.optim.local_gradients(DistributedDataParallel(network()))
    optimizer = optimizer_for("affine", model, mc_samples=mc_samples, nonfinite=policy)
    data = own_part(batches())
    train(model, optimizer, data[:2])
    before = states(model, optimizer)
    x, y = data[2]
    broken = [(x * float("nan"), y)] if dist.get_rank() == 1 else [(x, y)]
    raised = ""
    try:
        train(model, optimizer, broken)
    except lb.optim.NonFiniteError as error:
        raised = str(error)
    after = states(model, optimizer)
    train(model, optimizer, data[3:])
    return {"before": before, "after": after, "raised": raised, "skipped": optimizer.skipped, "end": states(model, optimizer)}


def infinite_result(kernel: bool) -> dict[str, Any]:
    """Finite gradients, whose squares are not on one rank."""
    model = network()
    size = 1e300
    if kernel:
        model, size = model.float(), 1e37
    optimizer = optimizer_for("affine", model, metric=lb.rule.Adaptive())
    x, y = own_part(batches())[0]
    x, y = (x.float(), y.float()) if kernel else (x, y)

    def closure(large: bool) -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        for p in model.parameters():
            if large and dist.get_rank() == 1 and p.grad is not None:
                p.grad.fill_(size)

    optimizer.step(lambda: closure(False))
    before, raised = states(model, optimizer), ""
    try:
        optimizer.step(lambda: closure(True))
    except lb.optim.NonFiniteError as error:
        raised = str(error)
    after = states(model, optimizer)
    optimizer.step(lambda: closure(False))
    return {"before": before, "after": after, "raised": raised, "end": states(model, optimizer)}


def scaler(overflow: bool, unscale: bool) -> dict[str, Any]:
    """GradScaler, which looks at the gradients of its own rank only."""
    model = lb.optim.local_gradients(DistributedDataParallel(network()))
    optimizer = optimizer_for("affine", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    skipped = []
    for i, (x, y) in enumerate(own_part(batches())):
        optimizer.zero_grad()
        with optimizer.sampled():
            loss = (model(x) - y).square().mean()
        if overflow and i == 1 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        before = states(model, optimizer)
        scaler.step(optimizer)
        scaler.update()
        skipped.append(largest_difference(before, states(model, optimizer)) == 0)
    return {"states": states(model, optimizer), "skipped": skipped}


class TwoHeads(nn.Module):
    """The second head is for batches whose first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.head = nn.Linear(1, 1).double()
        nn.init.constant_(self.head.weight, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) if x[0, 0] > 0 else self.body(x)


def one_sided_batches() -> list[tuple[Tensor, Tensor]]:
    """The second half of each batch uses the second head, the first half does not."""
    data = batches()
    for x, _ in data:
        x[0, 0], x[4, 0] = -1.0, 1.0
    return data


def one_rank_has_a_gradient(mc_samples: int, wrapped: bool) -> dict[str, Tensor]:
    model: nn.Module = TwoHeads()
    if wrapped:
        model = lb.optim.local_gradients(DistributedDataParallel(model, find_unused_parameters=True))
    optimizer = optimizer_for("affine", model, mc_samples=mc_samples)
    train(model, optimizer, own_part(one_sided_batches()))
    return states(model, optimizer)


def first_half() -> dict[str, Any]:
    model = lb.optim.local_gradients(DistributedDataParallel(network()))
    optimizer = optimizer_for("affine", model)
    train(model, optimizer, own_part(batches()[:2]))
    return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}


def second_half() -> dict[str, Tensor]:
    """Continues what one process, which every rank repeats in a group of its own, has begun."""
    model = network()
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    optimizer = optimizer_for("affine", model, mc_samples=2, process_group=alone)
    train(model, optimizer, batches()[:2], split=True)
    ddp = lb.optim.local_gradients(DistributedDataParallel(model))
    continued = optimizer_for("affine", ddp)
    continued.load_state_dict(optimizer.state_dict())
    train(ddp, continued, own_part(batches()[2:]))
    return states(ddp, continued)


SCENARIOS: dict[str, Callable[[], Any]] = {
    **{f"{kind} {count}": partial(trained, kind, count) for kind in (*OPTIMIZERS, *BASELINES) for count in (1, 2)},
    "blocks": blocks,
    "not a member": not_a_member,
    "uneven blocks": uneven_blocks,
    "noise of blocks": noise_of_blocks,
    "averaged": averaged_gradients,
    **{f"nonfinite {policy} {count}": partial(nonfinite, count, policy) for policy in ("skip", "raise") for count in (1, 2)},
    **{f"infinite result {kernel}": partial(infinite_result, kernel) for kernel in (False, True)},
    **{
        f"one-sided {count} {wrapped}": partial(one_rank_has_a_gradient, count, wrapped)
        for count in (1, 2)
        for wrapped in (False, True)
    },
    **{f"scaler {o} {u}": partial(scaler, o, u) for o in (False, True) for u in (False, True)},
    "first half": first_half,
    "second half": second_half,
}
