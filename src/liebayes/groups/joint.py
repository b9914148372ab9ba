"""Several tensors, each on its support, as one vector of ℝᵖ: a chart of their Cartesian product.

One group on that vector gives one posterior over all of them, with correlations between the parts; a `Product` of groups has
no such correlations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .charts import Chart, Real
from .conjugated import log_volume


class Part(NamedTuple):
    """One tensor among those of a `Joint`."""

    name: str
    chart: Chart
    shape: torch.Size
    real_shape: torch.Size


@dataclass(frozen=True)
class Joint(Chart):
    """The chart of a tensor, or of tuples and dictionaries of tensors, from the supports of their parts.

    >>> from liebayes.groups import Positive
    >>> chart = Joint.of({"w": torch.zeros(2), "noise": torch.tensor(1.0)}, {"noise": Positive()})
    >>> chart.from_real(torch.tensor([3.0, 4.0, 0.0]))
    {'w': tensor([3., 4.]), 'noise': tensor(1.)}
    """

    parts: tuple[Part, ...]
    structure: Any
    """Where the parts are in dictionaries and tuples."""
    words = "points on the supports of all parts"

    @staticmethod
    def of(start: Any, supports: Any = None) -> Joint:
        """The chart for points like `start`, which must lie on the supports. Parts without a support are real."""
        parts: list[Part] = []

        def leaf(name: str, point: Any, chart: Chart) -> int:
            parts.append(_part(name, point, chart))
            return len(parts) - 1

        structure = _walk("", start, supports, leaf)
        if not parts:
            raise ValueError("start has no tensors. Give a point, such as torch.zeros(3), or a dictionary of them.")
        return Joint(tuple(parts), structure)

    def to_real(self, theta: Any) -> Tensor:
        pieces = []
        for part, value in zip(self.parts, self.leaves(theta), strict=True):
            real = part.chart.to_real(value)
            pieces.append(real.reshape(*real.shape[: real.ndim - len(part.real_shape)], part.real_shape.numel()))
        return torch.cat(pieces, -1)

    def from_real(self, z: Tensor) -> Any:
        return self.join([part.chart.from_real(piece) for part, piece in self._pieces(z)])

    def log_jacobian(self, z: Tensor) -> Tensor:
        terms = [
            log_volume(part.chart, piece, len(part.real_shape))
            for part, piece in self._pieces(z)
            if not isinstance(part.chart, Real)
        ]
        return torch.stack(terms).sum(0) if terms else z.new_zeros(z.shape[:-1])

    def contains(self, theta: Any) -> Tensor:
        inside = []
        for part, value in zip(self.parts, self.leaves(theta), strict=True):
            each = part.chart.contains(value)
            inside.append(each.reshape(*value.shape[: value.ndim - len(part.shape)], -1).all(-1))
        return torch.stack(torch.broadcast_tensors(*inside)).all(0)

    def real_shape(self, theta: Any) -> torch.Size:
        return torch.Size([sum(part.real_shape.numel() for part in self.parts)])

    def event_shape(self, real_shape: torch.Size) -> Any:
        return self.join([part.shape for part in self.parts])

    def _pieces(self, z: Tensor) -> list[tuple[Part, Tensor]]:
        """The numbers of each part, in its real shape."""
        pieces = z.split([part.real_shape.numel() for part in self.parts], -1)
        batch = z.shape[:-1]
        return [(part, piece.reshape(batch + part.real_shape)) for part, piece in zip(self.parts, pieces, strict=True)]

    # The structure.

    def leaves(self, theta: Any) -> list[Tensor]:
        """The tensors of θ in the order of the parts; a structure or shape that does not fit is refused."""
        found: list[Any] = [None] * len(self.parts)

        def collect(structure: Any, value: Any, name: str) -> None:
            if isinstance(structure, int):
                found[structure] = _fitting(self.parts[structure], value)
            elif isinstance(structure, dict):
                if not isinstance(value, Mapping) or set(value) != set(structure):
                    got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
                    raise ValueError(f"θ{name} must be a dictionary with the keys {sorted(structure)}, but got {got}.")
                for key, inner in structure.items():
                    collect(inner, value[key], f"{name}[{key!r}]")
            else:
                if not isinstance(value, (tuple, list)) or len(value) != len(structure):
                    raise ValueError(f"θ{name} must have {len(structure)} parts, but got {type(value).__name__}.")
                for place, inner in enumerate(structure):
                    collect(inner, value[place], f"{name}[{place}]")

        collect(self.structure, theta, "")
        return found

    def join(self, values: list[Any]) -> Any:
        """The inverse of `leaves`: one value for each part, in the structure of the start."""

        def build(structure: Any) -> Any:
            if isinstance(structure, int):
                return values[structure]
            if isinstance(structure, dict):
                return {key: build(inner) for key, inner in structure.items()}
            return tuple(map(build, structure))

        return build(self.structure)

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Joint({', '.join(f'{part.name}: {part.chart}' for part in self.parts)})"


def is_structure(value: Any) -> bool:
    """Whether a point comes as several tensors: a dictionary, or a tuple or list with tensors or more structure in it."""
    if isinstance(value, Mapping):
        return True
    plain = isinstance(value, (tuple, list)) and not hasattr(value, "_fields")
    return plain and any(isinstance(part, Tensor) or is_structure(part) for part in value)


def _walk(name: str, start: Any, supports: Any, leaf: Callable[[str, Any, Chart], int]) -> Any:
    """The structure of the start, with the number of its part in place of every tensor."""
    if supports is not None and not isinstance(supports, (Chart, Mapping, tuple, list)):
        raise ValueError(f"The support of {name or 'θ'} must be a chart, such as Positive(), but got {supports!r}.")
    if not is_structure(start):
        if supports is not None and not isinstance(supports, Chart):
            raise ValueError(f"{name or 'start'} is one tensor and has one support, such as Positive(), but got {supports!r}.")
        return leaf(name or "theta", start, Real() if supports is None else supports)
    names = list(start) if isinstance(start, Mapping) else list(range(len(start)))
    if isinstance(supports, Mapping) and isinstance(start, Mapping):
        if not set(supports) <= set(start):
            unknown = sorted(map(str, set(supports) - set(start)))
            raise ValueError(f"supports has {unknown}, but start has {sorted(map(str, start))}. Name parts of the start.")
        inner = {key: supports.get(key) for key in names}
    elif supports is None or isinstance(supports, Chart):
        inner = dict.fromkeys(names, supports)
    elif isinstance(start, Mapping) or isinstance(supports, Mapping) or len(supports) != len(start):
        raise ValueError(f"supports must be like start, a {type(start).__name__} of {len(start)} parts, but got {supports!r}.")
    else:
        inner = dict(enumerate(supports))
    walked = {key: _walk(f"{name}.{key}" if name else str(key), start[key], inner[key], leaf) for key in names}
    return walked if isinstance(start, Mapping) else tuple(walked.values())


def _part(name: str, point: Tensor, chart: Chart) -> Part:
    point = torch.as_tensor(point).detach()
    part = Part(name, chart, point.shape, chart.real_shape(point))
    if not bool(chart.contains(point).all()):
        values = point.flatten()[:6].tolist()
        shown = ", ".join(f"{value:g}" for value in values) + (", …" if point.numel() > 6 else "")
        raise ValueError(f"The start of {name} must lie among {chart.support}, but is {shown}. Start inside the support.")
    return part


def _fitting(part: Part, value: Any) -> Tensor:
    dims = len(part.shape)
    if not isinstance(value, Tensor) or value.shape[max(value.ndim - dims, 0) :] != part.shape:
        came = f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{part.name} must be a tensor whose last dimensions are {tuple(part.shape)}, but got {came}.")
    return value
