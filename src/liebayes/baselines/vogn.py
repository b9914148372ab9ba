"""VOGN: the variational online Gauss–Newton method (Osawa et al., 2019).

In the words of `gaussian`, the curvature is the mean square of the gradients gᵢ of single examples at the sample:

    h ← h + ρ(mean(gᵢ²) − h).

It is never negative, so h ≥ 0 if it starts so, and a = h + δ/N + d ≥ δ/N + d needs no correction; a step shrinks it by at most
β₂. In a ← a·(1 + u) this is u = ρ(Nσ²·(mean(gᵢ²) + δ/N + d) − 1).

The fixed point is the expected square of the gradient, not the curvature. The two agree where the model is right: if targets
are as the model's likelihood says, both are the Fisher information. Elsewhere they differ; for ½c(θ − xᵢ)², for example, the
curvature is c, and the mean square c²·(σ² + the variance of the xᵢ) at the best mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..distributed import is_sharded
from ..groups import DiagonalAffine, ScaleShift
from ..optim.layout import Bucket
from ..optim.rule import Elements, Rule, Settings
from ..optim.settings import Common, named
from .gaussian import LARGEST, GaussianBaseline, GaussianRule, precision_floor
from .per_example import SquaredGradients

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VOGNRule(GaussianRule):
    """The curvature from the squares of single examples' gradients, which it observes in the backward pass."""

    def __init__(self) -> None:
        self._squares = SquaredGradients()

    @contextmanager
    def observing(self, parameters: list[Tensor], *, again: bool) -> Iterator[None]:
        if not again:
            self._squares.clear()
        with self._squares.of(parameters):
            yield

    def require_observations(self, parameters: list[Tensor]) -> None:
        self._squares.require(parameters)

    def forget_observations(self) -> None:
        self._squares.clear()

    def covector(self, elements: Elements, bucket: Bucket, theta: Tensor, gradient: Tensor, settings: Settings) -> ScaleShift:
        """(mean(gᵢ²), σĝ)."""
        sums = bucket.read([self._squares.sum_of(p) for p in bucket.parameters], gradient.dtype)
        shift = DiagonalAffine().pullback(elements.element, theta, gradient).shift
        return ScaleShift(self._squares.examples * sums, shift)  # the loss is a mean: n·Σ(gᵢ/n)²

    def growth(self, curvature: Tensor, variance: Tensor, settings: Settings) -> Tensor:
        N, rho = settings["data_size"], 1 - settings["scale_momentum"]
        u = rho * (N * variance * (curvature + precision_floor(settings)) - 1)
        return u.clamp(1e-6 - 1, LARGEST)  # with β₂ = 0 a gradient of zero would leave no precision


class VOGN(GaussianBaseline):
    """VOGN (Osawa et al., 2019): a diagonal Gaussian whose precision is the mean square of single examples' gradients.

    The loop is that of every optimizer here: the loss is the mean over a minibatch, whose examples are the first dimension of
    all tensors. The squares come from the same backward pass (see `per_example`), for linear layers, convolutions, filter
    response norms and the like; other uses of parameters are refused, and so is what mixes examples (batch norm). Clipping
    and hooks change the gradient, not the squares. For the arguments and an example see `IVON`; the default
    step is the paper's for ResNet-20, and small networks trained for a few epochs want ten times that.
    """

    rule_type: ClassVar[type[Rule]] = VOGNRule

    def __init__(
        self, params: Iterable[Any], lr: float = 0.002, *, data_size: int, momentum: float = 0.95,
        scale_momentum: float = 0.999, prior: float = 0.1, damping: float = 0.01, initial_curvature: float = 0.01,
        mc_samples: int = 1, **common: Unpack[Common],
    ) -> None:  # fmt: skip
        self._own_defaults = {"damping": damping, "initial_curvature": initial_curvature}
        super().__init__(params, lr, data_size, momentum, scale_momentum, prior, mc_samples, **common)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also during training, with settings of their own or the defaults."""
        super().add_param_group(param_group)
        for name, p in named(self.param_groups[-1]):
            if is_sharded(p):
                self.param_groups.pop()
                raise ValueError(f"The parameter {name} is sharded (fully_shard), which VOGN does not support. Use IVON.")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return True  # asks GradScaler to say that it is there

    def step(self, closure: Callable[..., Any] | None = None, *, batch: tuple[Any, ...] | None = None) -> Any:
        """One step; see `LieGroupBLR.step`."""
        if hasattr(self, "found_inf"):
            for name in ("found_inf", "grad_scale"):
                delattr(self, name)
            self._forget()
            raise RuntimeError("VOGN's squared gradients cannot be unscaled. Train without GradScaler, e.g. in bfloat16.")
        return super().step(closure, batch=batch)
