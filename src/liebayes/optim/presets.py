"""The three algorithms of the paper, with defaults that work out of the box."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ..bases import Base, Normal, Rayleigh
from ..groups import Additive, DiagonalAffine, Multiplicative
from ..rule import Absorbed, Adaptive, Metric
from .optimizer import LieGroupBLR
from .settings import Prior


class AdditiveBLR(LieGroupBLR):
    """The additive rule (Sec. 4.1, Alg. 1): weights g + ε, of which g is learned. With a Dirac base it is SGD."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        data_size: int,
        base: Base = Normal(0.03),
        momentum: float = 0.9,
        mc_samples: int = 1,
        prior: Prior = 1.0,
        metric: Metric = Absorbed(),
        max_step: float | None = None,
        initial_scale: float = 1.0,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(
            params, Additive(), base, lr, data_size=data_size, temperature=0.0, momentum=momentum, mc_samples=mc_samples,
            prior=prior, metric=metric, max_step=max_step, initial_scale=initial_scale, seed=seed, maximize=maximize,
            nonfinite=nonfinite, foreach=foreach, process_group=process_group,
        )  # fmt: skip


class MultiplicativeBLR(LieGroupBLR):
    """The multiplicative rule (Sec. 4.2, Alg. 2): positive weights gε, of which g is learned."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.03,
        *,
        data_size: int,
        base: Base = Rayleigh(),
        temperature: float = 1.0,
        momentum: float = 0.9,
        mc_samples: int = 2,
        prior: Prior = 1.0,
        metric: Metric = Adaptive(),
        max_step: float | None = 0.2,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(
            params, Multiplicative(), base, lr, data_size=data_size, temperature=temperature, momentum=momentum,
            mc_samples=mc_samples, prior=prior, metric=metric, max_step=max_step, seed=seed, maximize=maximize,
            nonfinite=nonfinite, foreach=foreach, process_group=process_group,
        )  # fmt: skip


class AffineBLR(LieGroupBLR):
    """The affine rule (Sec. 4.3, Alg. 3): weights Aε + b, of which both A and b are learned."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        data_size: int,
        scale_lr: float | None = None,
        base: Base = Normal(0.03),
        temperature: float = 1.0,
        momentum: float = 0.9,
        scale_momentum: float = 0.999,
        mc_samples: int = 1,
        prior: Prior = 1.0,
        metric: Metric = Absorbed(),
        max_step: float | None = 0.2,
        initial_scale: float = 1.0,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(
            params, DiagonalAffine(), base, lr, data_size=data_size, scale_lr=scale_lr, temperature=temperature,
            momentum=momentum, scale_momentum=scale_momentum, mc_samples=mc_samples, prior=prior, metric=metric,
            max_step=max_step, initial_scale=initial_scale, seed=seed, maximize=maximize, nonfinite=nonfinite,
            foreach=foreach, process_group=process_group,
        )  # fmt: skip
