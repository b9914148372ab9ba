"""The compiled kernel: noise and the rule in one pass over memory (C and OpenMP, called on raw pointers).

It is built at installation where there is a C compiler, and is not linked against torch. Without it everything runs in
torch, more slowly. `LIEBAYES_KERNEL=off` disables it; `portable`, `avx2` and `avx512` limit the instructions it may use.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch  # its OpenMP runtime must be loaded first, so that both share one pool of threads

SAMPLE, FOLD, FIRST, STEP, SIZE, NOISE, MEASURE, TRY, ALL_SIZES = 1, 2, 4, 8, 16, 32, 64, 128, 256
"""What a job does, as in job.h."""

TENSOR_FIELDS = (
    "point", "log_scale", "sample", "gradient", "momentum_scale", "momentum_shift", "second_scale", "second_shift",
    "sum_scale", "sum_shift", "count", "number", "offset", "gathered", "traces", "step", "curvature", "rate", "spread",
    "floor", "level_change", "pull", "limit", "first_chunk",
)  # fmt: skip
"""The fields of a tensor's record, 64 bits each."""

CHUNK = 2048
"""Numbers that are worked on at a time, as in job.h."""

FIELD_NUMBERS = {name: number for number, name in enumerate(TENSOR_FIELDS)}

VERSION = 8
"""The version of the job format; a library built for another one is not used."""

VARIANTS = ("portable", "avx2", "avx512")
"""The instruction sets it is compiled for."""

_INTEGERS = ("what", "group", "base", "stream_kind", "adaptive", "from_sums", "ascend", "threads", "gauss_newton")
_FLOATS = (
    "base_scale", "base_shape", "over_mean", "prior", "temperature", "share", "lr_scale", "lr_shift", "max_step",
    "beta_scale", "beta_shift", "beta_second", "rest_scale", "rest_shift", "rest_second",
)  # fmt: skip


class Job(ctypes.Structure):
    """The record of job.h."""

    _fields_ = [
        ("tensors", ctypes.c_void_p),
        ("tensor_count", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in _INTEGERS),
        *((name, ctypes.c_float) for name in _FLOATS),
        ("sharp", ctypes.c_float * 4),
        ("epsilon", ctypes.c_float),
        ("seen", ctypes.c_float),
        ("partials", ctypes.c_void_p),
        ("sizes", ctypes.c_float * 3),
    ]


@cache
def _library() -> ctypes.CDLL | None:
    choice = os.environ.get("LIEBAYES_KERNEL", VARIANTS[-1])
    if choice not in (*VARIANTS, "off"):
        raise ValueError(f"LIEBAYES_KERNEL must be {', '.join(VARIANTS)} or off, but is {choice!r}.")
    files = Path(__file__).parent.glob("_kernel*.so")
    built_last = max(files, key=lambda file: file.stat().st_mtime, default=None)
    if choice == "off" or built_last is None:
        return None
    try:
        library = ctypes.CDLL(str(built_last))
        library.liebayes_run.argtypes = [ctypes.c_void_p]
        library.liebayes_run.restype = None
        if library.liebayes_version() != VERSION or library.liebayes_job_size() != ctypes.sizeof(Job):
            return None
    except (OSError, AttributeError):
        return None  # built for another machine, or before there were versions
    library.liebayes_allow(VARIANTS.index(choice))
    return library


_home = os.getpid()


def available() -> bool:
    """Whether the kernel is in use."""
    return _library() is not None


def describe() -> str:
    """Which kernel is in use, in words."""
    library = _library()
    if library is None and os.environ.get("LIEBAYES_KERNEL") == "off":
        return "none (everything runs in torch); it is switched off by LIEBAYES_KERNEL=off"
    if library is None:
        return "none (everything runs in torch); it is built by pip where there is a C compiler"
    return f"native, {VARIANTS[library.liebayes_variant()]}, {'OpenMP' if library.liebayes_has_openmp() else 'one thread'}"


def threads() -> int:
    """How many threads a job may use: as many as torch, but one in a forked process, where OpenMP has lost its threads."""
    return torch.get_num_threads() if os.getpid() == _home else 1


def table(columns: Mapping[str, Sequence[int]]) -> array[int]:
    """The records of tensors, from columns of some fields; the other fields are 0."""
    width = len(TENSOR_FIELDS)
    made = array("Q", bytes(8 * width * len(columns["count"])))
    for field, values in columns.items():
        made[FIELD_NUMBERS[field] :: width] = array("Q", values)
    return made


def run(job: Job, records: array[int]) -> None:
    """Runs a job on the tensors of a table, without holding the interpreter lock."""
    library = _library()
    if library is None:
        raise RuntimeError("The native kernel is not available. Ask native.available() first.")
    job.tensors, job.tensor_count = records.buffer_info()[0], len(records) // len(TENSOR_FIELDS)
    library.liebayes_run(ctypes.addressof(job))
