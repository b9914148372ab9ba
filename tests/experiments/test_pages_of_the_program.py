"""The commands that the pages show: those of the program run in the order of their page, the others exist as written."""

from __future__ import annotations

import re
import shlex
import shutil
from glob import glob
from pathlib import Path

import numpy as np
import pytest
from support.pages import PAGES, ROOT

from liebayes.cli import main
from liebayes.experiments import commands
from liebayes.experiments.command_line import arguments_of, parse

pandas = pytest.importorskip("pandas")
image = pytest.importorskip("PIL.Image")

CHEAP = ["--epochs", "1", "--predictive-samples", "2"]
LONG = {"reproduce": "hours; tests/experiments/test_reproduce_smoke.py runs it at a small scale"}
ELSEWHERE = {"docs/from-advi.md": {"stan"}}
"""Code in other languages, and the page it is on: tests/integrations/test_from_advi.py compiles it."""


def lines(page: str) -> list[list[str]]:
    """The words of every command of a page, without comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(?:console|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [words for block in found for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages call their reader's own: a table, another one to predict, a folder of images, a network."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    columns = {"id": range(40), "size": generator.uniform(30, 200, 40), "city": ["Oslo", "Rome"] * 20}
    table = pandas.DataFrame(columns).assign(price=lambda t: 3 * t["size"] + generator.normal(size=40))
    table.to_csv("houses.csv", index=False)
    table[:3].drop(columns="price").to_csv("new-houses.csv", index=False)
    for name in ("cats", "dogs"):
        Path("pets", name).mkdir(parents=True)
        for number in range(6):
            image.fromarray(generator.integers(0, 255, (9, 9, 3)).astype(np.uint8)).save(f"pets/{name}/{number}.png")
    Path("mine").mkdir()
    code = "import torch\n\ndef build(shape, outputs):\n    return torch.nn.Linear(shape[0], outputs)\n"
    Path("mine", "networks.py").write_text(code)
    return tmp_path


def test_one_after_the_other(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training is cut short; nothing else is changed."""
    done = 0
    for page in PAGES:
        for folder in ("runs", "pictures"):
            shutil.rmtree(folder, ignore_errors=True)
        for program, *words in lines(page):
            if program != "liebayes" or words[0] in LONG:
                continue
            named = [name for word in words for name in (sorted(glob(word)) if "*" in word else [word])]
            status = main([*named, *(CHEAP if words[0] == "train" else [])])
            assert status == 0, f"{page}: liebayes {' '.join(words)}: {capsys.readouterr().err}"
            done += 1
    assert done > 10
    assert (files / "report.html").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if lines(page)])
def test_commands_exist(page: str) -> None:
    for program, *words in lines(page):
        if program == "liebayes":
            if words[0] in LONG:
                assert parse(arguments_of(commands.COMMANDS[words[0]]), words[1:], prog="", description="")
        elif program == "make":
            assert f"\n{words[0]}: " in (ROOT / "Makefile").read_text()
        elif program == "python":
            script = ROOT / words[0]
            text = "".join(file.read_text() for file in (script.glob("*.py") if script.is_dir() else [script]))
            assert all(f'"{word}"' in text or not word.startswith("--") for word in words[1:]), f"{page}: {words}"
        else:
            assert program in ("pip", "apt-get"), f"{page}: what is {program}?"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_looked_at(page: str) -> None:
    """Python (tests/test_readme.py), commands (here); what is in a block without a name is drawn, not run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    kinds = {match[1] for match in re.finditer(r"^ *```(\w*)[^\n]*\n.*?^ *```", text, flags=re.MULTILINE | re.DOTALL)}
    drawn = {""} if page == "docs/architecture.md" else set()
    assert kinds <= {"python", "console", "sh"} | drawn | ELSEWHERE.get(page, set())
