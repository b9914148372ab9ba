"""The tables of a report, as data for the template."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...metrics import Interval, sparsity
from ..display import duration
from ..tasks import Figure
from .evidence import Evidence, comparable
from .page import Cell, Table
from .style import RUN_COLOURS

Column = tuple[str, Callable[[Evidence], float | None], str, int]
"""Heading, value, format, and whether high (1), low (-1) or nothing (0) is best."""


def summary(runs: Sequence[Evidence]) -> Table:
    """One row for each run: the marginal, and in small the interval of each figure."""
    task = runs[0].task
    classes = runs[0].dataset.kind == "classification"
    across = [_judged(runs, figure) for figure in task.figures]
    rows = []
    for number, run in enumerate(runs):
        cells = [column[number] for column in across]
        if classes:
            found = run.auroc_interval
            cells.append(Cell(_number(found.value, ".3f"), _range(found, ".3f")))
        epochs = str(run.lines[-1]["epoch"]) if run.lines else "0"
        words = [Cell(run.settings.rule), Cell(run.base)]
        rows.append([_name(run), *words, *cells, Cell(epochs), Cell(duration(run.seconds))])
    samples = sorted({run.settings.predictive_samples for run in runs if not run.is_point})
    notes = ["Small: 95 % intervals, by resampling the test data."]
    if any(figure.name == "ece" for figure in task.figures):
        notes.append("On few data the ECE is too large by chance; its interval is corrected for that, and may lie below it.")
    if len(runs) > 1 and comparable(runs):
        notes.append("Bold: no run is better, and another is worse, beyond chance on these test data.")
    if samples:
        notes.append(f"Predictions are averages over {' or '.join(map(str, samples))} samples of the weights.")
    if classes:
        names = ", ".join(dict.fromkeys(run.outside.name for run in runs))
        notes.append(f"AUROC: how well predictive entropy separates {names} from test images.")
    named = [figure.heading[0].upper() + figure.heading[1:] for figure in task.figures]
    headings = ["Run", "Rule", "Base", *named, *(["AUROC"] if classes else []), "Epochs", "Training"]
    return Table(headings, rows, "cards summary", words=(0, 1, 2), note=" ".join(notes))


def _judged(runs: Sequence[Evidence], figure: Figure) -> list[Cell]:
    """A figure of every run with its interval, in bold where the intervals of differences decide."""
    cells = []
    for run in runs:
        found, best = run.interval(figure.name), False
        if figure.sign and len(runs) > 1 and comparable(runs):
            leads = [run.against(other, figure.name) for other in runs if other is not run]
            ahead = [figure.sign * lead.value > 0 for lead in leads if lead.decided]
            best = bool(ahead) and all(ahead)
        cells.append(Cell(_number(found.value, figure.form), _range(found, figure.form), best=best))
    return cells


def _range(found: Interval, form: str) -> str:
    return f"{_number(found.low, form)} to {_number(found.high, form)}"


def averaging(runs: Sequence[Evidence]) -> Table:
    """The point estimate against the average over samples, and whether the difference is beyond chance."""
    rows = []
    for run in runs:
        if not run.is_point:
            change = run.averaging
            verdict = ("worse" if change.value > 0 else "better") if change.decided else "undecided"
            figures = [run.point_metrics["nll"], run.metrics["nll"], change.value]
            rows.append(
                [_name(run), *(Cell(_number(value, ".4f")) for value in figures), Cell(_range(change, ".4f")), Cell(verdict)]
            )
    return Table(["Run", "NLL, point", "NLL, averaged", "Difference", "95 %", "Averaging"], rows, "cards", words=(0, 5))


def hurt(runs: Sequence[Evidence]) -> list[str]:
    """A sentence for every run that averaging made worse."""
    return [
        f"Averaging over the posterior makes {run.name} worse: NLL {run.metrics['nll']:.4f} instead of "
        f"{run.point_metrics['nll']:.4f} at the point. Its posterior is wider than the data allow: {_narrower(run)}, or train "
        "longer."
        for run in runs
        if not run.is_point and run.averaging.decided and run.averaging.value > 0
    ]


def _narrower(run: Evidence) -> str:
    """What makes a rule's posterior narrower: the additive rule has no temperature, and others learn their widths."""
    return "give a --base of a smaller scale" if run.settings.rule == "additive" else "lower --temperature"


