"""When a run may end: once the objective no longer falls by more than its noise, and the noise has been averaged away.

At a step size α the rule settles in some 1/α steps, and then moves about its optimum with the noise of its samples. Near the
optimum the natural gradient of a full-rank family is x + ξ, with x the distance to the optimum and ξ that noise. Steps of size
1/(1/α + t) then make x after t steps the average of all ξ since, as averaged iterates would be: an error of |ξ|/√(1/α + t).
"""

from __future__ import annotations

import math
from collections import deque

import torch

TIME = 20.0
"""The length of a window in time constants 1/α of the rule: whatever the rule sees has long gone in it."""
ACCURACY = 0.01
"""The noise left in any coordinate, in standard deviations or logarithms of widths, at which a run ends."""
FORGOTTEN = 10.0
"""What was left of the way to the optimum when the steps began to shorten goes as 1/(1 + αt): a tenth of it may remain."""


class Stopping:
    """Sees the objective now and then, and says how long steps should be, and when to end."""

    def __init__(self, lr: float, record_every: int, steps: int) -> None:
        self._lr, self._steps = lr, steps
        self._window = max(10, math.ceil(TIME / (lr * record_every)))
        self._objectives: deque[float] = deque(maxlen=self._window)
        self._sizes: deque[float] = deque(maxlen=self._window)
        self._not_before = 0
        self._settled: tuple[int, float] | None = None
        """Since which step, and the schedule's factor there."""
        self.noisy: bool = False
        """Nothing falls any more, and the steps that are left cannot average the noise."""

    def rate(self, step: int, scheduled: float) -> float:
        """The factor on the step size: the schedule's, until nothing falls any more."""
        if self._settled is None:
            return scheduled
        since, factor = self._settled
        return factor / (1 + self._lr * factor * (step - since))

    def see(self, step: int, rate: float, objective: float, size: float) -> bool:
        """Whether to end here.

        Args:
            step: the number of the step.
            rate: the factor that its size had.
            objective: KL(q ‖ p) up to a constant, from the step's samples.
            size: the largest coordinate of the natural gradient: noise, where nothing moves.
        """
        self._objectives.append(objective)
        self._sizes.append(size)
        if self._settled is None:
            still = rate > 0 and step >= self._not_before and not self._falls()
            # Noise that the steps which are left cannot average is left to the schedule, if more samples do not help.
            self.noisy = still and not self._left_after(self._steps - step, rate) < ACCURACY
            self._settled = (step, rate) if still and not self.noisy else None
            return False
        since, factor = self._settled
        forgotten = 1 + self._lr * factor * (step - since) >= FORGOTTEN
        return forgotten and self._left_after(step - since, factor) < ACCURACY

    def _left_after(self, steps: int, factor: float) -> float:
        """The noise in the average of so many steps, and of the 1/α before them."""
        noise = math.sqrt(sum(x * x for x in self._sizes) / len(self._sizes))
        return noise / math.sqrt(1 / (self._lr * factor) + steps)

    def go_on(self, step: int) -> None:
        """It was too early: not before twice as many steps."""
        self._settled, self._not_before = None, 2 * step
        self.forget()

    def forget(self) -> None:
        """Starts again: something has changed."""
        self._objectives.clear()

    def quieter(self, by: float) -> None:
        """From now on noise is smaller by this factor, and may have hidden a fall until now."""
        self.forget()
        self._sizes = deque((size * by for size in self._sizes), maxlen=self._window)

    def _falls(self) -> bool:
        """Whether the objective goes down over the window: Kendall's rank test, which knows no scale and no shape.

        Without a trend the number of falls among all pairs, less that of rises, has the variance n(n − 1)(2n + 5)/18.
        """
        n = len(self._objectives)
        if n < self._window:
            return True
        values = torch.tensor(self._objectives, dtype=torch.float64)
        falls = (values.unsqueeze(1) - values).sign().triu().sum()
        return float(falls) > 2 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
