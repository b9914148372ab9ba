"""Ours: `fit` in three families, as a user calls it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import liebayes as lb
from liebayes.groups import DiagonalAffine, Interval, LieGroup, LowRankAffine, Ordered, Positive, Simplex, TriangularAffine

from .models import Arrays, Model

FAMILIES: dict[str, LieGroup[Any]] = {
    "TriangularAffine": TriangularAffine(),
    "LowRankAffine(2)": LowRankAffine(2),
    "DiagonalAffine": DiagonalAffine(),
}
SUPPORTS: dict[str, Any] = {
    "positive": Positive(),
    "unit": Interval(0.0, 1.0),
    "ordered": Ordered(),
    "simplex": Simplex(),
}
DRAWS = 20_000


@dataclass
class Fitted:
    """What became of a run."""

    facts: dict[str, Any]
    draws: Arrays
    family: Any
    loss: Any
    model: Model

    def weighed(self, seed: int = 0) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """What the diagnosis says, with its defaults, and the moments by importance weights."""
        if self.family is None:
            nothing = {"pareto_k": math.nan, "weighted_k": math.nan, "reliable": False, "misses": 0}
            return nothing, {"mean": [math.nan], "sd": [math.nan]}
        found = self.family.diagnose(self.loss, seed=seed)
        weights = np.asarray(found.weights, dtype=np.float64)
        judged = self.model.judged({name: np.asarray(x, dtype=np.float64) for name, x in found.draws.items()})
        flat = np.concatenate([x.reshape(len(x), -1) for x in judged.values()], 1)
        mean = weights @ flat
        told = {"pareto_k": found.pareto_k, "weighted_k": found.weighted_k, "reliable": found.reliable}
        told |= {"misses": len(found.misses), "diagnosis": found.verdict}
        return told, {"mean": mean.tolist(), "sd": np.sqrt(weights @ (flat - mean) ** 2).tolist()}


def fitted(model: Model, group: LieGroup[Any], dtype: torch.dtype, steps: int, seed: int) -> Fitted:
    """A run with the defaults, but for its length."""
    data = {name: torch.as_tensor(value).to(dtype) for name, value in model.data().items()}
    start = {name: torch.tensor(value, dtype=dtype) for name, value in model.starts.items()}

    def loss(theta: Any) -> torch.Tensor:
        return model.loss(torch, theta, data)

    supports = {name: SUPPORTS[kind] for name, kind in model.supports.items()}
    try:
        q = lb.fit(loss, group, start=start, supports=supports, steps=steps, seed=seed, progress=False)
    except lb.FitError as error:
        nowhere = {name: np.full((1, *np.shape(value)), math.nan) for name, value in model.starts.items()}
        return Fitted({"taken": error.step, "converged": "LOST", "verdict": str(error)}, nowhere, None, loss, model)
    draws = q.sample((DRAWS,), torch.Generator().manual_seed(seed + 1))
    facts = {
        "taken": q.history.step[-1],
        "converged": q.history.converged.name,
        "verdict": q.history.verdict,
        "objective": q.history.final_objective,
        "objective_error": q.history.final_error,
    }
    return Fitted(facts, {name: np.asarray(x) for name, x in draws.items()}, q, loss, model)
