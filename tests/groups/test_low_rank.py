"""Low rank plus diagonal: between the diagonal and the triangular group, and exact where the posterior has that shape."""

import pytest
import torch

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import LowRankAffine, TriangularAffine, TriangularShift
from liebayes.groups.low_rank_affine import LowRankShift


def random(*shape: int, rank: int) -> LowRankShift:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(*shape, *more, generator=generator, dtype=torch.float64) / 2 for more in ((), (rank,), ())]
    return LowRankShift(parts[0], parts[1].tril(-1), parts[2])


def test_the_covariance_is_low_rank_plus_diagonal() -> None:
    g = random(6, rank=2)
    below = LowRankAffine(2).covariance(g, 1.0)[2:, 2:] - torch.diag((2 * g.log_diagonal[2:]).exp())
    assert int(torch.linalg.matrix_rank(below, rtol=1e-10)) == 2
    assert torch.allclose(below, g.columns[2:] @ g.columns[2:].mT)


def test_of_full_rank_it_is_the_triangular_group() -> None:
    """The same run, step by step."""
    mix = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [-0.3, 0.4, 2.0]], dtype=torch.float64)
    precision = torch.linalg.inv(mix @ mix.mT)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return 0.5 * (theta - 1) @ precision @ (theta - 1)

    start = torch.zeros(3, dtype=torch.float64)
    a = lb.fit(loss, LowRankAffine(2), Normal(), start, steps=30, max_step=None)
    b = lb.fit(loss, TriangularAffine(), Normal(), start, steps=30, max_step=None)
    lower = torch.nn.functional.pad(a.element.columns, (0, 1))
    for x, y in zip(TriangularShift(a.element.log_diagonal, lower, a.element.shift), b.element, strict=True):
        assert torch.allclose(x, y, atol=1e-9)


def test_a_hierarchical_posterior_is_found() -> None:
    """One shared mean and 60 that depend on it, all Gaussian: the precision is an arrow, and the family has it exactly."""
    size = 60
    generator = torch.Generator().manual_seed(1)
    y = 2 + torch.randn(size, generator=generator, dtype=torch.float64)
    noise = 0.3 + torch.rand(size, generator=generator, dtype=torch.float64)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        mean, each = theta[0], theta[1:]
        return 0.5 * ((mean / 3).square() + (each - mean).square().sum() + ((y - each) / noise).square().sum())

    q = lb.fit(loss, LowRankAffine(1), Normal(), torch.zeros(size + 1, dtype=torch.float64), steps=600)
    precision = torch.func.hessian(loss)(torch.zeros(size + 1, dtype=torch.float64))
    covariance = torch.linalg.inv(precision)
    mean = covariance @ -torch.func.grad(loss)(torch.zeros(size + 1, dtype=torch.float64))
    assert q.history.converged
    assert torch.allclose(q.mean, mean, atol=1e-3)
    assert torch.allclose(q.covariance, covariance, atol=1e-3)


def test_a_bad_rank_is_refused() -> None:
    for rank in (-1, 1.5):
        with pytest.raises(ValueError, match="rank of 0 or more"):
            LowRankAffine(rank)  # type: ignore[arg-type]
