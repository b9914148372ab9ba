"""One interface to all optimizers that the behaviours run on: ours, the baselines, IVON from PyPI, torch's SGD."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.baselines import IVON as OUR_IVON
from liebayes.baselines import VOGN
from liebayes.bases import Gumbel, Laplace, LogNormal, Normal, Rayleigh, Uniform
from liebayes.groups import DiagonalAffine, TriangularAffine
from liebayes.rule import Absorbed, Adaptive, Fisher


class NotApplicableError(Exception):
    """The behaviour makes no sense for this optimizer."""


@dataclass(frozen=True)
class Adapter:
    """An optimizer by name. `build` takes parameters and options; `narrow` gives one whose samples are next to its point."""

    name: str
    build: Callable[..., Any]
    narrow_options: dict[str, Any]
    ours: bool = True
    positive: bool = False
    """It trains positive parameters only."""
    vectors: bool = False
    """It trains vectors only, no scalars."""
    has_samples: bool = True
    group_and_base: bool = True
    """It is an optimizer of ours that has a Lie group, a base and a metric to choose."""
    single_examples: bool = False
    """It needs to see how examples use parameters, in functions that it knows."""

    def make(self, params: Any, *, narrow: bool = False, **options: Any) -> Any:
        torch.manual_seed(0)  # for optimizers that draw from torch's own generator
        return self.build(params, **({**self.narrow_options, **options} if narrow else options))

    def block(self, optimizer: Any) -> AbstractContextManager[Any]:
        """The block in which the module holds a sample."""
        if not self.has_samples:
            return nullcontext()
        return optimizer.sampled() if self.ours else optimizer.sampled_params(train=True)

    def closure(self, optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure as the optimizer wants it: IVON's draw their samples themselves."""
        if self.ours or not self.has_samples:
            return closure

        def sampling() -> Any:
            with self.block(optimizer):
                return closure()

        return sampling

    def tensor(self, *shape: int, seed: int = 0) -> Tensor:
        """Starting values: of any sign, or positive."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.abs() + 0.5 if self.positive else values

    def network(self) -> nn.Module:
        """A small classifier with parameters this optimizer takes."""
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        for seed, p in enumerate(model.parameters()):
            p.data = self.tensor(*p.shape, seed=seed) * 0.3
        return model

    def require_samples(self) -> None:
        if not self.has_samples:
            raise NotApplicableError("it has no samples")

    def require_ours(self) -> None:
        if not self.ours:
            raise NotApplicableError("it has no such notion")

    def require_group_and_base(self) -> None:
        self.require_ours()
        if not self.group_and_base:
            raise NotApplicableError("it has no Lie group to choose, and a step of its own")

    def require_gradients_alone(self) -> None:
        if self.single_examples:
            raise NotApplicableError("its squares of single examples' gradients are no part of .grad")

    def __str__(self) -> str:
        return self.name


def _ours(name: str, kind: Callable[..., Any], narrow: dict[str, Any], **traits: bool) -> Adapter:
    def build(params: Any, **options: Any) -> Any:
        return kind(params, **{"lr": 0.05, "data_size": 100, "mc_samples": 1, **options})

    exact = {"metric": Absorbed(), "max_step": None, "prior": 0.0, **narrow}
    return Adapter(name, build, exact, **traits)


def _with(kind: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    return lambda params, **options: kind(params, **{**fixed, **options})


SHIFTED: dict[str, Any] = {"base": Normal(1e-5), "temperature": 0.0}
SCALED: dict[str, Any] = {"base": LogNormal(1e-5), "temperature": 0.0}
GROUP = lb.LieGroupBLR

OURS = [
    _ours("AdditiveBLR", lb.AdditiveBLR, {"base": Normal(1e-5)}),
    _ours("AdditiveBLR Uniform", _with(lb.AdditiveBLR, base=Uniform(0.1)), {"base": Normal(1e-5)}),
    _ours("MultiplicativeBLR", lb.MultiplicativeBLR, SCALED, positive=True),
    _ours("MultiplicativeBLR Fisher", _with(lb.MultiplicativeBLR, metric=Fisher(), base=Rayleigh(0.2)), SCALED, positive=True),
    _ours("AffineBLR", _with(lb.AffineBLR, curvature="samples"), SHIFTED),
    _ours("AffineBLR Laplace Fisher", _with(lb.AffineBLR, metric=Fisher(), base=Laplace(0.1)), SHIFTED),
    _ours("AffineBLR Adaptive", _with(lb.AffineBLR, metric=Adaptive(), scale_lr=0.001), SHIFTED),
    _ours("LieGroupBLR Gumbel", _with(GROUP, group=DiagonalAffine(), base=Gumbel(0.1), metric=Fisher()), SHIFTED),
    _ours(
        "LieGroupBLR TriangularAffine",
        _with(GROUP, group=TriangularAffine(), base=Normal(0.1), metric=Fisher()),
        SHIFTED,
        vectors=True,
    ),
]


def _baseline(name: str, kind: Callable[..., Any], **traits: bool) -> Adapter:
    def build(params: Any, **options: Any) -> Any:
        return kind(params, **{"lr": 0.05, "data_size": 100, **options})

    # A curvature that stays where it is, and a precision of 1: steps of the mean are those of SGD.
    narrow = {"data_size": 10**11, "scale_momentum": 1 - 1e-15, "damping": 0.0, "initial_curvature": 1.0, "prior": 0.0}
    return Adapter(name, build, narrow, group_and_base=False, **traits)


BASELINES = [_baseline("IVON", OUR_IVON), _baseline("VOGN", VOGN, single_examples=True)]


def _ivon(params: Any, **options: Any) -> Any:
    import ivon

    return ivon.IVON(params, **{"lr": 0.05, "ess": 100.0, **options})


def _sgd(params: Any, **options: Any) -> Any:
    return torch.optim.SGD(params, **{"lr": 0.05, "momentum": 0.9, **options})


IVON = Adapter("ivon-opt", _ivon, {"ess": 1e12, "weight_decay": 0.0, "beta2": 1.0}, ours=False)
SGD = Adapter("torch.optim.SGD", _sgd, {"momentum": 0.0}, ours=False, has_samples=False)
