"""The table of a stored result: on the screen, and in docs/speed.md."""

from __future__ import annotations

from typing import Any

from .contest import Limit

HEADINGS = ("work", "peers", "ours", "ratio", "limit", "held")


def figure(value: float, unit: str) -> str:
    """A time, or a number of floats, in three digits.

    >>> figure(2.7182, "s"), figure(0.0221, "s"), figure(0.00054, "s"), figure(4.375, "floats per parameter")
    ('2.72 s', '22.1 ms', '540 µs', '4.38 floats')
    """
    if unit != "s":
        return f"{value:.3g} floats"
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value / 1e-6:.3g} µs"


def cells(row: dict[str, Any]) -> list[list[str]]:
    """The lines of each cell of a row, in the order of the headings."""
    unit, ours = row["unit"], row["ours"]
    medians = {name: figure(found["median"], unit) for name, found in row["figures"].items()}
    peers = [f"{name} {median}" for name, median in medians.items() if name != ours]
    judged = [(Limit(entry["kind"], entry["bound"], entry["peer"]), entry["ratio"]) for entry in row["limits"]]
    ratios = ["–" if ratio is None else f"{ratio:.4g}" + (" ×" if limit.peer else "") for limit, ratio in judged]
    held = ["–" if entry["held"] is None else "yes" if entry["held"] else "no" for entry in row["limits"]]
    return [[row["work"]], peers, [medians[ours]], ratios, [str(limit) for limit, _ in judged], held]


def markdown(result: dict[str, Any]) -> str:
    """The table and where it was measured."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [f"| {' | '.join('<br>'.join(cell) for cell in cells(row))} |" for row in result["rows"]]
    return "\n".join([*lines, "", about(result)])


def about(result: dict[str, Any]) -> str:
    """Where and when it was measured."""
    where = result["environment"]
    words = (
        f"Medians of {result['rounds']} rounds on {where['cpu']}, {where['cores']} cores; kernel: {where['kernel']}; torch "
        f"{where['torch']} with {where['torch_threads']} threads; {where['date'][:10]}, commit {where['commit'][:7]}."
    )
    return words if result["quiet"] else words + " **Not measured on a quiet machine.**"


def parts_markdown(result: dict[str, Any]) -> str:
    """Times of parts, and how much of the whole each is."""
    lines = ["| work | what | time | of ours |", "|---|---|---|---|"]
    for row in result["rows"]:
        whole = row["figures"][row["ours"]]["median"]
        for name, found in row["figures"].items():
            lines.append(f"| {row['work']} | {name} | {figure(found['median'], 's')} | {found['median'] / whole:.0%} |")
    return "\n".join([*lines, "", about(result)])


def show(result: dict[str, Any]) -> None:
    """The table on the screen."""
    from rich.console import Console
    from rich.table import Table

    where = result["environment"]
    table = Table(
        *HEADINGS,
        title=f"{where['cpu']}, {where['cores']} cores, torch {where['torch']}, kernel: {where['kernel']}",
        caption=None if result["quiet"] else "Others may have taken the cores: not a result to quote.",
        show_lines=True,
    )
    colours = {"yes": "[green]yes[/]", "no": "[red]no[/]"}
    for row in result["rows"]:
        *first, held = ["\n".join(cell) for cell in cells(row)]
        table.add_row(*first, "\n".join(colours.get(word, word) for word in held.split("\n")))
    console = Console()
    console.print(table)
    for row in result["rows"]:
        if row["note"]:
            console.print(f"{row['work']}: {row['note']}", style="dim")
