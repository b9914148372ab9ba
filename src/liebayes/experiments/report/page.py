"""A page: sections of tables and pictures, in one HTML file that refers to nothing outside (templates/page.html)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from .style import DARK_RUN_COLOURS, INK, MUTED, OUTSIDE, PAPER, RUN_COLOURS, WRONG, Picture, inline_svg

_LIGHT = {"ink": INK, "muted": MUTED, "paper": PAPER, "outside": OUTSIDE, "wrong": WRONG, "line": "#e3e3df"}
_DARK = {"ink": "#e9e8e4", "muted": "#9b9da3", "paper": "#17181a", "outside": "#a9acb3", "wrong": "#ff8a70", "line": "#303236"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with a smaller second line; the name of a run has the run's colour."""

    text: str
    small: str = ""
    best: bool = False
    colour: int | None = None


@dataclass(frozen=True)
class Table:
    """A table. On a phone, "cards" turns every row into a card; other tables scroll."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    kind: str = "plain"
    words: Sequence[int] = ()
    """Columns of words, which are aligned to the left."""
    note: str = ""
    folded: str = ""
    """A heading that opens the table when it is clicked."""


@dataclass(frozen=True)
class Section:
    """Tables, a list and pictures under one heading."""

    name: str
    heading: str
    lead: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    points: Sequence[str] = ()


def html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline_svg"] = inline_svg
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        light=_LIGHT | {f"run-{i}": colour for i, colour in enumerate(RUN_COLOURS)},
        dark=_DARK | {f"run-{i}": colour for i, colour in enumerate(DARK_RUN_COLOURS)},
        version=__version__,
    )
