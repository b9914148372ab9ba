"""iVON: the improved variational online Newton method (Lin, Schmidt and Khan, 2020, Fig. 1).

In the words of `gaussian`, the curvature is estimated by reparametrisation, E[∇²ℓ] = E[∇ℓ·(θ − m)/σ²], from one gradient:

    ĥ = ĝ·(θ − m)/σ²,   h ← h + ρ(ĥ − h) + ½ρ²(ĥ − h)²/a.

Without the last term ĥ, which has any sign, would make a = h + δ/N + d negative sooner or later. With u = ρ(ĥ − h)/a it is

    a ← a·(1 + u + ½u²) = ½a·(1 + (1 + u)²) ≥ ½a > 0:

whatever ĥ is, a and with it the variance stay positive, and no step more than halves a. This says nothing of the sign of h:
it stays above −(δ/N + d) and may well be negative, as the curvature of a network is in places.

The affine rule of Sec. 4.3 has a ← a·eᵘ there: iVON is its second-order approximation, and both see one covector,
(U, V) = ((θ − m)ĝ, σĝ). As σ² = 1/(Na), u = ρ(N·U − 1 + (δ + Nd)σ²) needs no division.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..groups import DiagonalAffine, ScaleShift
from ..optim.layout import Bucket
from ..optim.rule import Elements, Rule, Settings
from ..optim.settings import Common
from .gaussian import LARGEST, GaussianBaseline, GaussianRule, precision_floor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class IVONRule(GaussianRule):
    """The curvature from the covector of the affine rule."""

    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> ScaleShift:
        return DiagonalAffine().pullback(elements.element, theta, gradient)

    def growth(self, curvature: Tensor, variance: Tensor, settings: Settings) -> Tensor:
        N, rho = settings["data_size"], 1 - settings["scale_momentum"]
        u = (rho * (N * curvature - 1 + N * precision_floor(settings) * variance)).clamp(-LARGEST, LARGEST)
        return u + 0.5 * u.square()


class IVON(GaussianBaseline):
    """iVON (Lin, Schmidt and Khan, 2020): a diagonal Gaussian by natural gradients, at one gradient a step.

    Samples, closures, `sampled()`, checkpoints and `posterior(model)` are those of `LieGroupBLR`.

    Args:
        params: parameters, or dictionaries of them with settings of their own.
        lr: the step size α of the mean, in units of the variance times N.
        data_size: N, the number of training data.
        momentum: β₁ of the gradient's average.
        scale_momentum: β₂ of the curvature's average.
        prior: the precision δ of the prior N(0, 1/δ).
        damping: d, added to the curvature; without it, flat directions take steps that are too long.
        initial_curvature: h before the first step; the variance starts at 1/(N(h + δ/N + d)).
        mc_samples: Monte Carlo samples per step.
        common: `seed`, `noise`, `maximize`, `nonfinite`, `foreach` and `process_group`, as in `LieGroupBLR`.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = IVON(model.parameters(), lr=0.1, data_size=100)
    >>> with optimizer.sampled():
    ...     model(torch.ones(8, 3)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.posterior(model).std()["bias"].shape
    torch.Size([1])
    """

    rule_type: ClassVar[type[Rule]] = IVONRule

    def __init__(
        self, params: Iterable[Any], lr: float = 0.5, *, data_size: int, momentum: float = 0.8,
        scale_momentum: float = 0.999, prior: float = 0.1, damping: float = 1.0, initial_curvature: float = 0.1,
        mc_samples: int = 1, **common: Unpack[Common],
    ) -> None:  # fmt: skip
        self._own_defaults = {"damping": damping, "initial_curvature": initial_curvature}
        super().__init__(params, lr, data_size, momentum, scale_momentum, prior, mc_samples, **common)
