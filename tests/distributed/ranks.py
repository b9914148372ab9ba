"""Runs functions on two processes with gloo and brings their results back.

Starting processes takes seconds, so one pair runs a whole list of scenarios; an exception is the result of its scenario.
As a program, this file is one of the processes.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.once_per_session import once_per_session
from support.processes import TIMEOUT

Ranks = dict[str, list[Any]]
"""The results of every scenario on rank 0 and rank 1."""


def results_of_two_ranks(module: str, factory: pytest.TempPathFactory) -> Ranks:
    """For every entry of the module's `SCENARIOS` its results on both ranks."""
    folder = once_per_session(factory, module, lambda folder: run_on_two_ranks(module, folder))
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    return {name: [result[name] for result in results] for name in results[0]}


def results(ranks: Ranks, name: str) -> list[Any]:
    """Those of one scenario, which must not have failed."""
    for result in ranks[name]:
        if isinstance(result, Exception):
            raise result
    return ranks[name]


def run_on_two_ranks(module: str, folder: Path) -> None:
    """Two processes that write their results into a folder."""
    command = [sys.executable, __file__, module, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ExitStack() as files:
        logs = [files.enter_context((folder / f"{rank}.log").open("w")) for rank in range(2)]
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=log, stderr=log) for rank, log in enumerate(logs)
        ]
        try:
            failed = any(process.wait(TIMEOUT) for process in processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if failed:
        raise RuntimeError("\n".join((folder / f"{rank}.log").read_text() for rank in range(2)))


def main(module: str, folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT)
    )
    results: dict[str, Any] = {}
    for name, scenario in importlib.import_module(module).SCENARIOS.items():
        try:
            results[name] = scenario()
        except Exception as error:
            results[name] = error
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    gc.collect()  # DistributedDataParallel must not outlive its process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # as in liebayes.__main__: past this a thread of gloo may abort a process that has done its work
