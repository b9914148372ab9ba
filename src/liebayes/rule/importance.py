"""Importance weights of a family against the posterior: how good the family is, and what the posterior's figures are.

With draws θ ~ q and the posterior p ∝ e^(−ℓ/τ), the weights w = e^(−ℓ/τ)/q turn expectations under q into those under p, as
long as their tail is not too heavy. The shape k of the tail is that of a generalised Pareto distribution fitted to the largest
weights, which are then replaced by the quantiles of that fit (Pareto smoothed importance sampling: Vehtari, Simpson, Gelman,
Yao and Gabry 2024). A figure E_p[h] rests on the tail of w·h, which may be heavier than that of w: so k is asked for the
squared deviation of every parameter, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def pareto_fit(excesses: Tensor) -> tuple[float, float]:
    """k and σ of a generalised Pareto distribution, density (1 + kx/σ)^(−1/k − 1)/σ, for sorted positive numbers.

    Zhang and Stephens (2009): with b = −k/σ the likelihood at its best k(b) = mean log(1 − bx) is a function of b alone, and
    the estimate is the posterior mean of b, under a prior set by the data's maximum and first quartile. For short tails, the
    resulting k is shrunk towards ½ with the weight of ten numbers (Vehtari et al., App. C).
    """
    x = excesses.double()
    n = len(x)
    grid = 30 + math.isqrt(n)
    quartile = x[max(int(n / 4 + 0.5) - 1, 0)]
    j = torch.arange(1, grid + 1, dtype=torch.float64)
    b = 1 / x[-1] + (1 - (grid / (j - 0.5)).sqrt()) / (3 * quartile)
    k = torch.log1p(-b.unsqueeze(-1) * x).mean(-1)
    likelihood = n * ((-b / k).log() - k - 1)
    best = (torch.softmax(likelihood, 0) * b).sum()
    shape = torch.log1p(-best * x).mean()
    scale = -shape / best
    return float((n * shape + 5) / (n + 10)), float(scale)


def pareto_smoothed(log_weights: Tensor) -> tuple[Tensor, float]:
    """The logarithms of the weights with their tail smoothed, and k of that tail.

    The tail is the min(S/5, 3√S) largest of S weights. k is −∞ if these are all equal, and NaN if S is below 25.
    """
    values, order = log_weights.double().sort()
    if len(values) < 25:
        return log_weights, math.nan
    values = values - values[-1]
    count = _tail_length(len(values))
    cutoff = values[-count - 1].exp()
    k, scale = _tail(values[-count - 1 :])
    if not math.isfinite(k):
        return log_weights, k
    p = (torch.arange(1, count + 1, dtype=torch.float64) - 0.5) / count
    quantiles = -scale * torch.log1p(-p) if abs(k) < 1e-12 else scale * torch.expm1(-k * torch.log1p(-p)) / k
    smoothed = values.clone()
    smoothed[-count:] = (cutoff + quantiles).log().clamp_max(0.0)  # no weight above the largest that was seen
    found = torch.empty_like(smoothed)
    found[order] = smoothed
    return (found + log_weights.double().max()).to(log_weights.dtype), k


def _tail_length(total: int) -> int:
    return math.ceil(min(total / 5, 3 * math.sqrt(total)))


def _tail(largest: Tensor) -> tuple[float, float]:
    """k and σ of a tail, from logarithms in ascending order: where the tail begins, and the numbers in it."""
    if not math.isfinite(largest[-1]):
        return -math.inf, math.nan  # all are 0
    values = (largest - largest[-1]).exp()
    excesses = values[1:] - values[0]
    if float(excesses[-1]) <= 1e-12:
        return -math.inf, math.nan
    if float(excesses[max(int(len(excesses) / 4 + 0.5) - 1, 0)]) <= 0:
        return math.inf, math.nan
    return pareto_fit(excesses)


def worst_tail(draws: Any, log_ratios: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """The largest k among the tails of w·(x − E x)², for all numbers x of θ, and the deviations x − E x of that number."""
    found, deviations = -math.inf, torch.zeros_like(weights)
    for values in named_parts(draws).values():
        x = values.reshape(len(values), -1).double()
        off = x - weights @ x
        tails = (log_ratios.unsqueeze(-1) + 2 * off.abs().log()).topk(_tail_length(len(x)) + 1, 0).values
        for place, tail in enumerate(tails.flip(0).mT):
            k, _ = _tail(tail)
            if k > found:
                found, deviations = k, off[:, place]
    return found, deviations


@dataclass(frozen=True)
class Diagnosis:
    """A family compared with the posterior, by weighted draws: the result of `q.diagnose(loss)`.

    Printed, it gives the verdict. `mean`, `stddev` and `sample` are those of the posterior; trust them if `reliable`.
    """

    pareto_k: float
    """Of the family: the shape of the tail of its weights p/q, whose moments above 1/k do not exist. Below 0.5 the family is
    close to the posterior; above 0.7 its tails are too short; NaN if a loss was not finite or there are too few draws."""
    weighted_k: float
    """The largest k that the weighted figures rest on: of the weights in use, after further draws from families matched to
    them, and of these weights times the squared deviation of each parameter. Up to 0.7 the figures can be trusted."""
    log_evidence: float
    """log ∫ e^(−ℓ/τ) dθ: the log evidence, if the loss is minus a log joint density with all its constants."""
    log_evidence_error: float
    """Its standard error."""
    effective: float
    """The effective number of draws."""
    draws: Any = field(repr=False)
    """Draws in the structure of θ: first those of the family, then those of the families matched to them."""
    weights: Tensor = field(repr=False)
    """Their smoothed weights, which sum to 1."""
    own: int = field(repr=False)
    """How many of the draws, the first ones, are the family's own."""
    misses: tuple[str, ...] = ()
    """Where the family's mean differs from the weighted one by more than a tenth of a standard deviation, or its standard
    deviation by more than 10 %, the worst first."""

    @property
    def reliable(self) -> bool:
        """Whether the weighted figures can be trusted: their k below 0.7, or 1 − 1/log₁₀ S for S draws if that is less."""
        return self.weighted_k < min(0.7, 1 - 1 / math.log10(max(len(self.weights), 11)))

    @property
    def mean(self) -> Any:
        """The posterior's mean."""
        return pytree.tree_map(self._average, self.draws)

    @property
    def stddev(self) -> Any:
        """The posterior's standard deviations."""
        return pytree.tree_map(lambda x: self._average((x - self._average(x)).square()).sqrt(), self.draws)

    def _average(self, x: Tensor) -> Tensor:
        return torch.tensordot(self.weights.to(x.dtype), x, dims=1)

    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Any:
        """Draws of the posterior: those of the family, resampled by their weights."""
        count = math.prod(shape)
        chosen = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        return pytree.tree_map(lambda x: x[chosen].reshape(*shape, *x.shape[1:]), self.draws)

    @property
    def verdict(self) -> str:
        """What k says, in words."""
        matched = f", and {self.weighted_k:.2f} with families matched to it" if self.own < len(self.weights) else ""
        figures = f"Pareto k = {self.pareto_k:.2f}{matched}; worth {self.effective:.0f} of {len(self.weights)} draws"
        if math.isnan(self.pareto_k):
            return "No verdict: the loss was not finite at a draw, or there were fewer than 25 draws."
        if not self.reliable:
            return (
                f"Do not trust this fit in its tails, nor its weights ({figures}): the posterior has mass where the family "
                "has almost none. Use a richer group, another parametrisation, several starts, or MCMC."
            )
        if self.misses:
            worst, *others = self.misses
            more = f", and {len(others)} more" if others else ""
            return f"Use the weighted figures, not the family's own ({figures}): {worst}{more}."
        if self.pareto_k >= 0.7:
            return f"Means and widths are right to a tenth ({figures}), but the tails are too short: there use the weights."
        return f"A good fit ({figures}) of where its draws go: means and widths are right to a tenth. Other modes do not show."

    def __str__(self) -> str:
        return f"{self.verdict}\nlog evidence {self.log_evidence:.3f} ± {self.log_evidence_error:.3f}"


