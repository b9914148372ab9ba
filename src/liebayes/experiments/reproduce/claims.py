"""The paper's claims, and whether they hold here (Sec. 5).

A verdict needs three seeds of each method, none of them diverged. A figure counts as lower if Welch's t-test says so at 5 %;
otherwise the claim is not decided. "At least as accurate" fails only if the accuracy is lower by that test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .rows import Row, mean_and_error, mixed

Word = Literal["holds", "does not hold", "not decided"]
SEEDS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that compares two methods."""

    text: str
    pairs: Sequence[tuple[str, str]]
    """The method that the paper calls better, and the other one."""
    lower: Sequence[str] = ()
    higher: Sequence[str] = ()
    not_lower: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds for one pair of methods and one budget."""

    claim: str
    pair: str
    word: Word
    evidence: str


_FEATURES = {"higher": ("feature_gini", "localisation"), "lower": ("feature_share",)}
_BASES = ("uniform", "Gaussian", "Laplace")
CLAIMS: dict[str, list[Claim]] = {
    "table1": [
        Claim(
            "Multiplicative learning is at least as accurate as additive learning, with lower NLL and ECE",
            [("multiplicative", "additive"), ("multiplicative Adaptive", "additive Adaptive")],
            lower=("nll", "ece"),
            not_lower=("accuracy",),
        ),
        Claim(
            "Its features are sparser and more local",
            [("multiplicative", "additive"), ("multiplicative Adaptive", "additive Adaptive")],
            **_FEATURES,
        ),
    ],
    "table2": [
        Claim(
            "The affine rule has lower NLL and ECE than the additive rule",
            [(f"affine {base}", f"additive {base}") for base in _BASES],
            lower=("nll", "ece"),
        ),
        Claim("The affine rule has lower NLL and ECE than SGD", [(f"affine {b}", "SGD") for b in _BASES], ("nll", "ece")),
        Claim(
            "A base with heavier tails is better calibrated",
            [(f"{rule} {b}", f"{rule} {a}") for rule in ("additive", "affine") for a, b in pairwise(_BASES)],
            lower=("nll", "ece"),
        ),
    ],
}
_NAMES = {
    "nll": "NLL", "ece": "ECE", "accuracy": "accuracy", "feature_gini": "Gini index of a feature",
    "localisation": "localisation", "feature_share": "share of a feature's weights with 90 % of its mass",
}  # fmt: skip


def verdicts(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """Judges all claims on the rows of an experiment. Both methods of a pair have settings of the same source and the same
    number of epochs. Pairs without any run are left out.
    """
    found = []
    for claim in claims:
        for better, other in claim.pairs:
            for row in (row for row in rows if row.method == better):
                against = _opponent(row, other, rows)
                if against is not None and any((row.results, row.failures, against.results, against.failures)):
                    found.append(_verdict(claim, row, against))
    return found


def _opponent(row: Row, other: str, rows: Sequence[Row]) -> Row | None:
    """The other method under the same conditions. All sources share one SGD."""
    same = [r for r in rows if r.method == other and r.epochs == row.epochs]
    same = [r for r in same if r.source == row.source] or ([r for r in same if r.source == "paper"] if other == "SGD" else [])
    exact = [r for r in same if r.mc_samples == row.mc_samples]
    return exact[0] if exact else same[0] if same and other == "SGD" else None


def _verdict(claim: Claim, row: Row, other: Row) -> Verdict:
    pair = f"{row.method} against {other.method} ({row.source}, {row.epochs} epochs, K = {row.mc_samples})"
    problem = _problem(row, other)
    if problem:
        return Verdict(claim.text, pair, "not decided", problem)
    words, texts = [], []
    rules = [*((k, "lower") for k in claim.lower), *((k, "higher") for k in claim.higher)]
    for kind, rule in [*rules, *((k, "not lower") for k in claim.not_lower)]:
        ours, theirs = row.values(kind), other.values(kind)
        if min(len(ours), len(theirs)) < SEEDS:
            words.append("not decided")
            texts.append(f"{_NAMES[kind]} not measured")
            continue
        words.append(judge(ours, theirs, rule))
        factor, digits = (100, 2) if kind in ("accuracy", "feature_share") else (1, 4)
        numbers = [f"{factor * mean_and_error(v)[0]:.{digits}f}" for v in (ours, theirs)]
        texts.append(f"{_NAMES[kind]} {numbers[0]} against {numbers[1]}: {words[-1]}")
    return Verdict(claim.text, pair, together(words), "; ".join(texts))


def _problem(row: Row, other: Row) -> str:
    """Why two rows cannot be compared; empty if they can."""
    if min(len(row.results), len(other.results)) < SEEDS:
        return f"{len(row.results)} and {len(other.results)} seeds; a verdict needs {SEEDS} each"
    lost = len(row.failures) + len(other.failures)
    if lost:
        return f"{lost} of {lost + len(row.results) + len(other.results)} runs diverged; the others are no fair sample"
    if len({result.get("data") for result in (*row.results, *other.results)}) > 1:
        return "the runs used different data"
    return "the seeds of a method have different settings" if mixed(row.results) or mixed(other.results) else ""


def judge(ours: Sequence[float], theirs: Sequence[float], rule: str) -> Word:
    """Whether our figures are lower, higher or not lower than theirs.

    >>> judge([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "lower"), judge([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], "lower")
    ('holds', 'not decided')
    """
    (a, error_a), (b, error_b) = mean_and_error(ours), mean_and_error(theirs)
    margin = welch_margin(error_a or 0.0, len(ours), error_b or 0.0, len(theirs)) + 1e-12 * max(abs(a), abs(b))  # rounding
    gain = b - a if rule == "lower" else a - b
    if rule == "not lower":
        return "holds" if gain >= -margin else "does not hold"
    return "holds" if gain > margin else "does not hold" if gain < -margin else "not decided"


def welch_margin(error_a: float, n: int, error_b: float, m: int) -> float:
    """How far two means must be apart to differ by Welch's two-sided t-test, from their standard errors."""
    from scipy.stats import t

    a, b = error_a**2, error_b**2
    if a + b == 0:
        return 0.0
    freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
    return float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(a + b)


def together(words: Sequence[Word]) -> Word:
    """Combines verdicts: a claim holds if all parts hold, and does not if one part does not."""
    if "does not hold" in words:
        return "does not hold"
    return "holds" if words and all(word == "holds" for word in words) else "not decided"
