"""Settings of the whole test suite: one thread for each process, and examples that are the same in every run.

Real data, where there is some, are in LIEBAYES_DATA, or packed in a folder beside the repository.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # torch says so where there is no numpy
    import torch

import pytest
from hypothesis import HealthCheck, Phase, settings

torch.set_num_threads(int(os.environ.get("LIEBAYES_TEST_THREADS", "1")))

with warnings.catch_warnings():
    # The first forward-mode derivative makes torch import a module of its own that warns about itself.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))

settings.register_profile(
    "liebayes",
    deadline=None,
    derandomize=True,
    max_examples=10,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Of matrix.py: other examples in every cell, and more of them.
settings.register_profile("seeded", settings.get_profile("liebayes"), derandomize=False, database=None, max_examples=25)
settings.load_profile("liebayes")

BARE = os.environ.get("LIEBAYES_EXTRAS") == "off"
"""Whether only torch is there, beside pytest and hypothesis (see matrix.py): what needs more is skipped."""


class BareModule(pytest.Module):
    """A file of tests; skipped if it imports what is not there."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except self.CollectError as error:
            if "ModuleNotFoundError" in str(error):
                pytest.skip(str(error).splitlines()[-1], allow_module_level=True)
            raise


if BARE:

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
        return BareModule.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call() -> object:
        try:
            return (yield)
        except ImportError as error:  # the library's own says what to install
            pytest.skip(str(error))

    pytest_runtest_setup = pytest_runtest_call


UNPACK = Path(__file__).parents[1].parent / "shared" / "data" / "unpack"
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
        subprocess.run([sys.executable, str(UNPACK), str(folder)], check=True, timeout=600)
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
