"""A step is taken whole, or refused with nothing changed: also where gradients are finite, and only its result is not."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.bases import Normal, Rayleigh
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.optim import native_store
from liebayes.rule import Absorbed, Adaptive, Fisher

Make = Callable[..., lb.LieGroupBLR]


def rule(group: Any, base: Any, metric: Any, **own: Any) -> Make:
    return lambda parameters, **more: lb.LieGroupBLR(
        parameters, group, base, **{"lr": 100.0, "data_size": 10, "metric": metric, **own, **more}
    )


RULES: dict[str, Make] = {
    "additive": rule(Additive(), Normal(0.1), Absorbed()),
    "additive-adaptive": rule(Additive(), Normal(0.1), Adaptive()),
    "multiplicative": rule(Multiplicative(), Rayleigh(), Absorbed()),
    "multiplicative-adaptive": lambda p, **more: lb.MultiplicativeBLR(p, **{"data_size": 10, "metric": Adaptive(), **more}),
    "affine": rule(DiagonalAffine(), Normal(0.1), Fisher()),
    "affine-adaptive": rule(DiagonalAffine(), Normal(0.1), Adaptive(), max_step=0.2),
    "gauss-newton": rule(DiagonalAffine(), Normal(), Absorbed(), curvature="gauss-newton", start_width=0.1),
    "kronecker": lambda p, **more: lb.KroneckerBLR(p, **{"data_size": 10, **more}),
    "ivon": lambda p, **more: lb.baselines.IVON(p, **{"data_size": 10, **more}),
}
PATHS = {"kernel": torch.float32, "torch": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(params=PATHS)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    if request.param == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
    return PATHS[request.param]


def parameters_of(dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full(shape, 0.5, dtype=dtype)) for shape in ((5, 4), (3,))]


def take(optimizer: lb.LieGroupBLR, size: float) -> None:
    """A step with gradients of a given size, everywhere but in the first tensor, whose are 0.1."""

    def closure() -> None:
        every = [p for settings in optimizer.param_groups for p in settings["params"]]
        for i, p in enumerate(every):
            p.grad = torch.full_like(p, size if i else 0.1)

    optimizer.step(closure)


def everything(optimizer: lb.LieGroupBLR) -> list[Any]:
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["liebayes"]["clock"], saved["liebayes"]["skipped"]
    tensors = [p.detach().clone() for settings in optimizer.param_groups for p in settings["params"]]
    flat = [value for state in saved["state"].values() for value in state.values()]
    return [*tensors, *flat, saved["liebayes"], saved["param_groups"]]


def same(before: list[Any], after: list[Any]) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def finite(optimizer: lb.LieGroupBLR) -> bool:
    return all(bool(value.isfinite().all()) for value in everything(optimizer) if isinstance(value, Tensor))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("samples", [1, 2])
def test_a_step_that_would_not_be_finite_changes_nothing(name: str, samples: int, dtype: torch.dtype) -> None:
    """Gradients of 1e20, 1e37 and 3e38 are finite; the first squares, products or steps of theirs are not."""
    refused = 0
    for size in (1e20, 1e37, 3e38):
        optimizer = RULES[name](parameters_of(dtype), mc_samples=samples)
        take(optimizer, 0.1)
        before = everything(optimizer)
        try:
            take(optimizer, size)
        except lb.optim.NonFiniteError:
            refused += 1
            assert same(before, everything(optimizer))
            take(optimizer, 0.1)
        assert finite(optimizer)
    assert refused or name in ("kronecker", "ivon")  # whose formulas bound everything


def test_the_two_steps_of_the_report(dtype: torch.dtype) -> None:
    """Row 4: a gradient of 1e20, then one of 0.1. The paths agree: the first is refused, and the second is taken."""
    optimizer = RULES["multiplicative-adaptive"](parameters_of(dtype))
    with pytest.raises(lb.optim.NonFiniteError, match="the step would have written infinite or NaN numbers"):
        take(optimizer, 1e20)
    take(optimizer, 0.1)
    assert finite(optimizer)
    assert optimizer.steps == 1
    optimizer.nonfinite = "skip"
    take(optimizer, 1e20)
    assert (optimizer.steps, optimizer.skipped) == (1, 1)


@pytest.mark.filterwarnings("ignore::liebayes.optim.TrainingWarning")
@pytest.mark.parametrize("name", ["multiplicative", "affine"])
def test_large_steps_without_a_bound_end_in_an_error(name: str, dtype: torch.dtype) -> None:
    """Row 5: α = 50 and no bound."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=dtype), torch.randn(8, dtype=dtype)
    weight = nn.Parameter(torch.rand(4, dtype=dtype) + 0.5)
    optimizer = RULES[name]([weight], lr=50.0, max_step=None)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight - y).square().mean()
        loss.backward()
        return loss

    error = None
    for _ in range(100):
        before = everything(optimizer)
        try:
            optimizer.step(closure)
        except lb.optim.NonFiniteError as found:
            error = found
            assert same(before, everything(optimizer))
            break
        assert finite(optimizer)
    assert error is not None or name == "multiplicative"  # whose scales have a largest value


