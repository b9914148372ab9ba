"""Variational inference for any differentiable loss: minimise E_q[loss] − τ·H(q) over a group (Sec. 2, 3).

By left-equivariance the rule at g for a loss ℓ is the rule at the identity for ℓ(g·ε) − τ·log |det ∂(g·ε)/∂ε|. So every
step is taken in the coordinates of the noise: one gradient in ε, pulled back at the identity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases import Base
from ..groups import LieGroup, blocks_of
from ..rule import Fisher, History, Metric, Update, update
from ..rule.metric import require_metric
from .factors import EntropyGradient, Factor, Leaf, make_factors, product_family, with_defaults
from .noise import noise_of_steps, sharing
from .progress import progress_bar
from .shortcuts import short_grad, short_vmap

Schedule = Callable[[float], float]
"""From the fraction of the run that is done, in [0, 1), to a factor on the step size."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
}


class FitError(ValueError):
    """The loss turned non-finite on the way. `family` is the last good member of the family, `step` says when it was lost."""

    def __init__(self, message: str, family: Any, step: int) -> None:
        super().__init__(message)
        self.family = family
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.family, self.step)


def fit(
    loss: Callable[[Any], Tensor],
    group: LieGroup[Any] | None = None,
    base: Base | Mapping[str, Base] | Sequence[Base] | None = None,
    start: Any = None,
    *,
    supports: Any = None,
    regulariser: Callable[[Any], Tensor] | None = None,
    temperature: float = 1.0,
    tempering: Literal["entropy", "kl"] = "entropy",
    initial_scale: float = 1.0,
    metric: Metric | None = None,
    lr: float = 0.1,
    scale_lr: float | None = None,
    momentum: float = 0.0,
    max_step: float | None = 0.5,
    max_shift: float = 100.0,
    samples: int = 16,
    antithetic: bool = True,
    steps: int = 2000,
    schedule: str | Schedule = "cosine",
    entropy: EntropyGradient = "auto",
    tolerance: float = 1e-5,
    vectorize: bool = True,
    seed: int = 0,
    record_every: int = 10,
    progress: bool | None = None,
) -> Any:
    """The member q_g of the family that minimises E_q[loss] − τ·H(q), for any differentiable `loss(θ)`.

    With a loss that is minus a log joint density and τ = 1 this is variational inference: the best approximation of the
    posterior that the group and base can express.

    Args:
        loss: takes one θ, in the structure of `start`, and returns a scalar. It is vectorised over samples inside.
        group: `TriangularAffine()` by default: full rank. One group acts on all tensors of `start` as one vector, so that
            their correlations are learned; a `Product` has one group for every tensor, and none across them.
        base: `Normal()` by default; a base, or one for every part of a `Product` (a single one serves all parts).
        start: a point: a tensor, or tuples and dictionaries of tensors; or an element of the group, or a family to go on from.
            The family starts with its mean there, or with its centre if the base has no mean or the action is not affine.
        supports: where the parameters live, in the structure of `start`: `Positive()`, `Interval(0, 1)`, `Simplex()` and the
            other charts of `liebayes.groups`. What is not named is real. The group acts in the coordinates of the charts.
        regulariser: R(θ), added to the loss. Only `tempering` treats it differently from the loss itself.
        temperature: τ ≥ 0. At 0 there is no entropy: widths go to zero, and steps, which are in units of the widths, with
            them, so that the minimum is approached only slowly. To minimise alone take `Additive()`, `Dirac()` and
            `metric=Absorbed()`: gradient descent from a point, whose `lr` must suit the loss.
        tempering: what τ multiplies: the "entropy" alone, with R unscaled, or the whole "kl" to the prior e^(−R).
        initial_scale: the scale of the first element, for groups that have one.
        metric: `Fisher()` by default: the natural gradient, which needs no step sizes tuned for each problem.
            Bases without a Fisher metric need `Absorbed()` or `Adaptive()`.
        lr: the step size α on KL(q ‖ p_τ) = (E_q[loss] − τ·H)/τ. With the Fisher metric the distance to the optimum
            shrinks by about 1 − α in a step, whatever the problem, once the widths are those of the optimum. A group that
            cannot change widths, `Additive`, takes steps of α times the base's variance: give it `metric=Absorbed()` where
            the base is narrow.
        scale_lr: another step size for everything that is not a shift; `lr` by default.
        momentum: β. None by default: the falling step size averages the samples already.
        max_step: the bound on one step in the algebra: half a unit of log-scale, or half a width of a base of
            scale 1; None for no bounds.
        max_shift: how far the shift's bound may grow, in widths. It starts at `max_step`, grows by a tenth in every step
            that lowers the loss, and is halved by every step that raises it: a start many widths away is no loss.
        samples: Monte Carlo samples per step.
        antithetic: draw the samples in pairs ε, −ε where the base is even. A slope of the loss, however steep, then leaves
            the scales alone.
        steps: how many steps at most.
        schedule: a factor on the step sizes: "cosine" (to zero), "linear", "constant", or a function of the fraction done.
        entropy: how the entropy's gradient is taken: "exact", or at the "samples", without variance where the target is in
            the family; "auto" takes samples where the base is smooth.
        tolerance: stop when no coordinate of the step is larger than this at three recorded steps in a row: of the logarithm
            of a scale, or of a shift in widths.
        vectorize: use `torch.func.vmap` over samples. Switch it off for losses that branch on values.
        seed: fixes all noise.
        record_every: steps between entries of the history.
        progress: show a progress bar; by default where the error stream is a terminal.

    Returns:
        The fitted `Family`, with its `history`: a `ProductFamily` for a product, a `JointFamily` for one group over several
        tensors or on supports.

    Raises:
        ValueError: for input that does not fit together.
        FitError: if the loss turns non-finite; it carries the last good member of the family.

    >>> from liebayes.groups import DiagonalAffine
    >>> from liebayes.bases import Normal
    >>> target = torch.tensor([1.0, -2.0])
    >>> q = fit(lambda theta: 8 * (theta - target).square().sum(), DiagonalAffine(), Normal(), torch.zeros(2))
    >>> [round(x, 2) for x in q.mean.tolist()], [round(x, 2) for x in q.stddev.tolist()]
    ([1.0, -2.0], [0.25, 0.25])

    One posterior over a place and a positive width, with their correlation:

    >>> from liebayes.groups import Positive
    >>> y = torch.tensor([2.0, 3.0, 4.0])
    >>> def loss(theta):
    ...     return -torch.distributions.Normal(theta["place"], theta["width"]).log_prob(y).sum() + theta["width"]
    >>> start = {"place": torch.tensor(0.0), "width": torch.tensor(1.0)}
    >>> q = fit(loss, start=start, supports={"width": Positive()})
    >>> {name: round(float(mean)) for name, mean in q.mean.items()}
    {'place': 3, 'width': 1}
    """
    group, base, start = with_defaults(group, base, start)
    _require_numbers(
        temperature, initial_scale, lr, scale_lr, momentum, max_step, max_shift, samples, steps, record_every, tolerance, seed
    )
    temperature, lr, momentum, max_shift = float(temperature), float(lr), float(momentum), float(max_shift)
    scale_lr, max_step = (None if number is None else float(number) for number in (scale_lr, max_step))
    samples, steps, record_every = int(samples), int(steps), int(record_every)
    _require_choice("tempering", tempering, ("entropy", "kl"))
    _require_choice("entropy", entropy, ("auto", "exact", "samples"))
    if isinstance(schedule, str):
        _require_choice("schedule", schedule, tuple(SCHEDULES))
        schedule = SCHEDULES[schedule]
    for name, function in {"loss": loss, "regulariser": regulariser or loss, "schedule": schedule}.items():
        if not callable(function):
            raise ValueError(f"{name} must be a function, but got {function!r}.")
    metric = Fisher() if metric is None else metric
    require_metric(metric)
    factors, unflatten = make_factors(group, base, start, supports, initial_scale, metric, entropy, antithetic)
    energies = _over_samples(_energy(loss, regulariser, temperature if tempering == "kl" else 1.0, unflatten), vectorize)
    # E_q[loss] − τH divided by τ is a KL divergence: its covectors have the same scale in every problem.
    unit = temperature if temperature > 0 else 1.0
    device = pytree.tree_leaves(factors[0].start)[0].device
    generator = torch.Generator(device=device).manual_seed(int(seed))
    numbers = samples * sum(factor.group.event_shape(factor.start).numel() for factor in factors)
    noise_ahead = noise_of_steps(
        lambda count: [factor.noise(count, samples, generator) for factor in factors],
        numbers,
        steps,
        beside=device.type == "cpu" and all(factor.base.private_draws for factor in factors),
    )
    weights = torch.full((samples,), 1 / unit, dtype=_dtype(factors[0]), device=device)

    run = _Run(group, factors, temperature, unit)
    reach, before = max_step, math.inf
    with (
        progress_bar("fit", steps, progress) as report,
        closing(noise_ahead),
        sharing(numbers) as share_out,
        torch.enable_grad(),
    ):
        for step, noise in enumerate(noise_ahead, start=1):
            alpha = float(schedule((step - 1) / steps))
            elements = [factor.element for factor in factors]
            leaves = [f.leaf(g, e) for f, g, e in zip(factors, elements, noise, strict=True)]
            share_out(True)
            losses = energies(*(theta for leaf in leaves for theta in leaf.thetas))
            if not losses.requires_grad:
                raise ValueError(
                    "loss must be differentiable in θ, but its value has no gradient. Build it from θ with torch operations, "
                    "without detach(), item() or integer results."
                )
            objectives = losses
            for leaf in leaves:
                if leaf.log_jacobian is not None:
                    objectives = objectives - temperature * leaf.log_jacobian
            found = short_grad(objectives, weights, [leaf.leaf for leaf in leaves])
            share_out(False)
            gradients = [
                torch.zeros_like(leaf.leaf) if gradient is None else leaf.transpose(gradient)
                for leaf, gradient in zip(leaves, found, strict=True)
            ]
            covectors = [f.covector(e, d, temperature / unit) for f, e, d in zip(factors, noise, gradients, strict=True)]
            present = objectives.detach().sum().item()
            if reach is not None and max_step is not None:
                reach = min(1.1 * reach, max(max_shift, max_step)) if present < before else max(0.5 * reach, max_step)
            before = present
            taken = [
                update(
                    factor.group,
                    factor.form,
                    factor.state,
                    covector,
                    lr=factor.by_block(alpha * lr, alpha * (lr if scale_lr is None else scale_lr)),
                    momentum=momentum,
                    max_step=factor.by_block(reach, max_step),
                )
                for factor, covector in zip(factors, covectors, strict=True)
            ]
            if not (math.isfinite(present) and all(map(_is_finite, taken))):
                raise run.lost(step, losses)
            due = step % record_every == 0 or step == steps
            spread = run.entropy(leaves) if due else 0.0  # of the member the losses are of
            for factor, move in zip(factors, taken, strict=True):
                factor.state = move.state
            run.moved(taken, max(lr, scale_lr or 0.0))
            run.steps = step
            if due:
                run.record(losses, spread, covectors)
                report(step, f"objective {run.history.objective[-1]:.6g}")
                if run.converged(tolerance):
                    break
    return run.finish()


