"""Reads the pickled (python) version of CIFAR without running any code that a file names.

A pickle may name any importable function and have it called. Here only the three names in a pickled NumPy array of Python 2,
and the one with which Python 3 writes bytes in old protocols, are known, and each leads to a stand-in of our own. So no code
outside this file runs, and NumPy is not needed.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .errors import DataFileError, reason


class _DType:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = _text(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: nothing that matters for single bytes."""


class _Array:
    """Stands in for numpy.ndarray: keeps what the pickle says about it."""

    shape: object = None
    dtype: object = None
    fortran: object = None
    content: object = None

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 5:
            _, self.shape, self.dtype, self.fortran, self.content = state


def _reconstruct(*_: object) -> _Array:
    """Stands in for numpy's function of this name, which makes an empty array that the state then fills."""
    return _Array()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stands in for _codecs.encode, for the one call that Python 3 writes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("_codecs.encode with other arguments than a latin-1 text")
    return text.encode("latin-1")


class _Callable:
    """The target of a name in a pickle: it can be called but not modified, as a plain function could be."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it modifies a function")


_KNOWN: dict[tuple[str, str], _Callable] = {
    ("numpy.core.multiarray", "_reconstruct"): _Callable(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Callable(_reconstruct),
    ("numpy", "ndarray"): _Callable(_Array),
    ("numpy", "dtype"): _Callable(_DType),
    ("_codecs", "encode"): _Callable(_encode),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> object:
        try:
            return _KNOWN[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which no CIFAR file needs") from None


def read_pickle(path: Path, content: bytes | bytearray) -> dict[str, object]:
    """The dictionary in a pickle of lists, numbers, strings and byte arrays; keys as strings, arrays as uint8 tensors."""
    try:
        _require_plain_memo(bytes(content))
        # Strings of Python 2 may hold any bytes.
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except MemoryError as error:
        raise DataFileError(path, "the pickle asks for more memory than there is: broken or another file") from error
    except Exception as error:  # a broken pickle may raise anything
        raise DataFileError(path, f"not a CIFAR file of the python version: {reason(error)}") from error
    if not isinstance(loaded, dict):
        raise DataFileError(path, f"expected a pickled dictionary, but a {type(loaded).__name__} came")
    return {_text(key): _tensor(path, value) if isinstance(value, _Array) else value for key, value in loaded.items()}


def _require_plain_memo(content: bytes) -> None:
    """Refuses a pickle that remembers an object under a far number: the unpickler would fill memory up to it."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content), 1):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > count:
            raise pickle.UnpicklingError(f"its instruction {count:,} remembers an object as number {argument:,}")


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _tensor(path: Path, array: _Array) -> Tensor:
    shape, content = array.shape, array.content
    if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise DataFileError(path, f"holds an array without a proper shape ({shape!r:.80})")
    if not isinstance(array.dtype, _DType) or array.dtype.code != "u1" or array.fortran not in (False, 0):
        raise DataFileError(path, "holds an array of another kind than bytes in C order")
    if not isinstance(content, bytes) or len(content) != math.prod(shape):
        came = f"{len(content):,}" if isinstance(content, bytes) else "no"
        raise DataFileError(path, f"holds an array of shape {shape} with {came} bytes")
    if not content:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)
