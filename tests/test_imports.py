"""Imports point one way (docs/architecture.md), and the core needs nothing but torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import TIMEOUT

import liebayes

ROOT = Path(liebayes.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ALLOWED = {
    "groups": set(),
    "bases": set(),
    "rule": {"groups", "bases"},
    "variational": {"groups", "bases", "rule"},
    "install": set(),
    "distributed": {"groups"},
    "prediction": {"install"},
    "posterior_file": {"groups", "bases", "rule", "atomic_write"},
    "posterior": {"groups", "bases", "rule", "prediction", "posterior_file", "install"},
    "native": set(),
    "training_warnings": set(),
    # An optimizer hands out its posterior.
    "optim": {"native", "groups", "bases", "rule", "posterior", "install", "distributed", "training_warnings"},
    "baselines": {"groups", "bases", "rule", "posterior", "optim", "distributed"},
    "integrations": {"groups", "optim", "posterior"},
    "metrics": set(),
    "nn": set(),
    "data": {"atomic_write"},
    "atomic_write": set(),
}
"""What each room may import of ours; rooms that are not here may import all."""

CORE = (
    "groups", "bases", "rule", "variational", "native", "optim", "baselines",
    "posterior", "posterior_file", "prediction", "install", "distributed", "training_warnings",
)  # fmt: skip


def room(path: Path) -> str:
    """The first name under liebayes/: a folder, or a file of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def runtime_imports(tree: ast.Module, inside_functions: bool) -> list[ast.Import | ast.ImportFrom]:
    """The imports that run: not those for type checkers; those of functions only if asked for."""
    found, todo = [], list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif is_type_checking(node):
            todo.extend(node.orelse)
        elif inside_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            todo.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler))
    return found


def modules(path: Path, inside_functions: bool) -> set[str]:
    """Absolute names of what a file imports."""
    package = ["liebayes", *path.relative_to(ROOT).parent.parts]
    names: set[str] = set()
    for node in runtime_imports(ast.parse(path.read_text(encoding="utf-8")), inside_functions):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif node.level == 0:
            names.add(node.module or "")
        else:
            start = package[: len(package) - (node.level - 1)]
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from . import x` names a module; `from .x import y` is a module with names in it.
            names.update([base] if node.module else [f"{base}.{alias.name}" for alias in node.names])
    return names


def test_imports_are_found() -> None:
    """A parser that finds nothing would allow everything."""
    assert "liebayes.groups" in modules(ROOT / "rule" / "family.py", True)
    assert "liebayes.bases" in modules(ROOT / "rule" / "family.py", False)
    assert "liebayes.groups.lie_group" in modules(ROOT / "groups" / "affine.py", True)
    assert "liebayes.rule" in modules(ROOT / "__init__.py", True)
    assert {room(path) for path in FILES} >= {"groups", "bases", "rule", "variational", "optim", "posterior"}
    tree = ast.parse(
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    import c\ntry:\n    import d\nfinally:\n    pass"
    )
    assert {n.names[0].name for n in runtime_imports(tree, False)} == {"b", "d"}
    assert {n.names[0].name for n in runtime_imports(tree, True)} == {"b", "c", "d"}


def test_directions_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(ALLOWED):
        ready = [name for name in ALLOWED if name not in order and ALLOWED[name] <= set(order)]
        assert ready, f"a circle among {sorted(set(ALLOWED) - set(order))}"
        order.extend(ready)


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ALLOWED], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """Also inside functions: a hidden import is a hidden dependency."""
    here = room(path)
    ours = {name.split(".")[1] for name in modules(path, True) if name.startswith("liebayes.")} - {"__version__"}
    assert ours - {here} <= ALLOWED[here], f"{here} must not import {sorted(ours - {here} - ALLOWED[here])}"
    assert "liebayes" not in modules(path, True), "import the room, not the whole package"


@pytest.mark.parametrize(
    "path", [p for p in FILES if room(p) in CORE or p.parent == ROOT], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_core_needs_only_torch(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "torch", "liebayes"}
    others = {name.split(".")[0] for name in modules(path, False)} - allowed
    assert room(path) == "cli" or not others, f"{sorted(others)} belong in an extra, imported where they are used"


IMPORTS = """
import sys, torch
before = set(sys.modules)  # torch may load extras of its own accord

def loaded(*names):
    return [name for name in names if name in sys.modules and name not in before]

import liebayes
print(loaded("matplotlib", "rich", "safetensors", "sklearn", "scipy", "pandas", "triton"))
import liebayes.experiments
print(loaded("rich", "matplotlib", "PIL"))
"""


def test_importing_the_package_loads_no_extra() -> None:
    """And training from Python nothing that only the command line needs."""
    command = [sys.executable, "-W", "error", "-c", IMPORTS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (result.returncode, result.stdout.split()) == (0, ["[]", "[]"]), result.stderr


def test_the_command_line_starts_without_heavy_imports() -> None:
    """`liebayes.cli` is imported by the console script before it is known what is to be done."""
    assert modules(ROOT / "cli.py", False) <= {*sys.stdlib_module_names, "collections.abc"}
    assert modules(ROOT / "cli.py", True) >= {"liebayes.experiments.commands"}
