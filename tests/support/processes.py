"""Programs on two processes. Time limits are only there to end what hangs: a loaded machine may take minutes for a start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

TIMEOUT = 1800


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def two_ranks(*command: str, cwd: Path | None = None) -> list[subprocess.CompletedProcess[str]]:
    """Runs a command on two ranks as torchrun does, but without its launcher, which is one more process to start."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none",
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}  # fmt: skip
    processes = [
        subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [subprocess.CompletedProcess(command, p.returncode, *texts) for p, texts in zip(processes, said, strict=True)]


def program_on_two_ranks(program: Path, *arguments: str, cwd: Path | None = None) -> None:
    """Runs a program on two ranks, which must not fail."""
    for done in two_ranks(sys.executable, str(program), *arguments, cwd=cwd):
        assert done.returncode == 0, done.stderr
