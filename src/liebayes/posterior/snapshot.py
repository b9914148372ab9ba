"""The weights of a posterior: families of trained parameters, values of the others, and how they get into a module.

Frozen weights that outnumber the trained ones, as beside an adapter, are not copied: they stay in the module, and the snapshot
has their fingerprints.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..install import Alias, Keep, Turn
from ..posterior_file import Contents
from ..prediction import exchange_for, slots_of, whole_number
from ..rule import Family
from .frozen import fingerprints, require_frozen, whole
from .modules import export_refused, refuse_sharded, unwrap

if TYPE_CHECKING:
    from typing_extensions import Self


class Snapshot:
    """What a posterior is made of; the arguments are those of `Posterior`."""

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
            raise ValueError(f"The model has no parameters of the names {unknown}.")
        self.temperature = temperature
        others = {name: p for name, p in parameters.items() if name not in self.families}
        frozen = {name: p for name, p in others.items() if not p.requires_grad}
        if sum(p.numel() for p in frozen.values()) <= sum(f.event_shape.numel() for f in self.families.values()):
            frozen = {}
        with Turn(slots_of(self.model).values()):
            self.fixed: dict[str, Tensor] = {n: whole(p.detach()).clone() for n, p in others.items() if n not in frozen}
            """The values of other parameters."""
            self.frozen: dict[str, str] = fingerprints(frozen)
            """Fingerprints of frozen parameters, if they outnumber the trained ones; they stay in the module."""
            self.buffers: dict[str, Tensor] = {name: b.detach().clone() for name, b in self.model.named_buffers()}
        self.kept: dict[str, Tensor] = {}
        """For parameters that were pruned, where they were not; see `pruned`."""
        self._dtypes = {name: p.dtype for name, p in parameters.items()}

    def _contents(self) -> Contents:
        return Contents(self.families, self.fixed, self.buffers, self.temperature, self.frozen, self.kept)

    @classmethod
    def _of(cls, model: nn.Module, contents: Contents) -> Self:
        """One of these parts, whatever the module holds."""
        posterior = cls.__new__(cls)
        posterior.model = unwrap(model)
        posterior._compiled = model if getattr(model, "_orig_mod", None) is posterior.model else None
        posterior._dtypes = {name: p.dtype for name, p in posterior.model.named_parameters()}
        posterior.families, posterior.temperature = dict(contents.families), contents.temperature
        posterior.fixed, posterior.buffers = dict(contents.fixed), dict(contents.buffers)
        posterior.frozen, posterior.kept = dict(contents.frozen), dict(contents.kept)
        return posterior

    # Weights.

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw, with everything that `load_state_dict` needs: other parameters, and buffers.

        Frozen parameters that are not copied are those of the module itself.
        """
        return self._state(self._drawn(generator))

    def _drawn(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {name: self._shown(name, family.sample((), generator)) for name, family in self.families.items()}

    def _shown(self, name: str, value: Tensor) -> Tensor:
        """A value of a trained parameter in the module's precision, without what was pruned."""
        value = value.to(self._dtypes[name])
        return torch.where(self.kept[name], value, 0.0) if name in self.kept else value

    def _state(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values for all names of the module's state dictionary: those of tied parameters too, without passing buffers."""
        self._require_frozen()
        values = {**trained, **copies(self.fixed)}
        found: dict[str, Tensor] = {}
        first: dict[int, str] = {}
        for name, p in self.model.named_parameters(remove_duplicate=False):
            found[name] = found.get(first.setdefault(id(p), name), values[name] if name in values else whole(p.detach()))
        passing = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.model.named_modules()
            for name in module._non_persistent_buffers_set
        }
        return found | {name: b.clone() for name, b in self.buffers.items() if name not in passing}

    def mean(self) -> dict[str, Tensor]:
        """E[θ] for every parameter, otherwise as `sample`. A base without a mean (Cauchy) says so."""
        return self._state({name: self._shown(name, family.mean) for name, family in self.families.items()})

    def std(self) -> dict[str, Tensor]:
        """The standard deviation of every trained parameter."""
        widths = {name: family.stddev for name, family in self.families.items()}
        return {n: torch.where(self.kept[n], width, 0.0) if n in self.kept else width for n, width in widths.items()}

    def point(self) -> dict[str, Tensor]:
        """The point the module holds between steps: the shift, otherwise the mean, otherwise (no mean) the scale."""
        return self._state(self._point())

    def _point(self) -> dict[str, Tensor]:
        return {name: self._shown(name, _point(family)).clone() for name, family in self.families.items()}

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The log density of the trained parameters in a set of weights."""
        self._refuse_pruned("log_prob")
        given = self._trained("log_prob", weights)
        return torch.stack([family.log_prob(given[name].to(family.dtype)) for name, family in self.families.items()]).sum()

    def _trained(self, what: str, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        """Of a set of weights, those of the trained parameters; they may be arrays of numpy."""
        given = tensors_of(weights) if isinstance(weights, Mapping) else {}
        missing = sorted(set(self.families) - set(given))
        if missing:
            raise ValueError(f"{what} needs a tensor for every trained parameter, but these are missing: {missing}.")
        for name, family in self.families.items():
            came = tuple(given[name].shape) if isinstance(given[name], Tensor) else type(given[name]).__name__
            if came != family.event_shape:
                raise ValueError(
                    f"{what} needs a tensor of shape {tuple(family.event_shape)} for {name}, but got {came}. Pass one set "
                    "of weights, such as sample() gives."
                )
        return {name: given[name] for name in self.families}

    def as_distribution(self) -> dict[str, Distribution]:
        """The posterior of each trained parameter as a `torch.distributions` object, where the family has one."""
        self._refuse_pruned("as_distribution")
        return {name: family.as_distribution() for name, family in self.families.items()}

    @contextmanager
    def sampled(self, generator: torch.Generator | None = None) -> Iterator[nn.Module]:
        """A block in which the module holds one sample and the snapshot's buffers; afterwards it is what it was.

        Gradients through what was computed inside are those of the sample, also after the block. What is exported inside would
        not be: use `sample_module` for that.
        """
        alone = Turn(slots_of(self.model).values())
        with alone, self._holding(self._drawn(generator), Alias), export_refused(self.model):
            yield self.model

    @contextmanager
    def _holding(self, trained: Mapping[str, Tensor], keep: Keep | None = None, check: bool = True) -> Iterator[None]:
        """The module with these weights, and with copies of the snapshot's buffers."""
        if check:
            self._require_usable()
        fixed = self.fixed if keep is None else copies(self.fixed)
        with exchange_for(self.model, {**trained, **fixed, **copies(self.buffers)}).installed(keep):
            yield

    def _require_usable(self) -> None:
        refuse_sharded(self.model)
        self._require_frozen()

    def _require_frozen(self) -> None:
        require_frozen("The model has changed:", self.frozen, self.model)

    def _refuse_pruned(self, what: str) -> None:
        if self.kept:
            raise ValueError(f"{what} is for posteriors with a density, which pruned weights do not have: they are zero.")

    @property
    def device(self) -> torch.device:
        """Where the posterior is."""
        return next(iter(self.families.values())).device

    def _generator(self, seed: int) -> torch.Generator:
        number = whole_number("seed", seed, "a whole number", -1 << 63, 1 << 64)
        return torch.Generator(device=self.device).manual_seed(number)


def tensors_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of numpy as tensors; anything else as it is."""
    return {name: torch.as_tensor(x) if hasattr(x, "__array__") else x for name, x in values.items()}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is handed out may be written to; a snapshot stays as it is."""
    return {name: value.clone() for name, value in tensors.items()}


def _point(family: Family[Any]) -> Tensor:
    if hasattr(family.element, "shift"):
        return family.element.shift
    try:
        return family.mean
    except ValueError:
        return family.element.scale
