"""The free energy of a finished run, (E_q[Σ loss] + KL(q ‖ N(0, 1/δ)))/N: it compares runs by their training data alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..data import Dataset
from ..posterior import Posterior
from .settings import TrainSettings
from .tasks import task_of

DRAWS, MOST, BATCH = 8, 10_000, 500
"""Samples of the weights; of larger training sets, so many data drawn at random; the size of batches."""


def free_energy(posterior: Posterior, dataset: Dataset, settings: TrainSettings) -> dict[str, float]:
    """For metrics.jsonl, in nats for each training datum: the free energy, its standard error, and the KL divergence in it.

    Empty where there is none: a run without a Gaussian prior, a posterior without density or moments.
    """
    prior, N = settings.prior_precision, len(dataset.train_labels)
    if not prior or any(not math.isfinite(family.base.entropy) for family in posterior.families.values()):
        return {}
    chosen = torch.randperm(N, generator=torch.Generator().manual_seed(settings.seed))[:MOST]
    task, means = task_of(dataset), []

    def loss(output: Any, labels: Tensor) -> Tensor:
        mean = task.loss(output, labels)
        means.append(float(mean))
        return mean * len(labels)

    batches = ((dataset.normalize(dataset.train_images[part]), dataset.train_labels[part]) for part in chosen.split(BATCH))
    try:
        found = posterior.free_energy(batches, loss, prior=prior, samples=DRAWS, seed=settings.seed)
    except ValueError:  # Cauchy: no moments
        return {}
    error, count = found.standard_error / len(chosen), -(-len(chosen) // BATCH)
    if len(chosen) < N:  # these data may be easier than the others: batches tell how much they differ
        apart = torch.tensor(means, dtype=torch.float64).reshape(DRAWS, count).mean(0)
        error = math.hypot(error, float(apart.std()) / math.sqrt(count))
    kl = found.kl / N
    return {"free_energy": found.expected_loss / len(chosen) + kl, "free_energy_error": error, "kl": kl}
