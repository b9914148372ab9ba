"""Checkpoints: a tree of tensors, numbers and strings in one safetensors file. No code is pickled.

A file is written beside its place and moved there when it is complete; the one before is kept under another name. So whatever
happens while writing, a good checkpoint is left.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = "liebayes checkpoint 1"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


def save(tree: Mapping[str, Any], path: Path) -> None:
    """Writes a tree of dictionaries and lists whose leaves are tensors, numbers, strings, booleans or None."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def outline(node: Any, at: str) -> Any:
        if isinstance(node, Tensor):
            tensors[at] = node.detach().contiguous().clone()
            return {"tensor": at}
        if isinstance(node, Mapping):
            # JSON keys are strings, and optimizers number their parameters: pairs keep the type.
            return {"pairs": [[key, outline(value, f"{at}/{key}")] for key, value in node.items()]}
        if isinstance(node, (list, tuple)):
            return {"list": [outline(value, f"{at}/{i}") for i, value in enumerate(node)]}
        return {"value": node}

    text = json.dumps(outline(tree, ""))
    partial = path.with_name(f".{path.name}.part")
    try:
        save_file(tensors, partial, metadata={"format": FORMAT, "tree": text})
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, previous(path))
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is."""
    return path.with_name(f"previous-{path.name}")


def load(path: Path) -> dict[str, Any]:
    """Reads a tree back. A file that is not a whole checkpoint is refused."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of liebayes: its format is {metadata.get('format')!r}.")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _rebuild(json.loads(metadata["tree"]), tensors)
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}.") from error


def load_last_good(path: Path) -> tuple[dict[str, Any], Path] | None:
    """The newest checkpoint that can be read, and where it was; None where there is none at all."""
    found = [candidate for candidate in (path, previous(path)) if candidate.exists()]
    problems: list[str] = []
    for candidate in found:
        try:
            return load(candidate), candidate
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(" ".join(problems) + " Nothing was changed; move these files away to start anew.")
    return None


def _rebuild(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "pairs" in node:
        return {key: _rebuild(value, tensors) for key, value in node["pairs"]}
    if "list" in node:
        return [_rebuild(value, tensors) for value in node["list"]]
    return node["value"]
