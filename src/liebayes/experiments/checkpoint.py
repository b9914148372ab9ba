"""Checkpoints: a tree of tensors, numbers and strings in one safetensors file. No code is pickled.

A file is written beside its place and moved there when it is complete; the previous one is kept under another name. So a good
checkpoint survives whatever happens while writing. A checksum over everything detects damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..atomic_write import atomic_write

FORMAT = "liebayes checkpoint 1"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read or written."""


class CheckpointWarning(UserWarning):
    """The last checkpoint is damaged, and the previous one is used."""


def save(tree: Mapping[str, Any], path: Path) -> None:
    """Writes a tree of dictionaries and lists whose leaves are tensors, numbers, strings, booleans or None."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def outline(node: Any, at: str) -> Any:
        if isinstance(node, Tensor):
            tensors[at] = node.detach().cpu().contiguous().clone()
            return {"tensor": at}
        if isinstance(node, Mapping):
            # JSON keys are strings, and optimizers number their parameters: pairs keep the type.
            return {"pairs": [[key, outline(value, f"{at}/{key}")] for key, value in node.items()]}
        if isinstance(node, (list, tuple)):
            return {"list": [outline(value, f"{at}/{i}") for i, value in enumerate(node)]}
        return {"value": node}

    text = json.dumps(outline(tree, ""))
    try:
        with atomic_write(path, alone=True) as partial:
            save_file(tensors, partial, metadata={"format": FORMAT, "tree": text, "checksum": _checksum(text, tensors)})
            with open(partial, "rb") as file:  # before the old one is renamed
                os.fsync(file.fileno())
            # A run killed after this line continues from the previous checkpoint.
            if path.exists():
                os.replace(path, previous(path))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} could not be written: {reason}. The previous checkpoint is kept.") from error


def previous(path: Path) -> Path:
    """The path of the checkpoint before the last one."""
    return path.with_name(f"previous-{path.name}")


def load(path: Path) -> dict[str, Any]:
    """Reads a tree back. Refuses a file that is not a complete checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of liebayes: its format is {metadata.get('format')!r}.")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        text = metadata["tree"]
        if _checksum(text, tensors) != metadata["checksum"]:
            raise CheckpointError(f"{path} is damaged: its checksum does not match its content.")
        return _rebuild(json.loads(text), tensors)
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}.") from error


def load_last_good(path: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; None if there is no checkpoint. Writes nothing."""
    problems: list[str] = []
    for candidate in (path, previous(path)):
        if not candidate.exists():
            continue
        try:
            tree = load(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(f"{problems[0]} Continuing from {candidate.name}.", CheckpointWarning, stacklevel=2)
        return tree
    if problems:
        raise CheckpointError(" ".join(problems) + " Nothing was changed; move these files away to start from the beginning.")
    return None


def set_damaged_aside(path: Path) -> None:
    """Renames a damaged last checkpoint, because the next save would otherwise replace the good one with it."""
    if path.exists() and previous(path).exists():
        try:
            load(path)
        except CheckpointError:
            os.replace(path, path.with_name(f"damaged-{path.name}"))


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _rebuild(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "pairs" in node:
        return {key: _rebuild(value, tensors) for key, value in node["pairs"]}
    if "list" in node:
        return [_rebuild(value, tensors) for value in node["list"]]
    return node["value"]
