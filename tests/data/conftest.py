"""Real data, where there is some: in LIEBAYES_DATA, or packed in a folder beside the repository."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

UNPACK = Path(__file__).parents[2].parent / "shared" / "data" / "unpack"
GIVEN = os.environ.get("LIEBAYES_DATA")  # before a test takes it away


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with real data sets, laid out as users keep them; not all need be there."""
    if GIVEN:
        return Path(GIVEN)
    if not UNPACK.is_file():
        pytest.skip("no real data: set LIEBAYES_DATA to a folder that has some")
    fcntl = pytest.importorskip("fcntl", reason="needs file locks to unpack the data once for all test processes")
    # The same folder for every session and process, filled once: 200 MB each time would soon fill the disk.
    folder = Path(tempfile.gettempdir()) / f"liebayes-test-data-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, str(UNPACK), str(folder)], check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def fashion_data() -> Path:
    """The folder above Fashion-MNIST's; Debian's package puts it among the system's data."""
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share/:/usr/share/"
    places = [Path(GIVEN)] if GIVEN else []
    for place in [*places, *(Path(name) / "datasets" for name in shared.split(":") if name)]:
        if (place / "fashion-mnist").is_dir():
            return place
    pytest.skip("no Fashion-MNIST: install Debian's dataset-fashion-mnist, or set LIEBAYES_DATA")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test downloads anything or finds the user's own files, unless it says so itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LIEBAYES_DATA", raising=False)

    def refuse(address: str, timeout: float | None = None) -> None:
        raise AssertionError(f"a test asked for {address}")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
