"""The pages, and their examples: the Python blocks of a page run from top to bottom, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from .processes import program_on_two_ranks

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]


class Block(NamedTuple):
    """An example. With the launcher "torchrun" it is a program for two processes."""

    code: str
    launcher: str
    line: int


def blocks(page: str) -> list[Block]:
    """The examples of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```python *(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(match[2], match[1], text.count("\n", 0, match.start()) + 1) for match in found]


def run(page: str, folder: Path, names: dict[str, Any] | None = None, which: slice = slice(None)) -> dict[str, Any]:
    """The names that the examples of a page leave behind. Programs for several processes run in `folder`."""
    names = {"__name__": "__main__"} if names is None else names
    for block in blocks(page)[which]:
        for package in re.findall(r"^(?:import|from) (\w+)", block.code, flags=re.MULTILINE):
            pytest.importorskip(package)
        if block.launcher:
            _on_two_ranks(block, folder)
        else:  # line numbers in errors are those of the page
            exec(compile("\n" * block.line + block.code, page, "exec"), names)
    return names


def _on_two_ranks(block: Block, folder: Path) -> None:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs gloo")
    program = folder / "program.py"
    # As in liebayes.__main__: past its end a thread of gloo may abort a process that has done its work.
    program.write_text(block.code + "\nimport os\nos._exit(0)\n", encoding="utf-8")
    program_on_two_ranks(program, cwd=folder)
