"""The registry of behaviours, and the helpers that their checks are written with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from liebayes.baselines import PerExampleError

from .adapters import Adapter, NotApplicableError

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(100))
Y = torch.arange(16) % 3


@dataclass(frozen=True)
class Behaviour:
    name: str
    meaning: str
    check: Callable[[Adapter], None]
    slow: bool = False

    def __str__(self) -> str:
        return self.name


REGISTRY: list[Behaviour] = []


def behaviour(name: str, meaning: str, slow: bool = False) -> Callable[[Callable[[Adapter], None]], Callable[[Adapter], None]]:
    def register(check: Callable[[Adapter], None]) -> Callable[[Adapter], None]:
        REGISTRY.append(Behaviour(name, meaning, check, slow))
        return check

    return register


def verdict(case: Behaviour, adapter: Adapter) -> tuple[str, str]:
    """("yes" | "no" | "–", why)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.check(adapter)
    except (NotApplicableError, PerExampleError) as reason:
        return "–", str(reason)
    except Exception as problem:
        return "no", f"{type(problem).__name__}: {problem}".split("\n")[0][:160]
    return "yes", ""


class InterruptError(Exception):
    pass


def expect(condition: Any, problem: str) -> None:
    if not bool(condition):
        raise AssertionError(problem)


def values(model: nn.Module | list[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in (model.parameters() if isinstance(model, nn.Module) else model)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(s, t, rtol=tolerance, atol=tolerance) for s, t in zip(a, b, strict=True))


def moved(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(not torch.equal(s, t) for s, t in zip(a, b, strict=True) if s.numel())


def loss_of(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    return cross_entropy(model(x), y)


def step_on(a: Adapter, optimizer: Any, loss: Callable[[], Tensor]) -> None:
    """One step: clear, sample, backward, step."""
    optimizer.zero_grad()
    with a.block(optimizer):
        loss().backward()
    optimizer.step()


def half_squares(parameters: Iterable[Tensor]) -> Tensor:
    """½‖p‖² over all of them: the gradient of each is itself."""
    return sum((p.square().sum() / 2 for p in parameters), torch.zeros(()))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def train(a: Adapter, optimizer: Any, model: nn.Module, steps: int = 1, x: Tensor = X, y: Tensor = Y) -> None:
    for _ in range(steps):
        step_on(a, optimizer, lambda: loss_of(model, x, y))


def built(a: Adapter, steps: int = 0, **options: Any) -> tuple[nn.Module, Any]:
    """A network and its optimizer, after some steps."""
    model = a.network()
    optimizer = a.make(model.parameters(), **options)
    train(a, optimizer, model, steps)
    return model, optimizer


def closure_for(optimizer: Any, model: nn.Module, kept: list[Any] | None = None, retain: bool = False) -> Callable[..., Any]:
    def closure(x: Tensor = X, y: Tensor = Y) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=retain)
        if kept is not None:
            kept.append(({n: p.detach().clone() for n, p in model.named_parameters()}, loss))
        return loss

    return closure


def gradient_at(model: nn.Module, weights: dict[str, Tensor], x: Tensor = X, y: Tensor = Y) -> list[Tensor]:
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    return list(torch.autograd.grad(cross_entropy(functional_call(model, leaves, (x,)), y), list(leaves.values())))


def here(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def two_runs(
    a: Adapter, first: Callable[[Any, nn.Module], None], second: Callable[[Any, nn.Module], None], **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters after each of two ways to train the same network with the same noise."""
    results = []
    for way in (first, second):
        model = a.network()
        way(a.make(model.parameters(), **options), model)
        results.append(values(model))
    expect(moved(results[0], values(a.network())), "training did not move the parameters")
    return results[0], results[1]


def single(a: Adapter, *shape: int, **options: Any) -> tuple[nn.Parameter, Any]:
    """One parameter with its optimizer, and samples next to it: what a linear loss does to it is known."""
    p = nn.Parameter(a.tensor(*shape))
    return p, a.make([p], narrow=True, **options)


def refused(attempt: Callable[[], Any], *words: str, errors: Any = (ValueError, TypeError)) -> None:
    """The attempt fails with an error that has all the words."""
    try:
        attempt()
    except errors as problem:
        for word in words:
            expect(word in str(problem), f"the error does not say {word!r}: {problem}")
        return
    raise AssertionError("accepted")


def refused_unmoved(model: nn.Module, attempt: Callable[[], Any], *words: str) -> None:
    """Refused, and the weights stay as they were."""
    before = values(model)
    refused(attempt, *words, errors=(RuntimeError, AttributeError))
    expect(equal(values(model), before), "the refused step moved the weights")
