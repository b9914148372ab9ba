"""How far a figure could be chance: intervals by resampling the test inputs, and paired differences between models.

Every figure here is a function of means over the test inputs, f(mean of terms): accuracy of the mean of 0 and 1, RMSE of the
mean square, ECE of the mean gap in each bin. A resample draws as many inputs with replacement; the spread of f over resamples
is that over test sets of this size. Two models judged on the same inputs are resampled together, which makes their difference
far more certain than either figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import real_tensor

RESAMPLES = 1000
_CHUNK = 100


def _first(means: Tensor) -> Tensor:
    return means[..., 0]


@dataclass(frozen=True)
class Statistic:
    """A figure as a function of means over the inputs."""

    terms: Tensor  # (inputs, k)
    function: Callable[[Tensor], Tensor] = _first
    """From means (..., k) to figures (...)."""
    low: float = -float("inf")
    high: float = float("inf")
    biased: bool = False
    """A mean of absolute values: noise makes it too large, and that of a resample too large again. The interval is then
    reflected at the figure."""

    @property
    def value(self) -> float:
        """The figure."""
        return float(self.function(self.terms.mean(0)))


class Interval(NamedTuple):
    """A figure and the bounds of its interval."""

    value: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Of a difference: whether its sign is beyond chance."""
        return self.low > 0 or self.high < 0


def replicates(statistics: Mapping[str, Statistic], number: int = RESAMPLES, seed: int = 0) -> dict[str, Tensor]:
    """Each figure on `number` resamples of the inputs. Figures of the same number of inputs and seed are paired.

    >>> found = replicates({"share": Statistic(torch.tensor([[0.0], [1.0], [1.0], [1.0]]))}, number=200)
    >>> found["share"].shape, abs(float(found["share"].mean()) - 0.75) < 0.05
    (torch.Size([200]), True)
    """
    terms = torch.cat([statistic.terms.double() for statistic in statistics.values()], 1)
    means = torch.cat([weights @ terms for weights in _weights(len(terms), number, seed)])
    found, start = {}, 0
    for name, statistic in statistics.items():
        width = statistic.terms.shape[1]
        found[name] = statistic.function(means[:, start : start + width])
        start += width
    return found


def interval(statistic: Statistic, resampled: Tensor, level: float = 0.95) -> Interval:
    """The interval of a figure: quantiles of its resamples, within the range of the figure.

    Of a share that all inputs or none have, every resample is the same; its interval goes as far as `unseen` says.

    >>> right = Statistic(torch.ones(80, 1), low=0.0, high=1.0)
    >>> interval(right, replicates({"x": right})["x"])  # doctest: +ELLIPSIS
    Interval(value=1.0, low=0.95..., high=1.0)
    """
    value = statistic.value
    low, high = _bounds(value, resampled, statistic.biased, level)
    scope = statistic.high - statistic.low
    if scope < float("inf") and statistic.function is _first and value in (statistic.low, statistic.high):
        reach = scope * unseen(len(statistic.terms), level)
        low, high = value - reach, value + reach
    return Interval(value, max(low, statistic.low), min(high, statistic.high))


def unseen(inputs: int, level: float = 0.95) -> float:
    """How large the share of a kind can be of which no input was: 1 − t^(1/n) is missed by n inputs with probability t.

    It is the end of Clopper and Pearson's interval; t is one tail, (1 − level)/2.

    >>> round(unseen(80), 4)
    0.0451
    """
    return 1 - ((1 - level) / 2) ** (1 / inputs)


def difference(one: Statistic, other: Statistic, resampled: Tensor, resampled_other: Tensor, level: float = 0.95) -> Interval:
    """The interval of one figure minus another, of two models on the same inputs."""
    value = one.value - other.value
    return Interval(value, *_bounds(value, resampled - resampled_other, one.biased or other.biased, level))


def _bounds(value: float, resampled: Tensor, biased: bool, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    low, high = torch.quantile(resampled, torch.tensor([tail, 1 - tail], dtype=resampled.dtype)).tolist()
    return (2 * value - high, 2 * value - low) if biased else (low, high)


def auroc_replicates(scores_inside: Tensor, scores_outside: Tensor, number: int = RESAMPLES, seed: int = 0) -> Tensor:
    """The AUROC on resamples of both groups of inputs."""
    inside, order = real_tensor("scores_inside", scores_inside).double().sort()
    outside = real_tensor("scores_outside", scores_outside).double()
    if inside.ndim != 1 or outside.ndim != 1 or not inside.numel() or not outside.numel():
        raise ValueError(f"scores must be vectors with a number for each input, but got {inside.shape} and {outside.shape}.")
    below, upto = torch.searchsorted(inside, outside), torch.searchsorted(inside, outside, right=True)
    found = []
    pairs = zip(_weights(len(inside), number, seed), _weights(len(outside), number, seed + 1), strict=True)
    for of_inside, of_outside in pairs:
        carried = torch.nn.functional.pad(of_inside[:, order].cumsum(1), (1, 0))
        won = 0.5 * (carried[:, below] + carried[:, upto])
        found.append((won * of_outside).sum(1))
    return torch.cat(found)


def _weights(inputs: int, number: int, seed: int) -> Iterator[Tensor]:
    """The share of every input in each resample, some resamples at a time: (resamples, inputs)."""
    if type(number) is not int or type(seed) is not int or number < 1 or not -1 << 63 <= seed < 1 << 64:
        raise ValueError(f"number must be at least 1 and seed a whole number of 64 bits, but got {number!r} and {seed!r}.")
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, number, _CHUNK):
        rows = min(_CHUNK, number - start)
        drawn = torch.randint(inputs, (rows, inputs), generator=generator)
        drawn += inputs * torch.arange(rows)[:, None]
        yield torch.bincount(drawn.flatten(), minlength=rows * inputs).view(rows, inputs).double() / inputs
