"""How functions and settings become a command line: their documentation is the help, and a wrong word is one line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from .settings import DATASETS, RULES, SettingsError, TrainSettings, resolved

_LEFT_OUT = {
    "data_dir": "the environment variable LIEBAYES_DATA, or a folder in the user's cache",
    "base": "Normal(3/√N), for multiplicative Rayleigh(1.0)",
    "scale_momentum": "0.99999 for ivon-opt; otherwise 0.999",
    "threads": "1 for digits; otherwise as many as torch takes",
    "warmup_epochs": "5 % of the run, at most 5",
    "output": "runs/DATASET-RULE-SEED",
}
"""What is filled in for settings whose default is no number of a table."""
_METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}


def parse(target: Callable[..., Any], words: Sequence[str], *, prog: str) -> Any:
    """Calls the function, or makes the dataclass, with the arguments of a command line."""

    @functools.wraps(target)
    def later(*arguments: Any, **named: Any) -> Callable[[], Any]:
        return lambda: target(*arguments, **named)

    heard = io.StringIO()
    summary, *more = inspect.cleandoc(target.__doc__ or "").split("\nArgs:")[0].strip().split("\n\n")
    try:
        # Errors come in a box, which a wide terminal leaves on one line.
        with contextlib.redirect_stderr(heard), _columns_for_errors(words):
            found = tyro.cli(
                target if isinstance(target, type) else later,
                args=list(words),
                prog=prog,
                description=summary,
                config=(tyro.conf.DisallowNone,),  # what is left out is None; the word would only say the same
            )
    except SystemExit as stop:
        if stop.code in (0, None):  # the help was asked for; its text would not be wrapped in front of the options
            width = min(shutil.get_terminal_size().columns, 100)
            print("".join(f"\n{textwrap.fill(part, width)}\n" for part in more), end="")
            raise
        raise SettingsError(f"{_message(heard.getvalue())} See {prog} --help.") from None
    return found if isinstance(target, type) else found()


def optional_arguments_without_none(function: Callable[..., Any]) -> None:
    """Lets the help of arguments that may be None speak of what they are otherwise; their text says what None does."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if name != "return" and type(None) in get_args(hint) and len(kinds) == 1:
            shown = tyro.conf.arg(metavar=_METAVARS.get(kinds[0], "PATH"), help_behavior_hint="")
            function.__annotations__[name] = Annotated[hint, shown]


@contextlib.contextmanager
def _columns_for_errors(words: Sequence[str]) -> Iterator[None]:
    if {"-h", "--help"} & set(words):
        yield
        return
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "2000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _message(box: str) -> str:
    """The first paragraph in the box, and the option that was meant if there is one. Boxes may be drawn in ASCII."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        line = re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│| ")
        if re.fullmatch(r"[─-]{5,}", line):
            parts.append([])
        elif line and not re.search(r"[─-]{5,}", line):  # these are the title and the edges
            parts[-1].append(line)
    if "╭" not in box:
        parts = parts[1:] or [[]]  # in ASCII the title stands above a line
    text = " ".join(parts[0]).rstrip(". ") + "."
    wrong = re.match(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]", text)
    if wrong:
        text = f"{wrong[1]} must be {wrong[2]}, but is {wrong[3]}."
    for part in parts[1:]:
        if part and part[0].startswith("Perhaps you meant") and len(part) > 1:
            text += f" Did you mean {part[1].split(',')[0].split(' ')[0]}?"
    return text


def settings_type(start: TrainSettings | None = None) -> type[TrainSettings]:
    """`TrainSettings` with what the help says about the values of each: which are possible, and which it starts with.

    Args:
        start: settings of a file, which are then the defaults.
    """
    hints = get_type_hints(TrainSettings)
    fields = []
    for field in dataclasses.fields(TrainSettings):
        value = field.default if start is None else getattr(start, field.name)
        kinds = [kind for kind in get_args(hints[field.name]) or (hints[field.name],) if kind is not type(None)]
        more: dict[str, Any] = {"help_behavior_hint": f"(default: {default_text(field.name, value)})"}
        if kinds[0] in _METAVARS or len(kinds) > 1:
            more["metavar"] = _METAVARS.get(kinds[0])
        if field.name in ("data_dir", "output"):
            more["metavar"] = "PATH"
        fields.append((field.name, Annotated[hints[field.name], tyro.conf.arg(**more)], dataclasses.field(default=value)))
    made = dataclasses.make_dataclass("TrainLine", fields, bases=(TrainSettings,), frozen=True)
    made.__doc__ = TrainSettings.__doc__
    return made


def default_text(name: str, value: Any = None) -> str:
    """What a setting is if it is left out, for each data set and rule, from the tables themselves.

    >>> default_text("momentum")
    '0.8 for ivon; 0.95 for vogn; otherwise 0.9'
    """
    if value is not None:
        return str(value)
    if name in _LEFT_OUT:
        return _LEFT_OUT[name]
    datasets = [*DATASETS, "your own data"]
    full = {(d, r): getattr(resolved(TrainSettings(dataset=d, rule=r)), name) for d in datasets for r in RULES}
    by_rule = {r: _inner({d: full[d, r] for d in datasets}) for r in RULES}
    by_dataset = {d: _inner({r: full[d, r] for r in RULES}) for d in datasets}
    return min(_outer(by_dataset), _outer(by_rule), key=lambda text: ("(" in text, len(text)))


def _grouped(values: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The names that have each of the rarer values, and the most common value."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault("none" if value is None else str(value), []).append(name)
    *rare, common = sorted(groups, key=lambda text: len(groups[text]))
    return {text: ", ".join(groups[text]) for text in rare}, common


def _inner(values: Mapping[str, Any]) -> str:
    rare, common = _grouped(values)
    return common + (f" ({'; '.join(f'{text} with {names}' for text, names in rare.items())})" if rare else "")


def _outer(values: Mapping[str, Any]) -> str:
    rare, common = _grouped(values)
    return "; ".join([*(f"{text} for {names}" for text, names in rare.items()), f"otherwise {common}" if rare else common])
