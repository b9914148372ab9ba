"""What people try first with `fit`: a number or a matrix as the start, and calls that cannot work, which say what would."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.groups import Covariance, DiagonalAffine, Positive, TriangularAffine


def bowl(t: Tensor) -> Tensor:
    return (t - 1).square().sum()


@pytest.mark.parametrize("start", [0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)], ids=str)
def test_a_number(start: Any) -> None:
    q = lb.fit(lambda t: 2 * (t - 1).square(), start=start)
    assert q.mean.shape == ()
    assert float(q.mean) == pytest.approx(1, abs=1e-3)
    assert float(q.stddev) == pytest.approx(0.5, rel=1e-3)
    again = lb.fit(lambda t: 2 * (t - 2).square(), start=q)
    assert float(again.mean) == pytest.approx(2, abs=1e-3)


def test_a_matrix_is_one_vector() -> None:
    """With correlations between rows, and as one vector of six numbers would be; a group that is given acts on rows."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64) / 3 + torch.eye(6)
    precision = root @ root.mT

    def loss(t: Tensor) -> Tensor:
        return 0.5 * t.reshape(-1) @ precision @ t.reshape(-1)

    q = lb.fit(loss, start=torch.ones(2, 3, dtype=torch.float64))
    assert q.mean.shape == (2, 3)
    torch.testing.assert_close(q.real.covariance, torch.linalg.inv(precision), rtol=1e-3, atol=1e-4)
    rows = lb.fit(loss, TriangularAffine(), start=torch.ones(2, 3, dtype=torch.float64))
    assert rows.covariance.shape == (2, 3, 3)


def test_a_family_of_another_group() -> None:
    start, supports = {"a": torch.zeros(2), "s": torch.tensor(1.0)}, {"s": Positive()}

    def loss(t: dict[str, Tensor]) -> Tensor:
        return bowl(t["a"]) + t["s"].log().square()

    narrow = lb.fit(loss, DiagonalAffine(), start=start, supports=supports)
    for family in (narrow, lb.fit(bowl, DiagonalAffine(), start=start["a"])):
        with pytest.raises(ValueError, match=r"is of DiagonalAffine\(\), but group is TriangularAffine\(\).*start=q\.mean"):
            lb.fit(loss, TriangularAffine(), start=family)
    assert lb.fit(loss, TriangularAffine(), start=narrow.mean, supports=supports).history.converged


def test_without_gradients() -> None:
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        lb.fit(bowl, start=torch.zeros(2))
    with torch.no_grad():
        q = lb.fit(bowl, start=torch.zeros(2))
    torch.testing.assert_close(q.mean, torch.ones(2), rtol=1e-3, atol=0)


def test_a_data_set_of_torch() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(10))
    with pytest.raises(ValueError, match=r"TensorDataset\. Give its `tensors`"):
        lb.fit(lambda t, batch: bowl(t - batch[0].mean()), start=torch.zeros(2), data=data)
    lb.fit(lambda t, batch: bowl(t - batch[0].mean()), start=torch.zeros(2), data=data.tensors, steps=100)


def test_checks_of_a_distribution_that_cannot_be_vectorised() -> None:
    z = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))

    def loss(S: Tensor, checked: bool) -> Tensor:  # Pyro switches checks off wherever it has been imported
        law = torch.distributions.MultivariateNormal(torch.zeros(2), covariance_matrix=S, validate_args=checked)
        return -law.log_prob(z).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="validate_args=False, or pass vectorize=False"):
            lb.fit(lambda S: loss(S, True), start=torch.eye(2), supports=Covariance())
        q = lb.fit(lambda S: loss(S, False), start=torch.eye(2), supports=Covariance(), steps=300)
    torch.testing.assert_close(q.mean, z.mT @ z / 50, rtol=0.3, atol=0.2)
    with pytest.raises(ValueError, match=r"\)\. Pass vectorize=False to loop"):
        lb.fit(lambda t: bowl(t) if t.sum() > 0 else 2 * bowl(t), start=torch.zeros(2))


def test_a_step_after_the_end() -> None:
    with lb.Fit(bowl, start=torch.zeros(2)) as run:
        run.step()
    with pytest.raises(ValueError, match=r"ended with its `with` block.*Fit\(loss, start=run\.family\)"):
        run.step()


def test_an_argument_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"Fit\(\) has no arguments \['learning_rate'\]"):
        lb.Fit(bowl, start=torch.zeros(2), learning_rate=0.1)