@pytest.mark.parametrize("setting", ["lr", "momentum", "temperature", "max_step", "data_size", "prior", "scale_lr_ratio"])
def test_settings_that_are_no_numbers_are_named(setting: str, dtype: torch.dtype) -> None:
    optimizer = RULES["affine"](parameters_of(dtype), lr=0.1)
    take(optimizer, 0.1)
    good, before = optimizer.param_groups[0][setting], everything(optimizer)
    optimizer.param_groups[0][setting] = float("nan")
    with pytest.raises(ValueError, match=f"{setting} must be"):
        take(optimizer, 0.1)
    optimizer.param_groups[0][setting] = good
    assert same(before, everything(optimizer))
    take(optimizer, 0.1)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_magnitudes_that_were_zeroed_are_named(value: float, dtype: torch.dtype) -> None:
    parameters = parameters_of(dtype)
    optimizer = RULES["multiplicative-adaptive"](list(zip(["first", "second"], parameters, strict=True)))
    take(optimizer, 0.1)
    parameters[1].data[2] = value
    before = everything(optimizer)
    with pytest.raises(ValueError, match=r"The parameter second of shape \(3,\) has values that are not positive"):
        take(optimizer, 0.1)
    assert same(before, everything(optimizer))


def test_under_a_gradient_scaler_only_gradients_are_its_affair(dtype: torch.dtype) -> None:
    """It skips a step whose gradients have overflowed. A step whose result would is refused as without it."""
    parameters = parameters_of(dtype)
    optimizer = RULES["multiplicative-adaptive"](parameters, mc_samples=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for size, steps in ((float("inf"), 0), (0.1, 1)):
        with optimizer.sampled():
            loss = torch.stack([(p.float() * size).sum() for p in parameters]).sum()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert optimizer.steps == steps
    with optimizer.sampled():
        scaler.scale(torch.stack([p.float().sum() for p in parameters]).sum() * 1e20).backward()
    before = everything(optimizer)
    with pytest.raises(lb.optim.NonFiniteError):
        scaler.step(optimizer)
    assert same(before, everything(optimizer))


needs_kernel = pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")


@needs_kernel
@pytest.mark.parametrize("name", [name for name in RULES if name not in ("kronecker", "ivon")])
def test_ordinary_steps_are_not_tried_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds prove them finite, so the check costs nothing."""
    tried: list[int] = []
    run = native.run

    def noted(job: Any, table: Any) -> None:
        tried.append(job.what & native.TRY)
        run(job, table)

    monkeypatch.setattr(native, "run", noted)
    parameters = [nn.Parameter(torch.rand(3000) + 0.1), nn.Parameter(torch.rand(7) + 0.1)]
    optimizer = RULES[name](parameters, **({} if name == "multiplicative-adaptive" else {"lr": 0.1}))
    for step in range(20):
        take(optimizer, 10.0 ** (step % 5 - 3))
    assert tried
    assert not any(tried)


sizes = st.floats(-30, 38).map(lambda power: 10.0**power)


@needs_kernel
@settings(max_examples=50)
@given(
    name=st.sampled_from([name for name in RULES if name not in ("kronecker", "ivon")]),
    point=sizes, gradient=sizes, momentum=sizes, second=sizes, lr=st.floats(-6, 6), bound=st.sampled_from([None, 0.2]),
    log_scale=st.floats(-60, 60), samples=st.sampled_from([1, 2]),
)  # fmt: skip
def test_what_is_sure_to_be_finite_is(
    name: str, point: float, gradient: float, momentum: float, second: float, lr: float, bound: float | None,
    log_scale: float, samples: int,
) -> None:  # fmt: skip
    """Whatever the sizes of everything a step reads: it is refused, or what it leaves is finite."""
    generator = torch.Generator().manual_seed(0)

    def values(shape: torch.Size, size: float) -> Tensor:
        return (torch.rand(shape, generator=generator) * size).clamp(1e-37, 3e38)

    p = nn.Parameter(values(torch.Size([70]), point))
    optimizer = RULES[name]([p], lr=10.0**lr, max_step=bound, mc_samples=samples)
    p.grad = torch.zeros_like(p)
    with optimizer.sampled():
        p.grad = torch.zeros_like(p)
    state = optimizer.state[p]
    for key, value in state.items():
        if key.startswith("momentum"):
            value.copy_(values(p.shape, momentum))
        elif key.startswith("second_moment"):
            value.copy_(values(p.shape, second))
        elif key == "log_scale":
            value.fill_(log_scale)
    optimizer.load_state_dict(optimizer.state_dict())

    def closure() -> None:
        p.grad = values(p.shape, gradient)

    for _ in range(3):
        with contextlib.suppress(lb.optim.NonFiniteError):
            optimizer.step(closure)
        assert finite(optimizer)


@needs_kernel
@pytest.mark.parametrize("prior", [None, 1.0])
def test_bounds_that_follow_from_step_to_step_hold(prior: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points and scales are measured every 16 steps, and where somebody has written into them."""
    p, measured, checked = nn.Parameter(torch.randn(3000)), 0, 0
    optimizer = lb.AffineBLR([p], data_size=10, prior=prior)
    run, bounds = native.run, native_store.after_gauss_newton

    def noted(job: Any, table: Any) -> None:
        nonlocal measured
        measured += job.what == native.SAMPLE | native.ALL_SIZES
        run(job, table)

    def compared(job: Any, sample: Any, *others: Any) -> Any:
        nonlocal checked
        checked += 1
        assert p.detach().abs().max() <= sample.point
        assert optimizer.state[p]["log_scale"].exp().max() <= sample.scale
        return bounds(job, sample, *others)

    monkeypatch.setattr(native, "run", noted)
    monkeypatch.setattr(native_store, "after_gauss_newton", compared)
    for step in range(40):
        if step == 5:
            with torch.no_grad():
                p.mul_(1000)
        p.grad = torch.randn(3000) * 10.0 ** (step % 4 - 4)
        optimizer.step(lambda: None)
    assert checked >= 40
    assert measured == 4  # at the first step, the one after the change, and twice after 16 more


def test_a_weight_written_past_torch_s_notice_is_found(dtype: torch.dtype) -> None:
    """`.data` leaves no trace, but the sample shows it."""
    p = nn.Parameter(torch.randn(3000).to(dtype))
    optimizer = lb.AffineBLR([p], data_size=10)
    for step in range(6):
        if step == 3:
            p.data[1000] = math.nan
        p.grad = torch.ones_like(p)
        with pytest.raises(lb.optim.NonFiniteError) if step >= 3 else contextlib.nullcontext():
            optimizer.step(lambda: None)
