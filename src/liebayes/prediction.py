"""The posterior predictive p(y | x) = ∫ p(y | g·ε, x) q₀(ε) dε, averaged over draws (Sec. 5), and its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities, averaged over draws, and how sure they are; in nats."""

    probabilities: Tensor  # (inputs, classes)
    entropy: Tensor  # (inputs,)
    """The entropy of the averaged probabilities: all uncertainty."""
    mutual_information: Tensor  # (inputs,)
    """What of it is due to the weights, and would go away with more data."""

    @property
    def aleatoric(self) -> Tensor:
        """The mean entropy of the draws: the uncertainty of the data."""
        return self.entropy - self.mutual_information

    @property
    def epistemic(self) -> Tensor:
        """The mutual information, by its other name."""
        return self.mutual_information


@dataclass(frozen=True)
class RegressionPrediction:
    """Mean and variance over draws."""

    mean: Tensor
    aleatoric: Tensor
    """The mean noise variance, where the model predicts one; otherwise zero."""
    epistemic: Tensor
    """The variance of the mean over draws."""

    @property
    def variance(self) -> Tensor:
        """All of it."""
        return self.aleatoric + self.epistemic


def classify(draws: Iterable[list[Tensor]]) -> ClassPrediction:
    """From logits, draw by draw. A single logit stands for two classes."""
    total: Tensor | float = 0.0
    expected_entropy: Tensor | float = 0.0
    count = 0
    for outputs in draws:
        logits = torch.cat(outputs).double()
        if logits.ndim == 1 or logits.shape[-1] == 1:
            logits = torch.stack([torch.zeros_like(logits.flatten()), logits.flatten()], -1)
        log_probabilities = logits.log_softmax(-1)
        probabilities = log_probabilities.exp()
        entropy = -(probabilities * log_probabilities).nan_to_num(0.0).sum(-1)
        total = total + probabilities
        expected_entropy = expected_entropy + entropy
        count += 1
    mean = torch.as_tensor(total) / count
    entropy = -torch.special.xlogy(mean, mean).sum(-1)
    information = (entropy - expected_entropy / count).clamp_min(0.0)
    return ClassPrediction(mean.float(), entropy.float(), information.float())


def regress(draws: Iterable[list[Any]]) -> RegressionPrediction:
    """From means, or pairs of means and noise variances, draw by draw (Welford's recursion keeps the variance exact)."""
    mean: Tensor | float = 0.0
    spread: Tensor | float = 0.0
    noise: Tensor | float = 0.0
    count = 0
    for outputs in draws:
        pairs = [output if isinstance(output, tuple) else (output, torch.zeros_like(output)) for output in outputs]
        value = torch.cat([pair[0] for pair in pairs]).double()
        own_noise = torch.cat([pair[1] for pair in pairs]).double()
        count += 1
        delta = value - mean
        mean = mean + delta / count
        spread = spread + delta * (value - mean)
        noise = noise + own_noise
    return RegressionPrediction(*(torch.as_tensor(x).float() for x in (mean, noise / count, spread / count)))


def input_batches(inputs: Any, batch_size: int | None, device: torch.device) -> list[Tensor]:
    """Batches of inputs; of a batch with targets, the inputs."""
    if isinstance(inputs, Tensor):
        if len(inputs) == 0:
            raise ValueError("There is nothing to predict: inputs is empty.")
        return list(inputs.to(device).split(batch_size or len(inputs)))
    found = list(_first_of_each(inputs, device))
    if not found:
        raise ValueError("There is nothing to predict: the loader gave no batch.")
    return found


def _first_of_each(batches: Iterable[Any], device: torch.device) -> Iterator[Tensor]:
    for batch in batches:
        yield (batch[0] if isinstance(batch, (tuple, list)) else batch).to(device)
