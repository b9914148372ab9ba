"""The Triton kernels, each in a process of its own: interpreted on the CPU, and compiled for a GPU that need not be there.

Triton reads TRITON_INTERPRET when it is imported, and once imported it slows every use of torch.compile's modules; so it is
not in the environment of the tests but beside it, where `make test` puts it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import liebayes
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine
from liebayes.optim import gpu
from liebayes.rule import Absorbed

HERE = Path(__file__).parent
BESIDE = Path(sys.prefix) / "triton"


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRITON"))}
    own["PYTHONPATH"] = os.pathsep.join([str(Path(liebayes.__file__).parents[1]), str(BESIDE), own.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments], env=own | variables, cwd=HERE, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.fixture(scope="module")
def with_triton() -> None:
    if python("-c", "import triton").returncode:
        pytest.skip("Triton is not installed")


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize("name", ["interpreted_draws", "interpreted_steps"])
def test_interpreted(name: str) -> None:
    result = python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{name}.py", TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout


@pytest.mark.usefixtures("with_triton")
def test_compiled(tmp_path: Path) -> None:
    result = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "compiled_kernels.py", TRITON_CACHE_DIR=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr


def test_on_the_cpu_torch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    settings = {"group": DiagonalAffine(), "base": Normal(), "metric": Absorbed(), "prior": 0.0}
    assert not gpu.supports(nn.Parameter(torch.ones(3)), settings)


def test_without_triton_nothing_needs_it() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"  # any import of it fails
        "import torch; from liebayes.optim import gpu; from liebayes.groups import Additive\n"
        "from liebayes.bases import Normal; from liebayes.rule import Absorbed\n"
        "print(gpu.supports(torch.ones(3), dict(group=Additive(), base=Normal(), metric=Absorbed(), prior=0.0)))"
    )
    result = python("-c", code, TRITON_INTERPRET="1")
    assert (result.returncode, result.stdout.strip()) == (0, "False"), result.stderr
