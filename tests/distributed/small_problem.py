"""A network and data that one process and two can train alike. float64, so that equal means equal to rounding."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from support.problems import closure_for
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import liebayes as lb
from liebayes.baselines import IVON, VOGN

STEPS = 4
BATCH = 8
OPTIMIZERS = ("additive", "affine", "multiplicative")
BASELINES = {"ivon": IVON, "vogn": VOGN}


def network(positive: bool = False) -> nn.Module:
    generator = torch.Generator().manual_seed(7)
    # Seven rows and one row: neither can be cut in two equal shards.
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
            if positive:
                p.abs_().add_(0.01)
    return model


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(count, BATCH, 5, generator=generator, dtype=torch.float64)
    return [(x, x.sum(1, keepdim=True).sin() + 1) for x in inputs]


def optimizer_for(kind: str, model: nn.Module, **settings: Any) -> lb.LieGroupBLR:
    common = {"data_size": 50, "momentum": 0.8, "seed": 3, "mc_samples": 1, **settings}
    if kind == "additive":
        return lb.AdditiveBLR(model.parameters(), 0.1, base=lb.bases.Laplace(0.1), **common)
    if kind == "affine":
        return lb.AffineBLR(model.parameters(), 0.1, scale_lr=0.3, scale_momentum=0.6, base=lb.bases.Normal(0.2), **common)
    if kind in BASELINES:
        return BASELINES[kind](model.parameters(), 0.1, scale_momentum=0.6, damping=0.3, **common)
    return lb.MultiplicativeBLR(model.parameters(), 0.05, **common)


def train(model: nn.Module, optimizer: lb.LieGroupBLR, data: list[tuple[Tensor, Tensor]], split: bool = False) -> None:
    """Steps of the closure protocol; with `split` every sample has its own part of the batch."""
    for x, y in data:
        if split:
            optimizer.step(lambda x, y: closure_for(optimizer, model, x, y, mse_loss)(), batch=(x, y))
        else:
            optimizer.step(closure_for(optimizer, model, x, y, mse_loss))


def one_process(kind: str = "affine", mc_samples: int = 1, split: bool = False) -> dict[str, Tensor]:
    """The states that two ranks must end with."""
    model = network(kind == "multiplicative")
    optimizer = optimizer_for(kind, model, mc_samples=mc_samples)
    train(model, optimizer, batches(), split)
    return states(model, optimizer)


def own_part(data: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """This rank's half of every batch."""
    return [(x.chunk(2)[dist.get_rank()], y.chunk(2)[dist.get_rank()]) for x, y in data]


def states(model: nn.Module, optimizer: lb.LieGroupBLR) -> dict[str, Tensor]:
    """Everything training has changed, by name and as whole tensors."""
    model_state = lb.optim.gathered({name.removeprefix("module."): value for name, value in model.state_dict().items()})
    found = {f"point {name}": value.detach().clone() for name, value in model_state.items()}
    for number, state in lb.optim.gathered(optimizer.state_dict())["state"].items():
        found |= {f"{name} {number}": torch.as_tensor(value).clone() for name, value in state.items()}
    return found


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
