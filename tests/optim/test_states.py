"""A state fits its parameter: across checkpoints of other models and dtypes, and after changes in mid-training."""

from __future__ import annotations

import collections
import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.problems import KINDS, parameters_of, positive_layer, train_layer
from support.tolerances import deviation_of, roundings
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.bases import Dirac, Exponential, Normal
from liebayes.groups import Additive, DiagonalAffine, Multiplicative, TriangularAffine

noises = pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])


@noises
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_model_is_refused_by_name(kind: str, noise: str | None) -> None:
    model, other = positive_layer(4), positive_layer(6)
    optimizer, fresh = (KINDS[kind](m.named_parameters(), noise=noise) for m in (model, other))
    train_layer(model, optimizer)
    train_layer(other, fresh)
    before = parameters_of(other)
    spread = fresh.posterior(other).std()
    with pytest.raises(ValueError, match=r"weight of shape \(3, 6\) needs a state .*has the shape \(3, 4\).*same model"):
        fresh.load_state_dict(optimizer.state_dict())
    assert all(map(torch.equal, before, other.parameters()))
    assert all(torch.equal(value, spread[name]) for name, value in fresh.posterior(other).std().items())
    train_layer(other, fresh)


@noises
def test_a_parameter_that_grows_is_refused_by_name(noise: str | None) -> None:
    """Also when it is tried again: memory of another size must never be written to."""
    model: Any = positive_layer()
    optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
    train_layer(model, optimizer)
    model.weight.data = torch.cat([model.weight.data, torch.randn(3, 100_000)], 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"weight of shape \(3, 100004\).*build a new optimizer"):
            train_layer(model, optimizer, 1)
        with pytest.raises(ValueError, match=r"weight of shape \(3, 100004\)"):
            optimizer.posterior(model)


@pytest.mark.parametrize("change", [lambda t: torch.cat([t, t], 1), lambda t: t.float()], ids=["shape", "dtype"])
def test_a_change_between_a_sample_and_its_step_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    model: Any = positive_layer(dtype=torch.float64)
    optimizer = KINDS["affine"](model.named_parameters())
    with optimizer.sampled():
        model(torch.ones(1, 4).double()).square().sum().backward()
    model.weight.data, model.weight.grad = change(model.weight.data), None
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises((RuntimeError, ValueError), match=r"shape|dtype"):
        optimizer.step()


def test_a_matrix_of_another_size_is_refused_by_name() -> None:
    points = [nn.Parameter(torch.zeros(size)) for size in (3, 4)]
    first, second = (lb.LieGroupBLR([p], TriangularAffine(), Normal(), 0.1, data_size=10) for p in points)
    with first.sampled():
        points[0].square().sum().backward()
    first.step()
    with pytest.raises(ValueError, match=r"number 0 of shape \(4,\) needs a state"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("by", ["checkpoint", "model.to"])
@noises
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_another_dtype_keeps_the_posterior(
    kind: str, before: torch.dtype, after: torch.dtype, noise: str | None, by: str
) -> None:
    """Widths are those learned so far, in the posterior and in the samples of training."""
    model: Any = positive_layer(dtype=before)
    optimizer = KINDS[kind](model.named_parameters(), noise=noise)
    train_layer(model, optimizer)
    for p in model.parameters():
        if "log_scale" in optimizer.state[p]:
            optimizer.state[p]["log_scale"].fill_(-3.0)
    expected = optimizer.posterior(model).std()
    if by == "checkpoint":
        other: Any = positive_layer(dtype=after)
        other.load_state_dict(model.state_dict())
        loaded = KINDS[kind](other.named_parameters(), noise=noise)
        loaded.load_state_dict(optimizer.state_dict())
        model, optimizer = other, loaded
    else:
        model.to(after)
    found, coarse = optimizer.posterior(model).std(), max(torch.finfo(before).eps, torch.finfo(after).eps)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=coarse + 16 * torch.finfo().eps, atol=0)
    draws = []
    for _ in range(200):
        with optimizer.sampled():
            draws.append(model.weight.detach().double().clone())
    spread = (torch.stack(draws) - model.weight.detach().double()).square().mean(0).sqrt()
    # A bfloat16 sample is rounded by up to 0.4 %, which is of the order of the narrowest widths here.
    rounding = 0.003 if after is torch.bfloat16 else 0.0
    torch.testing.assert_close(spread, expected["weight"].double(), rtol=deviation_of(200), atol=rounding)
    train_layer(model, optimizer)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@noises
@pytest.mark.parametrize("kind", KINDS)
def test_looking_at_a_sample_in_inference_mode(kind: str, noise: str | None) -> None:
    """Buffers and states made there serve training as any others."""
    results = []
    for look in (False, True):
        model: Any = positive_layer()
        optimizer = KINDS[kind](model.named_parameters(), noise=noise)
        with torch.inference_mode(look), optimizer.sampled():
            model(torch.ones(1, 4))
        train_layer(model, optimizer)
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


