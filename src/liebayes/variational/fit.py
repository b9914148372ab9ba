"""Variational inference for any differentiable loss: minimise E_q[loss] − τ·H(q) over a group (Sec. 2, 3).

By left-equivariance the rule at g for a loss ℓ is the rule at the identity for ℓ(g·ε) − τ·log |det ∂(g·ε)/∂ε|. So every
step is taken in the coordinates of the noise: one gradient in ε, pulled back at the identity. `run.py` has the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from ..bases import Base
from ..groups import LieGroup
from ..rule import Fisher, Metric
from .factors import EntropyGradient
from .progress import progress_bar
from .run import Fit, FitError
from .settings import Schedule
from .verdict import tell_places, warn_of


def fit(
    loss: Callable[..., Tensor],
    group: LieGroup[Any] | None = None,
    base: Base | Mapping[str, Base] | Sequence[Base] | None = None,
    start: Any = None,
    *,
    supports: Any = None,
    regulariser: Callable[[Any], Tensor] | None = None,
    data: Any = None,
    batch_size: int | None = None,
    temperature: float = 1.0,
    tempering: Literal["entropy", "kl"] = "entropy",
    initial_scale: float = 1.0,
    metric: Metric = Fisher(),
    lr: float = 0.1,
    scale_lr: float | None = None,
    momentum: float = 0.0,
    max_step: float | None = 0.5,
    max_shift: float = 100.0,
    samples: int | None = None,
    antithetic: bool = True,
    steps: int = 2000,
    schedule: str | Schedule = "cosine",
    entropy: EntropyGradient = "auto",
    tolerance: float = 1e-5,
    vectorize: bool = True,
    starts: int = 1,
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
            their correlations are learned (given for one matrix, on each of its rows); a `Product` has one for every tensor.
        base: `Normal()` by default; a base, or one for every part of a `Product` (a single one serves all parts).
        start: a point: a tensor, or tuples and dictionaries of tensors; or an element of the group, or a family to go on from.
            The family starts with its mean there, or with its centre if the base has no mean or the action is not affine.
        supports: where the parameters live, in the structure of `start`: `Positive()`, `Interval(0, 1)`, `Simplex()` and the
            other charts of `liebayes.groups`. What is not named is real. The group acts in the coordinates of the charts.
        regulariser: R(θ), added to the loss. With batches, and for `tempering`, it is what does not depend on the data.
        data: a tensor, or tuples or dictionaries of them with one first dimension N. The loss is then called as
            `loss(θ, batch)`, and is a sum over the data it is given.
        batch_size: how many of the data each step sees; the loss is multiplied by N over this. All of them by default. Noise
            grows with N/batch_size: where that is above 20, take a smaller `lr`.
        temperature: τ ≥ 0. At 0 there is no entropy: widths go to zero, and steps, which are in units of the widths, with
            them, so that the minimum is approached only slowly. To minimise alone take `Additive()`, `Dirac()` and
            `metric=Absorbed()`: gradient descent from a point, whose `lr` must suit the loss.
        tempering: what τ multiplies: the "entropy" alone, with R unscaled, or the whole "kl" to the prior e^(−R).
        initial_scale: the scale of the first element, for groups that have one.
        metric: `Fisher()` by default: the natural gradient, which needs no step sizes tuned for each problem.
            Bases without a Fisher metric need `Absorbed()` or `Adaptive()`.
        lr: the step size α on KL(q ‖ p_τ) = (E_q[loss] − τ·H)/τ. With the Fisher metric the distance to the optimum
            of a full-rank family shrinks by about 1 − α in a step, whatever the problem, once the widths are those of the
            optimum. Mean-field families are slower under correlation: up to 256 dimensions Newton's steps follow the run. A
            group that cannot change widths, `Additive`, takes steps of α times the base's variance: give it
            `metric=Absorbed()` where the base is narrow.
        scale_lr: another step size for everything that is not a shift; `lr` by default.
        momentum: β. None by default: the falling step size averages the samples already.
        max_step: the bound on one step in the algebra: half a unit of log-scale, or half a width of a base of
            scale 1; None for no bounds.
        max_shift: how far the shift's bound may grow, in widths. It starts at `max_step`, grows by a tenth in every step
            that lowers the loss, and is halved by every step that raises it: a start many widths away is no loss.
        samples: Monte Carlo samples per step: 16 by default, and two ninths of the dimensions for full-rank families in more
            than 72; up to four times as many where nothing falls any more and the steps left could not average the noise.
            With fewer the steps of the scales are shorter, so that noise does not exceed the signal.
        antithetic: draw the samples in pairs ε, −ε where the base is even. A slope of the loss, however steep, then leaves
            the scales alone.
        steps: how many steps at most. A run ends before where the objective falls no more, noise considered: from then on
            steps shorten so that the result is an average, until noise moves nothing by 0.01 widths.
        schedule: a factor on the step sizes: "cosine" (to zero), "linear", "constant", or a function of the fraction done.
        entropy: how the entropy's gradient is taken: "exact", or at the "samples", without variance where the target is in
            the family; "auto" takes samples where the base is smooth.
        tolerance: stop when no coordinate of the step is larger than this at three recorded steps in a row: of the logarithm
            of a scale, or of a shift in widths. At 0 a run takes all its steps.
        vectorize: use `torch.func.vmap` over samples. Switch it off for losses that branch on values.
        starts: fit from several places, one draw of the first family away from `start`, and keep the result with the lowest
            objective. `history.starts` has all of them: where they differ, there are several local optima. Where others end
            elsewhere about as well, there are several modes, which comes with a warning.
        seed: fixes all noise.
        record_every: steps between entries of the history.
        progress: show a progress bar; by default where the error stream is a terminal.

    Returns:
        The fitted `Family`, with its `history`: a `ProductFamily` for a product, a `JointFamily` for one group over several
        tensors or on supports.

    Raises:
        ValueError: for input that does not fit together.
        FitError: if the loss turns non-finite or raises an error on the way; it carries the last good member of the family.

    Warns:
        FitWarning: if the result should not be trusted: the steps ran out while it still moved, or a width grows without
            bound. `history.converged` and `history.verdict` say which. `history.final_objective` has its standard error.

    >>> import torch
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
    given = dict(locals())
    for name in ("loss", "group", "base", "start", "supports", "regulariser", "data", "starts", "progress"):
        del given[name]
    problem: dict[str, Any] = {"supports": supports, "regulariser": regulariser, "data": data}
    if not isinstance(starts, int) or starts < 1:
        raise ValueError(f"starts must be a whole number of at least 1, but got {starts!r}.")
    families, lost = [], []
    for number in range(starts):
        try:
            with (
                Fit(loss, group, base, start, **problem, elsewhere=number, **given) as run,
                progress_bar("fit", run.settings.steps, progress) as report,
            ):
                more = True
                while more:
                    more = run.step()
                    if run.history.step and run.history.step[-1] == run.steps:
                        report(run.steps, f"objective {run.history.objective[-1]:.6g}")
                families.append(run.result())
        except FitError as error:
            lost.append(error)
            if len(lost) == starts:
                raise
    best = min(families, key=lambda q: q.history.final_objective if q.history.final_objective < math.inf else math.inf)
    if starts > 1:
        best.history.starts = [q.history.final_objective for q in families]
        tell_places(best, [q for q in families if q is not best], temperature or 1.0)
    warn_of(best.history)
    return best
