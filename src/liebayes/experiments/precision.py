"""The arithmetic of training passes: bfloat16 where the processor computes with it, float32 elsewhere.

Parameters, the rule and evaluations stay in float32; only the forward and backward passes run under torch's autocast.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import torch

from .settings import Precision, SettingsError

_FLAGS = ("avx512_bf16", "amx_bf16")


def resolve_precision(asked: Precision) -> Precision:
    """The requested precision on this machine, float32 or bfloat16. Refuses bfloat16 where it is emulated."""
    if asked == "auto":
        return "bfloat16" if computes_bfloat16() else "float32"
    if asked == "bfloat16" and not computes_bfloat16():
        raise SettingsError(
            "--precision bfloat16: this processor has neither AVX512-BF16 nor AMX, and would emulate it many times slower "
            "than float32. Use --precision auto or float32."
        )
    return asked


@cache
def computes_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices in hardware and torch knows it; elsewhere they are emulated."""
    flags = _flags_of_torch() | _flags_of_linux()
    return platform.machine().lower() in ("x86_64", "amd64") and not flags.isdisjoint(_FLAGS) and _torch_uses_them()


def _torch_uses_them() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _flags_of_torch() -> set[str]:
    """What torch reports about the processor; versions before 2.12 report nothing."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return {name for name in _FLAGS if capabilities.get(name)}


def _flags_of_linux() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def autocast(precision: Precision) -> AbstractContextManager[object]:
    """The context of a training pass."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
