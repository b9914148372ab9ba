"""What each of two ranks does with fully_shard (FSDP2). The tests compare with one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from small_problem import OPTIMIZERS, batches, network, optimizer_for, own_part, states, train
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import liebayes as lb


def sharded(positive: bool = False, model: nn.Module | None = None) -> nn.Module:
    model = model or network(positive)
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)  # one layer of its own; the root keeps its weights gathered after a forward pass
    fully_shard(model, mesh=mesh)
    return model


def trained(kind: str, mc_samples: int, foreach: bool) -> dict[str, Tensor]:
    model = sharded(kind == "multiplicative")
    optimizer = optimizer_for(kind, model, mc_samples=mc_samples, foreach=foreach)
    train(model, optimizer, own_part(batches()))
    return states(model, optimizer)


def evaluated_between_steps() -> dict[str, Any]:
    """A forward pass without backward leaves gathered weights behind, before a sample and on one."""
    model = sharded()
    optimizer = optimizer_for("affine", model)
    outputs = []
    for x, y in own_part(batches()):
        with torch.no_grad():
            model(x)
        optimizer.zero_grad()
        with optimizer.sampled():
            (model(x) - y).square().mean().backward()
            with torch.no_grad():
                model(x)
        with torch.no_grad():
            outputs.append(model(batches()[0][0]))
        optimizer.step()
    return {"states": states(model, optimizer), "outputs": outputs}


def micro_batches() -> dict[str, Tensor]:
    model = sharded()
    optimizer = optimizer_for("affine", model)
    for x, y in own_part(batches()):
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            with optimizer.sampled(again=True):
                ((model(part) - target).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return states(model, optimizer)


def late_backward() -> None:
    model = sharded()
    optimizer = optimizer_for("affine", model)
    x, y = batches()[0]
    with optimizer.sampled():
        loss = (model(x) - y).square().mean()
    loss.backward()


def matrix_group() -> None:
    model = sharded()
    lb.LieGroupBLR(model.parameters(), lb.groups.TriangularAffine(), lb.bases.Normal(0.1), 0.1, data_size=50)


def some_sharded() -> None:
    model, other = sharded(), nn.Linear(1, 1).double()
    optimizer = lb.AffineBLR([*model.parameters(), *other.parameters()], data_size=50, curvature="samples")
    optimizer.step(lambda: other(model(batches()[0][0])).sum().backward())


def not_positive() -> None:
    optimizer_for("multiplicative", sharded())


def nonfinite() -> dict[str, Any]:
    model = sharded()
    optimizer = optimizer_for("affine", model, nonfinite="skip", metric=lb.rule.Adaptive())
    data = own_part(batches())
    train(model, optimizer, data[:2])
    before = states(model, optimizer)

    def closure() -> None:
        optimizer.zero_grad()
        x, y = data[2]
        (model(x) - y).square().mean().backward()
        if dist.get_rank() == 1:  # one shard only: ranks must agree
            p = next(iter(model.parameters()))
            assert p.grad is not None
            p.grad.to_local()[0] = value

    value = float("inf")
    optimizer.step(closure)
    value = 1e200  # finite, but its square is not
    optimizer.step(closure)
    after = states(model, optimizer)
    train(model, optimizer, data[3:])
    return {"before": before, "after": after, "skipped": optimizer.skipped, "steps": optimizer.steps}


def exception_in_a_block() -> dict[str, Any]:
    model = sharded()
    optimizer = optimizer_for("affine", model)
    before = states(model, optimizer)
    try:
        with optimizer.sampled():
            inside = states(model, optimizer)
            raise KeyError("of the user")
    except KeyError:
        return {"before": before, "inside": inside, "after": states(model, optimizer)}


def large_parameter() -> dict[str, Tensor]:
    """Noise of more than one bucket."""
    model = sharded(model=large_network())
    optimizer = lb.AffineBLR(model.parameters(), data_size=50, seed=4, base=lb.bases.StudentT(5, 0.03), curvature="samples")
    optimizer.step(lambda: model(torch.ones(1, 600)).square().mean().backward())
    return states(model, optimizer)


def large_network() -> nn.Module:
    model = nn.Sequential(nn.Linear(600, 501), nn.Linear(501, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.01)
    return model


def first_half() -> dict[str, Any]:
    """A checkpoint as whole tensors, and one of this rank's shards, loaded again here."""
    model = sharded()
    optimizer = optimizer_for("affine", model)
    train(model, optimizer, own_part(batches()[:2]))
    whole = {
        "model": lb.optim.gathered(model.state_dict()),
        "optimizer": lb.optim.gathered(optimizer.state_dict()),
        "plain": not any(isinstance(v, DTensor) for s in optimizer.state_dict()["state"].values() for v in s.values()),
    }
    again = sharded()
    again.load_state_dict(model.state_dict())
    continued = optimizer_for("affine", again)
    continued.load_state_dict(optimizer.state_dict())
    train(again, continued, own_part(batches()[2:]))
    return {**whole, "continued": states(again, continued)}


def second_half() -> dict[str, Tensor]:
    """Continues from whole tensors."""
    checkpoint = first_half()
    plain = network()
    plain.load_state_dict(checkpoint["model"])
    model = sharded(model=plain)
    optimizer = optimizer_for("affine", model)
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, own_part(batches()[2:]))
    return states(model, optimizer)


def posterior() -> dict[str, Any]:
    model = sharded()
    model[2].bias.requires_grad_(False)
    optimizer = optimizer_for("affine", model)
    train(model, optimizer, own_part(batches()))
    with torch.no_grad():
        model(batches()[0][0])  # weights gathered, as after an evaluation
    found = optimizer.posterior(model)
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/posterior.safetensors")
        plain = lb.Posterior.load(f"{folder}/posterior.safetensors", network())
    mean = plain.predict(batches()[0][0], task="regression", samples=3).mean
    try:
        found.predict(batches()[0][0])
    except ValueError as error:
        return {"std": found.std(), "mean": mean, "refused": str(error)}
    raise AssertionError("predict was not refused")


def vogn() -> str:
    try:
        optimizer_for("vogn", sharded())
    except ValueError as error:
        return str(error)
    raise AssertionError("accepted")


SCENARIOS: dict[str, Callable[[], Any]] = {
    **{
        f"{kind} {count} {foreach}": partial(trained, kind, count, foreach)
        for kind in (*OPTIMIZERS, "ivon")
        for count in (1, 2)
        for foreach in (True, False)
    },
    "vogn": vogn,
    "evaluated": evaluated_between_steps,
    "micro-batches": micro_batches,
    "late backward": late_backward,
    "matrix group": matrix_group,
    "some sharded": some_sharded,
    "not positive": not_positive,
    "nonfinite": nonfinite,
    "exception": exception_in_a_block,
    "large": large_parameter,
    "first half": first_half,
    "second half": second_half,
    "posterior": posterior,
}
