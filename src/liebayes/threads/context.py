"""What belongs to the calling thread and must hold in the workers too: autocast and context variables.

Modes of torch's functions and hooks on saved tensors belong to a thread as well, but cannot be shared (`probing.obstacle`).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class CallersContext:
    """The context of the thread that makes it."""

    def __init__(self) -> None:
        self._variables = contextvars.copy_context()
        self._autocast: dict[str, Any] | None = None
        if torch.is_autocast_enabled("cpu"):
            cache = torch.is_autocast_cache_enabled()
            self._autocast = {"device_type": "cpu", "dtype": torch.get_autocast_dtype("cpu"), "cache_enabled": cache}

    @contextmanager
    def here(self) -> Iterator[None]:
        """A block of another thread with the same autocast."""
        torch.clear_autocast_cache()  # casts of other samples
        if self._autocast is None:
            yield
        else:
            with torch.autocast(**self._autocast):
                yield

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function with the caller's context variables."""
        return self._variables.copy().run(function, *arguments)
