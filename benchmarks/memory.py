"""Floats per parameter that training keeps and needs, beyond parameters and gradients.

    python benchmarks/memory.py [--output results/benchmarks/memory.json]

Counts every tensor storage that is alive after each operation of torch, by watching the dispatcher: exact, and the same on
every machine. `kept` is what is there between steps, `peak` the most during a whole step: sampling, backward, update. The loss
is ½‖θ‖², whose own graph is counted too; the same loss under SGD is the row to subtract.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import liebayes as lb

TENSORS, SIZE = 8, 1 << 20


class LiveBytes(TorchDispatchMode):
    """The bytes of all storages that operations have returned and that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return result

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live:
            self.live[key] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


def measure(build: Callable[[list[nn.Parameter]], Any], positive: bool = False, size: int = SIZE) -> dict[str, float]:
    parameters = [nn.Parameter(torch.rand(size) + 0.5 if positive else torch.randn(size)) for _ in range(TENSORS)]
    count = TENSORS * size
    with LiveBytes() as memory:
        for p in parameters:
            memory.add(p)
        optimizer = build(parameters)

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            for p in parameters:  # one after the other: the graph of one tensor at a time
                (0.5 * p.square().sum()).backward()
            return torch.zeros(())

        for _ in range(3):
            step(optimizer, closure)
        gc.collect()
        held = sum(p.numel() + (p.grad.numel() if p.grad is not None else 0) for p in parameters) * 4
        kept = memory.now - held
        memory.peak = memory.now
        step(optimizer, closure)
        return {"kept": kept / 4 / count, "peak": (memory.peak - held) / 4 / count}


def step(optimizer: Any, closure: Callable[[], Tensor]) -> None:
    if isinstance(optimizer, lb.LieGroupBLR):
        optimizer.step(closure)
    elif hasattr(optimizer, "sampled_params"):
        with optimizer.sampled_params(train=True):
            closure()
        optimizer.step()
    else:
        closure()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/memory.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    n = 1000
    rows: dict[str, tuple[Callable[[list[nn.Parameter]], Any], bool]] = {
        "SGD with momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), False),
        "AdditiveBLR": (lambda p: lb.AdditiveBLR(p, lr=0.01, data_size=n), False),
        "MultiplicativeBLR, Absorbed, 1 sample": (
            lambda p: lb.MultiplicativeBLR(p, lr=0.01, data_size=n, metric=lb.Absorbed(), mc_samples=1), True),
        "MultiplicativeBLR, Adaptive, 1 sample": (lambda p: lb.MultiplicativeBLR(p, lr=0.01, data_size=n, mc_samples=1), True),
        "MultiplicativeBLR, Adaptive, 2 samples": (lambda p: lb.MultiplicativeBLR(p, lr=0.01, data_size=n), True),
        "AffineBLR": (lambda p: lb.AffineBLR(p, lr=0.01, data_size=n), False),
        "AffineBLR, Laplace": (lambda p: lb.AffineBLR(p, lr=0.01, data_size=n, base=lb.bases.Laplace(0.01)), False),
        "AffineBLR, 4 samples": (lambda p: lb.AffineBLR(p, lr=0.01, data_size=n, mc_samples=4), False),
        "AffineBLR, Adaptive": (lambda p: lb.AffineBLR(p, lr=0.01, data_size=n, metric=lb.Adaptive()), False),
    }  # fmt: skip
    try:
        import ivon

        rows["ivon-opt"] = (lambda p: ivon.IVON(p, lr=0.01, ess=n), False)
    except ImportError:
        pass
    results = {name: measure(build, positive) for name, (build, positive) in rows.items()}
    width = max(map(len, results))
    print(f"floats per parameter beyond parameters and gradients; {TENSORS} tensors of {SIZE:,}")
    print(f"{'':{width}}   kept   peak")
    for name, row in results.items():
        print(f"{name:{width}}  {row['kept']:5.2f}  {row['peak']:5.2f}")
    content = {
        "command": ["python", "benchmarks/memory.py"],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tensors": TENSORS,
        "size": SIZE,
        "floats_per_parameter": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