class _Run:
    """The bookkeeping of a run: its history, and why it ended."""

    def __init__(self, group: LieGroup[Any], factors: list[Factor], temperature: float, unit: float) -> None:
        self.group = group
        self.factors = factors
        self.temperature = temperature
        self.unit = unit
        self.history = History()
        self.steps = 0
        self.quiet = 0
        self.bounded = 0
        self.last: list[Update] = []
        self.rate = 0.0
        self.began = time.perf_counter()

    def moved(self, taken: list[Update], rate: float) -> None:
        for move in taken:
            self.bounded = self.bounded + move.bounded
        self.last, self.rate = taken, rate

    def entropy(self, leaves: list[Leaf]) -> float:
        """H(q); what a chart adds to it, from the samples of the step."""
        total = 0.0
        for factor, leaf in zip(self.factors, leaves, strict=True):
            if factor.chart is not None and factor.group.affine_action and leaf.log_jacobian is not None:
                total += float(factor.real.entropy()) + leaf.log_jacobian.detach().mean().item()
            else:
                total += float(factor.family.entropy())
        return total

    def record(self, losses: Tensor, spread: float, covectors: list[Any]) -> None:
        history = self.history
        expected = losses.detach().mean().item()
        history.step.append(self.steps)
        history.expected_loss.append(expected)
        history.entropy.append(spread)
        history.objective.append(expected - self.temperature * spread if self.temperature else expected)
        norm = math.sqrt(sum(float(c.square().sum()) for c in pytree.tree_leaves(covectors)))
        history.gradient_norm.append(self.unit * norm)
        history.bounded.append(int(self.bounded))

    def converged(self, tolerance: float) -> bool:
        """By steps of full size: a schedule that ends at 0 makes every step small, whatever is left to do."""
        largest = self.rate * max(factor.size(move.direction) for factor, move in zip(self.factors, self.last, strict=True))
        self.quiet = self.quiet + 1 if largest < tolerance else 0
        if self.quiet == 3:
            self.history.stopped = f"converged: no coordinate moves by more than {tolerance:g} at the full step size"
        return self.quiet == 3

    def lost(self, step: int, losses: Tensor) -> FitError:
        """The error for a loss that is not finite, with the element of the step before."""
        what = "gradient" if bool(torch.isfinite(losses).all()) else "loss"
        self.history.stopped = f"the {what} was not finite at step {step}"
        kept = "" if step == 1 else " The last good member of the family is this error's `family`."
        hint = "Start closer to the optimum, with a smaller initial_scale or lr, or mend the loss where it is not defined."
        return FitError(f"The {what} was not finite at step {step}. {hint}{kept}", self.finish(), step)

    def finish(self) -> Any:
        history = self.history
        history.seconds = time.perf_counter() - self.began
        history.steps_per_second = self.steps / max(history.seconds, 1e-9)
        history.stopped = history.stopped or f"all {self.steps} steps taken"
        return product_family(self.group, self.factors, history)


