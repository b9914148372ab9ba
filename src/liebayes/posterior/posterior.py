"""What training leaves: a posterior over the weights of a module.

A `Posterior` is a snapshot: for every trained parameter the member of its family, for everything else its value, buffers
included (`snapshot`). It refers to the module for its architecture, and never changes it but inside `sampled()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ..bases import Base
from ..groups import LieGroup
from ..install import Turn
from ..posterior_file import Contents, read, write
from ..prediction import (
    Classes,
    ClassPrediction,
    FreeEnergy,
    RegressionPrediction,
    Values,
    logits_of,
    named_output,
    slots_of,
    whole_number,
)
from .combining import centred, counted, merged, moved, on
from .frozen import fingerprints, require_frozen, whole
from .inputs import call, input_batches
from .measuring import free_energy, recompute_statistics
from .modules import copy_with, evaluation_mode, unwrap
from .pruning import keep_by_signal
from .snapshot import Snapshot, copies, tensors_of


class Posterior(Snapshot):
    """A distribution over the weights of a module; `optimizer.posterior(model)` makes one, `Posterior.load` reads one.

    Args:
        model: the module, used for its architecture and for frozen weights that are not copied; wrappers of torch.compile and
            data parallelism are taken off. Of a compiled module, predictions are compiled too.
        families: for the names of trained parameters (those of the module without wrappers), the member of its family.
        temperature: the τ it was trained with, for the record.
    """

    # Predictions.

    @overload
    def predict(
        self, inputs: Any, samples: int = ..., *, batch_size: int | None = ...,
        output: Callable[[Any], Any] | None = ..., task: Literal["classification"] = ..., seed: int = ...,
    ) -> ClassPrediction: ...  # fmt: skip

    @overload
    def predict(
        self, inputs: Any, samples: int = ..., *, batch_size: int | None = ...,
        output: Callable[[Any], Any] | None = ..., task: Literal["regression"], seed: int = ...,
    ) -> RegressionPrediction: ...  # fmt: skip

    def predict(
        self,
        inputs: Any,
        samples: int = 32,
        *,
        batch_size: int | None = None,
        output: Callable[[Any], Any] | None = None,
        task: Literal["classification", "regression"] = "classification",
        seed: int = 0,
    ) -> ClassPrediction | RegressionPrediction:
        """The posterior predictive (Sec. 5): the average over one set of draws from the posterior.

        The draws are in the module while it is called, and afterwards the module is what it was. Threads take turns: several
        may predict with one module, also while another one trains it by an optimizer of this library, and each gets what it
        would get alone. Whatever else uses the module meanwhile (a forward pass of your own, `train()`, `state_dict()`) may
        find a draw in it: give the posterior a module of its own for that, `Posterior(copy.deepcopy(model), q.families)`.
        A thread in a block of one module that needs another module, whose thread waits for it, gets a RuntimeError.

        Args:
            inputs: a tensor, a dictionary of named inputs such as a tokenizer gives, or an iterable of such batches, also with
                targets, which are passed over, such as a `DataLoader`; all of them are in memory at once. The model is called
                with one tensor, or with named inputs as keyword arguments.
            samples: how many draws; 0 predicts with the point estimate.
            batch_size: splits a tensor or a dictionary of inputs; all at once by default.
            output: what of the model's output is averaged: for classes logits, of any shape, with the classes last. By default
                the output is logits (inputs × classes), or has `logits`, also of every token, as models of transformers do.
            task: "classification", for models that return logits, or "regression", for models that return a mean, or a pair of
                a mean and a noise variance.
            seed: fixes the draws.
        """
        if task not in ("classification", "regression"):
            raise ValueError(f'task must be "classification" or "regression", but got {task!r}.')
        if output is not None and not callable(output):
            raise ValueError(f"output must be a function of the model's output, but is a {type(output).__name__}.")
        samples = whole_number("samples", samples, "a whole number, 0 for the point estimate")
        self._require_usable()
        generator = self._generator(seed)
        batches = list(input_batches(inputs, batch_size, self.device, self.model))

        average = Classes() if task == "classification" else Values()
        chosen = output or (logits_of if task == "classification" else named_output)
        called = self.model if self._compiled is None else self._compiled
        with Turn(slots_of(self.model).values()), torch.no_grad(), evaluation_mode(self.model):
            for _ in range(max(samples, 1)):
                weights = self._drawn(generator) if samples else self._point()
                # Weights change once for all inputs: new ones for every batch would cost more, and not be one function.
                with self._holding(weights, check=False):
                    outputs = [chosen(call(called, batch)) for batch in batches]
                average.add(average.of_draw(outputs))
        return average.result()

    def free_energy(
        self, batches: Iterable[Any], loss: Callable[[Any, Any], Tensor], *, prior: float, samples: int = 32, seed: int = 0
    ) -> FreeEnergy:
        """E_q[Σ loss] + KL(q ‖ N(0, 1/prior)), what training minimises at temperature 1.

        It compares posteriors and models without test data.

        Args:
            batches: pairs of inputs and targets that cover the training data once, without augmentation; or dictionaries of
                both.
            loss: from the model's output and the targets (or the dictionary) to the **sum** of the losses of a batch:
                −log-likelihoods in nats.
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
        self._refuse_pruned("free_energy")
        return free_energy(self, batches, loss, prior, samples, self._generator(seed))

    def recompute_statistics(self, loader: Iterable[Any], *, sample: bool = False, seed: int = 0) -> None:
        """Sets the running statistics of batch norms to those of the point estimate, or of one sample, on the given inputs.

        In training they come from sampled weights, each batch from another sample.
        """
        recompute_statistics(self, loader, self._drawn(self._generator(seed)) if sample else self._point())

    # Other posteriors, and modules.

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Posterior:
        """The posterior on another device or for another precision, with a module of its own, frozen weights included.

        Floating-point weights and buffers get the dtype; what the posterior itself is made of stays float32 at least.

        >>> from liebayes import AffineBLR
        >>> model = nn.Linear(3, 1)
        >>> q = AffineBLR(model.parameters(), data_size=8).posterior(model)
        >>> q.to(torch.bfloat16).sample()["weight"].dtype
        torch.bfloat16
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"A posterior is of floating-point numbers, but got the dtype {dtype!r}.")
        self._require_frozen()
        slots = {name: slot.detach().clone() for name, slot in moved(slots_of(self.model), device, dtype).items()}
        model = copy_with(self.model, slots)
        frozen = fingerprints({name: p for name, p in model.named_parameters() if name in self.frozen})
        own = None if dtype is None else torch.promote_types(dtype, torch.float32)
        families = {name: on(family, device, own) for name, family in self.families.items()}
        fixed, buffers, kept = (moved(tensors, device, dtype) for tensors in (self.fixed, self.buffers, self.kept))
        return Posterior._of(model, Contents(families, fixed, buffers, self.temperature, frozen, kept))

    def module(self, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A copy of the model in evaluation mode with these weights, those of the point by default, and the buffers.

        It is a plain module, which shares nothing with the posterior but frozen weights.
        """
        given = self._point() if weights is None else self._trained("module", weights)
        trained = {name: weight.detach().to(self._dtypes[name], copy=True) for name, weight in given.items()}
        self._require_usable()
        return copy_with(self.model, {**trained, **copies(self.fixed), **copies(self.buffers)})

    def sample_module(self, generator: torch.Generator | None = None) -> nn.Module:
        """One sample as a plain module, for torch.export, ONNX, or code that wants a module: see `module`."""
        return self.module(self._drawn(generator))

    def centred_at(self, weights: nn.Module | Mapping[str, Tensor]) -> Posterior:
        """The same widths around another point, by names of parameters.

        Of an average of the model that was trained along with it, say:

        >>> import liebayes as lb
        >>> model = nn.Linear(3, 2)
        >>> average = torch.optim.swa_utils.AveragedModel(model)
        >>> posterior = lb.AffineBLR(model.parameters(), data_size=10).posterior(model).centred_at(average)
        >>> torch.equal(posterior.point()["weight"], average.module.weight)
        True

        Other parameters and buffers are taken from there too, where it has them; frozen ones stay.
        """
        values = slots_of(unwrap(weights)) if isinstance(weights, nn.Module) else weights
        values = tensors_of(values) if isinstance(values, Mapping) else values
        return Posterior._of(self.model, centred(self._contents(), values))

    def pruned(self, share: float) -> Posterior:
        """The posterior without this share of its weights: those with the least |mean|/width become zero, over all tensors.

        Where widths are not learned (`Additive`), that is pruning by magnitude. Vectors (biases, norms) are left as they are.
        """
        contents = self._contents()
        return Posterior._of(self.model, contents._replace(kept=keep_by_signal(self.families, self.kept, share)))

    def merged(self, other: Posterior, *, prior: float | Posterior) -> Posterior:
        """What training on the data of both would have given: q₁·q₂ over the prior, which both have counted.

        Precisions add up, and the mean is the one they weigh: Λ = Λ₁ + Λ₂ − Λ₀ and Λm = Λ₁m₁ + Λ₂m₂ − Λ₀m₀ (diagonal affine
        groups on Normal bases). Both must be over the same parameters beside the same frozen weights.

        Args:
            other: the other posterior.
            prior: the precision δ that both were trained with, or the posterior that was the prior of both.
        """
        if not isinstance(other, Posterior):
            raise ValueError(f"A posterior is merged with another, but got {other!r}.")
        before = prior._contents() if isinstance(prior, Posterior) else prior
        return Posterior._of(self.model, merged(self._contents(), other._contents(), before))

    def counted(self, times: float, *, prior: float | Posterior) -> Posterior:
        """The posterior around the same point, with its data counted so many times: Λ₀ + times·(Λ − Λ₀).

        As the next prior it holds the weights by that much more, as the strength of EWC does (diagonal affine groups on Normal
        bases).

        Args:
            times: how often; 1 changes nothing.
            prior: the precision δ it was trained with, or the posterior that was its prior.
        """
        before = prior._contents() if isinstance(prior, Posterior) else prior
        return Posterior._of(self.model, counted(self._contents(), times, before))

    # Files.

    def save(self, path: str | os.PathLike[str], *, frozen: bool = False) -> None:
        """Writes the posterior as safetensors, with a readable header and a checksum; needs the package `safetensors`.

        The file appears whole or not at all, and the same posterior gives the same bytes.

        Args:
            path: the file.
            frozen: also the frozen weights that stay in the module, so that it can be loaded for a model with others.
        """
        contents = self._contents()
        if frozen:
            self._require_frozen()
            values = {name: whole(p.detach()) for name, p in self.model.named_parameters() if name in self.frozen}
            contents = contents._replace(fixed={**self.fixed, **values}, frozen={})
        write(Path(path), contents)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        groups: Iterable[LieGroup[Any]] = (),
        bases: Iterable[Base] = (),
    ) -> Posterior:
        """Reads a posterior for a module of the same architecture. Pass your own groups and bases along.

        Nothing in the file is executed. A file that is damaged, or does not fit the module, or was trained beside other frozen
        weights than the module has, is refused.
        """
        if not isinstance(model, nn.Module):
            raise ValueError(f"A posterior is loaded for a module, but got {model!r}. Build the model, and pass it.")
        contents = read(Path(path), unwrap(model), groups, bases)
        require_frozen(f"{path} does not fit the model:", contents.frozen, unwrap(model))
        return cls._of(model, contents)

    def __repr__(self) -> str:
        count = sum(family.event_shape.numel() for family in self.families.values())
        kinds = sorted({f"{family.group} on {family.base}" for family in self.families.values()})
        beside = f" beside {len(self.frozen)} frozen tensors" if self.frozen else ""
        return f"Posterior({count:,} weights: {'; '.join(kinds)}{beside})"
