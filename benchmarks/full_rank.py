"""A full-rank posterior over 650 weights: softmax regression on the digits, prior N(0, 1), `fit` with its defaults.

    python benchmarks/full_rank.py [--threads 1] [--output results/benchmarks/full_rank.json]

The best Gaussian is found without the rule and without sampling weights. The loss of an example depends on its ten logits
only, which are Gaussian under q, so that expectations are integrals in ten dimensions, done over 512 Sobol points. The free
energy is convex in the mean and the Cholesky factor (Challis and Barber 2013): where E[∇ℓ] = 0 and Σ⁻¹ = E[∇²ℓ] it is at its
minimum, which damped Newton steps find. The result of `fit` is judged by the same integrals.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from free_energy import softmax
from scipy import special, stats
from speed.environment import environment
from speed.quiet import now
from torch import Tensor

import liebayes as lb

CLASSES, INPUTS = 10, 65
DIM = CLASSES * INPUTS


class Expectations(NamedTuple):
    """Under N(m, Σ)."""

    free_energy: float
    gradient: np.ndarray
    curvature: np.ndarray


class Oracle:
    """Expectations of the loss and its derivatives, by integrals over the logits."""

    def __init__(self, x: np.ndarray, y: np.ndarray, points: int) -> None:
        self.x, self.y = x, np.eye(CLASSES)[y]
        half = stats.norm.ppf(stats.qmc.Sobol(CLASSES, rng=1).random(points // 2))
        self.points = np.concatenate([half, -half])
        # Turned anew for every example, so that errors of the rule do not add up over the examples.
        self.turns = np.linalg.qr(np.random.default_rng(1).standard_normal((len(x), CLASSES, CLASSES)))[0]

    def at(self, mean: np.ndarray, covariance: np.ndarray) -> Expectations:
        """The free energy E[ℓ] + KL(q ‖ N(0, 1)), E[∇ℓ] and E[∇²ℓ], with the prior's."""
        blocks = covariance.reshape(CLASSES, INPUTS, CLASSES, INPUTS)
        spread = np.empty((len(self.x), CLASSES, CLASSES))
        for c in range(CLASSES):
            for d in range(c + 1):
                spread[:, c, d] = spread[:, d, c] = ((self.x @ blocks[c, :, d]) * self.x).sum(1)
        centre = self.x @ mean.reshape(CLASSES, INPUTS).T
        logits = centre[:, None] + self.points @ (np.linalg.cholesky(spread) @ self.turns).swapaxes(1, 2)
        total: np.ndarray = np.asarray(special.logsumexp(logits, axis=2))
        p = np.exp(logits - total[..., None])
        pp = p.swapaxes(1, 2) @ p / len(self.points)
        p = p.mean(1)
        gradient = ((p - self.y).T @ self.x).ravel() + mean
        curvature = np.eye(DIM).reshape(CLASSES, INPUTS, CLASSES, INPUTS)
        for c in range(CLASSES):
            for d in range(CLASSES):
                curvature[c, :, d] += self.x.T @ (((c == d) * p[:, c] - pp[:, c, d])[:, None] * self.x)
        divergence = 0.5 * (mean @ mean + np.trace(covariance) - DIM - np.linalg.slogdet(covariance)[1])
        expected = total.mean(1).sum() - (self.y * centre).sum()
        return Expectations(float(expected + divergence), gradient, curvature.reshape(DIM, DIM))

    def best(self) -> tuple[np.ndarray, np.ndarray, Expectations]:
        """Mean and covariance of the best Gaussian."""
        mean, covariance, pace = np.zeros(DIM), np.eye(DIM), 0.5
        found = self.at(mean, covariance)
        for _ in range(200):
            precision = np.linalg.inv(covariance)
            change, move = found.curvature - precision, covariance @ found.gradient
            if np.abs(move / np.sqrt(covariance.diagonal())).max() < 1e-3 and np.abs(covariance @ change).max() < 1e-3:
                return mean, covariance, found
            there = mean - pace * move, np.linalg.inv(precision + pace * change)
            after = self.at(*there)
            if after.free_energy < found.free_energy + 0.01:  # integrals are no more exact than their points
                (mean, covariance), found, pace = there, after, min(2 * pace, 0.5)
            else:
                pace /= 4
        raise SystemExit("Newton's steps have not come to an end.")


def fitted(x: Tensor, y: Tensor) -> tuple[Any, dict[str, Any]]:
    """`fit` with its defaults, and what it took."""

    cases = x.mT.contiguous()
    correct = torch.nn.functional.one_hot(y, CLASSES).to(x).mT @ x  # Σ of the logits of the labels is linear in the weights

    def loss(theta: Tensor) -> Tensor:
        # Classes come first: torch's softmax over the last ten numbers of a row takes twice the time of all else together.
        weights = theta.reshape(CLASSES, INPUTS)
        return (weights @ cases).logsumexp(0).sum() - (weights * correct).sum() + 0.5 * theta.square().sum()

    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", lb.FitWarning)
        q = lb.fit(loss, start=torch.zeros(DIM, dtype=x.dtype), progress=False)
    took = {"wall_seconds": round(time.perf_counter() - wall, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    verdict = {"steps": q.history.step[-1], "verdict": q.history.verdict, "warnings": [str(w.message) for w in told]}
    return q, took | verdict


def main() -> None:
    """Compares and stores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "float64"), default=["float32", "float64"])
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/full_rank.json"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    problem = softmax()
    oracle = Oracle(problem.inputs.double().numpy(), problem.targets.numpy(), 512)
    began = time.perf_counter()
    mean, covariance, best = oracle.best()
    finer = Oracle(oracle.x, problem.targets.numpy(), 2048).at(mean, covariance)
    sd = np.sqrt(covariance.diagonal())
    result: dict[str, Any] = {"environment": environment("benchmarks/full_rank.py"), "threads": asked.threads}
    result["optimum"] = {
        "free_energy": best.free_energy,
        "free_energy_with_four_times_the_points": finer.free_energy,
        "largest_step_left_with_four_times_the_points": float(np.abs(covariance @ finer.gradient / sd).max()),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(result["optimum"], flush=True)
    result["fit"] = {}
    for dtype in asked.dtypes:
        load = now(1.0).cores
        q, facts = fitted(problem.inputs.to(getattr(torch, dtype)), problem.targets)
        found = oracle.at(q.mean.double().numpy(), q.covariance.double().numpy())
        facts |= {
            "other_load_before": round(load, 2),
            "other_load_after": round(now(1.0).cores, 2),
            "free_energy": found.free_energy,
            "above_the_optimum": found.free_energy - best.free_energy,
            "mean_error": float(np.abs((q.mean.double().numpy() - mean) / sd).max()),
            "sd_error": float(np.abs(q.stddev.double().numpy() / sd - 1).max()),
        }
        facts["reached"] = facts["mean_error"] <= 0.1 and facts["sd_error"] <= 0.1
        result["fit"][dtype] = facts
        print(dtype, facts, flush=True)
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
