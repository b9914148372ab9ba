"""The picture of a fit shows what differs most and what correlates most."""

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.groups import DiagonalAffine, Positive
from liebayes.variational import plot_fit

pytest.importorskip("matplotlib")


def loss(t: dict[str, Tensor]) -> Tensor:
    """Three correlated numbers, one independent, and one with a density far from log-normal."""
    a, b, c = t["x"][0], t["x"][1], t["x"][2]
    return 0.5 * (a.square() + (b - a).square() / 0.1 + c.square()) + 3 * (t["width"] - 1).square() + 0 * t["width"]


def test_the_picture() -> None:
    start = {"x": torch.zeros(3), "width": torch.tensor(1.0)}
    q = lb.fit(loss, DiagonalAffine(), start=start, supports={"width": Positive()}, steps=200)
    figure = plot_fit(q, loss, draws=2000, most=4)
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels[0] == "step"
    assert set(labels[1:5]) == {"x[0]", "x[1]", "x[2]", "width"}
    assert labels[4] == "x[2]"  # the family has it exactly
    assert (figure.axes[5].get_xlabel(), figure.axes[5].get_ylabel()) == ("x[0]", "x[1]")
    drawn = figure.axes[0].lines[1].get_ydata()
    assert float(drawn[0]) == q.history.final_objective


def test_a_family_without_a_history_has_a_picture_too() -> None:
    q = lb.rule.Family(DiagonalAffine(), lb.bases.Normal(), DiagonalAffine().at(torch.zeros(1)))
    assert len(plot_fit(q, lambda t: t.square().sum(), draws=100).axes) == 2
