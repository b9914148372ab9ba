"""iVON and VOGN in numpy, line by line as in their papers: the state is h itself, not its logarithm."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Newton:
    """One diagonal Gaussian. The gradients and samples of a step come in as rows, one for each Monte Carlo sample."""

    m: np.ndarray
    h: np.ndarray
    N: float
    delta: float
    d: float
    alpha: float
    beta1: float
    beta2: float
    t: int = 0
    M: np.ndarray = field(default_factory=lambda: np.zeros(()))

    @property
    def precision(self) -> np.ndarray:
        return self.N * (self.h + self.delta / self.N + self.d)

    def ivon(self, theta: np.ndarray, gradient: np.ndarray) -> None:
        h_hat = (gradient * (theta - self.m) * self.precision).mean(0)
        correction = 0.5 * (1 - self.beta2) ** 2 * (self.h - h_hat) ** 2 / (self.h + self.delta / self.N + self.d)
        self.h = self.beta2 * self.h + (1 - self.beta2) * h_hat + correction
        self._move(gradient.mean(0))

    def vogn(self, gradients_of_examples: np.ndarray) -> None:
        """Gradients as (samples, examples, ...)."""
        self.h = self.beta2 * self.h + (1 - self.beta2) * (gradients_of_examples**2).mean((0, 1))
        self._move(gradients_of_examples.mean((0, 1)))

    def _move(self, gradient: np.ndarray) -> None:
        self.t += 1
        self.M = self.beta1 * self.M + (1 - self.beta1) * gradient
        step = self.M / (1 - self.beta1**self.t) + self.delta / self.N * self.m
        self.m = self.m - self.alpha * step / (self.h + self.delta / self.N + self.d)
