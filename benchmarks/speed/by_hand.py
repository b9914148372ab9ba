"""The rules as one would write them in plain torch, in place and without detours: the peers of rows 4, 5 and 7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def additive(
    model: nn.Module, images: Tensor, labels: Tensor, *,
    samples: int, deviation: float, lr: float, momentum: float, decay: float,
) -> Callable[[], None]:  # fmt: skip
    """Alg. 1 on a Normal base; `decay` is δ/N."""
    parameters = list(model.parameters())
    points = [p.detach().clone() for p in parameters]
    momenta = [torch.zeros_like(g) for g in points]

    def step() -> None:
        model.zero_grad()
        for _ in range(samples):
            with torch.no_grad():
                for p, g in zip(parameters, points, strict=True):
                    p.normal_(std=deviation).add_(g)
            cross_entropy(model(images), labels).backward()  # the covector is the gradient: autograd adds them up
        with torch.no_grad():
            for p, g, m in zip(parameters, points, momenta, strict=True):
                assert p.grad is not None
                m.lerp_(p.grad.div_(samples).add_(g, alpha=decay), 1 - momentum)
                g.sub_(m, alpha=lr)
                p.copy_(g)

    return step


def multiplicative(
    model: nn.Module, images: Tensor, labels: Tensor, *,
    samples: int, lr: float, momentum: float, decay: float, temperature: float, max_step: float,
) -> Callable[[], None]:  # fmt: skip
    """Alg. 2 on a Rayleigh base, for a model of positive magnitudes; `decay` is δ/N and `temperature` τ/N."""
    parameters = list(model.parameters())
    mean = math.sqrt(math.pi / 2)  # of the base: between steps the module holds that of the posterior
    points = [p.detach() / mean for p in parameters]
    momenta = [torch.zeros_like(g) for g in points]
    sums = [torch.zeros_like(g) for g in points]

    def step() -> None:
        for _ in range(samples):
            with torch.no_grad():
                for p, g in zip(parameters, points, strict=True):
                    p.exponential_(0.5).sqrt_().mul_(g)
            model.zero_grad()
            cross_entropy(model(images), labels).backward()
            with torch.no_grad():
                for p, total in zip(parameters, sums, strict=True):
                    assert p.grad is not None
                    total.addcmul_(p, p.grad.add_(p, alpha=decay))
        with torch.no_grad():
            for p, g, m, total in zip(parameters, points, momenta, sums, strict=True):
                m.lerp_(total.div_(samples).sub_(temperature), 1 - momentum)
                g.mul_(torch.mul(m, -lr).clamp_(-max_step, max_step).exp_())
                torch.mul(g, mean, out=p.data)
                total.zero_()

    return step


def prediction(
    model: nn.Module, points: Sequence[Tensor], deviations: Sequence[Tensor], batches: Sequence[Tensor], samples: int
) -> Callable[[], Tensor]:
    """Class probabilities averaged over draws of b + Aε with normal noise; weights change once for all inputs."""
    parameters = list(model.parameters())

    @torch.no_grad()
    def predict() -> Tensor:
        totals: list[Tensor | float] = [0.0] * len(batches)
        for _ in range(samples):
            for p, b, A in zip(parameters, points, deviations, strict=True):
                torch.addcmul(b, A, p.normal_(), out=p.data)
            for i, batch in enumerate(batches):
                totals[i] = totals[i] + model(batch).softmax(-1)
        return torch.cat([torch.as_tensor(total) for total in totals]) / samples

    return predict