@noises
@pytest.mark.parametrize("when", ["states", "sample"])
def test_storage_that_moves(noise: str | None, when: str) -> None:
    """share_memory_() gives a tensor other memory; what was there belongs to somebody else by the next step."""
    results = []
    for moving in (False, True):
        model: Any = positive_layer()
        optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
        train_layer(model, optimizer)
        if moving and when == "states":
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.share_memory_()
        others = [torch.full((12,), 7.0) for _ in range(50)]
        for _ in range(2):
            with optimizer.sampled():
                if moving and when == "sample":
                    model.weight.share_memory_()
                    others += [torch.full((12,), 7.0) for _ in range(50)]
                model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(bool((other == 7.0).all()) for other in others)
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


@noises
def test_states_that_are_reset_or_put_back(noise: str | None) -> None:
    model: Any = positive_layer()
    optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
    train_layer(model, optimizer)
    saved = copy.deepcopy(optimizer.state[model.weight])
    optimizer.state = collections.defaultdict(dict)
    train_layer(model, optimizer, 1)
    assert optimizer.state[model.weight]["steps"] == 1, "it has begun anew"
    assert optimizer.state_dict()["state"][0]["steps"] == 1
    optimizer.state[model.weight] = copy.deepcopy(saved)
    train_layer(model, optimizer, 1)
    assert optimizer.state[model.weight]["steps"] == saved["steps"] + 1
    assert not torch.equal(optimizer.state[model.weight]["momentum_shift"], saved["momentum_shift"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [-40.0, -20.0, -14.0, -3.0, -0.7, 0.3, 3.0, 20.0, 80.0])
def test_multiplicative_steps_of_any_length(step: float, dtype: torch.dtype) -> None:
    """g ← g·e^X also where e^X has no digits beside 1."""
    p = nn.Parameter(torch.full((37,), 2.0, dtype=dtype))
    settings: dict[str, Any] = {"data_size": 10, "momentum": 0.0, "temperature": 0.0, "max_step": None}
    optimizer = lb.LieGroupBLR([p], Multiplicative(), Exponential(), 1.0, **settings)
    with optimizer.sampled():
        theta = p.detach().clone()
    p.grad = -step / theta
    optimizer.step()
    (family,) = optimizer.families().values()  # an Exponential has the mean 1, so that log g started at log 2
    found = family.element.log_scale.double()
    # The gradient, e^X, its product with the point, and the logarithm of that are rounded once each.
    size = max(abs(step), 1.0)
    torch.testing.assert_close(found, torch.full_like(found, math.log(2) + step), **roundings(4, dtype, size))


def test_noise_does_not_depend_on_the_default_dtype() -> None:
    """A prior that is a function goes the way of torch, with the kernel's noise."""
    draws = []
    for dtype in (torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            p = nn.Parameter(torch.zeros(9, dtype=torch.float32))
            optimizer = lb.AffineBLR([p], 0.1, data_size=100, prior=lambda t: t.square().sum())
            with optimizer.sampled():
                draws.append(p.detach().clone())
        finally:
            torch.set_default_dtype(before)
    assert torch.equal(*draws)


def test_a_pickle_of_the_kernels_noise_needs_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        pytest.skip("no kernel here")
    content = pickle.dumps(KINDS["affine"](positive_layer().parameters()))
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.raises(ValueError, match=r'noise "xoshiro" is drawn by the native kernel, which is not here'):
        pickle.loads(content)


@pytest.mark.parametrize("change", ["metric", "group", "dtype"])
def test_states_that_do_not_fit(change: str) -> None:
    """The kernel would follow addresses that are not there: blocks that are missing are refused, another dtype is cast."""
    p = nn.Parameter(torch.ones(1000))
    start = Additive() if change == "group" else DiagonalAffine()
    optimizer = lb.LieGroupBLR([p], start, Normal(0.1), lr=0.1, data_size=10)

    def step() -> None:
        optimizer.step(lambda: optimizer.zero_grad() or p.square().sum().backward())

    step()
    if change == "metric":
        optimizer.param_groups[0]["metric"] = lb.Adaptive()
    elif change == "group":
        optimizer.param_groups[0]["group"] = DiagonalAffine()
    else:
        state = optimizer.state[p]
        state.update({name: value.bfloat16() for name, value in state.items() if isinstance(value, Tensor)})
    if change == "dtype":
        step()
        assert optimizer.state[p]["log_scale"].dtype is torch.float32
    else:
        with pytest.raises(ValueError, match=r"log_scale|second_moment"):
            step()


def test_loading_a_checkpoint_keeps_the_users_own_objects() -> None:
    class Prior:
        precision = 1.0

        def __call__(self, theta: Tensor) -> Tensor:
            return self.precision * theta.square().sum()

    prior, p = Prior(), nn.Parameter(torch.ones(4))
    optimizer = lb.LieGroupBLR([p], Additive(), Dirac(), lr=1.0, data_size=10, prior=prior)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["prior"] is prior
    with optimizer.sampled(), pytest.raises(RuntimeError, match="A checkpoint cannot be loaded while a sample is in"):
        optimizer.load_state_dict(optimizer.state_dict())
    with optimizer.sampled(), pytest.raises(RuntimeError, match="A copy cannot be made while a sample is in"):
        copy.deepcopy((p, optimizer))
