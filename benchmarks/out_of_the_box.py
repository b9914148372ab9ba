"""Our optimizers as they come, against peers at the best of their step sizes, on the tasks of `tasks.py`.

    python benchmarks/out_of_the_box.py                                      # everything: hours
    python benchmarks/out_of_the_box.py --tasks logistic diabetes --methods AdamW AffineBLR --seeds 0 1 2

Every method gets the same networks, batches and schedule, a cosine to zero, without a warm-up. Ours are given the parameters,
`data_size` and a seed. A peer gets a grid of step sizes, 1 and 3 in every decade; on the first seed the grid grows until its
best is not at an edge. The best is judged by the held-out NLL at the point, which is what is reported: this favours the peers.
Further seeds are run with the best step size and its neighbours, on COSTLY tasks with the best only.

One process and one thread. Every run is a line of `results/out_of_the_box/TASK.json` as soon as it ends, and is not run again
for the same code: the versions of a peer, the source of ours.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from speed.environment import cpu
from tasks import TASKS, Task
from torch import Tensor, nn

import liebayes as lb
from liebayes.atomic_write import atomic_write
from liebayes.baselines import ivon_opt
from liebayes.optim import NonFiniteError

FOLDER = Path(__file__).parents[1] / "results" / "out_of_the_box"
SAMPLES = 32
COSTLY = {"mnist-cnn", "char-gpt", "resnet20"}
CHOSEN_ON = ("softmax-digits", "digits-mlp", "logistic", "diabetes", "mnist-mlp", "char-gpt", "fine-tuning")
"""The tasks on which our defaults are chosen (the default prior on the two tables too); the others are only reported."""

Setting = dict[str, float]
Row = dict[str, Any]


# Methods: a network, N, a setting and a seed to the optimizers that train it


def adamw(model: nn.Module, data_size: int, setting: Setting, seed: int) -> list[Any]:
    return [torch.optim.AdamW(model.parameters(), **setting)]


def sgd(model: nn.Module, data_size: int, setting: Setting, seed: int) -> list[Any]:
    return [torch.optim.SGD(model.parameters(), momentum=0.9, **setting)]


def ivon(model: nn.Module, data_size: int, setting: Setting, seed: int) -> list[Any]:
    """The package's weight decay, 1e-4, is a prior of 1e-4·N. At its β₂ of 0.99999 widths would stay as they start."""
    fixed = {"prior": 1e-4 * data_size, "initial_curvature": 1.0, "scale_momentum": 0.9995}
    return [ivon_opt(model.parameters(), data_size=data_size, seed=seed, **fixed, **setting)]


def muon(model: nn.Module, data_size: int, setting: Setting, seed: int) -> list[Any]:
    """Muon on hidden matrices, AdamW on embeddings, the head, biases and norms; one step size serves both."""
    hidden = hidden_matrices(model)
    rest = [p for p in model.parameters() if not any(p is q for q in hidden)]
    return [torch.optim.Muon(hidden, adjust_lr_fn="match_rms_adamw", **setting), torch.optim.AdamW(rest, **setting)]


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """All matrices but embeddings and the last layer; `torch.optim.Muon` takes no convolutions."""
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    hidden = [module for module in model.modules() if module is not head and not isinstance(module, nn.Embedding)]
    return [p for module in hidden for p in module.parameters(recurse=False) if p.ndim == 2]


def ours(kind: Callable[..., Any]) -> Callable[[nn.Module, int, Setting, int], list[Any]]:
    return lambda model, data_size, setting, seed: [kind(model.parameters(), data_size=data_size, seed=seed)]


OURS = {"AffineBLR": ours(lb.AffineBLR), "KroneckerBLR": ours(lb.KroneckerBLR)}
METHODS = {"AdamW": adamw, "SGD": sgd, "ivon-opt": ivon, "Muon": muon, **OURS}
PACKAGES = {"AdamW": ("torch",), "SGD": ("torch",), "Muon": ("torch",), "ivon-opt": ("torch", "ivon-opt")}


def step_size(rung: int) -> float:
    """… 0.1, 0.3, 1, 3 …: 1 at rung 0.

    >>> [step_size(rung) for rung in range(-3, 3)]
    [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    """
    return float(f"{(1, 3)[rung % 2]}e{rung // 2}")


GRIDS = {"AdamW": range(-6, -2), "SGD": range(-4, 0), "ivon-opt": range(-2, 2), "Muon": range(-5, -3)}
"""The rungs with which a search begins."""
LONGER = {"char-gpt", "char-lstm", "fine-tuning"}
"""Tasks on which searches with SGD and ivon-opt begin two rungs higher."""


# One run


