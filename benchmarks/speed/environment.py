"""Where a measurement was made."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import liebayes
from liebayes import native

ROOT = Path(__file__).resolve().parents[2]


def environment(program: str = "benchmarks/speed") -> dict[str, Any]:
    """The machine, the versions and the command."""
    model, flags = cpu(Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")
    versions = {name: importlib.metadata.version(name) for name in ("ivon-opt",) if _installed(name)}
    return {
        "command": " ".join([f"python {program}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "liebayes": liebayes.__version__,
        "kernel": native.describe(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
        "torch_threads": torch.get_num_threads(),
        "cpu": model or platform.processor(),
        "cpu_flags": flags,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu(text: str) -> tuple[str, list[str]]:
    """The model, and those of its flags that say which vector instructions it has."""
    model = re.search(r"^model name\s*:\s*(.*)$", text, flags=re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, flags=re.MULTILINE)
    vector = re.compile(r"sse4_\d|avx|fma|f16c|bmi|amx")
    return model[1] if model else "", sorted(flag for flag in (flags[1].split() if flags else []) if vector.match(flag))


def commit() -> str:
    """The commit the code is of, and whether it has been changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
