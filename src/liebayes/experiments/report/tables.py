"""The tables of a report, as data for the template."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...metrics import Interval, sparsity
from ..display import duration
from ..tasks import Figure
from .evidence import Evidence, comparable
from .page import Cell, Table
from .style import RUN_COLOURS


def summary(runs: Sequence[Evidence]) -> Table:
    """One row for each run: the marginal, and in small the interval of each figure."""
    task = runs[0].task
    classes = runs[0].dataset.kind == "classification"
    across = [_judged(runs, figure) for figure in task.figures]
    rows = []
    for number, run in enumerate(runs):
        cells = [column[number] for column in across]
        if classes:
            cells.append(_with_interval(run.auroc_entropy, ".3f"))
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
        cells.append(_with_interval(found, figure.form, best))
    return cells


def _with_interval(found: Interval | None, form: str, best: bool = False) -> Cell:
    return Cell("–") if found is None else Cell(_number(found.value, form), _range(found, form), best)


def _range(found: Interval, form: str) -> str:
    return f"{_number(found.low, form)} to {_number(found.high, form)}"


def averaging(runs: Sequence[Evidence]) -> Table:
    """The point estimate against the average over samples, and whether the difference is beyond chance."""
    rows = []
    for run in runs:
        if not run.is_point:
            change = run.averaging
            verdict = ("worse" if change.value > 0 else "better") if change.decided else "undecided"
            figures = [_with_interval(found, ".4f") for found in (run.point_nll, run.interval("nll"), change)]
            rows.append([_name(run), *figures, Cell(verdict)])
    return Table(["Run", "NLL, point", "NLL, averaged", "Difference", "Averaging"], rows, "cards", words=(0, 4))


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
    rows = [
        [_name(run), *(_with_interval(found, ".3f") for found in (run.auroc_entropy, run.auroc_information, *run.entropies))]
        for run in runs
    ]
    headings = ["Run", "AUROC, entropy", "AUROC, mutual information", "Entropy inside", "Entropy outside"]
    return Table(headings, rows, "cards")


def sparseness(runs: Sequence[Evidence]) -> Table:
    """How unequal the weights are: figures of the weights themselves, of which no other sample would give others."""
    rows = []
    for run in runs:
        weights = run.effective_weights
        found = sparsity(weights)
        figures = [(weights.numel(), ",.0f"), (found.below, ".1%"), (found.mass_share, ".1%"), (found.gini, ".3f")]
        rows.append([_name(run), *(Cell(_number(*figure)) for figure in [*figures, (found.hoyer, ".3f")])])
    return Table(["Run", "Weights", "Below 1 % of the largest", "Carry 90 % of Σ|w|", "Gini", "Hoyer"], rows, "cards")


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


def _number(value: float, form: str) -> str:
    return format(value, form).replace("%", "\u00a0%")


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
