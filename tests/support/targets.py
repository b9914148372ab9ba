"""Targets of `fit` with known answers: correlated Gaussians, and logistic regression on the breast cancer data."""

from collections.abc import Callable

import torch
from torch import Tensor

import liebayes as lb


def gaussian(dim: int, condition: float, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and precision of a correlated Gaussian with the given condition number."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    spectrum = torch.logspace(-0.5, 0.5, dim, base=condition, dtype=torch.float64)
    covariance = (axes * spectrum) @ axes.mT
    precision = torch.linalg.inv(covariance)
    mean = torch.randn(dim, generator=generator, dtype=torch.float64)
    return mean.to(dtype), covariance.to(dtype), precision.to(dtype)


def quadratic(mean: Tensor, precision: Tensor) -> Callable[[Tensor], Tensor]:
    """Minus the logarithm of that Gaussian's density."""
    return lambda theta: 0.5 * (theta - mean) @ precision @ (theta - mean)


def deviations(q: lb.Family, mean: Tensor, covariance: Tensor) -> tuple[float, float]:
    """The largest error of a mean in standard deviations, and of a covariance in products of standard deviations."""
    sd = covariance.diagonal().sqrt()
    in_mean = ((q.mean - mean) / sd).abs().max()
    in_covariance = ((q.covariance - covariance) / torch.outer(sd, sd)).abs().max()
    return float(in_mean), float(in_covariance)


def breast_cancer() -> tuple[Tensor, Tensor]:
    """Standardised features with a column of ones behind them, and labels: as in tests/oracles."""
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    x = torch.cat([torch.tensor(features), torch.ones(len(labels), 1, dtype=torch.float64)], 1)
    return x.float(), torch.tensor(labels, dtype=torch.float32)


DATA = breast_cancer()


def logistic_loss(w: Tensor) -> Tensor:
    x, y = DATA
    logits = x @ w
    return torch.nn.functional.softplus(logits).sum() - y @ logits + 0.5 * w.square().sum()
