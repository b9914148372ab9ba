"""Under torchrun both trainers equal one process with two samples on two sub-batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import trainers_on_two_ranks as program
from support.once_per_session import once_per_session

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    def run(folder: Path) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*torchrun, program.__file__, str(folder)]
        done = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    folder = once_per_session(tmp_path_factory, "trainers", run)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("trainer", ["lightning", "accelerate"])
def test_two_ranks_equal_one_process(ranks: list[dict[str, Any]], trainer: str):
    model = program.network()
    optimizer = program.optimizer_for(model, mc_samples=2)

    def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for batch in zip(*(t.split(8) for t in program.data()), strict=True):
        optimizer.step(closure, batch=batch)
    first, second = (rank[trainer] for rank in ranks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, program.results(model, optimizer), rtol=0, atol=1e-13)


def test_averaged_gradients_are_refused(ranks: list[dict[str, Any]]):
    for rank in ranks:
        assert "local_gradients" in rank["lightning, no callback"]
