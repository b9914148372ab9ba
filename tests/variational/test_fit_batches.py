"""`fit` with batches of data: the estimate is that of the sum over all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine, TriangularAffine
from liebayes.variational.batches import Batches


def test_one_pass_sees_every_datum_once() -> None:
    """Each of N/n batches is weighted by N/n, so that their mean is the sum over all data; a new pass has a new order."""
    data = {"x": torch.arange(12.0), "y": torch.arange(12.0) ** 2}
    batches = Batches(data, 4, seed=0)
    seen: list[Tensor] = []

    def loss(theta: Tensor, batch: Any) -> Tensor:
        assert torch.equal(batch["x"] ** 2, batch["y"])
        seen.append(batch["x"])
        return theta * batch["y"].sum()

    estimate, values = batches.estimate(loss), []
    for _ in range(6):
        batches.next()
        values.append(float(estimate(torch.tensor(2.0))))
    assert sum(values[:3]) / 3 == 2 * float(data["y"].sum())
    assert torch.equal(torch.cat(seen[:3]).sort().values, data["x"])
    assert torch.equal(torch.cat(seen[3:]).sort().values, data["x"])
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


def regression() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Data, and the exact posterior's mean and covariance under a prior N(0, 1) and noise 1."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1.0, 0.7, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.2]], dtype=torch.float64)
    x = torch.randn(600, 3, generator=generator, dtype=torch.float64) @ mix
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + torch.randn(600, generator=generator, dtype=torch.float64)
    precision = x.mT @ x + torch.eye(3, dtype=torch.float64)
    return x, y, torch.linalg.solve(precision, x.mT @ y), torch.linalg.inv(precision)


def loss(theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return 0.5 * (batch[1] - batch[0] @ theta).square().sum()


def prior(theta: Tensor) -> Tensor:
    return 0.5 * theta.square().sum()


def test_batches_find_the_posterior_of_all_data() -> None:
    x, y, mean, covariance = regression()
    q = lb.fit(
        loss, TriangularAffine(), Normal(), torch.zeros(3, dtype=torch.float64),
        data=(x, y), batch_size=100, regulariser=prior, steps=1500,
    )  # fmt: skip
    sd = covariance.diagonal().sqrt()
    assert float(((q.mean - mean) / sd).abs().max()) < 0.15
    assert float((q.stddev / sd - 1).abs().max()) < 0.1
    assert q.history.converged
    assert q.history.final_error > 1  # that of 64 batches, not of a thousand samples


def test_all_data_at_once_is_the_loss_without_data() -> None:
    x, y, *_ = regression()
    options: dict[str, Any] = {"steps": 20, "start": torch.zeros(3, dtype=torch.float64)}
    a = lb.fit(loss, DiagonalAffine(), data=(x, y), regulariser=prior, **options)
    b = lb.fit(lambda t: loss(t, (x, y)) + prior(t), DiagonalAffine(), **options)
    assert torch.allclose(a.mean, b.mean, rtol=1e-12)
    assert torch.allclose(a.stddev, b.stddev, rtol=1e-12)


def test_bad_data_are_refused() -> None:
    x = torch.zeros(10, 2)
    for options, words in (
        ({"batch_size": 3}, "batch_size goes with data"),
        ({"data": x, "batch_size": 11}, "from 1 to the number of data, 10"),
        ({"data": (x, torch.zeros(9))}, r"same first dimension, but have \[9, 10\]"),
        ({"data": [1, 2]}, "data must be a tensor"),
        ({"data": x, "batch_size": 2.5}, "batch_size must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            lb.fit(lambda t, batch=None: t.sum(), DiagonalAffine(), start=torch.zeros(2), **options)
