"""Posteriors in files: safetensors, with a readable header and a checksum over everything.

    element/<block>/<parameter>    the blocks of the elements of trained parameters
    fixed/<parameter>              the values of the others, but for frozen ones
    buffer/<name>                  the module's buffers
    kept/<parameter>               where a parameter was not pruned
    metadata["liebayes"]           JSON: format, versions, temperature, group and base of every family, fingerprints of frozen
                                   parameters, SHA-256

Nothing in a file is code: a group or base is a text such as `Laplace(scale=0.25)`, a name of the library with numbers and
strings. What a file says is compared with what the model and its groups need, tensor by tensor, so a posterior is loaded as it
was saved or not at all. The same posterior gives the same bytes.

Files of version 0.1.0 keep the parts of the header as separate metadata, and have no checksum.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import bases as _bases
from . import groups as _groups
from .atomic_write import atomic_write
from .bases import Base
from .groups import Chart, Joint, LieGroup, Product
from .rule import Family
from .rule.family import require_base, require_group

FORMAT = "liebayes posterior 3"
WITHOUT_FROZEN = "liebayes posterior 2"
"""What is written where there is nothing frozen and nothing pruned, which version 0.1.0 reads too."""
WITHOUT_CHECKSUM = "liebayes posterior 1"


class OtherModelError(ValueError):
    """A file of another model than the one at hand, or of this one beside other frozen weights."""


class Contents(NamedTuple):
    """What a posterior consists of."""

    families: Mapping[str, Family[Any]]
    fixed: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    temperature: float
    frozen: Mapping[str, str] = {}
    kept: Mapping[str, Tensor] = {}


def require_safetensors() -> None:
    """Says what to install."""
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError("Files of posteriors need safetensors: pip install 'liebayes[files]'") from error


def write(path: Path, contents: Contents) -> None:
    """Writes a file, whole or not at all. What `read` would refuse is refused here."""
    require_safetensors()
    from safetensors.torch import save_file

    from . import __version__

    _require_storable(contents)
    _require_sound("The posterior cannot be saved", contents)
    named: dict[str, Tensor] = {f"fixed/{name}": value for name, value in contents.fixed.items()}
    named |= {f"buffer/{name}": value for name, value in contents.buffers.items()}
    named |= {f"kept/{name}": value for name, value in contents.kept.items()}
    for name, family in contents.families.items():
        named |= {f"element/{field}/{name}": getattr(family.element, field) for field in family.element._fields}
    # Copies: parts of a model may share memory, which a file cannot.
    tensors = {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in named.items()}
    header = {
        "format": FORMAT if contents.frozen or contents.kept else WITHOUT_FROZEN,
        "liebayes": __version__,
        "torch": str(torch.__version__),
        "temperature": float(contents.temperature),
        # In the order of the families, in which samples are drawn.
        "families": {name: {"group": repr(f.group), "base": repr(f.base)} for name, f in contents.families.items()},
    }
    if contents.frozen:
        header["frozen"] = dict(contents.frozen)
    header["sha256"] = checksum(json.dumps(header), tensors)
    # One entry: safetensors writes several in any order.
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata={"liebayes": json.dumps(header, indent=1)})


def read(path: Path, model: nn.Module, groups: Iterable[LieGroup[Any]], bases: Iterable[Base]) -> Contents:
    """What a file holds for this model."""
    metadata, tensors = _read_tensors(path)
    header = _header(path, metadata, tensors)
    own_groups = {repr(group): group for group in _each("groups", groups, require_group)}
    own_bases = {repr(base): base for base in _each("bases", bases, require_base)}
    parameters = dict(model.named_parameters())
    families: dict[str, Family[Any]] = {}
    for name, texts in header["families"].items():
        if name not in parameters:
            raise OtherModelError(f"{path} has a posterior for the parameter {name}, which the model does not have.")
        group = own_groups.get(texts["group"]) or _group_of_library(path, texts["group"])
        base = own_bases.get(texts["base"]) or _base_of_library(path, texts["base"])
        families[name] = _family(path, name, parameters[name], group, base, tensors)
    frozen = header.get("frozen", {})
    _require_frozen_names(path, frozen, parameters, families)
    fixed = {name: p for name, p in parameters.items() if name not in families and name not in frozen}
    contents = Contents(
        families,
        _fitting(path, "fixed", fixed, tensors),
        _fitting(path, "buffer", dict(model.named_buffers()), tensors),
        header["temperature"],
        frozen,
        _kept(path, parameters, families, tensors),
    )
    if tensors:
        name = min(tensors)
        raise OtherModelError(f"{path} is not a posterior of this model, which has nothing for the tensor {name!r}.")
    _require_sound(f"{path} is no usable posterior", contents)
    return contents


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors on the CPU: their names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        value = value.contiguous()
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():
            digest.update((ctypes.c_char * (value.numel() * value.element_size())).from_address(value.data_ptr()))
    return digest.hexdigest()


# Reading.


def _read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    require_safetensors()
    from safetensors import SafetensorError, safe_open

    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a directory. Give the file that save() has written.")
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait for its writer
        raise ValueError(f"{path} is a device or a pipe. Give the file that save() has written.")
    try:
        with safe_open(str(path), framework="pt") as file:
            # Copies: what is checked must not change with the file, of which safetensors makes a map.
            return file.metadata() or {}, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, AttributeError, KeyError, TypeError, RuntimeError) as error:  # it has dtypes that torch has not
        raise ValueError(f"{path} is not a whole safetensors file: {error}.") from error


def _header(path: Path, metadata: dict[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The header, once it is known to be what was written."""
    if "liebayes" in metadata and "format" not in metadata:
        header = _json(path, metadata["liebayes"])
        if header.get("format") not in (FORMAT, WITHOUT_FROZEN):
            raise ValueError(
                f"{path} has the format {header.get('format')!r}, and this version of liebayes reads {FORMAT!r}. Install a "
                "newer one, or the one that has written it."
            )
        saved = header.pop("sha256", None)
        if saved != checksum(json.dumps(header), tensors):
            raise ValueError(f"{path} is damaged: its checksum does not match its content. Take another copy of the file.")
    elif metadata.get("format") == WITHOUT_CHECKSUM:
        warnings.warn(
            f"{path} was written by version 0.1.0 of liebayes and has no checksum: damage would go unnoticed. Save it again.",
            stacklevel=4,
        )
        header = {
            "temperature": _json(path, metadata.get("temperature", ""), float),
            "families": _json(path, metadata.get("families", "")),
        }
    else:
        raise ValueError(f"{path} is not a posterior of liebayes: its format is {metadata.get('format')!r}.")
    families, temperature = header.get("families"), header.get("temperature")
    if not (isinstance(temperature, float) and 0 <= temperature < math.inf):
        raise ValueError(f"{path} must give a temperature of zero or more, but has {temperature!r}.")
    if not (isinstance(families, dict) and families and all(map(_is_entry, families.values()))):
        raise ValueError(f"{path} does not name the group and the base of every trained parameter.")
    return header


