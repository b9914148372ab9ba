"""The code of docs/integrations.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

TEXT = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python( torchrun)?\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_every_block_is_found():
    assert len(BLOCKS) == TEXT.count("```python") == 5


@pytest.mark.filterwarnings("ignore")  # advice of the packages about settings that keep the examples small
@pytest.mark.parametrize(("launcher", "code"), [block[1:] for block in BLOCKS], ids=[block[0] for block in BLOCKS])
def test_block(tmp_path: Path, launcher: str, code: str):
    for package in ("lightning", "accelerate"):
        if re.search(rf"^(import|from) {package}", code, re.MULTILINE):
            pytest.importorskip(package)
    if not launcher:
        exec(compile(code, "docs/integrations.md", "exec"), {"__name__": "__main__"})
        return
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs gloo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = tmp_path / "program.py"
    # As in liebayes.__main__: past its end a thread of gloo may abort a process that has done its work.
    program.write_text(code + "\nimport os\nos._exit(0)\n", encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(program)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