def _energy(
    loss: Callable[[Any], Tensor],
    regulariser: Callable[[Any], Tensor] | None,
    weight: float,
    unflatten: Callable[[Sequence[Tensor]], Any],
) -> Callable[..., Tensor]:
    """The loss with its regulariser, as a function of the flat tensors, checked to be one number."""

    def checked(what: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise ValueError(f"{what} must return a tensor with one value, but returned {type(value).__name__}.")
        if value.ndim == 0:
            return value
        if value.numel() != 1:
            raise ValueError(
                f"{what} must return one value for one θ, but returned the shape {tuple(value.shape)}. Sum or average it."
            )
        return value.reshape(())

    def energy(*leaves: Tensor) -> Tensor:
        theta = unflatten(leaves)
        value = checked("loss", loss(theta))
        return value if regulariser is None else value + weight * checked("regulariser", regulariser(theta))

    return energy


def _over_samples(energy: Callable[..., Tensor], vectorize: bool) -> Callable[..., Tensor]:
    """The energy of every sample."""

    def one_by_one(*leaves: Tensor) -> Tensor:
        try:
            return torch.stack([energy(*sample) for sample in zip(*leaves, strict=True)])
        except RuntimeError:
            _refuse_writing(energy, leaves)
            raise

    if not vectorize:
        return one_by_one
    public, short = torch.func.vmap(energy, randomness="different"), short_vmap(energy)
    vectorized = public

    def energies(*leaves: Tensor) -> Tensor:
        nonlocal vectorized
        try:
            values = vectorized(*leaves)
            vectorized = short  # after one call of the public one, which loads what it needs
            return values
        except RuntimeError as error:
            _refuse_writing(energy, leaves)  # what is wrong with one sample already is told as it is
            raise ValueError(
                f"loss cannot be vectorised over samples ({str(error).splitlines()[0]}). Pass vectorize=False to loop."
            ) from error

    return energies


def _refuse_writing(energy: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Says if a loss that has failed is one that changes θ, which neither way of calling it allows."""
    before = [leaf._version for leaf in leaves]
    with torch.no_grad():
        energy(*(leaf[0] for leaf in leaves))
    if [leaf._version for leaf in leaves] != before:
        raise ValueError(
            "loss writes into θ, which then has no gradient. Use operations that return a new tensor, such as θ.mul(2) in "
            "place of θ.mul_(2), or write into θ.clone()."
        )


def _dtype(factor: Factor) -> torch.dtype:
    return blocks_of(factor.start)[-1].dtype


def _is_finite(taken: Update) -> bool:
    if taken.largest is not None:
        return math.isfinite(taken.largest)
    return all(math.isfinite(block.sum().item()) for block in blocks_of(taken.direction))


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, but got {value!r}.")


def _require_numbers(
    temperature: float,
    initial_scale: float,
    lr: float,
    scale_lr: float | None,
    momentum: float,
    max_step: float | None,
    max_shift: float,
    samples: int,
    steps: int,
    record_every: int,
    tolerance: float,
    seed: int,
) -> None:
    given = dict(locals())
    for name, value in given.items():
        # Numbers of Python, numpy and torch; texts are none.
        if not (isinstance(value, SupportsFloat) or (value is None and name in ("scale_lr", "max_step"))):
            raise ValueError(f"{name} must be a number, but got {value!r}.")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be zero or positive, but got {temperature}.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), but got {momentum}.")
    positive = {"initial_scale": initial_scale, "lr": lr, "scale_lr": scale_lr, "max_step": max_step, "max_shift": max_shift}
    for name, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, but got {value}.")
    if not math.isfinite(seed) or int(seed) != seed:
        raise ValueError(f"seed must be a whole number, but got {seed}.")
    for name, count in {"samples": samples, "steps": steps, "record_every": record_every}.items():
        if not math.isfinite(count) or int(count) != count or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, but got {count}.")
