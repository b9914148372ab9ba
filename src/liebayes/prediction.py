"""The posterior predictive p(y | x) = ∫ p(y | g·ε, x) q₀(ε) dε, averaged over draws (Sec. 5), and its uncertainty."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .install import Exchange


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities, averaged over draws, and how sure they are; in nats."""

    probabilities: Tensor  # (inputs, classes), or (inputs, tokens, classes)
    entropy: Tensor  # (inputs,), or (inputs, tokens)
    """The entropy of the averaged probabilities: all uncertainty."""
    mutual_information: Tensor  # of the same shape
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


@dataclass(frozen=True)
class FreeEnergy:
    """The objective of the paper (Eq. 1) as a bound: −log of the evidence is at most `total` (at temperature 1)."""

    expected_loss: float
    """E_q[Σ loss] over all data, in nats."""
    kl: float
    """KL(q ‖ prior)."""
    standard_error: float
    """That of `expected_loss`, from the draws; the divergence is exact."""

    @property
    def total(self) -> float:
        """Their sum: lower is better, among posteriors and among models of the same data."""
        return self.expected_loss + self.kl


class Classes:
    """Averages logits over draws, which come one by one. A single logit stands for two classes."""

    def __init__(self) -> None:
        self.count: int = 0
        self.total: Tensor | float = 0.0
        self.expected_entropy: Tensor | float = 0.0

    def of_draw(self, outputs: list[Any]) -> tuple[Tensor, Tensor]:
        """What is averaged: the probabilities of one draw and their entropy. Classes are the last dimension."""
        logits = _together([_tensor(output, "logits") for output in outputs]).double()
        if logits.ndim == 1 or logits.shape[-1] == 1:
            single = logits if logits.ndim == 1 else logits.squeeze(-1)
            logits = torch.stack([torch.zeros_like(single), single], -1)
        log_probabilities = logits.log_softmax(-1)
        probabilities = log_probabilities.exp()
        return probabilities, -(probabilities * log_probabilities).nan_to_num(0.0).sum(-1)

    def add(self, draw: tuple[Tensor, Tensor]) -> None:
        """Takes one draw in."""
        probabilities, entropy = draw
        self.total = self.total + probabilities
        self.expected_entropy = self.expected_entropy + entropy
        self.count += 1

    def result(self) -> ClassPrediction:
        """The average over all draws so far."""
        mean = torch.as_tensor(self.total) / self.count
        entropy = -torch.special.xlogy(mean, mean).sum(-1)
        information = (entropy - self.expected_entropy / self.count).clamp_min(0.0)
        return ClassPrediction(mean.float(), entropy.float(), information.float())


class Values:
    """Averages means, or pairs of means and noise variances, over draws (Welford's recursion keeps the variance exact)."""

    def __init__(self) -> None:
        self.count: int = 0
        self.mean: Tensor | float = 0.0
        self.spread: Tensor | float = 0.0
        self.noise: Tensor | float = 0.0

    def of_draw(self, outputs: list[Any]) -> tuple[Tensor, Tensor]:
        """What is averaged: the means of one draw and their noise."""
        means, noises = zip(*map(_mean_and_noise, outputs), strict=True)
        return _together(means).double(), _together(noises).double()

    def add(self, draw: tuple[Tensor, Tensor]) -> None:
        """Takes one draw in."""
        value, noise = draw
        self.count += 1
        delta = value - self.mean
        self.mean = self.mean + delta / self.count
        self.spread = self.spread + delta * (value - self.mean)
        self.noise = self.noise + noise

    def result(self) -> RegressionPrediction:
        """The average over all draws so far."""
        blocks = (self.mean, self.noise / self.count, self.spread / self.count)
        return RegressionPrediction(*(torch.as_tensor(x).float() for x in blocks))


def exchange_for(model: nn.Module, values: Mapping[str, Tensor]) -> Exchange:
    """Parameters and buffers of a model, and the values by name that are to take their place."""
    slots = slots_of(model)
    for name, value in values.items():
        if slots[name].device != value.device:
            where = f"{name} of the model is on {slots[name].device}, that of the posterior on {value.device}"
            raise ValueError(f"{where}. Move the model.")
    # All of them, also those that keep their value: a forward pass may change buffers.
    kept = {name: values.get(name, slot.data) for name, slot in slots.items()}
    return Exchange(list(slots.values()), list(kept.values()))


def slots_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def logits_of(output: Any) -> Any:
    """The logits in what a model returns, where there is no doubt which dimension the classes are."""
    logits = named_output(output)
    dims = 2 if output is logits else 3  # those of transformers may be for every token
    if isinstance(logits, Tensor) and logits.ndim > dims:
        raise ValueError(
            f"The model must return logits of shape (inputs, classes), but the shape is {tuple(logits.shape)}. Where an input "
            "has several classes to predict, as of tokens or pixels, say where they are by a function that returns logits "
            "with the classes last: output=lambda y: y, if they are, or output=lambda y: y.movedim(1, -1)."
        )
    return logits


def named_output(output: Any) -> Any:
    """The `logits` of a dictionary, such as a ModelOutput of transformers; anything else as it is."""
    if not isinstance(output, Mapping):
        return output
    if "logits" not in output:
        raise ValueError(
            f"The model must return a tensor or have logits in its output, but has: {', '.join(map(str, output))}. Say "
            "what is to be averaged: output=lambda out: out[...]."
        )
    return output["logits"]


def _together(parts: Sequence[Tensor]) -> Tensor:
    """The outputs of all batches as one tensor."""
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"The outputs of batches have different shapes: {sorted(map(tuple, shapes))}. Pad all batches to one length, or "
            "make a list of what is to be predicted: output=lambda out: out.logits.flatten(0, 1) for all tokens in a row, "
            "output=lambda out: out.logits[:, -1] for the last one."
        )
    return torch.cat(list(parts))


def _mean_and_noise(output: Any) -> tuple[Tensor, Tensor]:
    if isinstance(output, tuple) and len(output) == 2:
        return _tensor(output[0], "a mean"), _tensor(output[1], "a variance")
    mean = _tensor(output, "a mean, or a pair of a mean and a variance")
    return mean, torch.zeros_like(mean)


def _tensor(output: Any, what: str) -> Tensor:
    if not isinstance(output, Tensor):
        raise ValueError(
            f"The model must return {what} as a tensor, but returned a {type(output).__name__}. Say which part of it is "
            "meant: output=lambda out: out[...]."
        )
    return output


def whole_number(name: str, value: Any, expected: str, least: int = 0, most: int = 1 << 32) -> int:
    """An argument that is a whole number, also one of numpy, or a float or tensor with such a value."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or not least <= int(number) < most:
        long = isinstance(number, int) and number.bit_length() > 64
        raise ValueError(f"{name} must be {expected}, but got {'a far larger number' if long else repr(value)}.")
    return int(number)
