"""The posterior predictive p(y | x) = ∫ p(y | g·ε, x) q₀(ε) dε, averaged over draws (Sec. 5), and its uncertainty."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import threads
from .threads import CallersContext, Probe, Substitution


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


class Classes:
    """Averages logits over draws, which come one by one. A single logit stands for two classes."""

    def __init__(self) -> None:
        self.count: int = 0
        self.total: Tensor | float = 0.0
        self.expected_entropy: Tensor | float = 0.0

    def of_draw(self, outputs: list[Any]) -> tuple[Tensor, Tensor]:
        """What is averaged: the probabilities of one draw and their entropy."""
        logits = torch.cat([_tensor(output, "logits") for output in outputs]).double()
        if logits.ndim > 2:
            raise ValueError(
                f"The model must return logits of shape (inputs, classes), but the shape is {tuple(logits.shape)}. Where an "
                "input has several classes to predict, as of pixels, wrap the model so that they are the first dimension."
            )
        if logits.ndim == 1 or logits.shape[-1] == 1:
            logits = torch.stack([torch.zeros_like(logits.flatten()), logits.flatten()], -1)
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
        pairs = list(map(_mean_and_noise, outputs))
        return torch.cat([pair[0] for pair in pairs]).double(), torch.cat([pair[1] for pair in pairs]).double()

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


@dataclass(frozen=True)
class Drawing:
    """One draw after the other, each over all inputs, into an average; in threads where the model allows it.

    Weights change once for all inputs: new ones for every batch would cost more, and would not be one function. They are
    drawn and averaged in order, so that the result does not depend on the number of threads.
    """

    model: nn.Module
    called: nn.Module
    """The model, or what has compiled it."""
    draw: Callable[[], dict[str, Tensor]]
    """The next set of weights and buffers, by name."""
    count: int
    batches: list[Tensor]

    def into(self, average: Classes | Values, parallel: bool | None) -> None:
        """Adds all draws to the average: in threads (True), by a loop (False), or as it turns out (None)."""
        first = self.draw()
        reason = "parallel=False" if parallel is False else self._reason_for_loop(first, insisting=parallel is True)
        if reason is None:
            return self._by_threads(first, average)
        if parallel:
            raise RuntimeError(f"parallel=True, but predictions cannot be made in threads: {reason}.")
        for number in range(self.count):
            with installed(self.model, self.draw() if number else first):
                outputs = [self.called(batch) for batch in self.batches]
            average.add(average.of_draw(outputs))

    def _by_threads(self, first: dict[str, Tensor], average: Classes | Values) -> None:
        context = CallersContext()

        @torch.no_grad()
        def begin(number: int) -> dict[int, Tensor]:
            return self._by_identity(self.draw() if number else first)

        @torch.no_grad()
        def compute(_worker: int, _number: int, weights: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
            with context.here():
                with Substitution(weights):
                    outputs = [context.run(self.model, batch) for batch in self.batches]
                return average.of_draw(outputs)

        @torch.no_grad()
        def take(_number: int, one: tuple[Tensor, Tensor]) -> None:
            average.add(one)

        threads.shared_workers().run(self.count, threads.affordable_workers(_size(first)), begin, compute, take)

    def _by_identity(self, weights: dict[str, Tensor]) -> dict[int, Tensor]:
        slots = slots_of(self.model)
        return {id(slots[name]): value for name, value in weights.items()}

    def _reason_for_loop(self, weights: dict[str, Tensor], insisting: bool) -> str | None:
        """Found out with two inputs, which must give the same both ways."""
        if self.count == 1:
            return "there is one draw"
        if not insisting and torch.get_num_threads() == 1:
            return "torch has one thread"
        reason = None if insisting else threads.not_worthwhile(_size(weights))
        reason = reason or threads.obstacle([*slots_of(self.model).values(), *weights.values()])
        if reason is not None:
            return reason
        few, probe, numbers = self.batches[0][:2], Probe(self.model), threads.random_state()
        if probe.reason is not None:  # hooks, for example, which would see the calls below
            return probe.reason
        try:
            with installed(self.model, weights), probe.first_call():
                expected = self.model(few)
            if probe.reason is None:
                with probe.second_call(), probe.substitution(self._by_identity(weights), lambda _: None):
                    found = self.model(few)
                torch.testing.assert_close(found, expected, equal_nan=True)
        except Exception as error:  # of the model with two inputs, or of the comparison
            return f"two inputs alone do not give the same both ways ({type(error).__name__})"
        finally:
            torch.default_generator.set_state(numbers)
        return probe.reason


def slots_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextmanager
def installed(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model holds these parameters and buffers; afterwards, whatever happens, it is what it was.

    Storages are exchanged, so that they are found wherever a model keeps its parameters, in a plain list also.
    """
    slots = slots_of(model)
    for name, value in values.items():
        if slots[name].device != value.device:
            where = f"{name} of the model is on {slots[name].device}, that of the posterior on {value.device}"
            raise ValueError(f"{where}. Move the model.")
    kept = [(slot, slot.data) for slot in slots.values()]
    try:
        for name, value in values.items():
            slots[name].data = value
        torch.clear_autocast_cache()  # casts of other weights under the same names
        yield
    finally:
        for slot, value in kept:
            slot.data = value
        torch.clear_autocast_cache()


def _size(weights: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in weights.values())


def _mean_and_noise(output: Any) -> tuple[Tensor, Tensor]:
    if isinstance(output, tuple) and len(output) == 2:
        return _tensor(output[0], "a mean"), _tensor(output[1], "a variance")
    mean = _tensor(output, "a mean, or a pair of a mean and a variance")
    return mean, torch.zeros_like(mean)


def _tensor(output: Any, what: str) -> Tensor:
    if not isinstance(output, Tensor):
        raise ValueError(f"The model must return {what} as a tensor, but returned a {type(output).__name__}. Wrap it.")
    return output


def input_batches(inputs: Any, batch_size: int | None, device: torch.device) -> Iterator[Tensor]:
    """Batches of inputs; of a batch with targets, the inputs. At least one."""
    if batch_size is not None and not (isinstance(batch_size, numbers.Integral) and batch_size >= 1):
        raise ValueError(f"batch_size must be at least 1, but got {batch_size!r}.")
    if isinstance(inputs, Tensor):
        if len(inputs) == 0:
            raise ValueError("There is nothing to predict: inputs is empty.")
        yield from inputs.to(device).split(batch_size or len(inputs))
        return
    array = hasattr(inputs, "__array__")
    if array or isinstance(inputs, (tuple, Mapping)) or not isinstance(inputs, Iterable):
        way = "Wrap a model that takes several inputs into one that takes them as one tensor."
        if isinstance(inputs, tuple):  # batches, as split gives them, or several inputs of one model
            way = f"Make a list of batches: list(...). {way}"
        raise ValueError(
            f"inputs must be one tensor, or an iterable of batches such as a DataLoader, but is a {type(inputs).__name__}. "
            f"{'Make it a tensor: torch.as_tensor(...).' if array else way}"
        )
    empty = True
    for batch in inputs:
        empty = False
        members: list[Any] = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if not members or len(members) > 2 or not isinstance(members[0], Tensor):
            kinds = ", ".join(type(member).__name__ for member in members)
            raise ValueError(
                f"A batch must be a tensor of inputs, or a pair of inputs and targets, but has: {kinds}. Of an array make a "
                "tensor: torch.as_tensor(...). A model is called with one tensor: wrap one that takes several inputs."
            )
        yield members[0].to(device)
    if empty:
        raise ValueError("There is nothing to predict: the loader gave no batch.")
