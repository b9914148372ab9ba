"""The code of docs/integrations.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch.distributed as dist
from support.processes import torchrun

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
    program = tmp_path / "program.py"
    # As in liebayes.__main__: past its end a thread of gloo may abort a process that has done its work.
    program.write_text(code + "\nimport os\nos._exit(0)\n", encoding="utf-8")
    torchrun(program, cwd=tmp_path)
