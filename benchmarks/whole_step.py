"""What a whole step of our presets costs beside AdamW's: forward, backward and update, interleaved, in CPU time.

    python benchmarks/whole_step.py        # results/benchmarks/whole_step.json; two minutes, one thread

The networks are the char-GPT of `tasks.py` (batches of 32·64 characters) and the MNIST network of Table 1 (784-1024-1024-10,
batches of 128). `early` are steps in which widths are learned fast, so that Kronecker factors move at every step; `late` those
after some 500, when they move at every fourth. `state_bytes` is what an optimizer keeps beside the parameters.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tasks import ALPHABET, CONTEXT, GPT, multilayer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.experiments.run_directory import environment

RESULT = Path(__file__).parents[1] / "results" / "benchmarks" / "whole_step.json"
ROUNDS, LATE = 40, 2000
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AffineBLR": lambda p: lb.AffineBLR(p, data_size=10_000),
    "KroneckerBLR": lambda p: lb.KroneckerBLR(p, data_size=10_000),
}


def gpt() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x, y = torch.randint(len(ALPHABET), (2, 32, CONTEXT))
    return GPT(), lambda model: cross_entropy(model(x).flatten(0, 1), y.flatten())


def mlp() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x, y = torch.randn(128, 784), torch.randint(10, (128,))
    return multilayer(784, 1024, 1024, 10, activation=nn.ReLU), lambda model: cross_entropy(model(x), y)


NETWORKS = {"char-gpt": gpt, "table1-mlp": mlp}


def stepper(network: Callable[[], Any], make: Callable[[Any], Any], late: bool) -> tuple[Callable[[], Any], Any]:
    """One step as a function, after a few, and the optimizer."""
    torch.manual_seed(0)
    model, loss = network()
    optimizer = make(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(closure)
    for state in optimizer.state.values() if late else ():
        if isinstance(optimizer, lb.LieGroupBLR):
            state["steps"] = LATE
    return lambda: optimizer.step(closure), optimizer


def measure(network: Callable[[], Any], late: bool) -> dict[str, dict[str, float]]:
    """Milliseconds and ratios to AdamW, the means of interleaved rounds, and the median of the rounds' ratios."""
    made = {name: stepper(network, make, late) for name, make in OPTIMIZERS.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, (step, _) in made.items():
            began = time.process_time()
            step()
            times[name].append(1000 * (time.process_time() - began))
    rows = {}
    for name, (_, optimizer) in made.items():
        tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        rows[name] = {
            "milliseconds": round(statistics.fmean(times[name]), 2),
            "ratio": round(statistics.fmean(times[name]) / statistics.fmean(times["AdamW"]), 3),
            "state_bytes": sum(t.numel() * t.element_size() for t in tensors),
            "parameter_bytes": sum(4 * p.numel() for group in optimizer.param_groups for p in group["params"]),
        }
    return rows


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {**environment(), "command": "python benchmarks/whole_step.py", "rounds": ROUNDS}
    for name, network in NETWORKS.items():
        found[name] = {"early": measure(network, late=False), "late": measure(network, late=True)}
        print(name, json.dumps(found[name], indent=1), flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
