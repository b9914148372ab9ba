"""Small networks and data sets, closures over them, and optimizers that have taken a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]


def closure_for(
    optimizer: Any, model: Callable[[Tensor], Any], x: Tensor, y: Tensor, loss: Loss = cross_entropy
) -> Callable[[], Tensor]:
    """The closure that training loops hand to `step`: clear, forward, backward."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        return value

    return closure
