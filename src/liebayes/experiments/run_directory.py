"""A run directory: settings, environment, checkpoints and metrics of one training run.

settings.json       every setting, defaults filled in
environment.json    versions, command, git state, machine
checkpoint.safetensors, previous-checkpoint.safetensors
metrics.jsonl       one line per epoch
posterior.safetensors   what training left
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from . import checkpoint


class RunError(RuntimeError):
    """A run that cannot start, go on or be read; the message says what to do."""


class RunDirectory:
    """The files of a run. Nothing that is there is overwritten but by `--resume`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def posterior(self) -> Path:
        return self.path / "posterior.safetensors"

    # Starting.

    def create(self, resume: bool) -> None:
        """Makes the directory, or takes up the one that is there."""
        started = (self.path / "settings.json").exists()
        if started and not resume:
            raise RunError(f"{self.path} holds a run already. Go on with --resume, or choose another --output.")
        if self.path.exists() and not started and any(self.path.iterdir()) and not resume:
            raise RunError(f"{self.path} is not empty and holds no run. Choose another --output.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}. Choose another --output.") from error

    def require_space(self, size: int) -> None:
        """A run keeps two checkpoints and writes a third beside them."""
        free = shutil.disk_usage(self.path).free
        if free < 3 * size:
            raise RunError(
                f"{self.path} has {free / 1e6:.0f} MB free, but its checkpoints need {3 * size / 1e6:.0f} MB. Make room, or "
                "choose another --output."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuses a second process on the same run. The lock goes with the process, however it ends."""
        import fcntl

        with open(self.path / ".lock", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"Another process is training in {self.path}. Wait for it, or choose another --output."
                ) from None
            yield

    # Writing and reading.

    def write_json(self, name: str, content: Any) -> None:
        """Writes a file that is whole or not there."""
        partial = self.path / f".{name}.part"
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, self.path / name)

    def read_json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} holds no run: {name} is missing. Give the --output of a `liebayes train`.") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise RunError(f"{path} cannot be read: {error}. Nothing was changed.") from error

    def write_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """All lines up to now: rewritten whole, so that a line is never half there."""
        partial = self.path / ".metrics.jsonl.part"
        partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.replace(partial, self.path / "metrics.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise RunError(f"{path} cannot be read: {error}. Nothing was changed.") from error

    def save_checkpoint(self, tree: Mapping[str, Any]) -> None:
        try:
            checkpoint.save(tree, self.checkpoint)
        except OSError as error:
            raise RunError(
                f"The checkpoint could not be written: {error.strerror or error}. The one before is kept."
            ) from error


def environment() -> dict[str, Any]:
    """What a reader needs to run the same again."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "liebayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "git": _git_state(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git_state() -> str | None:
    """The commit of the code, and whether it was changed; None outside a repository."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5, check=True)
        status = subprocess.run(
            ["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + (" with changes" if status.stdout.strip() else "")