def _json(path: Path, text: str, kind: type = dict) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a header that cannot be read: {error}. Take another copy of the file.") from error
    if not isinstance(found, kind):
        raise ValueError(f"{path} has a header that is not a {kind.__name__}. Take another copy of the file.")
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("group", "base"))


def _family(path: Path, name: str, p: Tensor, group: LieGroup[Any], base: Base, tensors: dict[str, Tensor]) -> Family[Any]:
    """The family of a parameter, whose blocks it takes out of the tensors."""
    try:
        needed = group.identity(torch.ones(p.shape, dtype=torch.float32))
    except ValueError as error:
        raise ValueError(f"{path} has {group} for the parameter {name} of shape {tuple(p.shape)}: {error}") from error
    blocks: dict[str, Tensor] = {}
    for field, like in zip(needed._fields, needed, strict=True):
        value = tensors.pop(f"element/{field}/{name}", None)
        if value is None or value.shape != like.shape:
            found = "nothing" if value is None else f"the shape {tuple(value.shape)}"
            raise OtherModelError(
                f"{path} does not fit the model: {name} needs {field} of shape {tuple(like.shape)} with {group}, but "
                f"the file has {found}. Build the model as it was when the posterior was saved."
            )
        blocks[field] = value.to(p.device)
    return Family(group, base, type(needed)(**blocks))


