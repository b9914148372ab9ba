"""A run directory: settings, environment, checkpoints and metrics of one training run.

settings.json       every setting, defaults filled in
environment.json    versions, command, git state, machine, a fingerprint of the data; and the same for every resumed session
checkpoint.safetensors, previous-checkpoint.safetensors
metrics.jsonl       one line per epoch
posterior.safetensors   the result of training
data.safetensors    tensors of yours that the run was trained on, if they are small
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .. import __version__, native
from ..atomic_write import atomic_write
from ..data import Dataset
from . import checkpoint
from .settings import BOOKKEEPING, SettingsError, TrainSettings
from .tasks import task_of_line

FIRST_FILES = ("environment.json", "metrics.jsonl")
"""What a run writes before settings.json, with which it has started."""


class RunError(RuntimeError):
    """A run that cannot start, continue or be read; the message says what to do."""


class DamagedRunError(RunError):
    """A finished run whose posterior cannot be read."""


class BusyRunError(RunError):
    """Another process is training in the directory."""


@contextmanager
def writable(path: Path, option: str = "--output") -> Iterator[None]:
    """Turns a system error into one that names the option with the path."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}. Choose another {option}.") from error


class RunDirectory:
    """The files of a run. Only `--resume` overwrites existing ones."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def posterior(self) -> Path:
        return self.path / "posterior.safetensors"

    # Starting.

    def require_usable(self, resume: bool) -> None:
        """Refuses a directory that training cannot use. Writes nothing, so a later failure leaves nothing behind."""
        here = self.path
        if here.exists() and not here.is_dir():
            raise RunError(f"{here} is a file. Choose another --output.")
        started = (here / "settings.json").exists()
        if resume and not started:
            raise RunError(f"{here} holds no run to resume. Start one without --resume, or check --output.")
        if started and not resume:
            raise RunError(f"{here} holds a run already. Continue with --resume, or choose another --output.")
        # A run killed during its start has left its lock, and may have left the files that come before settings.json.
        ours = FIRST_FILES if (here / ".lock").exists() else ()
        if here.exists() and not started and any(file.name[0] != "." and file.name not in ours for file in here.iterdir()):
            raise RunError(f"{here} is not empty and holds no run. Choose another --output.")
        nearest = next(folder for folder in (here, *here.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise RunError(f"{here} cannot be made or written: no permission in {nearest}. Choose another --output.")

    @contextmanager
    def opened(self, resume: bool, checkpoint_size: int) -> Iterator[None]:
        """Creates the directory, or takes over an existing one, and locks it until this process ends."""
        import fcntl

        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "a+")  # noqa: SIM115
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyRunError(
                    f"Another process is training in {self.path}. Wait for it, or choose another --output."
                ) from None
            except OSError as error:  # some network file systems have no locks
                warnings.warn(
                    f"{self.path} cannot be locked ({error.strerror or error}): make sure that no other process trains there.",
                    stacklevel=2,
                )
            self.require_usable(resume)  # again: a process that held the lock until now may have started a run
            self._require_space(checkpoint_size)
            yield

    def _require_space(self, size: int) -> None:
        """Refuses a disk that is too small: a run keeps two checkpoints and writes a third beside them."""
        here = [file.stat().st_size for file in (self.checkpoint, checkpoint.previous(self.checkpoint)) if file.exists()]
        free, need = shutil.disk_usage(self.path).free, 3 * size - sum(here)
        if free < need:
            raise RunError(
                f"{self.path} has {free / 1e6:.1f} MB free, but its checkpoints need {need / 1e6:.1f} MB. Free some space, or "
                "choose another --output."
            )

    # Writing and reading.

    def write_json(self, name: str, content: Any, *, alone: bool = True) -> None:
        """Writes a file atomically."""
        self.write_text(name, json.dumps(content, indent=2) + "\n", alone=alone)

    def write_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes all lines so far, atomically, so that no line is ever incomplete."""
        self.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def write_text(self, name: str, text: str, *, alone: bool = True) -> None:
        """Writes a file atomically; not `alone` where no lock keeps other processes from writing it."""
        try:
            with atomic_write(self.path / name, alone=alone) as partial:
                partial.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{self.path / name} could not be written: {error.strerror or error}. The old file is kept."
            ) from error

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} holds no run: {name} is missing. Give the --output of a `liebayes train`.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {error}. Nothing was changed; put a good copy there.") from error
        if not isinstance(content, dict):
            raise RunError(f"{path} is damaged: it holds no JSON object. Nothing was changed; put a good copy there.")
        return content

    def settings(self) -> TrainSettings:
        """The settings of the run."""
        try:
            return TrainSettings.from_json(self.read_json("settings.json"))
        except SettingsError as error:
            raise RunError(
                f"{self.path / 'settings.json'} is damaged: {error} Nothing was changed; put a good copy there."
            ) from error

    def finished(self, settings: TrainSettings, *, of: str, may_differ: Collection[str] = ()) -> bool:
        """Whether the run exists and has ended. Refuses a run with other settings than planned.

        Args:
            settings: the planned ones.
            of: the name of the plan, for the error message.
            may_differ: settings that may differ, beside those that do not change what is computed.
        """
        if not (self.path / "settings.json").exists():
            return False
        then, now = self.settings().to_json(), settings.to_json()
        for name in sorted(set(now) - BOOKKEEPING - set(may_differ)):
            if then[name] != now[name]:
                raise RunError(
                    f"{self.path} was trained with {name} {then[name]!r}, but {of} says {now[name]!r}. "
                    "Choose another --output."
                )
        return self.posterior.exists() and len(self.metrics()) == then["epochs"]

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if [line["epoch"] for line in lines] != list(range(1, len(lines) + 1)):
                raise ValueError("its lines are not epochs 1, 2, ...")
            for line in lines:
                _require_figures(line)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {error}. Nothing was changed; repair it, or move it away.") from error
        return lines

    def finished_metrics(self) -> list[dict[str, Any]]:
        """The lines of a run that has ended, the last one with test figures."""
        lines = self.metrics()
        if not lines or "test_nll" not in lines[-1]:
            raise RunError(f"{self.path / 'metrics.jsonl'} lacks the end of the run: train --resume writes it again.")
        return lines


