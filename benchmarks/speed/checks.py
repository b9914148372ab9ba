"""What a step pays for being taken whole or not at all: its checks on and off in turn, in CPU time.

Off means: the kernel adds up no squares while it draws, bounds are not followed from step to step, the torch path does not add
up what it would write, and blocks do not take turns with other threads. The kernel without squares is compiled from the same
source, of which these lines are left out. What tells whether gradients are finite is older and stays.

CPU time of one thread, so that others on the machine cost noise only: the median of many ratios, each of two neighbours, and
the interval in which the median of as many would be.
"""

from __future__ import annotations

import ctypes
import math
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from liebayes import install, native
from liebayes.native.bounds import Memory
from liebayes.optim import native_store, store

from . import steps

FLAGS = ["-O3", "-g0", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"]
"""Those of setup.py."""
SQUARES = re.compile(r"^.*(squares\[\d\] \+= (theta|point|scale) \*|remember\(found, k, squares\[k\]\)).*$", re.MULTILINE)
LEFT_OUT = 4
SECONDS = 0.02
"""Work that is shorter is repeated to take about so long."""


def kernel_without_squares(folder: Path) -> ctypes.CDLL:
    source = Path(native.__file__).parent
    for path in [*source.glob("*.c"), *source.glob("*.h")]:
        text, count = SQUARES.subn("", path.read_text()) if path.name == "rule.h" else (path.read_text(), LEFT_OUT)
        if count != LEFT_OUT:
            raise RuntimeError(f"{path.name} has {count} lines to be left out, not {LEFT_OUT}: this benchmark is out of date.")
        (folder / path.name).write_text(text)
    names = [str(folder / f"{name}.c") for name in ("kernel", "portable", "avx2", "avx512")]
    subprocess.run(["cc", *FLAGS, "-fPIC", "-shared", "-fopenmp", *names, "-lm", "-o", str(folder / "k.so")], check=True)
    library = ctypes.CDLL(str(folder / "k.so"))
    library.liebayes_run.argtypes, library.liebayes_run.restype = [ctypes.c_void_p], None
    return library


@contextmanager
def unchecked(library: ctypes.CDLL) -> Iterator[None]:
    """A step as it was before it was checked."""

    def bucket_step(rule: Any, settings: Any, elements: Any, covector: Any, dtype: torch.dtype) -> Any:
        moved = rule.advance(elements, covector, settings)
        point, state = elements.layout.store(elements.point, moved.element, dtype)
        return store._New(point, {**state, **moved.memory}, moved.bounded, ZERO)

    nothing = Memory()
    with (
        patch.object(native, "_library", lambda: library),
        patch.object(native_store.NativeStore, "_after", lambda *_: nothing),
        patch.object(native_store.NativeGaussNewtonStore, "_after", lambda *_: nothing),
        patch.object(store, "bucket_step", bucket_step),
        patch.object(install.Turn, "__enter__", lambda self: install._open_blocks.append(self)),
        patch.object(install.Turn, "__exit__", lambda self, *_: install._open_blocks.remove(self)),
    ):
        yield


ZERO = torch.zeros(())
WORK: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "ResNet-20's 65 small tensors": ("AffineBLR", []),
    "1e6 parameters in 4 tensors": ("AffineBLR", [(250_000,)] * 4),
    "1e7 parameters in 4 tensors": ("AffineBLR", [(2_500_000,)] * 4),
    "1e6 parameters in 4 tensors, without the kernel": ("AffineBLR in torch", [(250_000,)] * 4),
}


def measure(sizes: Any, pairs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = kernel_without_squares(Path(folder))
        for name, (who, shapes) in WORK.items():
            named = shapes or [tuple(shape) for shape in steps.resnet_shapes(sizes)]
            [here] = steps.optimizers(named, only=(who,))
            rows.append({"name": f"{who}, {name.replace('65', str(len(named)))}", **_compared(here.work, library, pairs)})
            print(rows[-1], flush=True)
    return {"pairs": pairs, "rows": rows}


def _compared(work: Callable[[], object], library: ctypes.CDLL, pairs: int) -> dict[str, Any]:
    def checked() -> float:
        return _seconds(work, repeats)

    def without() -> float:
        with unchecked(library):
            return _seconds(work, repeats)

    repeats = 1
    repeats = max(1, math.ceil(SECONDS / min(min(checked(), without()) for _ in range(3))))
    found = []
    for k in range(pairs):  # in turn first and last, so that neither profits from its place
        one, other = (checked(), without()) if k % 2 else (without(), checked())
        found.append((one, other) if k % 2 else (other, one))
    ratios = sorted(on / off for on, off in found)
    reach = math.sqrt(pairs)  # two standard deviations of a rank
    low, high = (ratios[min(max(round(pairs / 2 + side * reach), 0), pairs - 1)] for side in (-1, 1))
    return {
        "ratio": statistics.median(ratios), "interval": [low, high], "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "on": statistics.median(on for on, _ in found) / repeats,
        "off": statistics.median(off for _, off in found) / repeats, "repeats": repeats,
    }  # fmt: skip


def _seconds(work: Callable[[], object], repeats: int) -> float:
    began = time.process_time()
    for _ in range(repeats):
        work()
    return time.process_time() - began