def _fitting(path: Path, kind: str, own: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stored values in place of the model's own, with the same names, shapes and dtypes up to precision."""
    prefix = f"{kind}/"
    stored = {key.removeprefix(prefix): tensors.pop(key) for key in list(tensors) if key.startswith(prefix)}
    for name in sorted({*own, *stored}):
        there, here = (_described(values.get(name)) for values in (stored, own))
        if there != here:
            raise OtherModelError(
                f"{path} was saved from another architecture: {name} ({kind}) {there} there, and {here} in the model."
            )
    return {name: stored[name].to(value.device, value.dtype) for name, value in own.items()}


def _require_frozen_names(path: Path, frozen: Any, parameters: Mapping[str, Tensor], families: Mapping[str, Any]) -> None:
    sound = isinstance(frozen, dict) and all(isinstance(text, str) for text in frozen.values())
    if not sound or set(frozen) & set(families):
        raise ValueError(f"{path} must have a fingerprint for every frozen parameter. Take another copy of the file.")
    for name in frozen:
        if name not in parameters:
            raise OtherModelError(f"{path} was trained beside the frozen parameter {name}, which the model does not have.")


def _kept(
    path: Path, parameters: Mapping[str, Tensor], families: Mapping[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Where parameters were not pruned."""
    found = {name: tensors.pop(f"kept/{name}") for name in families if f"kept/{name}" in tensors}
    for name, value in found.items():
        if value.dtype != torch.bool or value.shape != parameters[name].shape:
            raise ValueError(f"{path} does not say of every number of {name} whether it was pruned.")
    return {name: value.to(parameters[name].device) for name, value in found.items()}


def _each(name: str, given: Any, require: Callable[[object], None]) -> list[Any]:
    """The groups or bases that were passed along."""
    if not isinstance(given, Iterable):
        raise ValueError(f"{name} must be a list of {name} of your own, but got {given!r}.")
    listed = list(given)
    for one in listed:
        require(one)
    return listed


def _described(value: Tensor | None) -> str:
    if value is None:
        return "is missing"
    kind = "floating-point" if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
    return f"has the shape {tuple(value.shape)} of {kind} numbers"


def _require_sound(where: str, contents: Contents) -> None:
    """Refuses numbers that no posterior has."""
    for name, family in contents.families.items():
        for field, block in zip(family.element._fields, family.element, strict=True):
            if not (block.is_floating_point() and block.element_size() >= 2 and block.dtype == family.dtype):
                raise ValueError(
                    f"{where}: the blocks of the parameter {name} must be floating-point numbers of one precision, but "
                    f"{field} is {block.dtype}."
                )
            if not bool(block.isfinite().all()):
                raise ValueError(f"{where}: {field} of the parameter {name} has values that are not finite.")
    for name, value in contents.fixed.items():  # infinite ones may be masks
        if bool(value.isnan().any()):
            raise ValueError(f"{where}: the parameter {name} has values that are not numbers (NaN).")
    for name, value in contents.buffers.items():  # others may well be infinite, such as masks
        statistic = name.rpartition(".")[2]
        if statistic in ("running_mean", "running_var") and not bool(value.isfinite().all()):
            raise ValueError(f"{where}: the statistics {name} have values that are not finite.")
        if statistic == "running_var" and bool((value < 0).any()):
            raise ValueError(f"{where}: the variances {name} have negative values.")


def _require_storable(contents: Contents) -> None:
    """Refuses tensors that safetensors cannot hold."""
    for name, value in (*contents.fixed.items(), *contents.buffers.items()):
        if value.layout != torch.strided or value.is_quantized or value.is_meta or value.dtype == torch.complex128:
            kind = "on the meta device" if value.is_meta else f"{value.layout} of {value.dtype}"
            raise ValueError(
                f"The posterior cannot be saved: {name} is a tensor that a file cannot hold ({kind}). Keep it as an ordinary "
                "dense tensor of the module."
            )


# Groups and bases by their text.

_NAMES: dict[str, Any] = {
    name: kind
    for name, kind in vars(_groups).items()
    if isinstance(kind, type) and issubclass(kind, (LieGroup, Chart)) and kind not in (LieGroup, Chart, Joint, Product)
}


def _group_of_library(path: Path, text: str) -> LieGroup[Any]:
    """A group from the text it prints, such as `Kronecker(left='none', right='diagonal', max_side=64)`."""
    try:
        if len(text) > 1000:
            raise ValueError("a text of more than 1,000 characters")
        group = _built(ast.parse(text, mode="eval").body)
        if not isinstance(group, LieGroup):
            raise ValueError("a support, and no group")
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"{path} uses the group {text[:200]}, which the library does not have ({error}). If it is yours, pass it: "
            "Posterior.load(path, model, groups=[...])."
        ) from error
    return group


def _built(node: ast.AST) -> Any:
    """A number, a string, None, or an object of the library with such arguments by name. Nothing else is looked at."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, type(None)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -_built(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES and not node.args:
        return _NAMES[node.func.id](**{str(keyword.arg): _built(keyword.value) for keyword in node.keywords})
    raise ValueError("it must be a name with numbers and strings")


def _base_of_library(path: Path, text: str) -> Base:
    try:
        return _bases.parse(text)
    except ValueError as error:
        raise ValueError(
            f"{path} uses the base {text[:200]}, which the library does not have. If it is yours, pass it: "
            "Posterior.load(path, model, bases=[...])."
        ) from error
