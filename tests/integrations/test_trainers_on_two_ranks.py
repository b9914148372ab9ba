"""Under torchrun both trainers equal one process with two samples on two sub-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.once_per_session import once_per_session
from support.problems import closure_for
from support.processes import program_on_two_ranks
from support.regression import BATCH, data, network, optimizer_for, states
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

PROGRAM = Path(__file__).parent / "trainers_on_two_ranks.py"

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = once_per_session(tmp_path_factory, "trainers", lambda folder: program_on_two_ranks(PROGRAM, str(folder)))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("trainer", ["lightning", "accelerate"])
def test_two_ranks_equal_one_process(ranks: list[dict[str, Any]], trainer: str):
    model = network(torch.float64)
    optimizer = optimizer_for(model, mc_samples=2)

    def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return closure_for(optimizer, model, x, y, mse_loss)()

    for batch in DataLoader(data(torch.float64), BATCH):
        optimizer.step(closure, batch=tuple(batch))
    first, second = (rank[trainer] for rank in ranks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, states(model, optimizer), rtol=0, atol=1e-13)


def test_averaged_gradients_are_refused(ranks: list[dict[str, Any]]):
    for rank in ranks:
        assert "local_gradients" in rank["lightning, no callback"]
