"""Programs on two processes. Time limits are only there to end what hangs: a loaded machine may take minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TIMEOUT = 600


def torchrun(program: Path, *arguments: str, cwd: Path | None = None) -> None:
    """Runs a program on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=cwd, timeout=TIMEOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
