"""The kernels' arithmetic and noise on the CPU: run by test_gpu.py in a process of its own, with TRITON_INTERPRET=1."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from liebayes.bases import (
    Base,
    Cauchy,
    Dirac,
    Exponential,
    Gumbel,
    Laplace,
    LogNormal,
    Normal,
    Rayleigh,
    StudentT,
    Uniform,
)
from liebayes.groups import Additive
from liebayes.optim import gpu, philox
from liebayes.optim.gpu import arithmetic
from liebayes.rule import Absorbed

EPS = torch.finfo(torch.float32).eps


# Arithmetic, against float64.


@triton.jit
def evaluate(x_at: Any, out: Any, WHAT: tl.constexpr, COUNT: tl.constexpr) -> None:
    i = tl.arange(0, COUNT)
    x = tl.load(x_at + i)
    if WHAT == "exp":
        y, _ = arithmetic.exponentials(x)
    elif WHAT == "expm1":
        _, y = arithmetic.exponentials(x)
    elif WHAT == "ratio":
        y = arithmetic.expm1_ratio(x)
    elif WHAT == "log1p":
        y = arithmetic.log1p(x)
    elif WHAT == "cos":
        y, _ = arithmetic.cos_sin(x)
    else:
        _, y = arithmetic.cos_sin(x)
    tl.store(out + i, y)


def ratio(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, torch.expm1(x) / torch.where(x == 0, 1.0, x))


@pytest.mark.parametrize(
    ("what", "exact", "low", "high"),
    [
        ("exp", torch.exp, -87.0, 88.7),
        ("expm1", torch.expm1, -87.0, 88.7),
        ("expm1", torch.expm1, -1.5, 1.5),
        ("ratio", ratio, -20.0, 20.0),
        ("log1p", torch.log1p, -0.9, 10.0),
        ("log1p", torch.log1p, -1e-6, 1e-6),
        ("cos", torch.cos, -math.pi / 4, math.pi / 4),
        ("sin", torch.sin, -math.pi / 4, math.pi / 4),
    ],
)
def test_arithmetic(what: str, exact: Callable[[Tensor], Tensor], low: float, high: float) -> None:
    x = torch.linspace(low, high, 4096)
    x[:6] = torch.tensor([0.0, 1e-38, -1e-38, 1e-20, -1e-7, 1e-7])
    out = torch.empty_like(x)
    evaluate[(1,)](x, out, WHAT=what, COUNT=4096)
    torch.testing.assert_close(out.double(), exact(x.double()), rtol=3 * EPS, atol=1e-45)


def test_arithmetic_at_its_limits() -> None:
    x = torch.tensor([90.0, 200.0, 1e30, math.inf, -110.0, -1e30, -math.inf, math.nan])
    out = torch.empty_like(x)
    for what, exact in (("exp", torch.exp), ("expm1", torch.expm1)):
        with pytest.warns(RuntimeWarning):  # numpy warns of what is meant here
            evaluate[(1,)](x, out, WHAT=what, COUNT=8)
        torch.testing.assert_close(out, exact(x), equal_nan=True)


# Noise.


@pytest.mark.parametrize(
    "base",
    [
        Normal(0.3),
        LogNormal(0.5, -1.0),
        Laplace(2.0),
        Uniform(0.7),
        Cauchy(1.5),
        StudentT(5.0, 0.2),
        StudentT(0.7),
        Gumbel(0.4),
        Rayleigh(1.3),
        Exponential(0.6),
        Dirac(),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("seed", "number", "step", "stream"), [(0, 0, 0, 0), (1, 1, 1, 1), (2**63 + 5, 2**31 - 1, 2**32 - 1, 2**31)]
)
def test_noise_is_that_of_the_reference(base: Base, seed: int, number: int, step: int, stream: int) -> None:
    p, out = torch.zeros(2500), torch.empty(2500)
    settings = {"group": Additive(), "base": base, "metric": Absorbed(), "prior": 0.0}
    gpu.sample([p], [{}], settings, [out], numbers=[number], seed=seed, step=step, stream=stream)
    expected = philox.draw(base, 2500, seed=seed, tensor=number, step=step, stream=stream)
    # A Gumbel's logarithm of a logarithm may be near 0, where its error is that of a number near 1.
    torch.testing.assert_close(out, expected, rtol=12 * EPS, atol=2 * EPS if isinstance(base, Gumbel) else 0.0)
    if isinstance(base, Uniform | Dirac):
        assert torch.equal(out, expected)