def run(task: Task, method: str, setting: Setting, seed: int) -> Row:
    """Trains and measures."""
    model = task.model(seed)
    start = task.evaluate(model)
    began = time.perf_counter()
    optimizers = METHODS[method](model, task.data_size, setting, seed)
    milliseconds, finite = train(task, model, optimizers, seed)
    seconds = time.perf_counter() - began
    point = measure(task, [task.predict(model)]) if finite else None
    has_posterior = point is not None and hasattr(optimizers[0], "posterior")
    marginal = measure(task, draws(task, model, optimizers[0], seed)) if has_posterior else None
    return {
        "method": method,
        "setting": setting,
        "seed": seed,
        "code": code(method),
        "point": point,
        "marginal": marginal,
        "diverged": point is None or point["nll"] > start,
        "start_nll": start,
        "step_ms": round(statistics.median(milliseconds), 3) if milliseconds else None,
        "steps": len(milliseconds),
        "seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "ivon-opt")}
        | {"liebayes": lb.__version__, "python": platform.python_version()},
        "cpu": cpu(Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")[0],
        "command": f"python benchmarks/out_of_the_box.py --tasks {task.name} --methods {method} --seeds {seed}",
    }


def train(task: Task, model: nn.Module, optimizers: Sequence[Any], seed: int) -> tuple[list[float], bool]:
    """Milliseconds of CPU time of every step, which other processes disturb least, and whether all losses were finite."""
    first, *others = optimizers
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps) for optimizer in optimizers]
    milliseconds = []
    for inputs, targets in task.batches(seed):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            model.zero_grad()
            loss = task.loss(model(inputs), targets)
            loss.backward()
            return loss

        began = time.process_time()
        try:
            loss = first.step(closure)
        except NonFiniteError:
            return milliseconds, False
        for optimizer in others:
            optimizer.step()
        milliseconds.append(1000 * (time.process_time() - began))
        if not loss.isfinite():
            return milliseconds, False
        for schedule in schedules:
            schedule.step()
    return milliseconds, True


def draws(task: Task, model: nn.Module, optimizer: Any, seed: int) -> list[Tensor]:
    """The outputs of samples from the posterior."""
    posterior, generator, outputs = optimizer.posterior(model), torch.Generator().manual_seed(seed), []
    for _ in range(SAMPLES):
        with posterior.sampled(generator) as sample:
            outputs.append(task.predict(sample))
    return outputs


def measure(task: Task, outputs: list[Tensor]) -> dict[str, float] | None:
    """The figures of the mixture of these outputs, or None where one is not finite."""
    nll = task.evaluate_marginal(outputs)
    if not math.isfinite(nll):
        return None
    if not task.classifies:
        return {"nll": nll}
    probabilities = torch.stack([output.softmax(-1) for output in outputs]).mean(0).flatten(0, -2)
    labels = task.held_out[1].flatten()
    return {"nll": nll, "accuracy": lb.metrics.accuracy(probabilities, labels), "ece": lb.metrics.ece(probabilities, labels)}


@functools.cache
def code(method: str) -> str:
    """What a stored figure is a figure of."""
    if method in PACKAGES:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES[method])
    source = Path(lb.__file__).parent
    rooms = ("groups", "bases", "rule", "optim", "native")
    files = sorted(file for room in rooms for kind in ("py", "c", "h") for file in (source / room).glob(f"*.{kind}"))
    return "source " + hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


# Stored runs


def stored(task: str) -> list[Row]:
    file = FOLDER / f"{task}.json"
    return json.loads(file.read_text()) if file.exists() else []


def key(row: Row) -> tuple[Any, ...]:
    return row["method"], sorted(row["setting"].items()), row["seed"]


def store(task: str, row: Row) -> None:
    """One line for a run, in a fixed order, so that files merge. Runs of a method's other code go, lest a mean mix them."""

    def stays(other: Row) -> bool:
        return key(other) != key(row) and (other["method"] != row["method"] or other["code"] == row["code"])

    rows = sorted([*filter(stays, stored(task)), row], key=key)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with atomic_write(FOLDER / f"{task}.json") as file:
        file.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8")


def obtain(task: Callable[[], Task], name: str, method: str, setting: Setting, seed: int) -> float:
    """The held-out NLL at the point, from the file or by a run; infinite if there is none."""
    wanted = {"method": method, "setting": setting, "seed": seed, "code": code(method)}
    for row in stored(name):
        if wanted.items() <= row.items():
            break
    else:
        row = run(task(), method, setting, seed)
        store(name, row)
        point, marginal = (f"{row[part]['nll']:.4f}" if row[part] else "–" for part in ("point", "marginal"))
        cost = f"{row['step_ms']} ms a step, {row['seconds']} s" + (", diverged" if row["diverged"] else "")
        print(f"{name:15} {method:12} {setting} seed {seed}: NLL {point}, marginal {marginal}, {cost}", flush=True)
    return row["point"]["nll"] if row["point"] else math.inf


def compare(name: str, method: str, seeds: Sequence[int]) -> None:
    """All runs of a method on a task."""
    task = functools.cache(TASKS[name])
    if method in OURS:
        for seed in seeds:
            obtain(task, name, method, {}, seed)
        return
    if method == "Muon" and not hidden_matrices(task().model(0)):
        return
    found: dict[int, float] = {}
    longer = 2 if name in LONGER and method in ("SGD", "ivon-opt") else 0
    rungs = [rung + longer for rung in GRIDS[method]]
    while rungs:
        found |= {rung: obtain(task, name, method, {"lr": step_size(rung)}, seeds[0]) for rung in rungs}
        best = min(found, key=lambda rung: found[rung])
        rungs = [rung for rung in (best - 1, best + 1) if rung not in found]
    for seed in seeds[1:]:
        for rung in [best] if name in COSTLY else [best - 1, best, best + 1]:
            obtain(task, name, method, {"lr": step_size(rung)}, seed)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    for task in asked.tasks:
        for method in asked.methods:
            compare(task, method, asked.seeds)


if __name__ == "__main__":
    main()