def _require_figures(line: Mapping[str, Any]) -> None:
    """Refuses a line in which a figure is missing or no number: those of every line, and with a test NLL all test figures."""
    needed = ["train_loss", "seconds"]
    if "test_nll" in line:
        needed += ["point_nll", *(f"test_{figure.name}" for figure in task_of_line(line).figures)]
    given = [name for name in line if name.startswith(("test_", "point_"))]
    for name in [*needed, *given]:
        value: Any = line.get(name)
        number = isinstance(value, (int, float)) and (isinstance(value, float) or abs(value) <= sys.float_info.max)
        finite = number and (name != "seconds" or math.isfinite(value))  # figures of a bad model may be anything
        if not finite and not (value is None and name not in needed):
            raise ValueError(f"epoch {line['epoch']} has no number as its {name}")


def environment() -> dict[str, Any]:
    """What one needs to repeat a run."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "liebayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kernel": native.describe(),
        "processor": _processor(),
        "git": _git_state(),
    }


def provenance(environment: dict[str, Any], settings: TrainSettings) -> dict[str, Any]:
    """What is needed to repeat figures, without paths of this machine."""
    kept = {k: v for k, v in settings.to_json().items() if k not in BOOKKEEPING}
    first = {
        name: environment.get(name) for name in ("date", "liebayes", "python", "torch", "threads", "processor", "git", "data")
    }
    return {"settings": kept, **first, "sessions": 1 + len(resumed_sessions(environment))}


def resumed_sessions(environment: dict[str, Any]) -> list[Any]:
    """The environments of the sessions after the first one; none where somebody has put something else there."""
    known = environment.get("resumed")
    return known if isinstance(known, list) else []


def fingerprint(dataset: Dataset) -> str:
    """Identifies data: their sizes, and a checksum of everything a run reads of them."""
    digest = hashlib.sha256(repr((dataset.class_names, dataset.mean, dataset.std, dataset.augmentation)).encode())
    for tensor in (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"{len(dataset.train_labels)}+{len(dataset.test_labels)}:{digest.hexdigest()[:16]}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git_state() -> str | None:
    """The commit of the code, and whether it has changes; None outside a repository, or in that of another project."""
    here = Path(__file__).parents[1]  # the package alone: results written beside it are not changes

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + (" with changes" if status else "")
