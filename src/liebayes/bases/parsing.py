"""Bases from text, in the form in which they print: `Laplace(scale=0.005)`, or shorter, `laplace(0.005)`."""

from __future__ import annotations

import re
from dataclasses import fields

from .base import Base
from .half_line import Exponential, LogNormal, Rayleigh
from .real_line import Cauchy, Dirac, Gumbel, Laplace, Normal, StudentT, Uniform

_NAMED: dict[str, type[Base]] = {
    kind.__name__.lower(): kind
    for kind in (Normal, Laplace, Uniform, Cauchy, StudentT, Gumbel, Dirac, Rayleigh, Exponential, LogNormal)
}
_CALL = re.compile(r"(?P<name>\w+)\s*(?:\((?P<arguments>[^()]*)\))?")


def parse(text: str) -> Base:
    """The base that a text names. Arguments are numbers, by position or by name; nothing is evaluated.

    >>> parse("laplace(0.005)")
    Laplace(scale=0.005)
    >>> parse("StudentT(df=5, scale=0.1)")
    StudentT(df=5.0, scale=0.1)
    """
    match = _CALL.fullmatch(text.strip()) if isinstance(text, str) else None
    kind = _NAMED.get(match["name"].lower()) if match else None
    if match is None or kind is None:
        known = ", ".join(sorted(k.__name__ for k in _NAMED.values()))
        raise ValueError(f"{text!r} is not a base. Write one such as Laplace(0.005); the names are {known}.")
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values: dict[str, float] = {}
    named = False
    arguments = (match["arguments"] or "").replace(" ", "")
    for position, part in enumerate(arguments.split(",") if arguments else []):
        name, separator, number = part.rpartition("=")
        name = name if separator else (names[position] if position < len(names) else "")
        if name in values or (named and not separator):
            raise ValueError(f"{text!r} gives {name or 'a number'} twice, or a number after a name.")
        named = bool(separator)
        try:
            values[name] = float(number)
        except ValueError:
            raise ValueError(f"{number!r} in {text!r} is not a number.") from None
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ValueError(f"{kind.__name__} takes {names or 'no arguments'}, but {text!r} gives more.")
    try:
        return kind(**values)
    except TypeError:
        raise ValueError(f"{kind.__name__} needs {names}, but {text!r} does not give them all.") from None