def energies(runs: Sequence[Evidence]) -> Table | None:
    """The free energy of runs that have one, with two standard errors."""
    rows = []
    for run in runs:
        last = run.lines[-1] if run.lines else {}
        if "free_energy" in last:
            total, error, kl = (last[name] for name in ("free_energy", "free_energy_error", "kl"))
            figures = [_number(total - kl, ".4f"), _number(kl, ".4f"), _number(total, ".4f"), f"± {2 * error:.4f}"]
            rows.append([_name(run), *map(Cell, figures), Cell(_shown(run.settings.prior_precision))])
    note = (
        "In nats for each training datum; lower is better, among runs on the same data. It bounds −log of the evidence, at "
        "temperature 1 and under the prior N(0, 1/δ) of the run, so it needs no test data."
    )
    headings = ["Run", "Expected loss", "KL", "Free energy", "± two standard errors", "δ"]
    return Table(headings, rows, "cards", words=(0,), note=note) if rows else None


def outside(runs: Sequence[Evidence]) -> Table:
    """How well runs recognise images from outside the training data."""
    return _comparison(
        runs,
        [
            ("AUROC, entropy", lambda run: run.auroc_entropy, ".3f", 0),
            ("AUROC, mutual information", lambda run: run.auroc_information, ".3f", 0),
            ("Entropy inside", lambda run: float(run.marginal.entropy.mean()), ".3f", 0),
            ("Entropy outside", lambda run: float(run.marginal_outside.entropy.mean()), ".3f", 0),
        ],
    )


def sparseness(runs: Sequence[Evidence]) -> Table:
    """How unequal the weights are."""
    found = {run.name: sparsity(run.effective_weights) for run in runs}
    return _comparison(
        runs,
        [
            ("Weights", lambda run: run.effective_weights.numel(), ",.0f", 0),
            ("Below 1 % of the largest", lambda run: found[run.name].below, ".1%", 0),
            ("Carry 90 % of Σ|w|", lambda run: found[run.name].mass_share, ".1%", 0),
            ("Gini", lambda run: found[run.name].gini, ".3f", 0),
            ("Hoyer", lambda run: found[run.name].hoyer, ".3f", 0),
        ],
    )


def settings(runs: Sequence[Evidence]) -> list[Table]:
    """The settings that differ between runs, and folded away, those they share and where they ran."""
    content = [{**dataclasses.asdict(run.settings), "base": run.base} for run in runs]
    names = [name for name in content[0] if name not in ("output", "data_dir", "resume")]
    differing = [name for name in names if len({str(c[name]) for c in content}) > 1]
    rows = {name: [Cell(name.replace("_", " ")), *(Cell(_shown(c[name])) for c in content)] for name in names}
    columns = range(len(runs) + 1)
    found = [Table(["", *(run.name for run in runs)], [rows[n] for n in differing], words=columns)] if differing else []
    shared = "Settings that all runs share" if len(runs) > 1 else "All settings"
    found.append(Table([], [rows[name][:2] for name in names if name not in differing], words=columns, folded=shared))
    places = [[_name(run), Cell(_environment(run.environment))] for run in runs]
    return [*found, Table([], places, words=columns, folded="Where and when they ran")]


def _comparison(runs: Sequence[Evidence], columns: Sequence[Column]) -> Table:
    rows = [[_name(run), *figures] for run, figures in zip(runs, _figures(runs, columns), strict=True)]
    return Table(["Run", *(heading for heading, *_ in columns)], rows, "cards")


def _figures(runs: Sequence[Evidence], columns: Sequence[Column]) -> list[list[Cell]]:
    """A row of figures for each run, the best of each column marked where runs can be compared."""
    across = []
    for _, value, form, sign in columns:
        values = [value(run) for run in runs]
        known = [v for v in values if v is not None]
        best = None
        if sign and len(known) > 1 and comparable(runs):
            best = _number(max(known) if sign > 0 else min(known), form)
        across.append([Cell(_number(v, form), best=_number(v, form) == best) for v in values])
    return [list(row) for row in zip(*across, strict=True)]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form).replace("%", "\u00a0%")


def _name(run: Evidence) -> Cell:
    return Cell(run.name, colour=run.number % len(RUN_COLOURS))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _environment(environment: dict[str, Any]) -> str:
    git = environment.get("git")
    parts = [
        str(environment.get("date", "")),
        f"liebayes {environment.get('liebayes', '?')}" + (f" ({git[:10]})" if git else ""),
        f"torch {environment.get('torch', '?')}, Python {environment.get('python', '?')}",
        f"{environment.get('processor', '?')}, {environment.get('threads', '?')} threads",
    ]
    return "; ".join(part for part in parts if part)
