"""Writes the tables of README.md, docs/ and results/ from the stored results.

python benchmarks/readme_tables.py          # rewrites what is between <!-- table NAME --> and <!-- end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import continual
import model_choice
import out_of_the_box_tables
import pruning
from classical import picture as posteriors
from speed.report import markdown, parts_markdown

from liebayes.experiments.reproduce import RECIPES
from liebayes.experiments.reproduce.result import read_all
from liebayes.experiments.reproduce.rows import rows
from liebayes.experiments.reproduce.table import grid, line, summary, write_tables

ROOT = Path(__file__).parents[1]
POSTERIORS = ROOT / "results" / "posteriors"

README_ROWS = {
    "table1": [
        ("mnist-mlp", "additive", "published", 20, 4),
        ("mnist-mlp", "multiplicative", "published", 20, 4),
        ("mnist-mlp", "multiplicative Adaptive", "ours", 20, 2),
        ("mnist-mlp", "multiplicative Adaptive tuned", "ours", 20, 4),
        ("mnist-mlp", "SGD", "ours", 20, 1),
    ],
    "table2": [
        ("cifar10-resnet20", "affine Gaussian", "paper", 8, 1),
        ("cifar10-resnet20", "affine Laplace", "paper", 8, 1),
        ("cifar10-resnet20", "SGD", "paper", 8, 1),
        ("cifar10-resnet20", "iVON", "paper", 8, 1),
    ],
}
"""The rows of the README: experiment, method, whose settings, epochs and Monte Carlo samples."""


def readme() -> str:
    """A few rows of tables 1 and 2, each of several seeds."""
    lines = []
    for name, chosen in README_ROWS.items():
        recipe, results = RECIPES[name], read_all(ROOT / "results", name)
        found = {
            (experiment.name, row.method, row.source, row.epochs, row.mc_samples): (experiment.title, row)
            for experiment in recipe.experiments
            for row in rows(recipe, experiment, "desktop", results)
            if row.results
        }
        for key in chosen:
            if key not in found:
                raise SystemExit(f"results/{name} has no result for {key}, a row of the README. Change README_ROWS.")
            title, row = found[key]
            method, source, epochs, _, seeds, accuracy, nll, ece, printed = line(row)[:9]
            lines.append((title, f"{method} ({source})", epochs, seeds, accuracy, nll, ece, printed))
    return grid(("", "rule (settings)", "epochs", "seeds", "accuracy %", "NLL", "ECE", "paper's accuracy %"), lines)


def optimizers() -> str:
    """`results/optimizers.json`: the defaults on the digits."""
    rows = json.loads((ROOT / "results" / "optimizers.json").read_text())["results"]
    lines = ["| rule | accuracy | NLL | ECE | seconds |", "|---|---|---|---|---|"]
    for rule, row in rows.items():
        figures = f"{100 * row['mean_accuracy']:.2f} % | {row['nll']:.4f} | {row['ece']:.4f} | {row['cpu_seconds']:.0f}"
        lines.append(f"| {rule} | {figures} |")
    return "\n".join(lines)


def free_energy(figure: str = "free_energy", digits: int = 0) -> str:
    """`results/benchmarks/free_energy.json`: a figure of every method after so many epochs, beside the best free energies."""
    folder = ROOT / "results" / "benchmarks"
    problems = json.loads((folder / "free_energy.json").read_text())["problems"]
    references = json.loads((folder / "free_energy_references.json").read_text())
    best = ("diagonal", "full") if figure == "free_energy" else ()
    methods = list(dict.fromkeys(name for found in problems.values() for name in found))
    lines = []
    for problem, found in problems.items():
        known = [references.get(problem, {}).get(family, {}) for family in best]
        for epochs in sorted({count for of_method in found.values() for count in of_method}, key=int):
            figures = [*known, *(found.get(name, {}).get(epochs, {}) for name in methods)]
            cells = [f"{one[figure]:.{digits}f}" if figure in one else "–" for one in figures]
            if set(cells) != {"–"}:
                lines.append((problem, epochs, *cells))
    return grid(("problem", "epochs", *(f"best {family}" for family in best), *methods), lines)


def stored(module: Any) -> str:
    """The table of a benchmark that has one result and makes its own rows."""
    return "\n".join(module.table(json.loads(module.RESULT.read_text())))


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


Tables = Mapping[str, Callable[[], str]]

PAGES: dict[str, Tables] = {
    "README.md": {"readme": readme},
    "docs/optimizers.md": {"optimizers": optimizers},
    "docs/adapters.md": {"pruning": lambda: stored(pruning)},
    "docs/continual.md": {"continual": lambda: stored(continual)},
    "docs/curvature.md": {
        "free-energy": free_energy,
        "free-energy-widths": lambda: free_energy("log_sd_error", 2),
        "free-energy-seconds": lambda: free_energy("seconds_per_epoch", 3),
    },
    "docs/out-of-the-box.md": {
        "out-of-the-box": out_of_the_box_tables.summary,
        "out-of-the-box-details": out_of_the_box_tables.details,
    },
    "docs/posteriors.md": {
        "posteriors": lambda: grid(*posteriors.at_equal_seconds(POSTERIORS)),
        "posteriors-verdicts": lambda: grid(*posteriors.verdicts(POSTERIORS)),
    },
    "docs/priors.md": model_choice.TABLES,
    "docs/results.md": {"table1": lambda: paper_table("table1"), "table2": lambda: paper_table("table2")},
    "docs/speed.md": {
        "speed": speed,
        "speed-parts": lambda: speed("speed_parts.json", parts_markdown),
        "speed-picture": speed_picture,
    },
}


def with_tables(text: str, tables: Tables) -> str:
    """The page with its tables written again."""
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
