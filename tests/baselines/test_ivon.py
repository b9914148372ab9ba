"""iVON's step against numpy and the package ivon-opt; its precision stays positive whatever the gradients are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from oracle_steps import Newton
from support.tolerances import roundings
from torch import Tensor, nn

from liebayes.baselines import IVON, ivon_opt

SETTINGS: dict[str, Any] = {"data_size": 50, "prior": 2.0, "damping": 0.3, "momentum": 0.8, "scale_momentum": 0.9}


def start(dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, 5, dtype=dtype))


def loss_of(p: Tensor) -> Tensor:
    curvature = torch.linspace(-0.2, 3, 5, dtype=p.dtype)  # one direction curves down
    return (0.5 * curvature * (p - 1).square() + 0.1 * p.sin()).sum()


def take_step(optimizer: IVON, p: nn.Parameter, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """One step, and the samples and gradients it was taken with."""
    seen = []

    def closure() -> None:
        optimizer.zero_grad()
        loss_of(p).backward()
        assert p.grad is not None
        seen.append((p.detach().numpy().copy(), p.grad.numpy().copy()))

    optimizer.step(closure)
    assert len(seen) == samples
    theta, gradient = zip(*seen, strict=True)
    return np.stack(theta), np.stack(gradient)


@pytest.mark.parametrize("mc_samples", [1, 3])
def test_step_matches_the_paper(mc_samples: int) -> None:
    p = start()
    optimizer = IVON([p], 0.1, initial_curvature=0.5, mc_samples=mc_samples, **SETTINGS)
    oracle = Newton(p.detach().numpy().copy(), np.full(5, 0.5), 50, 2.0, 0.3, 0.1, 0.8, 0.9)
    for _ in range(30):
        oracle.ivon(*take_step(optimizer, p, mc_samples))
        (family,) = optimizer.families().values()
        np.testing.assert_allclose(p.detach().numpy(), oracle.m, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(family.variance.numpy(), 1 / oracle.precision, rtol=1e-10)
    assert oracle.h.min() < 0.3 < oracle.h.max(), "the curvature was not learned"


def test_equals_ivon_opt_where_both_are_defined() -> None:
    """Without damping, with the step size as it is given, at the same samples."""
    ivon = pytest.importorskip("ivon")
    noise: list[Tensor] = []

    class SameNoise(ivon.IVON):
        def _sample_params(self) -> tuple[Tensor, Tensor]:
            mean = other.detach().clone()
            other.data = mean + noise[-1]
            return mean, noise[-1]

    p, other = start(), start()
    settings = {**SETTINGS, "damping": 0.0}
    ours = IVON([p], 0.1, initial_curvature=0.5, **settings)
    theirs = SameNoise([other], lr=0.1, ess=50, hess_init=0.5, beta1=0.8, beta2=0.9, weight_decay=2 / 50, rescale_lr=False)
    for _ in range(20):
        mean = p.detach().numpy().copy()
        theta, _ = take_step(ours, p, 1)
        noise.append(torch.from_numpy(theta[0] - mean))
        theirs.zero_grad()
        with theirs.sampled_params(train=True):
            loss_of(other).backward()
        theirs.step()
        torch.testing.assert_close(p.detach(), other.detach(), **roundings(256, torch.float64))
    (family,) = ours.families().values()
    group = theirs.param_groups[0]
    torch.testing.assert_close(family.variance, 1 / (50 * (group["hess"] + 2 / 50)), **roundings(256, torch.float64, size=0))


def test_posterior_of_the_ivon_opt_wrapper() -> None:
    pytest.importorskip("ivon")
    model = nn.Linear(3, 2)
    optimizer = ivon_opt(model.parameters(), data_size=100, prior=1.0)
    for _ in range(3):
        optimizer.step(lambda: model(torch.ones(4, 3)).square().mean().backward() or 0.0)
    posterior, group = optimizer.posterior(model), optimizer.param_groups[0]
    flat = torch.cat([posterior.std()[name].flatten() for name in ("weight", "bias")])
    torch.testing.assert_close(flat, (100 * (group["hess"] + 0.01)).rsqrt())
    assert torch.equal(posterior.mean()["weight"], model.weight)


def test_ivon_opt_wrapper_samples_like_ours() -> None:
    """Blocks and closures are the same steps; a block that fails leaves the mean in the module."""
    pytest.importorskip("ivon")
    ends = []
    for in_block in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = ivon_opt(model.parameters(), data_size=100, prior=1.0)

        def loss(model: nn.Linear = model) -> Tensor:
            value = model(torch.ones(4, 3)).square().mean()
            value.backward()
            return value

        for _ in range(3):
            optimizer.zero_grad()
            if in_block:
                with optimizer.sampled():
                    loss()
                optimizer.step()
            else:
                optimizer.step(loss)
        ends.append(model.weight.detach().clone())
        with pytest.raises(ZeroDivisionError), optimizer.sampled():
            _ = 1 / int(torch.equal(model.weight, ends[-1]))  # by zero, as a sample is in the module
        assert torch.equal(model.weight, ends[-1])
    assert torch.equal(*ends)


# Positive precision.


def precision_after(gradient: float, optimizer: IVON, p: nn.Parameter) -> Tensor:
    """The a = h + δ/N + d after a step with a gradient of a given size, in the dtype of the parameter."""
    with optimizer.sampled():
        (gradient * p).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    (family,) = optimizer.families().values()
    return 1 / (family.variance.double() * optimizer.param_groups[0]["data_size"])


@given(
    gradients=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=8),
    beta2=st.sampled_from([0.0, 0.5, 0.9, 0.999]),
    damping=st.sampled_from([1e-6, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(gradients=[1e12, -1e12] * 4, beta2=0.0, damping=1e-6, dtype=torch.float32)
def test_precision_stays_positive_and_no_step_halves_it(
    gradients: list[float], beta2: float, damping: float, dtype: torch.dtype
) -> None:
    """Gradients of any sign and size: ĥ = ĝ(θ − m)/σ² then has any sign, and sizes up to 1e20."""
    p = start(dtype)
    optimizer = IVON([p], 0.0, data_size=100, scale_momentum=beta2, damping=damping, prior=0.0, initial_curvature=0.0)
    before = torch.full((5,), damping, dtype=torch.float64)
    for gradient in gradients:
        after = precision_after(gradient, optimizer, p)
        assert bool(torch.isfinite(after).all())
        assert bool((after >= 0.5 * (1 - 1e-5) * before).all())
        before = after


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_worst_gradient_halves_it_every_time(dtype: torch.dtype) -> None:
    """ρ(ĥ − h) = −a: without the correction a would be 0 at once; kept as h, it would be rounded to 0 with h at −1."""
    p = nn.Parameter(torch.zeros(1, dtype=dtype))
    optimizer = IVON([p], 0.0, data_size=10, scale_momentum=0.5, damping=1.0, prior=0.0, initial_curvature=0.0)
    a = lowest = 1.0
    for _ in range(60):
        with optimizer.sampled():
            curvature = (a - 1.0) - 2 * a  # h − a/ρ
            p.grad = curvature / (10 * a * p.detach())  # ĥσ²/(θ − m)
        optimizer.step()
        (family,) = optimizer.families().values()
        a, before = 1 / (10 * float(family.variance)), a
        assert a > 0.49 * before
        lowest = min(lowest, a)
    assert 0 < lowest < torch.finfo(dtype).eps


def test_the_curvature_itself_may_be_negative() -> None:
    """On −½θ² it goes to −1, and stays above −(δ/N + d)."""
    p = nn.Parameter(torch.zeros(1000))
    optimizer = IVON([p], 0.0, data_size=100, scale_momentum=0.99, damping=2.0, prior=0.0)
    for _ in range(1000):
        with optimizer.sampled():
            (-0.5 * p.square()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (family,) = optimizer.families().values()
    curvature = 1 / (100 * family.variance) - 2.0
    assert float(curvature.min()) > -2.0
    # ĥ = −ε² has a variance of 2, its running mean ρ/2 of that; the correction adds ρ/2·2/a.
    assert float(curvature.mean()) == pytest.approx(-1 + 0.01, abs=5 * math.sqrt(0.01 / 1000) + 0.003)


# Settings.


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"damping": -1.0}, "damping must be zero or positive, but got -1.0"),
        ({"initial_curvature": math.nan}, "initial_curvature must be zero or positive, but got nan"),
        ({"damping": 0.0, "initial_curvature": 0.0, "prior": 0.0}, "precision would start at 0"),
        ({"prior": torch.sum}, "prior must be a number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        IVON([start()], data_size=10, **settings)
    optimizer = IVON([start()], data_size=10)
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": [start()], **settings})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", ["base", "initial_scale"])
def test_base_and_scale_cannot_be_chosen(name: str) -> None:
    with pytest.raises(ValueError, match=f"IVON does not take {name}, but got 3: leave it out"):
        IVON([{"params": [start()], name: 3}], data_size=10)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ivon", None)
    with pytest.raises(ImportError, match="pip install ivon-opt"):
        ivon_opt([start()], data_size=10)
