"""Writes the tables of README.md, docs/speed.md and results/ from the stored results.

python benchmarks/readme_tables.py          # rewrites what stands between <!-- table NAME --> and <!-- end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from speed.report import markdown, parts_markdown

from liebayes.experiments.reproduce import RECIPES
from liebayes.experiments.reproduce.result import read_all
from liebayes.experiments.reproduce.table import summary, write_tables

ROOT = Path(__file__).parents[1]


def optimizers() -> str:
    """`results/optimizers.json`: the defaults on the digits."""
    rows = json.loads((ROOT / "results" / "optimizers.json").read_text())["results"]
    lines = ["| rule | accuracy | NLL | ECE | seconds |", "|---|---|---|---|---|"]
    for rule, row in rows.items():
        figures = f"{100 * row['mean_accuracy']:.2f} % | {row['nll']:.4f} | {row['ece']:.4f} | {row['cpu_seconds']:.0f}"
        lines.append(f"| {rule} | {figures} |")
    return "\n".join(lines)


def paper_table(name: str) -> str:
    """`results/table1/` or `results/table2/`: the paper's tables at the desktop scale."""
    return summary(RECIPES[name], read_all(ROOT / "results", name))


def speed(file: str = "speed.json", table: Callable[[dict[str, Any]], str] = markdown) -> str:
    """`results/benchmarks/speed.json`: times beside those of others; `speed_parts.json`: where they go."""
    stored = ROOT / "results" / "benchmarks" / file
    return table(json.loads(stored.read_text())) if stored.exists() else "Not measured yet."


def speed_picture() -> str:
    """How cost grows, where it has been drawn."""
    drawn = (ROOT / "docs" / "speed.png").exists()
    return "![Cost with parameters, samples and ranks](speed.png)" if drawn else "Not measured yet."


TABLES: dict[str, Callable[[], str]] = {
    "optimizers": optimizers,
    "table1": lambda: paper_table("table1"),
    "table2": lambda: paper_table("table2"),
}
"""Those of README.md."""

PAGES = {
    "README.md": TABLES,
    "docs/speed.md": {
        "speed": speed,
        "speed-parts": lambda: speed("speed_parts.json", parts_markdown),
        "speed-picture": speed_picture,
    },
}


def with_tables(text: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with every table made anew."""
    for name, make in tables.items():
        pattern = rf"(<!-- table {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: m[1] + make() + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"The page has {count} places for the table {name}; it needs one.")
    return text


if __name__ == "__main__":
    for name, tables in PAGES.items():
        page = ROOT / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for recipe in RECIPES.values():
        write_tables(recipe, ROOT / "results")
