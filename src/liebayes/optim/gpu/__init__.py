"""The rule on a GPU: sampling and updating as one Triton kernel each, for float32 parameters (docs/gpu.md).

Triton is optional; where it is missing, or a group, base or metric has no kernel, `supports` says no and torch's path serves.
"""

from .launch import fold, has_triton, sample, step, supports

__all__ = ["fold", "has_triton", "sample", "step", "supports"]
