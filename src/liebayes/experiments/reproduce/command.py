"""`liebayes reproduce`: the command line of the recipes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

from ..processes import require_one_process
from ..settings import SettingsError
from . import RECIPES
from .recipe import Scale, Selection, Source, plan
from .result import read_all
from .run import execute, finished_runs
from .table import write_tables

What = Literal["table1", "table2", "curves", "figure1", "figure-filters"]


def reproduce(
    what: What,
    *,
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
    runs: tuple[Path, ...] = (),
    image: int = 0,
) -> int:
    """Reproduce a table or figure of the paper, or a part of it, beside the paper's own numbers.

    Every run of a table has a run directory. Repeat the command to continue: finished runs are skipped and interrupted ones
    resumed. The table fills run by run, and says "not run" for the rest. figure-filters draws finished runs of table1; figure1
    needs none.

    Args:
        what: table1, table2, curves (the settings that limit Table 1 on MNIST), figure1 or figure-filters.
        scale: paper is the full protocol; desktop takes hours on two cores; smoke takes seconds and only shows that it runs.
        settings: the source of the settings: the paper's appendix, the authors' published commands, ours, or our short ones,
            for few epochs.
        only: methods, such as "affine Laplace" SGD; all by default.
        experiments: such as mnist-mlp or cifar10-resnet20; all by default.
        datasets: such as cifar10; all by default.
        seeds: such as 0 1 2; by default as many as the scale has.
        epochs: instead of the scale's; gives a separate row in the table.
        mc_samples: instead of the scale's; gives a separate row in the table.
        output: the folder for run directories.
        results: the folder for results, tables and pictures.
        data_dir: the folder with the data sets.
        threads: CPU threads; small networks are faster with one.
        collect: train nothing; only store the results of finished runs and write the table.
        runs: for figure-filters: run directories to draw side by side, instead of those in the output.
        image: for figure-filters: the number of the test image by whose activations features are sorted.
    """
    require_one_process("reproduce")
    _require_used(what, {name: value for name, value in locals().items() if name != "what"})
    if what == "figure1":
        return _figure1(results, scale)
    recipe = RECIPES["table1" if what == "figure-filters" else what]
    planned = plan(recipe, Selection(scale, settings, only, experiments, datasets, seeds, epochs, mc_samples))
    if what == "figure-filters":
        return _draw_filters(planned, runs, output, results, image, data_dir)
    planned = finished_runs(planned, output) if collect else planned
    missing = execute(recipe, planned, output, results, data_dir, threads)
    print(write_tables(recipe, results), end="")
    if what == "curves":
        _curves(results, scale)
    return int(missing > 0)


def _draw_filters(*arguments: Any) -> int:
    from .filters import draw_filters

    print(draw_filters(*arguments), end="")
    return 0


def _curves(results: Path, scale: Scale) -> None:
    from .curve_picture import draw_curves

    print(draw_curves(results, read_all(results, "curves"), scale) or "No picture: there are no results at this scale.")


def _require_used(what: str, given: dict[str, Any]) -> None:
    """Refuses options that a figure or table does not use."""
    tables = {"runs", "image"}
    unused = {"figure1": set(given) - {"scale", "results"}, "figure-filters": {"collect", "threads"}}.get(what, tables)
    for name in sorted(unused):
        if given[name] != inspect.signature(reproduce).parameters[name].default:
            raise SettingsError(f"--{name.replace('_', '-')} has no meaning for {what}: leave it out.")


def _figure1(results: Path, scale: Scale) -> int:
    from .dale import EPOCHS, draw_figure1c
    from .figure1 import draw_figure1

    print(draw_figure1(results))
    print(draw_figure1c(results, "figure1c-smoke", 2) if scale == "smoke" else draw_figure1c(results, "figure1c", EPOCHS))
    return 0
