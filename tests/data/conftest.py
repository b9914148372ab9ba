"""No test of the data downloads anything."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test downloads anything or finds the user's own files, unless it says so itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LIEBAYES_DATA", raising=False)

    def refuse(address: str, timeout: float | None = None) -> None:
        raise AssertionError(f"a test asked for {address}")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
