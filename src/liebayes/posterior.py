"""What training leaves: a posterior over the weights of a module.

A `Posterior` is a snapshot: for every trained parameter the member of its family, for everything else its value, buffers
included. It refers to the module for its architecture, and never changes it but inside `sampled()`.
"""

from __future__ import annotations

import math
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .bases import Base
from .groups import LieGroup
from .install import Alias, Turn
from .posterior_file import Contents, read, write
from .prediction import (
    Classes,
    ClassPrediction,
    FreeEnergy,
    RegressionPrediction,
    Values,
    exchange_for,
    input_batches,
    slots_of,
    whole_number,
)
from .rule import Family


class Posterior:
    """A distribution over the weights of a module; `optimizer.posterior(model)` makes one, `Posterior.load` reads one.

    Args:
        model: the module, used for its architecture; wrappers of torch.compile and data parallelism are taken off. Of a
            compiled module, predictions are compiled too.
        families: for the names of trained parameters (those of the module without wrappers), the member of its family.
        temperature: the τ it was trained with, for the record.
    """

    def __init__(self, model: nn.Module, families: Mapping[str, Family[Any]], *, temperature: float = 1.0) -> None:
        if not isinstance(model, nn.Module) or not isinstance(families, Mapping):
            raise ValueError(
                "A posterior is made of a module and a dictionary of families by parameter names, but got a "
                f"{type(model).__name__} and a {type(families).__name__}."
            )
        if not (isinstance(temperature, numbers.Real) and 0 <= temperature <= sys.float_info.max):
            raise ValueError(f"temperature must be a number, zero or positive, but got {temperature!r}.")
        self.model: nn.Module = unwrap(model)
        self._compiled: nn.Module | None = model if getattr(model, "_orig_mod", None) is self.model else None
        parameters = dict(self.model.named_parameters())
        self.families: dict[str, Family[Any]] = dict(families)
        unknown = sorted(set(self.families) - set(parameters))
        if unknown or not self.families:
            raise ValueError(f"A posterior is over parameters of its model, which has none of the names {unknown}.")
        self.temperature = temperature
        fixed = {name: p for name, p in parameters.items() if name not in self.families}
        with Turn(slots_of(self.model).values()):
            self.fixed: dict[str, Tensor] = {name: _whole(p.detach()).clone() for name, p in fixed.items()}
            self.buffers: dict[str, Tensor] = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        self._dtypes = {name: p.dtype for name, p in parameters.items()}

    # Weights.

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One set of weights: a draw for every trained parameter, the value of every other."""
        return {**self._drawn(generator), **_copies(self.fixed)}

    def _drawn(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {name: family.sample((), generator).to(self._dtypes[name]) for name, family in self.families.items()}

    def mean(self) -> dict[str, Tensor]:
        """E[θ] for every parameter. A base without a mean (Cauchy) says so."""
        return {**{n: f.mean.to(self._dtypes[n]) for n, f in self.families.items()}, **_copies(self.fixed)}

    def std(self) -> dict[str, Tensor]:
        """The standard deviation of every trained parameter."""
        return {name: family.stddev for name, family in self.families.items()}

    def point(self) -> dict[str, Tensor]:
        """The point the module holds between steps: the shift, otherwise the mean, otherwise (no mean) the scale."""
        return {**{n: _point(f).to(self._dtypes[n], copy=True) for n, f in self.families.items()}, **_copies(self.fixed)}

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The log density of the trained parameters in a set of weights."""
        missing = sorted(set(self.families) - set(weights if isinstance(weights, Mapping) else ()))
        if missing:
            raise ValueError(f"log_prob needs a tensor for every trained parameter, but these are missing: {missing}.")
        for name, family in self.families.items():
            came = tuple(weights[name].shape) if isinstance(weights[name], Tensor) else type(weights[name]).__name__
            if came != family.event_shape:
                raise ValueError(
                    f"log_prob needs a tensor of shape {tuple(family.event_shape)} for {name}, but got {came}. Pass one set "
                    "of weights, such as sample() gives."
                )
        return torch.stack([family.log_prob(weights[name].to(family.dtype)) for name, family in self.families.items()]).sum()

    def as_distribution(self) -> dict[str, Distribution]:
        """The posterior of each trained parameter as a `torch.distributions` object, where the family has one."""
        return {name: family.as_distribution() for name, family in self.families.items()}

    @contextmanager
    def sampled(self, generator: torch.Generator | None = None) -> Iterator[nn.Module]:
        """A block in which the module holds one sample and the snapshot's buffers; afterwards it is what it was.

        Gradients through what was computed inside are those of the sample, also after the block.
        """
        _refuse_sharded(self.model)
        values = {**self.sample(generator), **_copies(self.buffers)}
        with Turn(slots_of(self.model).values()), exchange_for(self.model, values).installed(Alias):
            yield self.model

    # Predictions.

    @overload
    def predict(
        self,
        inputs: Any,
        samples: int = ...,
        *,
        batch_size: int | None = ...,
        task: Literal["classification"] = ...,
        seed: int = ...,
    ) -> ClassPrediction: ...

    @overload
    def predict(
        self,
        inputs: Any,
        samples: int = ...,
        *,
        batch_size: int | None = ...,
        task: Literal["regression"],
        seed: int = ...,
    ) -> RegressionPrediction: ...

    def predict(
        self,
        inputs: Any,
        samples: int = 32,
        *,
        batch_size: int | None = None,
        task: Literal["classification", "regression"] = "classification",
        seed: int = 0,
    ) -> ClassPrediction | RegressionPrediction:
        """The posterior predictive (Sec. 5): the average over one set of draws from the posterior.

        The draws are in the module while it is called, and afterwards the module is what it was. Threads take turns: several
        may predict with one module, also while another one trains it by an optimizer of this library, and each gets what it
        would get alone. Whatever else uses the module meanwhile (a forward pass of your own, `train()`, `state_dict()`) may
        find a draw in it: give the posterior a module of its own for that, `Posterior(copy.deepcopy(model), q.families)`.

        Args:
            inputs: a tensor of inputs, or an iterable of batches such as a `DataLoader`, whose targets are passed over; all of
                them are in memory at once. The model is called with one tensor.
            samples: how many draws; 0 predicts with the point estimate.
            batch_size: splits a tensor of inputs; all at once by default.
            task: "classification", for models that return logits (inputs × classes), or "regression", for models that return a
                mean, or a pair of a mean and a noise variance.
            seed: fixes the draws.
        """
        if task not in ("classification", "regression"):
            raise ValueError(f'task must be "classification" or "regression", but got {task!r}.')
        samples = whole_number("samples", samples, "a whole number, 0 for the point estimate")
        _refuse_sharded(self.model)
        first = next(iter(self.families.values()))
        generator = self._generator(seed)
        batches = list(input_batches(inputs, batch_size, first.device))

        average = Classes() if task == "classification" else Values()
        called = self.model if self._compiled is None else self._compiled
        with Turn(slots_of(self.model).values()), torch.no_grad(), evaluation_mode(self.model):
            for _ in range(max(samples, 1)):
                weights = self._drawn(generator) if samples else self.point()
                # Weights change once for all inputs: new ones for every batch would cost more, and not be one function.
                with exchange_for(self.model, {**weights, **self.fixed, **_copies(self.buffers)}).installed():
                    outputs = [called(batch) for batch in batches]
                average.add(average.of_draw(outputs))
        return average.result()

    def free_energy(
        self, batches: Iterable[Any], loss: Callable[[Any, Tensor], Tensor], *, prior: float, samples: int = 32, seed: int = 0
    ) -> FreeEnergy:
        """E_q[Σ loss] + KL(q ‖ N(0, 1/prior)), what training minimises at temperature 1.

        It compares posteriors and models without test data.

        Args:
            batches: pairs of inputs and targets that cover the training data once, without augmentation.
            loss: from the model's output and the targets to the **sum** of the losses of a batch: −log-likelihoods in nats.
            prior: the precision of the prior on the trained weights.
            samples: draws for the expectation.
            seed: fixes the draws.

        >>> model = nn.Linear(3, 1)
        >>> from liebayes import KroneckerBLR
        >>> q = KroneckerBLR(model.parameters(), data_size=8, prior=1.0).posterior(model)
        >>> data = [(torch.ones(8, 3), torch.zeros(8, 1))]
        >>> q.free_energy(data, lambda output, y: 0.5 * (output - y).square().sum(), prior=1.0).kl > 0
        True
        """
        samples = whole_number("samples", samples, "a whole number of at least 2", 2)
        if not (isinstance(prior, (int, float)) and math.isfinite(prior) and prior > 0):
            raise ValueError(f"prior must be the precision of N(0, 1/prior), a positive number, but got {prior!r}.")
        _refuse_sharded(self.model)
        generator, device = self._generator(seed), next(iter(self.families.values())).device
        pairs = [(x.to(device), y.to(device)) for x, y in batches]
        if not pairs:
            raise ValueError("There is nothing to evaluate: batches gave no pair of inputs and targets.")
        totals = []
        with Turn(slots_of(self.model).values()), torch.no_grad(), evaluation_mode(self.model):
            for _ in range(samples):
                with exchange_for(self.model, {**self._drawn(generator), **self.fixed, **_copies(self.buffers)}).installed():
                    totals.append(sum(float(loss(self.model(x), y)) for x, y in pairs))
        kl = 0.0
        for family in self.families.values():
            spread = (family.mean.double().square() + family.stddev.double().square()).sum()
            size = family.event_shape.numel()
            kl += float(0.5 * prior * spread - family.entropy()) + 0.5 * size * math.log(2 * math.pi / prior)
        found = torch.tensor(totals, dtype=torch.float64)
        return FreeEnergy(float(found.mean()), kl, float(found.std()) / math.sqrt(samples))

    def _generator(self, seed: int) -> torch.Generator:
        device = next(iter(self.families.values())).device
        return torch.Generator(device=device).manual_seed(whole_number("seed", seed, "a whole number", -1 << 63, 1 << 64))

    def recompute_statistics(self, loader: Iterable[Any], *, sample: bool = False, seed: int = 0) -> None:
        """Sets the running statistics of batch norms to those of the point estimate, or of one sample, on the given inputs.

        In training they come from sampled weights, each batch from another sample.
        """
        norms = [m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
        if not norms:
            return
        first = next(iter(self.families.values()))
        weights = self.sample(self._generator(seed)) if sample else self.point()
        _refuse_sharded(self.model)
        values = {**weights, **_copies(self.buffers)}
        alone = Turn(slots_of(self.model).values())
        with alone, torch.no_grad(), evaluation_mode(self.model), exchange_for(self.model, values).installed():
            momenta = [norm.momentum for norm in norms]
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over batches
            try:
                for batch in input_batches(loader, None, first.device):
                    self.model(batch)
            finally:
                for norm, momentum in zip(norms, momenta, strict=True):
                    norm.momentum = momentum
            self.buffers = {name: b.detach().clone() for name, b in self.model.named_buffers()}

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the posterior as safetensors, with a readable header and a checksum; needs the package `safetensors`.

        The file appears whole or not at all, and the same posterior gives the same bytes.
        """
        write(Path(path), Contents(self.families, self.fixed, self.buffers, self.temperature))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        groups: Iterable[LieGroup[Any]] = (),
        bases: Iterable[Base] = (),
    ) -> Posterior:
        """Reads a posterior for a module of the same architecture. Groups and bases of the user's own are passed along.

        Nothing in the file is executed. A file that is damaged, or does not fit the module, is refused.
        """
        contents = read(Path(path), unwrap(model), groups, bases)
        posterior = cls(model, contents.families, temperature=contents.temperature)
        posterior.fixed, posterior.buffers = dict(contents.fixed), dict(contents.buffers)
        return posterior

    def __repr__(self) -> str:
        count = sum(family.event_shape.numel() for family in self.families.values())
        kinds = sorted({f"{family.group} on {family.base}" for family in self.families.values()})
        return f"Posterior({count:,} weights: {'; '.join(kinds)})"


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside torch.compile and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is handed out may be written to; a snapshot stays as it is."""
    return {name: value.clone() for name, value in tensors.items()}


def _whole(t: Tensor) -> Tensor:
    return t.full_tensor() if hasattr(t, "full_tensor") else t  # pyright: ignore[reportAttributeAccessIssue]


def _refuse_sharded(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # loaded if the model was sharded, and slow to load otherwise
    if fsdp is not None and any(isinstance(module, getattr(fsdp, "FSDPModule", ())) for module in model.modules()):
        raise ValueError(
            "The model is sharded (fully_shard), and puts its own weights in place of a sample's. Save the posterior, and "
            "load it for a plain model: Posterior.load(path, model)."
        )


def _point(family: Family[Any]) -> Tensor:
    if hasattr(family.element, "shift"):
        return family.element.shift
    try:
        return family.mean
    except ValueError:
        return family.element.scale


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; every submodule gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
