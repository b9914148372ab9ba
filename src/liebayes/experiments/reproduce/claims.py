"""The paper's claims, and whether they hold here (Sec. 5).

A verdict needs three seeds on both sides, and none that diverged. A figure counts as lower if Welch's t-test says so at 5 %;
less than that is not decided. "At least as accurate" is broken only by a difference of that size.
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
    """Something the paper says about two methods."""

    text: str
    pairs: Sequence[tuple[str, str]]
    """The method that is said to be better, and the other."""
    lower: Sequence[str] = ()
    higher: Sequence[str] = ()
    not_lower: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """A claim about one pair of methods with one budget."""

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
        Claim(
            "The affine rule has lower NLL and ECE than SGD", [(f"affine {b}", "SGD") for b in _BASES], lower=("nll", "ece")
        ),
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
    """All claims about the rows of an experiment; both methods with settings from one place, and for as many epochs.

    Pairs of which nothing was run are left out.
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
    """The other method under the same conditions. There is one SGD for all sources."""
    same = [r for r in rows if r.method == other and r.epochs == row.epochs]
    same = [r for r in same if r.source == row.source] or ([r for r in same if r.source == "paper"] if other == "SGD" else [])
    exact = [r for r in same if r.mc_samples == row.mc_samples]
    return exact[0] if exact else same[0] if same and other == "SGD" else None


def _verdict(claim: Claim, row: Row, other: Row) -> Verdict:
    pair = f"{row.method} against {other.method} ({row.source}, {row.epochs} epochs, K = {row.mc_samples})"
    seeds = min(len(row.results), len(other.results))
    if seeds < SEEDS:
        text = f"{len(row.results)} and {len(other.results)} seeds; a verdict needs {SEEDS} each"
        return Verdict(claim.text, pair, "not decided", text)
    lost = len(row.failures) + len(other.failures)
    if lost:
        runs = lost + len(row.results) + len(other.results)
        return Verdict(claim.text, pair, "not decided", f"{lost} of {runs} runs diverged; the others are no fair sample")
    if len({result.get("data") for result in (*row.results, *other.results)}) > 1:
        return Verdict(claim.text, pair, "not decided", "the runs are of different data")
    if mixed(row.results) or mixed(other.results):
        return Verdict(claim.text, pair, "not decided", "the seeds of a method have different settings")
    words, texts = [], []
    for kind, rule in [
        *((k, "lower") for k in claim.lower),
        *((k, "higher") for k in claim.higher),
        *((k, "not lower") for k in claim.not_lower),
    ]:
        ours, theirs = row.values(kind), other.values(kind)
        if min(len(ours), len(theirs)) < SEEDS:
            words.append("not decided")
            texts.append(f"{_NAMES[kind]} not measured")
            continue
        words.append(judge(ours, theirs, rule))
        factor = 100 if kind in ("accuracy", "feature_share") else 1
        numbers = [f"{factor * mean_and_error(v)[0]:.{2 if factor == 100 else 4}f}" for v in (ours, theirs)]
        texts.append(f"{_NAMES[kind]} {numbers[0]} against {numbers[1]}: {words[-1]}")
    return Verdict(claim.text, pair, together(words), "; ".join(texts))


def judge(ours: Sequence[float], theirs: Sequence[float], rule: str) -> Word:
    """Whether our figure is lower, higher or not lower than theirs.

    >>> judge([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "lower"), judge([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], "lower")
    ('holds', 'not decided')
    """
    (a, error_a), (b, error_b) = mean_and_error(ours), mean_and_error(theirs)
    margin = welch_margin(error_a or 0.0, len(ours), error_b or 0.0, len(theirs)) + 1e-12 * max(abs(a), abs(b))  # of rounding
    gain = b - a if rule == "lower" else a - b
    if rule == "not lower":
        return "holds" if gain >= -margin else "does not hold"
    return "holds" if gain > margin else "does not hold" if gain < -margin else "not decided"


def welch_margin(error_a: float, n: int, error_b: float, m: int) -> float:
    """How far two means must be apart to differ, by Welch's t-test with two sides, from their standard errors."""
    a, b = error_a**2, error_b**2
    if a + b == 0:
        return 0.0
    return t_quantile((1 + CONFIDENCE) / 2, (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))) * math.sqrt(a + b)


def t_quantile(p: float, freedom: float) -> float:
    """Of Student's t above its median, by bisection: with t = √ν·tan u its density is proportional to (cos u)^(ν − 1).

    >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 1e6), 3)
    (4.303, 1.96)
    """
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    steps = 400

    def area(end: float) -> float:  # above the median, by Simpson's rule
        width = math.atan(end / math.sqrt(freedom)) / steps
        values = [math.cos(k * width) ** (freedom - 1) for k in range(steps + 1)]
        return constant * width / 3 * (values[0] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]) + values[-1])

    low, high = 0.0, 1.0
    while area(high) < p - 0.5:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if area(middle) < p - 0.5 else (low, middle)
    return low


def together(words: Sequence[Word]) -> Word:
    """One verdict of several: a claim holds if all of it does, and breaks if a part does."""
    if "does not hold" in words:
        return "does not hold"
    return "holds" if words and all(word == "holds" for word in words) else "not decided"
