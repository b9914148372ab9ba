"""Σᵢ gᵢ² over the examples of a batch, exactly, from the one backward pass that training takes anyway.

While a sample is in the module, every torch function that uses a trained parameter is observed. Backward gives the gradient δ
of the function's output, in which examples are still separate; with the function's input x it gives each example's gradient:

    linear      gᵢ = δᵢxᵢᵀ, so Σ gᵢ² = (δ²)ᵀ(x²); with positions inside an example, gᵢ = δᵢᵀxᵢ is a matrix product
    convolution the weight gradient of one convolution with a group for each example, a few examples at a time
    arithmetic  a parameter that is broadcast over examples is expanded first: the gradient there is gᵢ itself

Any other use is refused by name: a parameter without its gᵢ, or with only some of them, would silently train wrongly. So are
two uses in one backward pass, whose gᵢ would have to be added before they are squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn import grad as weight_gradients
from torch.overrides import TorchFunctionMode, resolve_name

PIECE = 1 << 20
"""How many numbers of per-example gradients are held at once: four megabytes of float32."""

CONVOLUTIONS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.conv1d: weight_gradients.conv1d_weight,
    functional.conv2d: weight_gradients.conv2d_weight,
    functional.conv3d: weight_gradients.conv3d_weight,
}
ARITHMETIC: set[Callable[..., Any]] = {
    getattr(place, name)
    for place, names in (
        (torch, ("add", "sub", "mul", "div", "maximum", "minimum")),
        (Tensor, ("add", "sub", "mul", "div", "maximum", "minimum")),
        (Tensor, ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__")),
    )
    for name in names
}


class PerExampleError(RuntimeError):
    """A parameter is used in a way for which there are no per-example gradients."""


class SquaredGradients(TorchFunctionMode):
    """Observes uses of parameters in a block; backward then gives Σ gᵢ², with gᵢ the share of example i in the gradient.

    >>> weight = torch.ones(1, 2, requires_grad=True)
    >>> squares = SquaredGradients()
    >>> with squares.of([weight]):
    ...     loss = functional.linear(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), weight).sum()
    >>> loss.backward()
    >>> squares.sums[weight]
    tensor([[10., 20.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self.parameters: set[Tensor] = set()
        self.clear()

    def clear(self) -> None:
        """Forgets all sums."""
        self.sums: dict[Tensor, Tensor] = {}
        self._examples: dict[Tensor, int] = {}
        self._passes: dict[Tensor, int] = {}

    def of(self, parameters: Iterable[Tensor]) -> SquaredGradients:
        """The block for these parameters."""
        self.parameters = set(parameters)
        return self

    @property
    def examples(self) -> int:
        """The number of examples in all sums."""
        return max(self._examples.values(), default=0)

    def sum_of(self, p: Tensor) -> Tensor:
        """Σ gᵢ²; zero where there was no gradient."""
        return self.sums[p] if p in self.sums else torch.zeros_like(p, requires_grad=False)

    def require(self, parameters: list[Tensor]) -> None:
        """Refuses gradients without squares, and squares of different numbers of examples."""
        for p in parameters:
            if p not in self.sums and p.grad is not None and bool(p.grad.any()):
                raise PerExampleError(
                    f"A parameter of shape {tuple(p.shape)} has a gradient, but no per-example gradients. Run the forward "
                    "pass inside the block or closure, and without torch.compile."
                )
        if len(set(self._examples.values())) > 1:
            raise PerExampleError(
                f"Parameters have seen different numbers of examples: {sorted(set(self._examples.values()))}. Examples must "
                "be the first dimension everywhere in the network, and every parameter must be used for all of them."
            )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (functional.batch_norm, torch.batch_norm) and (kwargs.get("training") or args[5:6] == (True,)):
            raise PerExampleError(
                "A batch norm in training mode mixes examples, but VOGN needs each one alone. Use another norm."
            )
        if not torch.is_grad_enabled() or not self._uses((*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func is functional.linear:
            return self._linear(*args, **kwargs)
        if func in CONVOLUTIONS:
            return self._convolution(func, *args, **kwargs)
        if func in ARITHMETIC and not self._uses(tuple(kwargs.values())):
            return func(*self._expanded(args), **kwargs)
        result = func(*args, **kwargs)
        parts = result if isinstance(result, (tuple, list)) else [result]
        if any(isinstance(part, Tensor) and part.requires_grad and self._owner(part) is None for part in parts):
            raise PerExampleError(
                f"VOGN has no per-example gradients for {resolve_name(func) or func} of a parameter. It knows linear layers, "
                "convolutions, and sums, products and maxima in which a parameter is the same for all examples."
            )
        return result  # a view, a shape: nothing is computed yet

    def _uses(self, args: tuple[Any, ...]) -> bool:
        """Whether a parameter, or a view of one, is among the arguments or in a list among them."""
        flat = [t for arg in args for t in (arg if isinstance(arg, (tuple, list)) else [arg])]
        return any(self._owner(t) is not None for t in flat)

    def _owner(self, t: Any) -> Tensor | None:
        """The parameter that a tensor is, or is a view of."""
        if not isinstance(t, Tensor):
            return None
        return t if t in self.parameters else t._base if t._base in self.parameters else None

    def _add(self, p: Tensor, squares: Tensor, examples: int) -> None:
        backward_pass = torch._C._current_graph_task_id()
        if self._passes.get(p) == backward_pass:
            raise PerExampleError(
                f"A parameter of shape {tuple(p.shape)} is used twice in one backward pass. VOGN's squares need it to be used "
                "once: untie weights, and run backward separately for every block and forward pass."
            )
        self._passes[p] = backward_pass
        squares = squares.view(p.shape)
        self.sums[p] = self.sums[p] + squares if p in self.sums else squares
        self._examples[p] = self._examples.get(p, 0) + examples

    def _watch(self, output: Tensor, record: Callable[[Tensor], None]) -> Tensor:
        passes = 0

        def hook(delta: Tensor) -> None:
            nonlocal passes
            passes += 1
            if passes > 1:
                raise PerExampleError(
                    "Two backward passes through one forward pass: VOGN's squares need the gradient of the whole loss. Add "
                    "the losses, and run backward once."
                )
            with torch.no_grad(), torch.autocast(delta.device.type, enabled=False):  # 16 bits are too few for squares
                record(delta.float() if delta.dtype.itemsize < 4 else delta)

        output.register_hook(hook)
        return output

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = input.detach()

        def record(delta: Tensor) -> None:
            n = len(rows)
            inputs, deltas = rows.to(delta.dtype).reshape(n, -1, rows.shape[-1]), delta.reshape(n, -1, delta.shape[-1])
            if weight in self.parameters:
                if inputs.shape[1] == 1:
                    squares = deltas[:, 0].square().T @ inputs[:, 0].square()
                else:
                    squares = _summed(lambda d, i: d.mT @ i, deltas, inputs, weight.numel())
                self._add(weight, squares, n)
            if bias is not None and bias in self.parameters:
                self._add(bias, deltas.sum(1).square().sum(0), n)

        self._require_whole(input, weight, bias, dimensions=2)
        return self._watch(functional.linear(input, weight, bias), record)

    def _convolution(
        self, func: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        if isinstance(padding, str):
            raise PerExampleError(f"VOGN needs the padding of a convolution as numbers, but got {padding!r}.")
        images = input.detach()

        def each(delta: Tensor, inputs: Tensor) -> Tensor:
            n = len(inputs)
            size = (n * weight.shape[0], *weight.shape[1:])
            apart = inputs.reshape(1, -1, *inputs.shape[2:]), delta.reshape(1, -1, *delta.shape[2:])
            found = CONVOLUTIONS[func](apart[0], size, apart[1], stride, padding, dilation, n * groups)
            return found.view(n, *weight.shape)

        def record(delta: Tensor) -> None:
            n = len(images)
            if weight in self.parameters:
                largest = max(weight.numel(), images[0].numel(), delta[0].numel())
                self._add(weight, _summed(each, delta, images.to(delta.dtype), largest), n)
            if bias is not None and bias in self.parameters:
                self._add(bias, delta.flatten(2).sum(2).square().sum(0), n)

        self._require_whole(input, weight, bias, dimensions=weight.ndim)
        return self._watch(func(input, weight, bias, stride, padding, dilation, groups), record)

    def _expanded(self, args: tuple[Any, ...]) -> list[Any]:
        """The arguments, with every parameter or view of one expanded to have the examples as its first dimension."""
        shape = torch.broadcast_shapes(*(t.shape for t in args if isinstance(t, Tensor)))
        with_examples = any(isinstance(t, Tensor) and self._owner(t) is None for t in args)

        def expand(t: Any) -> Any:
            p = self._owner(t)
            if p is None or not t.requires_grad:
                return t
            if t is not p and not (t.is_contiguous() and p.is_contiguous()):
                raise PerExampleError(
                    f"VOGN needs a parameter as it is, but one of shape {tuple(p.shape)} is used with its dimensions in "
                    f"another order, as a tensor of shape {tuple(t.shape)}. Store it in the order it is used in."
                )
            fits = t.ndim < len(shape) or (t.ndim > 0 and t.shape[0] == 1)
            if not with_examples or t.numel() != p.numel() or not fits:
                raise PerExampleError(
                    f"VOGN needs a parameter to be the same for all examples, but one of shape {tuple(t.shape)} is used with "
                    f"tensors of shape {tuple(shape)}, whose first dimension should be the examples."
                )
            apart = t.expand(shape[0], *[1] * (len(shape) - 1 - t.ndim), *(t.shape if t.ndim < len(shape) else t.shape[1:]))
            return self._watch(apart, lambda g: self._add(p, g.square().sum(0), shape[0]))

        return [expand(t) for t in args]

    def _require_whole(self, input: Tensor, *tensors: Tensor | None, dimensions: int) -> None:
        if input.ndim < dimensions:
            raise PerExampleError(
                f"VOGN needs examples as the first dimension, but a layer gets the shape {tuple(input.shape)} of a single one."
            )
        if input.requires_grad and self._owner(input) is not None:
            raise PerExampleError("VOGN needs the input of a layer to be examples, not a parameter.")
        if any(t is not None and t not in self.parameters and self._owner(t) is not None for t in tensors):
            raise PerExampleError("VOGN needs the weight and the bias of a layer to be parameters, not views of them.")


def _summed(each: Callable[[Tensor, Tensor], Tensor], delta: Tensor, inputs: Tensor, largest: int) -> Tensor:
    """Σ gᵢ², from the gradients of a few examples at a time."""
    size = max(1, PIECE // largest)
    parts = zip(delta.split(size), inputs.split(size), strict=True)
    return torch.stack([each(d, i).square().sum(0) for d, i in parts]).sum(0)
