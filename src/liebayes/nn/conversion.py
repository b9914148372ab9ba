"""Sign constraints for any network, which is converted in place, and back (Sec. 4.2).

    plus_minus    weight = w⁺ − w⁻, both learned: used in the paper's experiments; the function class stays the same
    dale          one sign for all outgoing weights of a unit: Dale's law, Fig. 1(c)
    fixed_sign    every weight keeps the sign it starts with

Linear, convolution, embedding, recurrent and attention layers are converted, with their biases. Norms and everything else
keep their parameters; `split_parameters` separates the two for the optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .constraints import PlusMinus, SignConstraint, Signed
from .layers import CONVOLUTION, RECURRENT, TRANSPOSED, Layer, find_layers, way_out
from .sizes import in_float32
from .units import balanced_magnitudes, unit_signs

Model = TypeVar("Model", bound=nn.Module)


def plus_minus(model: Model, *, offset: float = 1e-3, exclude: Collection[str] = ()) -> Model:
    """Weights become w⁺ − w⁻ with two positive magnitudes each. The outputs of the network do not change.

    Args:
        model: converted in place, and returned.
        offset: added to the positive and the negative part of each initial weight. The published experiments use 0.001 or
            1e-5.
        exclude: names of submodules to leave as they are.

    >>> layer = plus_minus(nn.Linear(2, 1))
    >>> [name for name, _ in layer.named_parameters()]  # doctest: +ELLIPSIS
    ['parametrizations.weight.original0', 'parametrizations.weight.original1', 'parametrizations.bias.original0', ...]
    >>> all((p > 0).all() for p in layer.parameters())
    True
    """
    offset = _positive("offset", offset)
    for layer, name in _tensors(find_layers(model, exclude)):
        _constrain(layer, name, PlusMinus(offset))
    return model


def fixed_sign(
    model: Model, *, smallest: float = 1e-5, exclude: Collection[str] = (), generator: torch.Generator | None = None
) -> Model:
    """Every weight and bias keeps its initial sign, and its magnitude is learned. The outputs do not change.

    Args:
        model: converted in place, and returned.
        smallest: the magnitude of weights that are zero (biases often are); their signs are drawn at random.
        exclude: names of submodules to leave as they are.
        generator: for those random signs.

    >>> layer = fixed_sign(nn.Linear(2, 1))
    >>> all((p > 0).all() for p in layer.parameters())
    True
    """
    smallest = _positive("smallest", smallest)
    for layer, name in _tensors(find_layers(model, exclude)):
        weight = getattr(layer.module, name)
        coin = torch.randint(0, 2, weight.shape, generator=generator, device=weight.device) * 2 - 1
        start = torch.where(weight == 0, coin * smallest, weight).detach()
        _start_at(layer, name, start)
        _constrain(layer, name, Signed(start.sign()))
    return model


def dale(
    model: Model,
    excitatory_fraction: float = 0.8,
    *,
    inputs: Literal["both", "units"] = "both",
    input_layers: Collection[str] | None = None,
    initialisation: Literal["balanced", "naive"] = "balanced",
    offset: float = 1e-3,
    channels: Mapping[str, int] | None = None,
    exclude: Collection[str] = (),
    generator: torch.Generator | None = None,
) -> Model:
    """Every unit is excitatory or inhibitory: all its outgoing weights share one sign, which never changes.

    The sign belongs to the unit a connection comes from: to a column of a linear layer's weight, to an input channel of a
    convolution at all its positions (also behind flattening), to a hidden unit of a recurrent layer in all gates and in the
    layer above, to a component of the embedding for the queries, keys and values of attention, and of its value heads for
    what follows. `unit_signs` says which are which. An addition is not a connection: channel j of a residual stream is one
    unit, and has one sign wherever a layer reads the stream. Activations should be non-negative (ReLU) for a unit to act with
    one sign only; with tanh only the weights are constrained, as in the paper.

    Biases are plus-minus, as if from one excitatory and one inhibitory unit that are always on.

    Args:
        model: converted in place, and returned.
        excitatory_fraction: the share of excitatory units.
        inputs: "both" lets each input of the network excite and inhibit, like a sense with ON and OFF cells: the first layer
            is plus-minus. "units" gives each input one sign, like all other units; a pixel can then only excite or only
            inhibit.
        input_layers: names of the layers that read the network's inputs; by default the first one registered.
        initialisation: "balanced" draws magnitudes so that the excitation and inhibition of every unit cancel, with the
            variance of the layer's weights (see `liebayes.nn.units` for the derivation); "naive" keeps their magnitudes,
            which shifts activations and adds an outlier to the spectrum of each layer.
        offset: for the plus-minus parts, as in `plus_minus`; also the size given to weights of 0, which could not be trained.
        channels: for each layer that reads flattened channels, by name, how many there are. By default a linear layer
            registered right after a convolution reads the channels of that convolution.
        exclude: names of submodules to leave as they are.
        generator: for the balanced initialisation.

    >>> network = dale(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    >>> network[2].weight.sign()
    tensor([[ 1.,  1., -1.,  1.,  1.,  1.],
            [ 1.,  1., -1.,  1.,  1.,  1.]], grad_fn=<SignBackward0>)
    """
    offset = _positive("offset", offset)
    unit_signs(0, excitatory_fraction)
    _require_one_of("inputs", inputs, ("both", "units"))
    _require_one_of("initialisation", initialisation, ("balanced", "naive"))
    for name, value, kind in (("input_layers", input_layers, Collection), ("channels", channels, Mapping)):
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} must be given by names of layers, but got {value!r}.")
    layers = find_layers(model, exclude)
    first = {layers[0].name} if input_layers is None else set(input_layers)
    _require_units(layers, input_layers=first, channels=set(channels or ()))
    signs = {
        (layer, name): layer.spread(name, _signs_of_inputs(layer, name, positions, excitatory_fraction))
        for layer, positions in zip(layers, _positions(layers, channels or {}), strict=True)
        for name in layer.weights
        if not (inputs == "both" and layer.name in first and layer.reads_inputs(name))
    }
    for layer, name in _tensors(layers):
        if (layer, name) not in signs:
            _constrain(layer, name, PlusMinus(offset))
            continue
        weight = getattr(layer.module, name)
        sign = signs[layer, name].to(weight.device)
        if initialisation == "balanced":
            rows = layer.to_rows(sign.expand_as(weight))
            deviation = float(weight.detach().float().square().mean().sqrt()) or offset
            magnitude = layer.from_rows(balanced_magnitudes(rows, deviation, generator), weight)
        else:
            magnitude = weight.detach().abs()
            magnitude = torch.where(magnitude > 0, magnitude, offset)  # a rule that multiplies would leave 0 at 0
        smallest = torch.finfo(weight.dtype).tiny
        _start_at(layer, name, sign * magnitude.to(weight.dtype).clamp_min(smallest))
        _constrain(layer, name, Signed(sign))
    return model


def restore(model: Model) -> Model:
    """Turns a constrained network into a plain one with the same outputs, in place.

    >>> network = plus_minus(nn.Linear(2, 1))
    >>> before = network(torch.ones(1, 2))
    >>> torch.equal(restore(network)(torch.ones(1, 2)), before)
    True
    >>> [name for name, _ in network.named_parameters()]
    ['weight', 'bias']
    """
    constrained = [(name, module) for name, module in model.named_modules() if constraints_of(module)]
    for name, module in constrained:
        lists: Any = module.parametrizations
        if any(not isinstance(part, SignConstraint) for parts in lists.values() for part in parts):
            raise ValueError(f"{name or 'The module'} has other parametrizations besides its signs. Remove those first.")
    for _, module in constrained:
        lists = module.parametrizations
        plain = {}
        for name, parts in lists.items():
            trained = any(p.requires_grad for p in parts.parameters())
            plain[name] = nn.Parameter(getattr(module, name).detach().clone(), requires_grad=trained)
        if isinstance(module, RECURRENT):  # whose weights and biases alternate
            plain = {name: plain[name] for name in module._flat_weights_names}
        # torch's own removal deletes the property from the class, which copies of the module share.
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
        for name, p in plain.items():
            module.register_parameter(name, p)
        if isinstance(module, RECURRENT):
            module._init_flat_weights()
    return model


def constraints_of(module: nn.Module) -> dict[str, SignConstraint]:
    """The sign constraints on the tensors of one module, by the tensors' names."""
    if not parametrize.is_parametrized(module):
        return {}
    lists: Any = module.parametrizations
    return {name: parts[0] for name, parts in lists.items() if isinstance(parts[0], SignConstraint)}


def _constrain(layer: Layer, name: str, constraint: SignConstraint) -> None:
    module = layer.module
    parametrize.register_parametrization(module, name, constraint)
    if isinstance(module, RECURRENT) and "_flat_weights" in module.__dict__:
        # A recurrent layer keeps a list of its weights, which would go stale, and hold tensors that cannot be copied.
        del module.__dict__["_flat_weights"]
        type(module)._flat_weights = property(_current_weights, lambda self, value: None)  # pyright: ignore


def _current_weights(self: Any) -> list[Tensor]:
    return [getattr(self, name) for name in self._flat_weights_names if hasattr(self, name)]


@torch.no_grad()
def _start_at(layer: Layer, name: str, value: Tensor) -> None:
    getattr(layer.module, name).copy_(value)


def _signs_of_inputs(layer: Layer, name: str, positions: int, excitatory_fraction: float) -> Tensor:
    if not layer.reads_inputs(name):
        positions = 1
    return unit_signs(layer.unit_count(name) // positions, excitatory_fraction).repeat_interleave(positions)


def _positions(layers: list[Layer], channels: Mapping[str, int]) -> list[int]:
    """The number of positions at which each layer reads a unit: more than one after flattening."""
    result: list[int] = []
    before: int | None = None
    for layer in layers:
        positions = 1
        read = channels.get(layer.name, before)
        if read is not None and layer.weights and not isinstance(layer.module, (*CONVOLUTION, *TRANSPOSED)):
            count = layer.unit_count(layer.weights[0])
            positions, rest = divmod(count, read)
            if rest or not positions:
                raise ValueError(
                    f"{layer.label()} reads {count} numbers, which are not {read} channels. "
                    f"Say how many channels (or units) it reads: channels={{{layer.name!r}: ...}}."
                )
        result.append(positions)
        before = layer.channels
    return result


def _positive(name: str, value: float) -> float:
    if not (in_float32(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, but got {value!r}.")
    return float(value)


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, but got {value!r}.")


def _require_units(layers: list[Layer], **named: set[str]) -> None:
    """Refuses names of layers that are not converted, and layers to which Dale's law does not apply."""
    for argument, names in named.items():
        unknown = sorted(names - {layer.name for layer in layers})
        if unknown:
            raise ValueError(f"{argument} names layers that are not converted: {', '.join(unknown)}.")
    for layer in layers:
        if isinstance(layer.module, nn.Bilinear):
            raise ValueError(
                f"{layer.label()} has weights that read two units at once, so Dale's law does not apply. {way_out(layer.name)}"
            )
        if isinstance(layer.module, RECURRENT) and layer.module.bidirectional:
            raise ValueError(
                f"{layer.label()} is bidirectional: two sets of units with one numbering. For Dale's law use two layers."
            )


def _tensors(layers: list[Layer]) -> Iterator[tuple[Layer, str]]:
    """Every weight and bias, by its layer and name."""
    for layer in layers:
        for name in [*layer.weights, *layer.biases]:
            yield layer, name
