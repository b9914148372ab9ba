"""A minute with liebayes: one network, four learning rules, one report.

    python examples/demo.py

Trains on the digits of scikit-learn with SGD and with the additive, affine and multiplicative groups, each with its default
settings, like `liebayes train --rule ...`. Prints a table and writes a page with pictures into demo-output/.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from liebayes import data
from liebayes.experiments import TrainSettings, train
from liebayes.experiments.report import write_report

OUTPUT = Path("demo-output")
RULES = {
    "sgd": "one network, no posterior",
    "additive": "moves a base of fixed width",
    "affine": "learns a location and a width",
    "multiplicative": "scales positive magnitudes: w⁺ − w⁻",
}


def table(results: dict[str, dict[str, Any]]) -> Table:
    """The predictive marginal and the point estimate of each rule."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    found.add_column("rule")
    for name in ("marginal\naccuracy", "\nNLL", "\nECE", "point\naccuracy", "\nNLL", "\nECE", "training\ntime"):
        found.add_column(name, justify="right")
    for rule, last in results.items():
        cells: list[str] = []
        for kind in ("test", "point"):
            cells += [f"{100 * last[f'{kind}_accuracy']:.2f} %", f"{last[f'{kind}_nll']:.4f}", f"{last[f'{kind}_ece']:.4f}"]
        found.add_row(rule, *cells, f"{last['seconds']:.0f} s")
    return found


def main() -> None:
    torch.set_num_threads(1)  # tensors this small do not benefit from a second thread
    began = time.perf_counter()
    console = Console(file=sys.stdout)
    console.print("[bold]liebayes[/]: choose a group and a base, and that is a learning rule.")
    console.print(f"{data.load('digits')!r}\n")
    runs = OUTPUT / "digits"
    shutil.rmtree(runs, ignore_errors=True)  # from an earlier demo
    runs.mkdir(parents=True)
    results: dict[str, dict[str, Any]] = {}
    for rule, what in RULES.items():
        settings = TrainSettings(dataset="digits", rule=rule, output=runs / rule)  # type: ignore[arg-type]
        with open(runs / f"{rule}.log", "w") as log, console.status(f"training: {rule}"), contextlib.redirect_stdout(log):
            results[rule] = train(settings)[-1]
        console.print(f"  [bold]{rule:15}[/] {what}: {100 * results[rule]['test_accuracy']:.2f} % right")
    console.print()
    console.print(table(results))
    console.print("On test data. Marginal: probabilities averaged over 32 samples of the weights; point: one network.")
    with console.status("drawing"):
        report = write_report([runs / rule for rule in RULES], OUTPUT / "report.html")
    console.print(f"\nIn {time.perf_counter() - began:.0f} seconds. Curves, calibration, weights and features side by side:")
    console.print(f"[bold]{report}[/]  (open it in a browser)")


if __name__ == "__main__":
    main()
