"""A run of `fit`, one step at a time: to watch, to stop and to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..groups import LieGroup, blocks_of
from ..rule import Convergence, Fisher, History, State, Update, update
from .batches import Batches
from .energy import energy_of, over_samples
from .factors import Factor, Leaf, make_factors, product_family, with_defaults
from .noise import longest_step, noise_of_steps, samples_for, sharing
from .rays import endless, level_directions, parted
from .settings import Settings
from .shortcuts import short_grad
from .stopping import ACCURACY, Stopping
from .verdict import Examination, examine, judge, refine, warn_of

MORE = 256
"""How many samples a step may come to have by itself, where noise is all that is left."""
SEED_OF_STARTS = 0x9E37
RETREATS = 12
"""How often widths are halved where the loss has no finite value."""


class FitError(ValueError):
    """The loss failed on the way. `family` is the last good member of the family, `step` says when it was lost."""

    def __init__(self, message: str, family: Any, step: int) -> None:
        super().__init__(message)
        self.family = family
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.family, self.step)


class Evaluation(NamedTuple):
    """The loss and its gradients at the noise of one step."""

    noise: list[Tensor]
    losses: Tensor
    objectives: Tensor
    """The losses with −τ·log |det ∂θ/∂ε|, where that depends on ε."""
    leaves: list[Leaf]
    elements: list[Any]
    covectors: list[Any]
    gradients: list[Tensor]
    """Of the losses in the coordinates of ε, for each factor."""
    total: float
    """The sum of the objectives."""


class Fit:
    """A run of `liebayes.fit`, in steps: `with Fit(loss, start=...) as run:`, then `run.step()` while it returns True.

    The arguments are those of `fit`. `run.family` is the present member of the family, `run.history` what was recorded, and
    `run.finish()` gives the family with its verdict. To go on later, start from the family: `Fit(loss, start=family)`.

    >>> from liebayes.groups import DiagonalAffine
    >>> with Fit(lambda theta: 8 * (theta - 1).square().sum(), DiagonalAffine(), start=torch.zeros(2)) as run:
    ...     while run.step():
    ...         if run.steps % 100 == 0 and run.history.objective[-1] < 0:
    ...             break
    ...     q = run.finish()
    >>> [round(x, 2) for x in q.mean.tolist()]
    [1.0, 1.0]
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        group: LieGroup[Any] | None = None,
        base: Any = None,
        start: Any = None,
        *,
        supports: Any = None,
        regulariser: Callable[[Any], Tensor] | None = None,
        data: Any = None,
        elsewhere: int = 0,
        **settings: Any,
    ) -> None:
        for name, function in {"loss": loss, "regulariser": regulariser or loss}.items():
            if not callable(function):
                raise ValueError(f"{name} must be a function, but got {function!r}.")
        if torch.is_inference_mode_enabled():
            raise ValueError("fit takes gradients, which torch.inference_mode() does not allow. Call it outside of that.")
        unknown = settings.keys() - {field.name for field in fields(Settings)}
        if unknown:
            raise TypeError(f"Fit() has no arguments {sorted(unknown)}. Its arguments are those of `liebayes.fit`.")
        told = Settings(**settings)
        group, base, start, supports = with_defaults(group, base, start, supports)
        self.group: LieGroup[Any] = group
        factors, unflatten = make_factors(
            self.group, base, start, supports, told.initial_scale, told.metric, told.entropy, told.antithetic
        )
        self.factors: list[Factor] = factors
        samples = samples_for(factors, told.scale_lr or told.lr) if told.samples is None else told.samples
        self.settings: Settings = replace(told, samples=samples)
        self._scale_lr = min(told.scale_lr or told.lr, longest_step(factors, samples))
        wanted = told.tolerance > 0 and told.temperature > 0 and isinstance(told.metric, Fisher)
        self._stopping = Stopping(min(told.lr, self._scale_lr), told.record_every, told.steps) if wanted else None
        self._examined: Examination | None = None
        for factor in self.factors if elsewhere else []:
            factor.start_elsewhere(elsewhere)
        if data is None and told.batch_size is not None:
            raise ValueError("batch_size goes with data: fit(loss, ..., data=(x, y), batch_size=100), and loss(θ, batch).")
        self._batches: Batches | None = None if data is None else Batches(data, told.batch_size, told.seed)
        loss = loss if self._batches is None else self._batches.estimate(loss)
        weight = told.temperature if told.tempering == "kl" else 1.0
        self._energies = over_samples(energy_of(loss, regulariser, weight, unflatten), told.vectorize)
        device = blocks_of(self.factors[0].start)[-1].device
        # Every start has its own noise: the same would take all of them from a saddle to the same side.
        self._generator = torch.Generator(device=device).manual_seed(told.seed + SEED_OF_STARTS * elsewhere)
        self._most: int = MORE if told.samples is None else samples
        self.steps: int = 0
        self._draw_ahead(samples)
        self.history: History = History()
        self._share_out: Callable[[bool], None] = lambda wanted: None
        self._resources = ExitStack()
        self._began = time.perf_counter()
        self._reach, self._before = told.max_step, math.inf
        self._good: list[State] = [factor.state for factor in self.factors]
        """Where the loss was finite last; the start, at first."""
        self._earlier: list[Tensor] = []
        self._unpaired, self._quiet = 0, 0
        self._bounded: int | Tensor = 0
        self._time = 0.0
        """The sum of all step sizes: how many time constants of the rule have passed."""

    def __enter__(self) -> Fit:
        self._resources.callback(lambda: self._noise.close())
        self._share_out = self._resources.enter_context(sharing(self._numbers))
        return self

    def __exit__(self, *exc: object) -> None:
        self._resources.close()

    @property
    def family(self) -> Any:
        """The present member of the family."""
        return product_family(self.group, self.factors, self.history)

    def step(self) -> bool:
        """One step of the rule. Returns whether there are more to take."""
        told = self.settings
        if self.steps >= told.steps or self.history.stopped:
            return False
        number = self.steps + 1
        noise = self._noise_of_the_step()
        alpha = told.rate(number) if self._stopping is None else self._stopping.rate(number, told.rate(number))
        found, taken = self._move_where_finite(number, noise, alpha)
        for factor, move in zip(self.factors, taken, strict=True):
            factor.state = move.state
            self._bounded = self._bounded + move.bounded
        self.steps = number
        self._time += alpha * told.lr
        if number % told.record_every == 0 or number == told.steps:
            self._record(found)
            self._break_symmetry(found)
            size = max(factor.size(move.direction) for factor, move in zip(self.factors, taken, strict=True))
            self._stop_if_quiet(size)
            self._stop_if_settled(found, size, alpha)
        return number < told.steps and not self.history.stopped

    def _move_where_finite(self, number: int, noise: list[Tensor], alpha: float) -> tuple[Evaluation, list[Update]]:
        """The loss at the present member and the step from there; where the loss overflows or has no value, narrower members
        near the last good one are tried.

        A width of 1 is a guess, and float32 ends at e^88. In the second half of a run nothing should be so far out any more.
        """
        kept, told = self._good, self.settings
        failed, what = "was not finite", "loss"
        cause: Exception | None = None
        for narrower in range(1 + (RETREATS if 2 * number <= told.steps + 1 else 0)):
            if narrower:
                self._restore(kept)
                self._reach = told.max_step
                for factor in self.factors:
                    factor.narrow(0.5**narrower)
            try:
                with torch.enable_grad():
                    found = self._evaluate(noise)
            except Exception as error:
                failed, cause = f"raised {type(error).__name__} ({str(error).splitlines()[0]})", error
                if isinstance(error, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
                    continue
                break
            if math.isfinite(found.total):
                reach = self._next_reach(found.total)
                taken = self._move(found, alpha, reach)
                if all(map(_is_finite, taken)):
                    self._good = [factor.state for factor in self.factors]
                    self._reach, self._before = reach, found.total
                    self.history.retreats += narrower > 0
                    return found, taken
            what = "gradient" if bool(torch.isfinite(found.losses).all()) else "loss"
        self._restore(kept)
        if cause is not None and number == 1:
            raise cause  # a mistake, and nothing to keep
        raise self._lost(number, failed, what) from cause

    def _move(self, found: Evaluation, alpha: float, reach: float | None) -> list[Update]:
        """The rule's step from the covectors."""
        told = self.settings
        return [
            update(
                factor.group,
                factor.form,
                factor.state,
                covector,
                lr=factor.by_block(alpha * told.lr, alpha * self._scale_lr),
                momentum=told.momentum,
                max_step=factor.by_block(reach, told.max_step),
            )
            for factor, covector in zip(self.factors, found.covectors, strict=True)
        ]

    def _restore(self, states: list[State]) -> None:
        for factor, state in zip(self.factors, states, strict=True):
            factor.state = state

    def _draw_ahead(self, samples: int) -> None:
        """Noise for so many samples in each of the steps that are left."""
        like = blocks_of(self.factors[0].start)[-1]
        self._samples = samples
        self._weight = torch.full((1,), 1 / self.settings.unit, dtype=like.dtype, device=like.device)
        self._numbers = samples * sum(factor.group.event_shape(factor.start).numel() for factor in self.factors)
        self._noise = noise_of_steps(
            lambda count: [factor.noise(count, samples, self._generator) for factor in self.factors],
            self._numbers,
            self.settings.steps - self.steps,
            beside=like.device.type == "cpu" and all(factor.base.private_draws for factor in self.factors),
        )

    def _noise_of_the_step(self) -> list[Tensor]:
        noise = next(self._noise, None)
        if noise is None:
            raise ValueError("The run has ended with its `with` block. To go on: Fit(loss, start=run.family).")
        here, self._earlier = self._earlier, noise
        if not (self._unpaired and here):
            return noise
        self._unpaired -= 1
        half = (self._samples + 1) // 2
        return [
            torch.cat([now[:half], before[half:]]) if factor.in_pairs else now
            for factor, now, before in zip(self.factors, noise, here, strict=True)
        ]

    def _evaluate(self, noise: list[Tensor]) -> Evaluation:
        told, factors = self.settings, self.factors
        elements = [factor.element for factor in factors]
        leaves = [f.leaf(g, e) for f, g, e in zip(factors, elements, noise, strict=True)]
        if self._batches is not None:
            self._batches.next()
        self._share_out(True)
        losses = self._energies(*(theta for leaf in leaves for theta in leaf.thetas))
        if not losses.requires_grad:
            raise ValueError(
                "loss must be differentiable in θ, but its value has no gradient. Build it from θ with torch operations, "
                "without detach(), item() or integer results."
            )
        objectives = losses
        for leaf in leaves:
            if leaf.log_jacobian is not None:
                objectives = objectives - told.temperature * leaf.log_jacobian
        found = short_grad(objectives, self._weight.expand(losses.shape), [leaf.leaf for leaf in leaves])
        self._share_out(False)
        gradients = [
            torch.zeros_like(leaf.leaf) if gradient is None else leaf.transpose(gradient)
            for leaf, gradient in zip(leaves, found, strict=True)
        ]
        temperature = told.temperature / told.unit
        covectors = [f.covector(e, d, temperature) for f, e, d in zip(factors, noise, gradients, strict=True)]
        kept = objectives.detach()
        losses = kept if objectives is losses else losses.detach()
        return Evaluation(noise, losses, kept, leaves, elements, covectors, gradients, kept.sum().item())

    def _next_reach(self, present: float) -> float | None:
        """The shift's own bound grows while the objective falls, so that a start many widths away is reached in time."""
        told = self.settings
        if self._reach is None or told.max_step is None:
            return self._reach
        longest = max(told.max_shift, told.max_step)
        return min(1.1 * self._reach, longest) if present < self._before else max(0.5 * self._reach, told.max_step)

    def _record(self, found: Evaluation) -> None:
        """Figures of the member the samples are of, which is that before the step."""
        told, history = self.settings, self.history
        expected = found.losses.mean().item()
        spread = sum(f.entropy_at(g, leaf) for f, g, leaf in zip(self.factors, found.elements, found.leaves, strict=True))
        history.step.append(self.steps)
        history.expected_loss.append(expected)
        history.entropy.append(spread)
        history.objective.append(expected - told.temperature * spread if told.temperature else expected)
        norms = [torch.linalg.vector_norm(block).item() for covector in found.covectors for block in blocks_of(covector)]
        history.gradient_norm.append(told.unit * math.hypot(*norms))
        history.bounded.append(int(self._bounded))

    def _break_symmetry(self, found: Evaluation) -> None:
        """Pairs ε, −ε keep a mean on a saddle between symmetric modes for ever: without them for a while, it leaves.

        At an optimum it comes back. Full-rank Gaussians have no such saddles: where the scales stand still, E[∇²ℓ] = τΣ⁻¹.
        """
        if 2 * self.steps > self.settings.steps:
            return
        for factor, gradient in zip(self.factors, found.gradients, strict=True):
            size, total = (torch.linalg.vector_norm(x).item() for x in (gradient, gradient.sum(0)))
            if factor.in_pairs and total < math.sqrt(torch.finfo(gradient.dtype).eps) * size:
                self._unpaired = self.settings.record_every
                if self._stopping is not None:
                    self._stopping.forget()

    def _stop_if_quiet(self, size: float) -> None:
        """By steps of full size: a schedule that ends at 0 makes every step small, whatever is left to do."""
        told = self.settings
        self._quiet = self._quiet + 1 if max(told.lr, told.scale_lr or 0.0) * size < told.tolerance else 0
        if self._quiet == 3:
            self.history.stopped = f"converged: no coordinate moves by more than {told.tolerance:g} at the full step size"

    def _stop_if_settled(self, found: Evaluation, size: float, rate: float) -> None:
        """Where the objective falls no more and noise is averaged, the result is examined; if it moves, the run goes on."""
        if self._stopping is None or self.steps == self.settings.steps or self.history.stopped:
            return
        if not self._stopping.see(self.steps, rate, self._relative(found).mean().item(), size):
            if self._stopping.noisy and 4 * self._samples <= self._most:
                self._noise.close()
                self._draw_ahead(4 * self._samples)
                self._earlier = []
                self._stopping.quieter(0.5)
            return
        try:
            examined = self._examine()
        except Exception:  # the loss fails at some draws, which may not be so further on
            examined = None
        if examined is None or judge(self.factors, self.settings, self.history, examined)[0] is Convergence.MOVING:
            self._stopping.go_on(self.steps)
        else:
            self._examined = examined
            self.history.stopped = f"settled: the objective falls no more, and noise moves nothing by {ACCURACY:g} widths"

    def finish(self) -> Any:
        """The family with its history and verdict; a result that should not be trusted comes with a `FitWarning`."""
        family = self.result()
        warn_of(self.history)
        return family

    def result(self) -> Any:
        """The same without the warning."""
        history, told = self.history, self.settings
        self._clock()
        if not history.stopped:
            all_taken = self.steps == told.steps
            history.stopped = f"all {self.steps} steps taken" if all_taken else f"stopped after {self.steps} steps"
        try:
            found = self._examined or self._examine()
        except Exception as error:  # the loss failed where it had not been before
            history.converged, history.verdict = Convergence.LOST, f"{Convergence.LOST.value}: {str(error).splitlines()[0]}"
        else:
            history.final_objective, history.final_error = told.unit * found.mean, told.unit * found.error
            history.converged, history.verdict = judge(self.factors, told, history, found)
        return self.family

    def _examine(self) -> Examination:
        """The present member seen with fresh samples, after Newton's steps where a mean-field family needs them."""
        with torch.enable_grad():
            found = examine(self.factors, self.settings, self._values, self.steps)
            found = refine(self.factors, self.settings, self._values, self.steps, self._time, self.history, found)
        if self.settings.temperature and all(factor.group.affine_action for factor in self.factors):
            with suppress(Exception):  # a loss may fail where no fit would go, which speaks for nothing
                found.endless = self._endless(found)
        return found

    def _endless(self, found: Examination) -> str | None:
        """A direction in which the target has no finite mass (`rays.py`)."""
        generator = torch.Generator(blocks_of(self.factors[0].start)[-1].device).manual_seed(self.settings.seed)
        size = self.settings.samples or 16

        def slopes(moved: Tensor) -> Tensor:
            """Gradients in ε at draws that are moved."""
            rows = []
            for _ in range(-(-8 * len(moved) // size)):
                away = parted(self.factors, moved)
                noise = [f.noise(1, size, generator)[0] + by for f, by in zip(self.factors, away, strict=True)]
                rows.append(torch.cat([part.reshape(size, -1) for part in self._evaluate(noise).gradients], 1))
            return torch.cat(rows)

        level: list[Tensor] = []
        with suppress(Exception), torch.enable_grad():
            level = level_directions(found.gradients, slopes)
        with torch.no_grad():
            batches = 1 if self._batches is None else self._batches.count // self._batches.size
            return endless(self.factors, self._potential, level, batches)

    def _potential(self, points: list[Tensor]) -> Tensor:
        """(loss − τ·log |J|)/τ at points in the coordinates of the charts, on the next batch."""
        placed = [factor.placed(z) for factor, z in zip(self.factors, points, strict=True)]
        if self._batches is not None:
            self._batches.next()
        values = self._energies(*(theta for thetas, _ in placed for theta in thetas))
        return values / self.settings.temperature - sum(volume for _, volume in placed if volume is not None)

    def _values(self, noise: list[Tensor]) -> tuple[Tensor, list[Any], list[Tensor]]:
        """For each sample (loss − τ·log |J|)/τ + log q₀(ε); the covectors; the gradients in ε."""
        found = self._evaluate(noise)
        return self._relative(found), found.covectors, found.gradients

    def _relative(self, found: Evaluation) -> Tensor:
        """For each sample minus the logarithm of its importance weight: without noise where the target is in the family."""
        values = found.objectives / self.settings.unit
        if self.settings.temperature:
            for factor, g, epsilon in zip(self.factors, found.elements, found.noise, strict=True):
                values = values + factor.log_density(g, epsilon)
        return values

    def _lost(self, step: int, how: str, what: str = "loss") -> FitError:
        """The error for a loss that fails, with the last good member."""
        self.history.stopped = f"the {what} {how} at step {step}"
        self.history.converged, self.history.verdict = Convergence.LOST, Convergence.LOST.value
        self._clock()
        kept = "" if step == 1 else " The last good member of the family is this error's `family`."
        hint = "Start closer to the optimum, with a smaller initial_scale or lr, or mend the loss where it is not defined."
        return FitError(f"The {what} {how} at step {step}. {hint}{kept}", self.family, step)

    def _clock(self) -> None:
        self.history.seconds = time.perf_counter() - self._began
        self.history.steps_per_second = self.steps / max(self.history.seconds, 1e-9)


def _is_finite(taken: Update) -> bool:
    if taken.largest is not None:
        return math.isfinite(taken.largest)
    return all(math.isfinite(block.sum().item()) for block in blocks_of(taken.direction))
