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
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..groups import ScaleShift
from ..optim import reference
from ..optim.buckets import Bucket
from ..optim.settings import Common, named
from ..optim.sharding import is_sharded
from .gaussian import LARGEST, GaussianBaseline, gradients_only, precision_floor
from .per_example import SquaredGradients

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VOGN(GaussianBaseline):
    """VOGN (Osawa et al., 2019): a diagonal Gaussian whose precision is the mean square of single examples' gradients.

    The loop is that of every optimizer here: the loss is the mean over a minibatch, whose examples are the first dimension of
    all tensors. The squares come from the same backward pass (see `per_example`), for linear layers, convolutions, filter
    response norms and the like; other uses of parameters are refused, and so is what mixes examples (batch norm). Clipping
    and hooks change the gradient, not the squares. For the arguments see `IVON`; the default step is the paper's for
    ResNet-20, and small networks trained for a few epochs want ten times that.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = VOGN(model.parameters(), data_size=100)
    >>> with optimizer.sampled():
    ...     model(torch.ones(8, 3)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.posterior(model).std()["bias"].shape
    torch.Size([1])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.002,
        *,
        data_size: int,
        momentum: float = 0.95,
        scale_momentum: float = 0.999,
        prior: float = 0.1,
        damping: float = 0.01,
        initial_curvature: float = 0.01,
        mc_samples: int = 1,
        **common: Unpack[Common],
    ) -> None:
        if common.get("parallel"):
            raise ValueError(
                "VOGN evaluates samples one after the other: threads see copies of the parameters, whose uses it does not "
                "know. Leave parallel out."
            )
        common["parallel"] = False
        super().__init__(
            params,
            lr,
            data_size=data_size,
            momentum=momentum,
            scale_momentum=scale_momentum,
            prior=prior,
            damping=damping,
            initial_curvature=initial_curvature,
            mc_samples=mc_samples,
            **common,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also in mid-training, with settings of their own or the defaults."""
        super().add_param_group(param_group)
        for name, p in named(self.param_groups[-1]):
            if is_sharded(p):
                self.param_groups.pop()
                raise ValueError(f"The parameter {name} is sharded (fully_shard), which VOGN does not support. Use IVON.")

    def _clear(self) -> None:
        super()._clear()
        self._squares = SquaredGradients()

    @contextmanager
    def _sample_in_module(self, late_backward: bool, again: bool = False) -> Iterator[None]:
        with super()._sample_in_module(late_backward, again):
            if not again:
                self._squares.clear()
            with self._squares.of(self._trained()):
                yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients and their squares."""
        super().zero_grad(set_to_none)
        self._squares.clear()

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

    def _fold(self, watch: bool = True) -> None:
        self._require_squares()
        super()._fold(watch)

    def _apply(self) -> None:
        if not self._folds:
            self._require_squares()
        super()._apply()

    def _require_squares(self) -> None:
        """Refuses gradients that came without those of single examples, before anything is changed."""
        try:
            self._squares.require(self._sampled)
        except RuntimeError:
            self._forget()
            raise

    def _covector(
        self,
        element: ScaleShift,
        bucket: Bucket,
        samples: list[Tensor],
        gradients: list[Tensor | None],
        settings: reference.Settings,
    ) -> ScaleShift:
        """(mean(gᵢ²), σĝ)."""
        gradient = reference.covector(element, bucket, samples, gradients, gradients_only(settings)).shift
        sums = bucket.read([self._squares.sum_of(p) for p in bucket.parameters], gradient.dtype)
        return ScaleShift(self._squares.examples * sums, gradient)  # the loss is a mean: n·Σ(gᵢ/n)²

    def _growth(self, curvature: Tensor, variance: Tensor, settings: reference.Settings) -> Tensor:
        N, rho = settings["data_size"], 1 - settings["scale_momentum"]
        u = rho * (N * variance * (curvature + precision_floor(settings)) - 1)
        return u.clamp(1e-6 - 1, LARGEST)  # with β₂ = 0 a gradient of zero would leave no precision
