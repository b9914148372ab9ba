"""How the cost grows: with parameters, with samples, with ranks."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import liebayes as lb

from . import contest, networks, steps
from .contest import Here, Row
from .sizes import Sizes

TENSORS = 200
RANKS = (1, 2)


def measure(sizes: Sizes, anyway: bool) -> dict[str, Any]:
    """All three, one point after the other; the contenders of a point interleaved."""
    found: dict[str, list[dict[str, Any]]] = {"parameters": [], "samples": [], "ranks": []}
    others: list[float] = []

    def point(series: str, count: int, row: Row) -> None:
        print(f"{series}: {count:,}", file=sys.stderr)
        others.extend(contest.run([row], sizes.scaling_rounds, anyway, sizes.seconds))
        found[series].append({"count": count, "figures": row.result()["figures"]})
        row.contenders = []  # gigabytes, at the last point
        gc.collect()

    for count in sizes.parameter_counts:
        point("parameters", count, of_parameters(count))
    for count in sizes.sample_counts:
        point("samples", count, of_samples(sizes, count))
    for samples in sizes.rank_samples:
        point("ranks", samples, of_ranks(sizes, samples))
    return {"rounds": sizes.scaling_rounds, "cores_taken_by_others": others, **found}


def of_parameters(count: int) -> Row:
    """Sample and step without a network, as in row 1."""
    tensors = min(TENSORS, count)
    contenders = steps.optimizers([(count // tensors,)] * tensors, only=("AffineBLR", "fused SGD"))
    return Row("parameters", "sample + step", "AffineBLR", contenders)


def of_samples(sizes: Sizes, samples: int) -> Row:
    """One step of the MLP as in row 4."""
    model, images, labels = networks.mlp_and_batch(sizes)
    optimizer = lb.AdditiveBLR(model.parameters(), lr=0.01, data_size=60_000, mc_samples=samples)
    step = networks.closure_step(model, optimizer, images, labels)
    return Row("samples", "MLP, one step", "AdditiveBLR", [Here("AdditiveBLR", step)])


def of_ranks(sizes: Sizes, samples: int) -> Row:
    """One step of the MLP with so many samples on each rank; every rank has one core and a batch of its own."""
    contenders = [Ranks(count, samples, sizes) for count in RANKS]
    return Row("ranks", "MLP, one step", contenders[-1].name, contenders)


class Ranks:
    """Processes that train together, over gloo. They start anew in each round; only their steps are timed."""

    def __init__(self, count: int, samples: int, sizes: Sizes) -> None:
        self.name = f"{count} rank" + "s" * (count > 1)
        self.count = count
        self.asked = {"samples": samples, "steps": sizes.rank_steps, "batch": sizes.batch, "hidden": sizes.hidden}

    def warm_up(self, at_least: float) -> None:
        """Every process has its own."""

    def seconds(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__).with_name("ranks.py")), folder, json.dumps(self.asked)]
            own = str(Path(lb.__file__).parents[1])
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": own}
            processes = [
                subprocess.Popen([*command, str(self.count), str(rank)], env=environment) for rank in range(self.count)
            ]
            try:
                codes = [process.wait(timeout=600) for process in processes]
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            if any(codes):
                raise RuntimeError(f"{self.name}: the processes ended with {codes}.")
            return json.loads((Path(folder) / "seconds.json").read_text())
