"""The code of docs/fit.md runs, and the eight schools are those of a grid."""

import math
from pathlib import Path

import pytest
import torch
from support.pages import run


def eight_schools(effect: torch.Tensor, error: torch.Tensor) -> tuple[float, float, float]:
    """Mean and sd of the spread, and the log evidence: given the spread all is Gaussian, and the spread is on a grid."""
    log_spread = torch.linspace(-8, 6, 20_001, dtype=torch.float64)
    spread = log_spread.exp().unsqueeze(-1)
    precision = 1 / (error.square() + spread.square())  # of each school's effect about the common mean
    total = precision.sum(-1) + 1 / 25
    centre = (precision * effect).sum(-1) / total
    quadratic = (precision * effect.square()).sum(-1) - total * centre.square()
    log_density = 0.5 * precision.log().sum(-1) - 0.5 * (25 * total).log() - 0.5 * quadratic - 4 * math.log(2 * math.pi)
    log_density = log_density + torch.distributions.HalfCauchy(5.0).log_prob(spread.squeeze(-1)) + log_spread
    weights, spread = torch.softmax(log_density, 0), spread.squeeze(-1)
    mean = weights @ spread
    evidence = torch.logsumexp(log_density, 0) + math.log(float(log_spread[1] - log_spread[0]))
    return float(mean), float((weights @ spread.square() - mean**2).sqrt()), float(evidence)


def test_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = run("docs/fit.md", tmp_path, which=slice(1))
    q, heavier, found = names["q"], names["heavier"], names["found"]
    mean, sd, evidence = eight_schools(names["effect"], names["error"])
    assert q.history.converged
    assert heavier.history.converged
    told = q.diagnose(names["loss"])
    assert told.pareto_k > 0.7
    assert "of spread is" in told.misses[0]
    assert "weighted" in told.verdict
    assert found.reliable
    assert found.log_evidence == pytest.approx(evidence, abs=0.05)
    assert -q.history.final_objective < evidence
    assert float(found.mean["spread"]) == pytest.approx(mean, abs=0.1 * sd)
    assert float(found.stddev["spread"]) == pytest.approx(sd, rel=0.15)
    run("docs/fit.md", tmp_path, names, slice(1, None))
    assert names["q"].history.step[-1] <= 500
    assert "spread" in capsys.readouterr().out
