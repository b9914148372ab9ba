"""The style of pictures: a width that fits a phone, a colour-blind-safe palette, one colour for each run.

Figures are matplotlib `Figure` objects, made without pyplot, and the rcParams of the process stay as they are. On the page the
colours become CSS variables, so that they follow light and dark mode.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

if TYPE_CHECKING:
    from .evidence import Evidence

Format = Literal["png", "svg"]
Args = ParamSpec("Args")
T = TypeVar("T")

WIDTH = 4.6  # inches: 9-point letters stay readable on a phone
INK, MUTED, PAPER = "#1b1c1e", "#6e7177", "#fefefd"
# Okabe and Ito's palette without black and yellow, ordered so that neighbours differ most.
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DARK_RUN_COLOURS = ("#4aa8e0", "#f07f2e", "#2fbf95", "#dd9abd", "#8accf2", "#f2b640")
LINES = ("-", "--", "-.", ":")
OUTSIDE = "#7a7d84"
WRONG = "#c23b22"

_DEFAULTS: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "lines.linewidth": 1.6, "figure.facecolor": "none",
    "figure.constrained_layout.use": True, "axes.facecolor": "none", "axes.edgecolor": MUTED, "axes.linewidth": 0.6,
    "axes.titlesize": 9, "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.labelsize": 9, "axes.labelcolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.unicode_minus": True,
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 1.5,
    **{
        f"{axis}tick.{name}": value
        for axis in "xy"
        for name, value in {
            "color": MUTED, "labelsize": 8.5, "major.width": 0.6, "minor.width": 0.4, "major.size": 3, "minor.size": 1.8,
        }.items()
    },
    "text.parse_math": False,  # show the names of runs and classes literally
    "svg.fonttype": "none",  # text stays text: smaller files, in the fonts of the page
    "svg.hashsalt": "liebayes",  # the same picture is the same file
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A figure with a title and a caption."""

    name: str
    """The name of its file, without the suffix."""
    title: str
    caption: str
    figure: Figure


@contextmanager
def styled() -> Iterator[None]:
    """A block in which matplotlib has this style, whatever the user has set."""
    with matplotlib.style.context(["default", _DEFAULTS]):
        yield


def in_style(draw: Callable[Args, T]) -> Callable[Args, T]:
    """Decorates a function that draws."""

    @wraps(draw)
    def drawing(*args: Args.args, **kwargs: Args.kwargs) -> T:
        with styled():
            return draw(*args, **kwargs)

    return drawing


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, for axes at given places."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    return figure


def one_panel(height: float = 3.1) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def panels(count: int, height: float = 1.9) -> tuple[Figure, list[Axes]]:
    """Panels with shared axes, one for each run: two in a row, labelled at the left and the bottom."""
    columns = 1 if count == 1 else 2
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, max(2.4, height * rows + 0.3)))
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for empty in axes[count:]:
        empty.set_axis_off()
    if count % columns:  # the panel above an empty one is the lowest of its column
        axes[count - columns].xaxis.set_tick_params(labelbottom=True)
    return figure, axes[:count]


def colour(number: int) -> str:
    """The colour of a run."""
    return RUN_COLOURS[number % len(RUN_COLOURS)]


def line_style(number: int) -> str:
    """The dashes of a run, for more runs than there are colours."""
    return LINES[number // len(RUN_COLOURS) % len(LINES)]


def panel_title(axes: Axes, number: int, name: str, note: str) -> None:
    """The name of a run above its panel, and a note below the name."""
    axes.set_title(short(name, 26), pad=15, color=colour(number))
    axes.annotate(note, (0, 1), (0, 3), "axes fraction", "offset points", color=MUTED, size=8.5)


def legend(figure: Figure, runs: Sequence[Evidence]) -> None:
    """The names of the runs, above the axes."""
    names = [run.name for run in runs]
    lines = [Line2D([], [], color=colour(run.number), ls=line_style(run.number)) for run in runs]
    columns = 1 if max(map(len, names)) > 26 else 4 if len(names) == 4 and sum(map(len, names)) < 36 else 2
    numbers = [str(run.number) for run in runs]
    drawn = figure.legend(lines, numbers, loc="outside upper left", ncols=columns, borderaxespad=0.2, columnspacing=1.4)
    for text, name in zip(drawn.get_texts(), names, strict=True):  # matplotlib leaves out labels that begin with _
        text.set_text(short(name, 56 // columns))


def plain_numbers(axis: Axis) -> None:
    """Plain numbers instead of powers of ten, also on a logarithmic axis."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def short(name: str, length: int) -> str:
    """A name, shortened to a length."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


# Output.


def save(picture: Picture, directory: Path, form: Format = "png") -> Path:
    """Writes a picture as a file, on a white background."""
    path = directory / f"{picture.name}.{form}"
    with styled():
        if form == "png":
            FigureCanvasAgg(picture.figure)
            picture.figure.savefig(path, dpi=200, facecolor="white", metadata={"Title": picture.title})
        else:
            picture.figure.savefig(path, dpi=200, facecolor="white", metadata={"Title": picture.title, "Date": None})
    return path


_NO_METADATA: Any = {"Creator": None, "Date": None, "Format": None, "Type": None}


def inline_svg(picture: Picture) -> str:
    """A picture as SVG inside a page: no links, proportions instead of sizes, and the colours and fonts of the page."""
    buffer = io.StringIO()
    with styled():
        picture.figure.savefig(buffer, format="svg", dpi=160, metadata=_NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    view = re.search(r'viewBox="([^"]*)"', text)
    assert view is not None
    start = f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(picture.title)}">'
    text = re.sub(r"<svg[^>]*>", lambda _: start, text, count=1)  # a lambda: backslashes in titles are literal
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", text)
    # Ids must be unique within the page; only those that are referred to matter.
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{picture.name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{picture.name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{picture.name}-\1)", text)
    variables = {INK: "--ink", MUTED: "--muted", PAPER: "--paper", OUTSIDE: "--outside", WRONG: "--wrong"}
    variables |= {c: f"--run-{i}" for i, c in enumerate(RUN_COLOURS)}
    for value, name in variables.items():
        text = text.replace(value, f"var({name})")
    return re.sub(r"\n\s*", "\n", text).strip()
