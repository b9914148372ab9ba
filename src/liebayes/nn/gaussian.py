"""Regression: networks whose output is the mean and variance of a Gaussian, with noise that is given, learned or predicted."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .sizes import in_float32, require_sizes

Noise = float | Literal["learned", "predicted"]
_FLOOR = 1e-4
"""The least predicted variance, in units of the targets' variance: without noise the likelihood has no bound."""


class GaussianOutput(nn.Module):
    """y ~ N(mean(x), variance(x)): the pair that `gaussian_loss` and `posterior.predict(..., task="regression")` take.

    The network works in standard units; `mean` and `std` of the training targets turn its output into theirs.

    Args:
        network: gives one number for each target, and with predicted noise a second one for each: (inputs, outputs).
        noise: the standard deviation of the noise in the unit of the targets, if it is known; "learned" for one that is the
            same for all inputs (homoscedastic), trained with the weights; "predicted" for one that the network gives for every
            input (heteroscedastic).
        targets: how many targets an input has. With None it has one, and outputs have the shape (inputs,) of such targets.
        mean: the mean of the training targets.
        std: their standard deviation.

    >>> model = GaussianOutput(nn.Linear(3, 1), noise="learned", mean=150.0, std=77.0)
    >>> mean, variance = model(torch.zeros(5, 3))
    >>> mean.shape, round(float(variance[0].detach().sqrt()))
    (torch.Size([5]), 77)
    """

    def __init__(
        self,
        network: nn.Module,
        noise: Noise = "learned",
        *,
        targets: int | None = None,
        mean: float | Sequence[float] | Tensor = 0.0,
        std: float | Sequence[float] | Tensor = 1.0,
    ) -> None:
        super().__init__()
        if noise not in ("learned", "predicted") and not (
            isinstance(noise, numbers.Real) and in_float32(noise) and noise > 0
        ):
            raise ValueError(f'noise must be a positive standard deviation, "learned" or "predicted", but got {noise!r}.')
        if targets is not None:
            require_sizes(targets=[targets])
        self.network: nn.Module = network
        self.noise: Noise = noise
        self.targets: int | None = targets
        self.register_buffer("target_mean", _constants("mean", mean, targets))
        self.register_buffer("target_std", _constants("std", std, targets))
        if noise == "learned":
            self.log_noise: nn.Parameter = nn.Parameter(torch.zeros(targets or 1))
            """The logarithm of the noise in standard units, so that it starts at the spread of the targets."""

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Means and variances, both of shape (inputs,) or (inputs, targets)."""
        output, targets = self.network(inputs), self.targets or 1
        expected = 2 * targets if self.noise == "predicted" else targets
        if output.ndim != 2 or output.shape[1] != expected:
            second = ", half of them for the predicted noise" if self.noise == "predicted" else ""
            raise ValueError(
                f"The network must give {expected} numbers for each input{second}: (inputs, {expected}), but the shape of its "
                f"output is {tuple(output.shape)}."
            )
        mean = output[:, :targets]
        if self.noise == "predicted":
            variance = softplus(output[:, targets:]) + _FLOOR
        elif self.noise == "learned":
            variance = (2 * self.log_noise).exp().expand_as(mean)
        else:
            variance = (self.noise / self._constant("target_std")).square().expand_as(mean)
        mean = self._constant("target_mean") + self._constant("target_std") * mean
        variance = self._constant("target_std").square() * variance
        return (mean.squeeze(1), variance.squeeze(1)) if self.targets is None else (mean, variance)

    def _constant(self, name: str) -> Tensor:
        return getattr(self, name)


def gaussian_loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """−log N(targets; mean, variance) in nats: summed over the targets of an input, averaged over inputs.

    >>> gaussian_loss((torch.zeros(4), torch.ones(4)), torch.zeros(4)).exp().square().round(decimals=4)
    tensor(6.2832)
    """
    if not (isinstance(output, (tuple, list)) and [isinstance(part, Tensor) for part in output] == [True, True]):
        raise ValueError("The output must be a pair of tensors, a mean and a variance. GaussianOutput makes one of a network.")
    mean, variance = output
    if not (isinstance(targets, Tensor) and mean.is_floating_point() and variance.is_floating_point()):
        raise ValueError("Means and variances must be floating-point numbers, and targets a tensor.")
    if mean.shape != targets.shape or variance.shape != mean.shape:
        # (inputs, 1) against (inputs,) would be broadcast to every pair of inputs.
        raise ValueError(
            f"Means, variances and targets must have one shape, but theirs are {tuple(mean.shape)}, {tuple(variance.shape)} "
            f"and {tuple(targets.shape)}."
        )
    if mean.ndim == 0:
        raise ValueError("Means, variances and targets must have a dimension for the inputs, but are single numbers.")
    losses = 0.5 * ((targets - mean).square() / variance + (2 * math.pi * variance).log())
    return losses.reshape(len(losses), -1).sum(1).mean()


def _constants(name: str, values: float | Sequence[float] | Tensor, targets: int | None) -> Tensor:
    try:
        found = torch.as_tensor(values, dtype=torch.get_default_dtype()).reshape(-1).clone()
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, but got {values!r}.") from error
    valid = found.isfinite() & ((found > 0) | (name != "std"))
    if len(found) not in (1, targets or 1) or not bool(valid.all()):
        kind = "positive numbers" if name == "std" else "finite numbers"
        raise ValueError(f"{name} must be {kind}, one or {targets or 1}, but got {values!r}.")
    return found
