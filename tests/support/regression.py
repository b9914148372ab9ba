"""A small regression for trainers and several processes: data, network, optimizer, and the loop they must amount to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import liebayes as lb

from .problems import closure_for

DATA = 48
BATCH = 8


def data(dtype: torch.dtype = torch.float32) -> TensorDataset:
    x = torch.randn(DATA, 4, generator=torch.Generator().manual_seed(5), dtype=dtype)
    return TensorDataset(x, x.sum(1, keepdim=True).sin() + 1)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    generator = torch.Generator().manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=dtype))
    return model


def optimizer_for(model: nn.Module, **settings: Any) -> lb.LieGroupBLR:
    return lb.AffineBLR(model.parameters(), 0.05, data_size=DATA, base=lb.bases.Normal(0.2), scale_momentum=0.5, **settings)


def states(model: nn.Module, optimizer: Any) -> list[Tensor]:
    """Everything that training has changed: the four parameters first."""
    found = [p.detach().clone() for p in model.parameters()]
    for state in optimizer.state_dict()["state"].values():
        found += [value.clone() for value in state.values() if isinstance(value, Tensor)]
    return found


def by_hand(epochs: int = 1, clip: float | None = None, batch: int = BATCH, **settings: Any) -> list[Tensor]:
    """The states after a plain loop."""
    model = network()
    optimizer = optimizer_for(model, **settings)
    for _ in range(epochs):
        for x, y in DataLoader(data(), batch):
            plain = closure_for(optimizer, model, x, y, mse_loss)

            def closure(plain: Any = plain) -> Tensor:
                loss = plain()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                return loss

            optimizer.step(closure)
    return states(model, optimizer)


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference between the parameters of two states."""
    return max(float((x - y).detach().abs().max()) for x, y in zip(a[:4], b[:4], strict=True))
