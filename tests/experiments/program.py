"""The program as a process of its own, and what its runs leave."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support.processes import TIMEOUT

from liebayes.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
MEASURED = {"seconds"}
"""The fields of metrics.jsonl that are times, and differ from run to run."""

SETTINGS = {
    "sgd": ["--rule", "sgd"],
    "additive": ["--rule", "additive"],
    "affine": ["--rule", "affine", "--base", "Laplace(0.05)"],
    "multiplicative": ["--rule", "multiplicative"],
    "kronecker": ["--rule", "kronecker"],
    "ivon": ["--rule", "ivon"],
    "vogn": ["--rule", "vogn"],
    "ivon-opt": ["--rule", "ivon-opt"],
}
"""One run of each rule: short, and with a checkpoint after every one of its 180 steps."""
SHORT = ["--epochs", "4", "--checkpoint-seconds", "0", "--predictive-samples", "4"]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "liebayes", *map(str, words)]


def liebayes(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end."""
    settings = {"capture_output": True, "text": True, "env": ENVIRONMENT, "timeout": TIMEOUT, "check": False, **more}
    return subprocess.run(command(*words), **settings)


def start(*words: object) -> subprocess.Popen[str]:
    """Starts the program."""
    return subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, bufsize=1
    )


def left_by(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of the posterior, and the lines of metrics.jsonl without what is measured."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return load_file(run / "posterior.safetensors"), [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


def same(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same bits."""
    (tensors, lines), (tensors_too, lines_too) = left_by(one), left_by(other)
    return (
        lines == lines_too
        and set(tensors) == set(tensors_too)
        and all(
            tensors[name].dtype == tensors_too[name].dtype
            and torch.equal(tensors[name].view(torch.uint8), tensors_too[name].view(torch.uint8))
            for name in tensors
        )
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file that is not hidden, to see that nothing was overwritten."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file() and f.name[0] != "."}


def train_with_kills(rule: str, output: Path, kills: int, chance: random.Random) -> list[dict[str, Any]]:
    """Trains, with a `kill -9` at a random moment of each of the first sessions. Returns what each kill has hit.

    The moment is counted in checkpoints, and then in milliseconds, so that kills hit training on slow and on fast machines. A
    run that has ended is not killed any more.
    """
    hit: list[dict[str, Any]] = []
    while len(hit) < kills and not (output / "posterior.safetensors").exists():
        process = start(*_words(rule, output))
        opened = _time(output / "environment.json")
        while process.poll() is None and _time(output / "environment.json") == opened:
            time.sleep(0.001)
        for _ in range(chance.randrange(40)):
            last = _time(output / "checkpoint.safetensors")
            while process.poll() is None and _time(output / "checkpoint.safetensors") in (last, None):
                time.sleep(0.0002)
        time.sleep(chance.uniform(0.0, 0.02))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode == -signal.SIGKILL:
            hit.append({"rule": rule, **_state(output)})
        elif process.returncode != 0:
            raise RuntimeError(f"A session failed: {errors}")
    finish(rule, output)
    return hit


def finish(rule: str, output: Path) -> None:
    """The rest of a run, or all of it, in this process, which spares the start of another."""
    status = main([str(word) for word in _words(rule, output)])
    if status != 0:
        raise RuntimeError(f"The last session ended with the status {status}.")


def _words(rule: str, output: Path) -> list[object]:
    if (output / "settings.json").exists():
        return ["train", "--resume", "--output", output]
    return ["train", *SETTINGS[rule], *SHORT, "--output", output]


def _state(output: Path) -> dict[str, Any]:
    """What a kill has left: epochs done, and whether a file was being written."""
    metrics = output / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    return {"epochs_done": done, "while_writing": any(output.glob(".*.part"))}


def _time(path: Path) -> int | None:
    """When a file was last written, as far as it is there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
