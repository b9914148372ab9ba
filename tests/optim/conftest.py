"""What tests of the optimizers share.

The tests of the Triton kernels run in processes of their own (test_gpu.py); without Triton they cannot even be read.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from liebayes import threads
from liebayes.optim import parallel

collect_ignore_glob = [] if find_spec("triton") else ["compiled_kernels.py", "interpreted_*.py"]


@pytest.fixture
def threads_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads for torch, and samples evaluated in threads for small networks and few samples too."""
    monkeypatch.setattr(threads, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(parallel, "MIN_SAMPLES", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)
