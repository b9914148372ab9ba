"""Metrics of Gaussian predictions: a mean and a variance for every input, and the observed targets.

Means, variances and targets are tensors of one shape: (inputs,), or (inputs, targets) where there are several targets. Figures
are then averages over the targets, but for the NLL, which is their sum. A posterior predictive is a mixture of Gaussians;
`RegressionPrediction` has its mean and variance, and these metrics judge the Gaussian with the same two.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .bootstrap import Statistic
from .checks import real_tensor

LEVELS: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""The quantiles at which calibration is judged: 5 %, 10 %, ..., 95 %."""


def rmse(mean: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error, in the unit of the targets.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) ** 2
    2.0000000000000004
    """
    m, y = _checked(mean=mean, targets=targets)
    return float((m - y).square().mean().sqrt())


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """The mean of −log N(target; mean, variance), in nats.

    >>> round(gaussian_nll(torch.zeros(1), torch.ones(1), torch.zeros(1)), 4)
    0.9189
    """
    return regression_statistics(mean, variance, targets)["nll"].value


def crps(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """The continuous ranked probability score ∫ (F(x) − 1[x ≥ target])² dx, in the unit of the targets.

    For a Gaussian σ·(z(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (target − mean)/σ. Without variance it is the absolute error.

    >>> round(crps(torch.zeros(1), torch.ones(1), torch.zeros(1)), 4)
    0.2337
    """
    return regression_statistics(mean, variance, targets)["crps"].value


def coverage(mean: Tensor, variance: Tensor, targets: Tensor, level: float = 0.9) -> float:
    """The share of targets inside the central interval that should hold `level` of them.

    >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([-3.0, 0.0, 0.5, 1.0]))
    0.75
    """
    if not (isinstance(level, numbers.Real) and 0 < level < 1):
        raise ValueError(f"level must be a share between 0 and 1, such as 0.9, but got {level!r}.")
    u = probability_transform(mean, variance, targets)
    return float(((u - 0.5).abs() <= level / 2).double().mean())


def sharpness(variance: Tensor) -> float:
    """The mean standard deviation of the predictions: among calibrated ones, the smaller the better.

    >>> sharpness(torch.tensor([1.0, 9.0]))
    2.0
    """
    v = real_tensor("variance", variance).detach().double()
    _require_variances(v)
    return float(v.sqrt().mean())


class QuantileCalibration(NamedTuple):
    """For every level, the share of targets below the predicted quantile of that level."""

    levels: Tensor
    observed: Tensor
    error: float
    """The mean of |observed − level|."""


def quantile_calibration(
    mean: Tensor, variance: Tensor, targets: Tensor, levels: Sequence[float] = LEVELS
) -> QuantileCalibration:
    """Whether predicted quantiles are right: below the 10 % quantile should lie 10 % of the targets.

    >>> found = quantile_calibration(torch.zeros(2), torch.ones(2), torch.tensor([-1.0, 1.0]), levels=[0.1, 0.5])
    >>> found.observed, found.error
    (tensor([0.0000, 0.5000], dtype=torch.float64), 0.05)
    """
    try:
        wanted = torch.as_tensor(levels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"levels must be shares between 0 and 1, but got {levels!r}.") from error
    if wanted.ndim != 1 or not len(wanted) or not bool(((wanted > 0) & (wanted < 1)).all()):
        raise ValueError(f"levels must be shares between 0 and 1, but got {levels!r}.")
    observed = _below(probability_transform(mean, variance, targets), wanted).mean(0)
    return QuantileCalibration(wanted, observed, float((observed - wanted).abs().mean()))


def probability_transform(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """Φ((target − mean)/σ) of every target: uniform on (0, 1) if the predictions are calibrated."""
    m, v, y = _checked(mean=mean, variance=variance, targets=targets)
    return torch.special.ndtr((y - m) / v.sqrt())


def regression_statistics(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, Statistic]:
    """RMSE, NLL, CRPS, coverage of 90 % intervals, calibration error and sharpness, ready for `bootstrap.replicates`."""
    m, v, y = _checked(mean=mean, variance=variance, targets=targets)
    deviation = v.sqrt()
    z = (y - m) / deviation
    cdf, density = torch.special.ndtr(z), torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    scores = deviation * (z * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi))
    levels = torch.tensor(LEVELS, dtype=torch.float64)

    def averaged(terms: Tensor) -> Tensor:
        return terms.reshape(len(terms), -1).mean(1, keepdim=True)

    log_losses = 0.5 * (z.square() + (2 * math.pi * v).log())
    return {
        "rmse": Statistic(averaged((y - m).square()), lambda means: means[..., 0].sqrt(), low=0.0),
        "nll": Statistic(log_losses.reshape(len(m), -1).sum(1, keepdim=True)),
        "crps": Statistic(averaged(scores), low=0.0),
        "coverage": Statistic(averaged(((cdf - 0.5).abs() <= 0.45).double()), low=0.0, high=1.0),
        "calibration": Statistic(
            _below(cdf, levels), lambda means: (means - levels).abs().mean(-1), low=0.0, high=1.0, biased=True
        ),
        "sharpness": Statistic(averaged(deviation), low=0.0),
    }


def regression_metrics(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, float]:
    """RMSE, NLL, CRPS, coverage of 90 % intervals, the calibration error of quantiles and sharpness in one dictionary.

    >>> found = regression_metrics(torch.zeros(3), torch.ones(3), torch.tensor([-1.0, 0.0, 1.0]))
    >>> {name: round(value, 3) for name, value in found.items()}
    {'rmse': 0.816, 'nll': 1.252, 'crps': 0.48, 'coverage': 1.0, 'calibration': 0.088, 'sharpness': 1.0}
    """
    return {name: statistic.value for name, statistic in regression_statistics(mean, variance, targets).items()}


def _below(transformed: Tensor, levels: Tensor) -> Tensor:
    """Whether each target lies below its quantile of each level, averaged over the targets of an input: (inputs, levels)."""
    flat = transformed.reshape(len(transformed), -1)
    return (flat[:, :, None] <= levels).double().mean(1)


def _checked(**given: Tensor) -> list[Tensor]:
    found = {name: real_tensor(name, value).detach().double() for name, value in given.items()}
    shape = found["mean"].shape
    for name, value in found.items():
        if value.shape != shape or value.ndim not in (1, 2) or not value.numel():
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in found.items())
            raise ValueError(
                f"mean, variance and targets must have one shape, (inputs,) or (inputs, targets), but got {shapes}. "
                "A network with one output gives (inputs, 1): take its squeeze(-1)."
            )
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite. Has training diverged?")
    if "variance" in found:
        _require_variances(found["variance"])
    return list(found.values())


def _require_variances(variance: Tensor) -> None:
    if not bool((variance > 0).all()):
        raise ValueError(
            "variance must be positive. A network that returns a mean alone says nothing about the noise: wrap it in "
            "liebayes.nn.GaussianOutput."
        )
