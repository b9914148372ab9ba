"""Writes the tables of README.md and of results/ from the stored results.

python benchmarks/readme_tables.py          # rewrites what stands between <!-- table NAME --> and <!-- end -->
"""

from __future__ import annotations

import json
import re
from pathlib import Path

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


TABLES = {
    "optimizers": optimizers,
    "table1": lambda: paper_table("table1"),
    "table2": lambda: paper_table("table2"),
}


def with_tables(text: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: m[1] + make() + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"README.md has {count} places for the table {name}; it needs one.")
    return text


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(with_tables(page.read_text()))
    for recipe in RECIPES.values():
        write_tables(recipe, ROOT / "results")
