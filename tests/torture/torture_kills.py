"""`kill -9` at random moments over all rules and over `train`, `sweep` and `reproduce`: ends are those of undisturbed runs.

A session is a process of its own, forked from this one, which has the package loaded: starting takes no time, and every kill
hits the program at work. Half of the kills wait until a file is being written.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from formats import write_mnist
from program import SETTINGS

from liebayes.cli import main

UNIT, GOAL = "kills", 1000
MEASURED = {"seconds", "date", "sessions", "step_seconds", "wall_seconds", "command", "output", "git"}
"""Entries of files that are times or places."""
MOST = 10
"""Kills of one run."""
SHORT = {"epochs": 2, "batch_size": 128, "checkpoint_seconds": 0, "predictive_samples": 2}
"""Short runs, with a checkpoint after every one of their 24 steps."""
GRID = {
    "settings": {**SHORT, "epochs": 1},
    "grid": {"rule": ["sgd", "affine", "multiplicative"]},
}
SHORT_WORDS = [word for name, value in SHORT.items() for word in (f"--{name.replace('_', '-')}", str(value))]


class Campaign:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # no thread may be lost in a fork
        self.folder, self.whole = folder, {}
        (folder / "grid.json").write_text(json.dumps(GRID))
        write_mnist(folder / "data" / "mnist", train=200, test=50)
        for what in (self.program(n) for n in (0, 2, 5)):  # after which everything is loaded that a session needs
            with contextlib.redirect_stdout(io.StringIO()):
                main(self.words(what, folder / "loaded" / what))

    def case(self, number: int) -> Counter[str]:
        """A run with up to ten kills."""
        chance = random.Random(f"kills {number}")
        what = self.program(number)
        if what not in self.whole:
            began = time.monotonic()
            self.session(what, self.folder / "whole", wait=None)
            self.whole[what] = left_by(self.folder / "whole" / what), time.monotonic() - began
        expected, length = self.whole[what]
        place = self.folder / f"case-{number}"
        counts = Counter({"runs": 1})
        for _ in range(MOST):
            wait, writing = chance.uniform(0, 0.7) * length, chance.random() < 0.5
            killed = self.session(what, place, wait, writing)
            if not killed:
                break
            parts = sum(1 for _ in (place / what).rglob(".*.part"))
            counts += Counter({"kills": 1, f"kills of {what}": 1, "kills while writing": int(parts > 0)})
        else:
            self.session(what, place, wait=None)
        found = left_by(place / what)
        different = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        if different:
            raise AssertionError(f"{what} ended otherwise after {counts['kills']} kills: {different}")
        orphans = [str(path) for path in place.rglob(".*.part")]
        if orphans:
            raise AssertionError(f"{what} left {orphans}")
        shutil.rmtree(place)
        return counts

    def program(self, number: int) -> str:
        """Two thirds of the runs train; the others are sweeps and tables."""
        if number % 3 == 2:
            return ("sweep", "reproduce")[number // 3 % 2]
        return f"train {list(SETTINGS)[(number - number // 3) % len(SETTINGS)]}"

    def words(self, what: str, output: Path) -> list[str]:
        name, _, which = what.partition(" ")
        if name == "train":
            started = (output / "settings.json").exists()
            words = ["train", *(["--resume"] if started else [*SETTINGS[which], *SHORT_WORDS])]
        elif name == "sweep":
            words = ["sweep", str(self.folder / "grid.json")]
        else:
            places = ["--results", str(output / "results"), "--data-dir", str(self.folder / "data")]
            words = ["reproduce", "table1", "--scale", "smoke", "--datasets", "mnist", "--settings", "paper", *places]
        return [*words, "--output", str(output / "runs" if name == "reproduce" else output)]

    def session(self, what: str, place: Path, wait: float | None, writing: bool = False) -> bool:
        """Runs the program, and kills it after a time. Returns whether it was killed."""
        output = place / what
        place.mkdir(exist_ok=True)
        words = self.words(what, output)
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            with open(place / "said", "wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            status = 99
            try:
                status = main(words)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        if wait is not None:
            time.sleep(wait)
            until = time.monotonic() + 0.3
            while writing and time.monotonic() < until and not any(output.rglob(".*.part")):
                time.sleep(0.0005)
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status) and wait is not None:
            return True
        if status != 0:
            raise AssertionError(f"{what}: a session ended with the status {status}: {(place / 'said').read_text()[-800:]}")
        return False


def left_by(folder: Path) -> dict[str, Any]:
    """What a finished command leaves, without times and places."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "posterior.safetensors":
            found[name] = path.read_bytes()
        elif path.name == "metrics.jsonl":
            found[name] = [_plain(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".json" and path.name not in ("environment.json", "wall.json"):
            found[name] = _plain(json.loads(path.read_text()))
    return found


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items() if key not in MEASURED}
    return [_plain(value) for value in node] if isinstance(node, list) else node
