"""The noise of a fit, drawn in blocks of several steps: every step has its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from liebayes.variational import noise


@pytest.mark.parametrize("beside", [False, True])
def test_every_step_has_its_own_numbers(monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    """In the order in which they are drawn, over several blocks; a longer run begins like a shorter one."""
    monkeypatch.setattr(noise, "AHEAD", 12)

    def run(steps: int) -> list[float]:
        drawn = 0

        def draw(count: int) -> list[Tensor]:
            nonlocal drawn
            drawn += count
            return [torch.arange(drawn - count, drawn)]

        return [float(blocks[0]) for blocks in noise.noise_of_steps(draw, 4, steps, beside)]

    assert run(8) == list(range(8))
    assert run(5) == list(range(5))
