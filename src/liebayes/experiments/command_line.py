"""Functions and dataclasses as a command line: the signature gives the options, the documentation their help.

Parameters without a default are positional, unless they are keyword-only; all others are options. A wrong word raises a
`SettingsError` of one sentence.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from .settings import SettingsError, option, type_in_words

_METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Argument:
    """One argument of a command."""

    name: str
    type: Any
    """The type of one value: without None, and without the tuple around several values."""
    several: bool
    positional: bool
    required: bool
    help: str

    @property
    def metavar(self) -> str:
        if self.positional:
            return self.name.upper() if not self.several else f"{self.name.removesuffix('s').upper()} ..."
        if get_origin(self.type) is Literal:
            return f"{{{','.join(get_args(self.type))}}}"
        return _METAVARS.get(self.type, "")

    def convert(self, text: str) -> Any:
        """The value that a word of the command line stands for."""
        if get_origin(self.type) is Literal and text in get_args(self.type):
            return text
        if self.type in _METAVARS:
            try:
                return self.type(text)
            except ValueError:
                pass
        shown = self.metavar if self.positional else option(self.name)
        raise SettingsError(f"{shown} must be {type_in_words(self.type)}, but is {text!r}.")


def arguments_of(target: Callable[..., Any], default_text: Callable[[str], str] | None = None) -> list[Argument]:
    """The arguments of a function or a dataclass. `default_text` describes defaults; otherwise they are shown as they are."""
    hints, docs = get_type_hints(target), _documentation(target)
    found = []
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kinds = [kind for kind in get_args(hints[name]) if kind is not type(None)]
        several = get_origin(hints[name]) is tuple
        kind = kinds[0] if several or type(None) in get_args(hints[name]) else hints[name]
        required = parameter.default is parameter.empty
        default = default_text(name) if default_text else parameter.default
        default = " ".join(default) if isinstance(default, tuple) else default
        shown = not required and default not in (None, False, "False", "")
        found.append(
            Argument(
                name=name,
                type=kind,
                several=several,
                positional=required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD,
                required=required,
                help=docs[name] + (f" (default: {default})" if shown else ""),
            )
        )
    return found


def parse(arguments: Sequence[Argument], words: Sequence[str], *, prog: str, description: str) -> dict[str, Any]:
    """The arguments that were given, by name. Prints the help and raises SystemExit if that was asked for."""
    parser = _Parser(prog, description, arguments)
    spelled = [re.sub("_", "-", word) if re.fullmatch(r"--\w+", word) else word for word in words]
    found, unknown = parser.parse_known_intermixed_args(spelled)
    if unknown:
        close = difflib.get_close_matches(unknown[0].partition("=")[0], [option(a.name) for a in arguments], 1)
        hint = f"Did you mean {close[0]}?" if close else f"See {prog} --help."
        raise SettingsError(f"{prog} does not understand {unknown[0]!r}. {hint}")
    given = {}
    for argument in arguments:
        value = getattr(found, argument.name)
        if argument.several and value is not None:
            given[argument.name] = tuple(map(argument.convert, value))
        elif value is not None:
            given[argument.name] = argument.convert(value) if isinstance(value, str) else value
    return given


class _Parser(argparse.ArgumentParser):
    """argparse, with words left unconverted, and errors as exceptions. None stands for an argument that was not given."""

    def __init__(self, prog: str, description: str, arguments: Sequence[Argument]) -> None:
        width = min(shutil.get_terminal_size().columns, 100)
        places = "".join(f" {argument.metavar}" for argument in arguments if argument.positional)
        super().__init__(
            prog,
            usage=f"{prog}{places} [OPTIONS]",
            description="\n\n".join(textwrap.fill(part, width) for part in description.split("\n\n")),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=width),
            allow_abbrev=False,
        )
        for argument in arguments:
            text = argument.help.replace("%", "%%")
            name = argument.name if argument.positional else option(argument.name)
            more: dict[str, Any] = {} if argument.positional else {"dest": argument.name, "required": argument.required}
            if argument.type is bool:
                self.add_argument(name, help=text, action=argparse.BooleanOptionalAction, **more)
            else:
                many = {"nargs": "*"} if argument.several else {}
                self.add_argument(name, help=text, metavar=argument.metavar.removesuffix(" ..."), **many, **more)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}. See {self.prog} --help.")


def summary_of(target: Callable[..., Any]) -> str:
    """The documentation of a command without its arguments."""
    return inspect.cleandoc(target.__doc__ or "").split("\nArgs:")[0].strip()


def _documentation(target: Callable[..., Any]) -> dict[str, str]:
    """The documentation of each argument: under `Args:` of a function, in the string below each field of a dataclass."""
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        (body,) = ast.parse(inspect.getsource(target)).body
        assert isinstance(body, ast.ClassDef)
        pairs = zip(body.body, body.body[1:], strict=False)
        return {
            field.target.id: " ".join(inspect.cleandoc(str(text.value.value)).split())
            for field, text in pairs
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }  # fmt: skip
    _, _, section = inspect.cleandoc(target.__doc__ or "").partition("\nArgs:\n")
    entries = re.split(r"^(\w+): ", textwrap.dedent(section), flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}