def diagnosis_of(draws: Any, log_ratios: Tensor, own: int, pareto_k: float | None = None) -> Diagnosis:
    """The diagnosis from draws and log p − log q at them, with p up to a constant.

    Args:
        draws: in the structure of θ.
        log_ratios: one for each.
        own: how many of them are the family's.
        pareto_k: the family's, if these weights are not.
    """
    ratios = log_ratios.double()
    if not bool(torch.isfinite(ratios.nan_to_num(math.nan, math.nan, -1e300)).all()):  # −∞ is a weight of 0
        nan = math.nan
        return Diagnosis(nan, nan, nan, nan, nan, draws, torch.full_like(ratios, 1 / len(ratios)), own)
    smoothed, k = pareto_smoothed(ratios)
    count = len(ratios)
    weights = torch.softmax(smoothed, 0)
    figures_k = k if math.isnan(k) else max(k, worst_tail(draws, ratios, weights)[0])
    effective = 1 / float(weights.square().sum())
    spread = float((weights * count).std()) / math.sqrt(count)  # the relative error of the mean weight
    evidence = float(torch.logsumexp(smoothed, 0)) - math.log(count)
    family_k = k if pareto_k is None else pareto_k
    return Diagnosis(family_k, figures_k, evidence, spread, effective, draws, weights, own, _misses(draws, weights, own))


def _misses(draws: Any, weights: Tensor, own: int) -> tuple[str, ...]:
    """Figures of the first draws, which are the family's, that are more than a tenth from the weighted ones."""
    found: list[tuple[float, str]] = []
    for part, values in named_parts(draws).items():
        x = values.reshape(len(values), -1).double()
        mean = weights @ x
        sd = (weights @ (x - mean).square()).sqrt()
        off, ratio = (x[:own].mean(0) - mean) / sd, x[:own].std(0) / sd
        for place in ((off.abs() > 0.1) | ((ratio - 1).abs() > 0.1)).nonzero().flatten().tolist():
            name = columns(part, values[:1])[place][0]
            move, width = float(off[place]), float(ratio[place]) - 1
            if abs(move) > abs(width):
                found.append((abs(move), f"its mean of {name} is {abs(move):.2f} standard deviations off"))
            else:
                side = "wide" if width > 0 else "narrow"
                found.append((abs(width), f"its standard deviation of {name} is {100 * abs(width):.0f} % too {side}"))
    return tuple(words for _, words in sorted(found, key=lambda pair: -pair[0]))


def named_parts(theta: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of θ by name: keys and indices joined by dots."""
    if isinstance(theta, Tensor):
        return {name or "theta": theta}
    found: dict[str, Tensor] = {}
    for place, inner in theta.items() if isinstance(theta, dict) else enumerate(theta):
        found |= named_parts(inner, f"{name}.{place}" if name else str(place))
    return found


def columns(name: str, values: Tensor) -> list[tuple[str, Tensor]]:
    """The numbers of a tensor with a leading dimension of draws, one after the other by name."""
    if values.ndim == 1:
        return [(name, values)]
    places = itertools.product(*map(range, values.shape[1:]))
    return [(f"{name}[{', '.join(map(str, place))}]", values[(slice(None), *place)]) for place in places]
