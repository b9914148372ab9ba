"""A small network with everything a posterior must cope with, posteriors trained on it, and a watch over the module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Base, Cauchy, Exponential, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.groups import Additive, DiagonalAffine, LieGroup, Multiplicative, TriangularAffine
from liebayes.posterior import Posterior

from .problems import closure_for

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(20) % 3

PAIRS: list[tuple[LieGroup[Any], Base]] = [
    *((group, base) for group in (Additive(), DiagonalAffine()) for base in (
        Normal(0.3), Laplace(0.3), Uniform(0.3), Cauchy(0.3), StudentT(4.0, 0.3), Gumbel(0.3))),
    *((Multiplicative(), base) for base in (Rayleigh(0.7), Exponential(0.7), LogNormal(0.4))),
    (TriangularAffine(), Normal(0.3)),
]  # fmt: skip
"""Groups and bases of posteriors that can be saved and turned into distributions of torch."""


class Net(nn.Module):
    """Batch norm, dropout, a frozen parameter, and one weight in two layers."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.module = nn.Linear(4, outputs)  # named like a wrapper's prefix
        self.again.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.drop(self.again(self.norm(self.first(x)).tanh())))


def positive(model: nn.Module) -> nn.Module:
    """The model with all weights made positive."""
    for p in model.parameters():
        p.data = p.data.abs() + 0.1
    return model


def trained(model: nn.Module, steps: int = 3, kind: Any = lb.AffineBLR, **options: Any) -> Any:
    """An optimizer after a few steps of classification."""
    optimizer = kind(model.parameters(), **{"lr": 0.1, "data_size": 20, "base": Normal(0.2), "mc_samples": 1, **options})
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, X.to(next(model.parameters()).dtype), Y))
    return optimizer


def posterior_of(model: nn.Module, **options: Any) -> Posterior:
    return trained(model, **options).posterior(model)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a module that a posterior must leave as it is: values, modes, storage."""
    modes = {f"mode {name}": module.training for name, module in model.named_modules()}
    places = {f"place {name}": p.data_ptr() for name, p in model.named_parameters()}
    return {**{name: value.clone() for name, value in model.state_dict().items()}, **modes, **places}


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = snapshot(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name], name


def assert_same(a: Posterior, b: Posterior) -> None:
    """Two posteriors with the same families, numbers and buffers."""
    assert a.families.keys() == b.families.keys()
    assert a.temperature == b.temperature
    for name, family in a.families.items():
        assert (family.group, repr(family.base)) == (b.families[name].group, repr(b.families[name].base))
        for block, other in zip(family.element, b.families[name].element, strict=True):
            assert block.dtype == other.dtype
            assert torch.equal(block, other)
    for kept, other in ((a.fixed, b.fixed), (a.buffers, b.buffers)):
        assert kept.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in kept.items())
