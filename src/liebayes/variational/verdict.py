"""What became of a run: has it settled, was it still moving, or is there nothing to settle on?

Steps of a falling schedule are small at the end whatever is left to do, and single objectives are noise. So the result is
examined afresh, with many samples and no step: the natural gradient there, ξ♯ for the Fisher metric, is where one full step
(α = 1) would lead. For a full-rank family it is the distance to the optimum itself, in standard deviations for the shift and
in logarithms of scales, since the objective's Hessian at the optimum is the metric wherever the target is near the family.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..groups import blocks_of, with_blocks
from ..rule import Convergence, Fisher, History
from ..rule.importance import named_parts
from .factors import Factor
from .newton import (
    LARGEST,
    Step,
    dimensions,
    full_step,
    needs_refining,
    newton_step,
    rank_of,
    sure_part,
    use_newton,
    wants_newton,
)
from .settings import Settings

LARGE = 0.1
"""A full step of a tenth of a standard deviation, or of the logarithm of a width, is more than a user would overlook."""

KNOWN = LARGE / 50
"""A standard error of a full step, and of the objective over τ, that no further draws need to lower."""
FAR = 5.0
"""Standard deviations between the medians of two fits, which are then two modes."""
NEGLIGIBLE = 5.0
"""A mode whose objective is worse by this has less than a hundredth of the mass."""


class FitWarning(UserWarning):
    """A fit ended where its result should not be trusted."""


@dataclass
class Examination:
    """The result of a run, seen with fresh samples."""

    values: Tensor
    """For each sample (loss − τ·log |J|)/τ + log q₀(ε): minus the logarithm of its importance weight, up to a constant."""
    in_pairs: bool
    batched: bool
    """All samples of a round have seen the same batch of the data."""
    steps: list[Step | None]
    """For each factor the blocks of a full step and of its standard error, or None where there is no Fisher metric: the
    natural gradient, and for mean-field families Newton's step."""
    gradients: Tensor | None = None
    """Of the loss at every sample, in ε, of all factors beside each other: in up to `LARGEST` dimensions."""
    endless: str | None = None
    """A direction in which the target has no finite mass (`rays.py`)."""

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """Its standard error: the two of a pair count as one."""
        values = self.values
        if self.batched:
            values = values.mean(1)
        elif self.in_pairs and values.shape[1] > 1 and values.shape[1] % 2 == 0:
            values = (values[:, : values.shape[1] // 2] + values[:, values.shape[1] // 2 :]) / 2
        count = values.numel()
        return float(values.std() / math.sqrt(count)) if count > 1 else math.nan


Evaluate = Callable[[list[Tensor]], tuple[Tensor, list[Any], list[Tensor]]]


def examine(
    factors: list[Factor],
    settings: Settings,
    evaluate: Evaluate,
    taken: int,
    again: int = 0,
    times: int = 1,
) -> Examination:
    """Draws up to 64 times the samples of a step, but no more than a tenth of the run, and eight times at least.

    Eight are enough where all errors are then below `KNOWN`: a target in the family has no noise at its optimum.

    Args:
        factors: where the run ended.
        settings: those of the run.
        evaluate: the values, the covectors and the gradients at a step's noise.
        taken: how many steps the run has taken.
        again: how often the result has been examined before; the noise is another every time.
        times: a factor on the number of samples.
    """
    device = blocks_of(factors[0].start)[-1].device
    generator = torch.Generator(device=device).manual_seed(settings.seed + 0x5EED + again)
    batched = settings.batch_size is not None  # a regression of gradients on noise would be one of batches
    newton = [isinstance(settings.metric, Fisher) and not batched and wants_newton(factor) for factor in factors]
    most = max((dimensions(factor) for factor, wanted in zip(factors, newton, strict=True) if wanted), default=0)
    samples = settings.samples or 16
    least = max(8, math.ceil(5 * most / samples))
    rounds = max(min(64, taken // 10), least)
    if most and rounds > settings.steps // 4:  # too much for a run so short
        newton, rounds, least = [False] * len(factors), 8, 8
    seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in factors]
    values: list[Tensor] = []
    slopes: list[Tensor] = []
    few = sum(map(dimensions, factors)) <= LARGEST
    full: list[_Moments] = [_Moments() for _ in factors]
    for number in range(1, rounds * times + 1):
        noise = [factor.noise(1, samples, generator)[0] for factor in factors]
        found, covectors, gradients = evaluate(noise)
        values.append(found)
        if few:
            slopes.append(torch.cat([gradient.reshape(samples, -1) for gradient in gradients], 1))
        for pairs, wanted, epsilon, gradient in zip(seen, newton, noise, gradients, strict=True):
            if wanted:
                pairs.append((epsilon.reshape(samples, -1), gradient.reshape(samples, -1)))
        for factor, moments, covector in zip(factors, full, covectors, strict=True):
            if isinstance(settings.metric, Fisher):
                moments.add(blocks_of(factor.form.sharp(covector)))
        if number == least and all(map(_is_known, factors, full)) and _examined(factors, values, batched, []).error < KNOWN:
            break
    steps: list[Step | None] = []
    for factor, moments, pairs in zip(factors, full, seen, strict=True):
        mean, error = moments.mean_and_error()
        steps.append((mean, error) if mean else None)
        if pairs and mean:
            noise, gradient = (torch.stack(parts) for parts in zip(*pairs, strict=True))
            base = factor.centre, factor.width**2
            use_newton(factor, mean, error, newton_step(noise, gradient, factor.in_pairs, *base, rank_of(factor) or 0))
    examined = _examined(factors, values, batched, steps)
    examined.gradients = torch.cat(slopes) if few else None
    return examined


class _Moments:
    """The mean of some blocks over draws, and its standard error."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: list[Tensor] = []
        self._squares: list[Tensor] = []

    def add(self, blocks: list[Tensor]) -> None:
        if not self._count:
            self._sums, self._squares = ([torch.zeros_like(block) for block in blocks] for _ in range(2))
        self._count += 1
        for total, square, block in zip(self._sums, self._squares, blocks, strict=True):
            total.add_(block)
            square.addcmul_(block, block)

    def mean_and_error(self) -> tuple[list[Tensor], list[Tensor]]:
        n = self._count
        mean = [total / n for total in self._sums]
        pairs = zip(self._squares, mean, strict=True)
        return mean, [((square / n - m.square()).clamp_min(0) / (n - 1)).sqrt() for square, m in pairs]


def _is_known(factor: Factor, moments: _Moments) -> bool:
    mean, error = moments.mean_and_error()
    return bool(mean) and factor.size(with_blocks(factor.start, error)) < KNOWN


def _examined(factors: list[Factor], values: list[Tensor], batched: bool, steps: list[Step | None]) -> Examination:
    return Examination(torch.stack(values), all(factor.in_pairs for factor in factors), batched, steps)


def refine(
    factors: list[Factor],
    settings: Settings,
    evaluate: Evaluate,
    taken: int,
    passed: float,
    history: History,
    found: Examination,
) -> Examination:
    """Newton's steps for mean-field and low-rank families, since the rule does not see correlations (`newton.py`).

    Only after a run that has had time to settle (`passed`, in time constants), and where a step is sure to be more than noise.
    Steps are kept if the objective does not rise; the last one is of four times the samples, since nothing averages after it.
    A member at which a few draws decide the mean has a large standard error, which is no reason to take it.
    """
    part, last, lowest = 1.0, False, found
    for again in range(1, 9):
        wanted = [needs_refining(factor, step) for factor, step in zip(factors, found.steps, strict=True)]
        if settings.batch_size is not None or passed < 5 or not (any(wanted) or last):
            return found
        states = [factor.state for factor in factors]
        for factor, step, sure in zip(factors, found.steps, wanted, strict=True):
            if step is not None and (sure or last) and wants_newton(factor):
                factor.take(full_step(factor, step, part))
        try:
            there = examine(factors, settings, evaluate, taken, again)
        except Exception:  # a loss may fail where the run has not been
            there = None
        if there is None or not there.mean <= lowest.mean + 3 * math.hypot(min(there.error, lowest.error), lowest.error):
            for factor, state in zip(factors, states, strict=True):
                factor.state = state
            part /= 4
            continue
        history.newton_steps += 1
        found, part = there, 1.0
        lowest = there if there.mean < lowest.mean else lowest
        if last:
            return found
        if not any(map(needs_refining, factors, found.steps)):
            found, last = examine(factors, settings, evaluate, taken, 100, 4), True
    return found


def judge(factors: list[Factor], settings: Settings, history: History, found: Examination) -> tuple[Convergence, str]:
    """The verdict, and a sentence with what it rests on."""
    if not bool(torch.isfinite(found.values).all()):
        return Convergence.LOST, f"{Convergence.LOST.value}: it is not finite at some draws of the result"
    worst, words, growing = LARGE, "", None
    for factor, step in zip(factors, found.steps, strict=True):
        if step is None:
            continue
        names = getattr(factor.start, "_fields", ("",) * len(step[0]))
        for name, mean, error, first, last in zip(
            names, *step, blocks_of(factor.start), blocks_of(factor.element), strict=True
        ):
            if not mean.numel():
                continue
            width = factor.width if name == "shift" else 1.0
            sure = sure_part(mean, error) / width
            size, place = (float(x) for x in sure.abs().flatten().max(0))
            if name in ("log_scale", "log_diagonal"):
                # A loss that says nothing leaves −½ of the entropy's gradient, and the width has grown since the start; so
                # far, at last, that the loss is nothing but rounding.
                flat = ((-sure > 0.25) & (last - first > 10)) | ((mean.abs() > LARGE) & (last - first > 20))
                growing = growing or (factor.direction() if bool(flat.any()) else None)
            if size > worst:
                full = float(mean.flatten()[int(place)].abs()) / width
                what = "the mean" if name == "shift" else "the width" if "log" in name else f"the {name} part"
                worst, words = size, f"one full step would move {what} of {factor.coordinate(mean, int(place))} by {full:.2g}"
                words += " standard deviations" if name == "shift" else " (in logarithms)" if "log" in name else ""
    for name in filter(None, (factor.at_an_edge() for factor in factors)):
        return Convergence.UNBOUNDED, f"the target has no finite mass: {name} has run to an edge of its support"
    if growing is not None:
        return Convergence.UNBOUNDED, f"{Convergence.UNBOUNDED.value} ({growing})"
    if found.endless is not None:
        return Convergence.UNBOUNDED, f"the target has no finite mass: far out, the loss does not rise along {found.endless}"
    if words:
        return Convergence.MOVING, f"{Convergence.MOVING.value}: {words}"
    if all(step is None for step in found.steps) and (falling := _falling(history)):
        return Convergence.MOVING, f"{Convergence.MOVING.value}: {falling}"
    return Convergence.CONVERGED, Convergence.CONVERGED.value


def warn_of(history: History) -> None:
    """Warns the caller's caller of a result that should not be trusted."""
    remedies = {
        Convergence.MOVING: "Give it more steps, or go on from here: fit(loss, start=q).",
        Convergence.UNBOUNDED: "Give the direction a prior, or take the parameter out.",
        Convergence.LOST: "Look at the loss near the result.",
    }
    if history.modes:
        advice = "Break the symmetry (an `Ordered` support), or look at each: fit(loss, start=...)."
        warnings.warn(f"fit ended: {history.verdict}. {advice}", FitWarning, stacklevel=3)
    elif not history.converged:
        warnings.warn(f"fit ended, but {history.verdict}. {remedies[history.converged]}", FitWarning, stacklevel=3)


def tell_places(best: Any, others: list[Any], unit: float) -> None:
    """Adds to the verdict where other starts have ended elsewhere, with an objective that gives them mass: several modes.

    A mode's mass is e^(−objective) for one that the family fits; places are medians, since not every base has a mean.
    """
    here, width = _places(best)
    far = []
    for other in others:
        there, its = _places(other)
        away = float(((there - here).abs() / torch.maximum(width, its)).max()) if there.shape == here.shape else 0.0
        if away > FAR and other.history.final_objective - best.history.final_objective < NEGLIGIBLE * unit:
            far.append(away)
    if far:
        best.history.modes = len(far)
        best.history.verdict += (
            f"; but {len(far)} of the other {len(others)} starts ended up to {max(far):.2g} standard deviations away, about "
            "as well: there are several modes, and this is one"
        )


def _places(q: Any) -> tuple[Tensor, Tensor]:
    """Medians and widths of all numbers of θ; a quartile of a Gaussian is 0.674 standard deviations from its median."""
    draws = q.sample((1001,), torch.Generator(q._device()).manual_seed(0))
    x = torch.cat([values.reshape(len(values), -1).double() for values in named_parts(draws).values()], 1)
    low, median, high = (x.kthvalue(k, 0).values for k in (251, 501, 751))
    return median, (high - low).clamp_min(1e-300) / (2 * 0.6745)


def _falling(history: History) -> str:
    """Without a Fisher metric: whether the objective of the last fifth is below that of the fifth before, noise considered."""
    count = len(history.objective) // 5
    if count < 4 or history.stopped.startswith("converged"):
        return ""
    recent = torch.tensor(history.objective[-count:], dtype=torch.float64)
    before = torch.tensor(history.objective[-2 * count : -count], dtype=torch.float64)
    fall, error = float(before.mean() - recent.mean()), float(((before.var() + recent.var()) / count).sqrt())
    return f"the objective fell by {fall:.3g} ± {error:.2g} in the last fifth of the steps" if fall > 4 * error else ""
