"""One of the processes of `scaling.Ranks`: trains the MLP together with the others, and times the steps.

python ranks.py FOLDER SETTINGS COUNT RANK
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

import liebayes as lb

WARM_UP = 3


def main(folder: Path, asked: dict[str, Any], count: int, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(0)  # the same weights on all ranks
    model = lb.nn.mlp(hidden=asked["hidden"])
    torch.manual_seed(rank)  # and batches of their own
    images, labels = torch.randn(asked["batch"], 1, 28, 28), torch.randint(10, (asked["batch"],))
    optimizer = lb.AffineBLR(model.parameters(), lr=0.01, data_size=60_000, mc_samples=asked["samples"])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        return loss

    times = []
    for _ in range(WARM_UP + asked["steps"]):
        dist.barrier()
        began = time.perf_counter()
        optimizer.step(closure)
        times.append(time.perf_counter() - began)
    if rank == 0:
        (folder / "seconds.json").write_text(json.dumps(statistics.median(times[WARM_UP:])))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
