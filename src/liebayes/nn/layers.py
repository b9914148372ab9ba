"""Which tensors of which layers are connections between units, and how they are laid out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LINEAR = (nn.Linear,)
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
EMBEDDING = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
CELL = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
ATTENTION = (nn.MultiheadAttention,)
KNOWN = (*LINEAR, *CONVOLUTION, *TRANSPOSED, *EMBEDDING, *RECURRENT, *CELL, *ATTENTION, nn.Bilinear)


@dataclass(frozen=True)
class Layer:
    """A layer of connections. The rest of a network (norms, thresholds, ...) is left unchanged."""

    name: str
    module: nn.Module

    @property
    def weights(self) -> list[str]:
        """Names of the tensors that connect units."""
        return [name for name, _ in self.module.named_parameters(recurse=False) if "weight" in name]

    @property
    def biases(self) -> list[str]:
        """Names of the tensors that are added to units, including the key and value that attention may append."""
        return [name for name, _ in self.module.named_parameters(recurse=False) if "bias" in name]

    def reads_inputs(self, weight: str) -> bool:
        """Whether a weight reads what comes into the layer, rather than the layer's own units."""
        recurrent = weight.startswith(("weight_hh", "weight_hr"))
        return not recurrent and not (isinstance(self.module, RECURRENT) and not weight.endswith(("_l0", "_l0_reverse")))

    @property
    def channels(self) -> int | None:
        """The number of output channels of a convolution; the next linear layer reads each at several positions."""
        return self.module.out_channels if isinstance(self.module, (*CONVOLUTION, *TRANSPOSED)) else None

    def label(self, tensor: str = "") -> str:
        """A name for messages."""
        where = ".".join(part for part in (self.name, tensor) if part) or "the module itself"
        return f"{where} ({kind_of(self.module)})"

    def unit_count(self, weight: str) -> int:
        """How many inputs a weight reads; every position of a channel counts."""
        shape = getattr(self.module, weight).shape
        if isinstance(self.module, (*TRANSPOSED, *EMBEDDING)):
            return shape[0]
        return shape[1] * (self.module.groups if isinstance(self.module, CONVOLUTION) else 1)

    def spread(self, weight: str, per_unit: Tensor) -> Tensor:
        """One number per input, in a shape that broadcasts to the weight."""
        ndim = getattr(self.module, weight).ndim
        if isinstance(self.module, (*TRANSPOSED, *EMBEDDING)):
            return per_unit.view(-1, *[1] * (ndim - 1))
        if isinstance(self.module, CONVOLUTION) and self.module.groups > 1:
            rows = per_unit.view(self.module.groups, -1)  # the inputs of each group, for all outputs of that group
            rows = rows.repeat_interleave(self.module.out_channels // self.module.groups, 0)
            return rows.view(*rows.shape, *[1] * (ndim - 2))
        return per_unit.view(1, -1, *[1] * (ndim - 2))

    def to_rows(self, t: Tensor) -> Tensor:
        """A tensor in the shape of a weight as (outputs, fan in): a row holds all connections to one output."""
        if isinstance(self.module, EMBEDDING):
            return t.T
        if isinstance(self.module, TRANSPOSED):  # (groups · inputs, outputs, positions)
            groups = self.module.groups
            return t.flatten(2).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flatten(1)
        return t.flatten(1)

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        """The inverse of `to_rows`."""
        if isinstance(self.module, EMBEDDING):
            return rows.T.contiguous()
        if isinstance(self.module, TRANSPOSED):
            groups = self.module.groups
            split = rows.view(groups, like.shape[1], like.shape[0] // groups, -1)
            return split.transpose(1, 2).reshape(like.shape)
        return rows.view(like.shape)


def kind_of(module: nn.Module) -> str:
    """The name of a layer's type."""
    return f"nn.{parametrize.type_before_parametrizations(module).__name__}"


def find_layers(model: nn.Module, exclude: Collection[str] = ()) -> list[Layer]:
    """The layers to convert, in the order of registration. An error names a layer that cannot be converted."""
    names = {name for name, _ in model.named_modules()}
    unknown = sorted(set(exclude) - names)
    if unknown:
        raise ValueError(f"exclude names modules that the model does not have: {', '.join(unknown)}.")
    kept = {name for name in names for prefix in exclude if name == prefix or name.startswith(f"{prefix}.")}
    found = [Layer(name, module) for name, module in model.named_modules() if isinstance(module, KNOWN) and name not in kept]
    for layer in found:
        _require_convertible(layer)
    _require_untied(model, found)
    if not found:
        raise ValueError("The model has no layer with connections: linear, convolution, embedding, recurrent or attention.")
    return found


def _require_convertible(layer: Layer) -> None:
    module = layer.module
    if parametrize.is_parametrized(module):
        raise ValueError(
            f"{layer.label()} has a parametrization already. Remove it first; liebayes.nn.restore removes a sign constraint."
        )
    if isinstance(module, EMBEDDING):
        special = {"padding_idx": module.padding_idx is not None, "max_norm": module.max_norm is not None}
        for setting in [name for name, given in {**special, "sparse": module.sparse}.items() if given]:
            raise ValueError(
                f"{layer.label()} has {setting}, which needs weights that are zero, rewritten or sparse; "
                f"magnitudes cannot be. Build it without {setting}. {way_out(layer.name)}"
            )
    for name, p in module.named_parameters(recurse=False):
        if isinstance(p, nn.UninitializedParameter):
            raise ValueError(f"{layer.label(name)} has no values yet. Run one batch through the model first.")
        if not p.dtype.is_floating_point:
            raise ValueError(f"{layer.label(name)} has the dtype {p.dtype}, and only real numbers have signs.")
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"{layer.label(name)} has values that are not finite.")


def _require_untied(model: nn.Module, layers: list[Layer]) -> None:
    """Refuses tied weights: each name would get its own magnitudes. One module may have several names."""
    converted = {id(p) for layer in layers for p in layer.module.parameters(recurse=False)}
    seen: dict[int, str] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) in converted and _slot(model, name) != _slot(model, seen.setdefault(id(p), name)):
            raise ValueError(f"{seen[id(p)]} and {name} are one tensor. Tied weights cannot have signs: untie them.")


def _slot(model: nn.Module, name: str) -> tuple[int, str]:
    owner, _, own_name = name.rpartition(".")
    return id(model.get_submodule(owner)), own_name


def way_out(name: str) -> str:
    """What to do about a refused layer that is part of the model."""
    return f"Or leave it as it is, with exclude=[{name!r}]." if name else ""
