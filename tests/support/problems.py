"""Small networks and data sets, closures over them, and optimizers that have taken a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import liebayes as lb
from liebayes.baselines import IVON
from liebayes.bases import Normal, Rayleigh

Loss = Callable[[Tensor, Tensor], Tensor]


def closure_for(
    optimizer: Any, model: Callable[[Tensor], Any], x: Tensor, y: Tensor, loss: Loss = cross_entropy
) -> Callable[[], Tensor]:
    """The closure that training loops hand to `step`: clear, forward, backward."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        return value

    return closure


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Copies of a model's parameters."""
    return [p.detach().clone() for p in model.parameters()]


KINDS: dict[str, Callable[..., Any]] = {
    "affine": lambda p, **more: lb.AffineBLR(p, lr=0.1, data_size=100, base=Normal(0.1), **{"curvature": "samples", **more}),
    "additive": lambda p, **more: lb.AdditiveBLR(p, lr=0.1, data_size=100, base=Normal(0.1), **more),
    "multiplicative": lambda p, **more: lb.MultiplicativeBLR(p, 0.1, data_size=100, base=Rayleigh(), mc_samples=1, **more),
    "ivon": lambda p, **more: IVON(p, data_size=100, **more),
}
"""One optimizer of each kind, for `positive_layer`."""


def positive_layer(width: int = 4, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A linear layer that also the multiplicative rule takes."""
    torch.manual_seed(0)
    model = nn.Linear(width, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.abs_().add_(0.1)
    return model.to(dtype)


def train_layer(model: nn.Linear, optimizer: Any, steps: int = 3) -> None:
    """Steps of a regression, each on inputs of its own."""
    for step in range(steps):
        x = torch.randn(8, model.weight.shape[1], generator=torch.Generator().manual_seed(step)).to(model.weight.dtype)
        optimizer.step(closure_for(optimizer, model, x, torch.ones(8, 3, dtype=x.dtype), mse_loss))
