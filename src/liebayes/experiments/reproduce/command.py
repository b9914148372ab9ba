"""`liebayes reproduce`: the command line of the recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from . import RECIPES
from .recipe import Scale, Selection, Source, plan
from .run import execute, finished_runs
from .table import write_tables

What = Annotated[
    Literal["table1", "table2"],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="WHAT", help_behavior_hint="", help="table1 or table2."),
]


def reproduce(
    what: What,
    scale: Scale = "desktop",
    settings: tuple[Source, ...] = ("paper", "ours"),
    only: tuple[str, ...] = (),
    experiments: tuple[str, ...] = (),
    datasets: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    epochs: int | None = None,
    mc_samples: int | None = None,
    output: Path = Path("runs"),
    results: Path = Path("results"),
    data_dir: Path | None = None,
    threads: int | None = None,
    collect: bool = False,
) -> int:
    """Run a table of the paper again, or a part of it, and put it beside the paper's figures.

    Every run is a run directory. Called again, finished runs are left out and interrupted ones go on; the table fills run by
    run, and says "not run" for the rest.

    Args:
        what: the table.
        scale: paper is the full protocol; desktop takes hours on two cores; smoke takes seconds, and shows only that it runs.
        settings: whose settings: those of the paper's appendix, of the authors' published commands, or ours.
        only: methods by name, such as "affine Laplace" SGD; all by default.
        experiments: such as mnist-mlp or cifar10-resnet20; all by default.
        datasets: such as cifar10; all by default.
        seeds: such as 0 1 2; as many as the scale has by default.
        epochs: in place of the scale's; a row of its own in the table.
        mc_samples: in place of the scale's; a row of its own in the table.
        output: the folder for run directories.
        results: the folder for results and tables.
        data_dir: where data sets are.
        threads: CPU threads; small networks are faster with one.
        collect: train nothing; store the results of finished runs and write the table.
    """
    recipe = RECIPES[what]
    runs = plan(recipe, Selection(scale, settings, only, experiments, datasets, seeds, epochs, mc_samples))
    runs = finished_runs(runs, output) if collect else runs
    missing = execute(recipe, runs, output, results, data_dir, threads)
    print(write_tables(recipe, results), end="")
    return int(missing > 0)
