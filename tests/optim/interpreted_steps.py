"""The kernels' samples and steps against torch's path, on the CPU: run by test_gpu.py with TRITON_INTERPRET=1."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from liebayes.bases import Base, Dirac, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.optim import gpu, philox, reference
from liebayes.optim.buckets import Bucket, buckets
from liebayes.rule import Absorbed, Adaptive, Fisher, Metric

EPS = torch.finfo(torch.float32).eps
GROUPS: dict[type, Base] = {Additive: Laplace(0.3), DiagonalAffine: Normal(0.3), Multiplicative: Rayleigh(0.8)}


def settings_of(group: Any, base: Base, metric: Metric | None = None, **own: Any) -> dict[str, Any]:
    defaults = {
        "lr": 0.1,
        "scale_lr_ratio": 0.5,
        "momentum": 0.9,
        "scale_momentum": 0.3,
        "data_size": 50,
        "temperature": 1.3,
        "prior": 0.0,
        "maximize": False,
        "max_step": None,
    }
    return {"group": group, "base": base, "metric": Absorbed() if metric is None else metric, **defaults, **own}


def parameters() -> list[nn.Parameter]:
    """Of many sizes and memory orders, more than a program's worth of elements among them."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(5,), (0,), (), (1500,), (33, 2), (2, 3, 4, 5), (7, 6)]
    tensors = [torch.rand(shape, generator=generator) + 0.1 for shape in shapes]
    tensors[5] = tensors[5].to(memory_format=torch.channels_last)
    tensors[6] = tensors[6].T
    return [nn.Parameter(t) for t in tensors]


def states_of(tensors: list[nn.Parameter], settings: dict[str, Any], seed: int = 2) -> list[dict[str, Any]]:
    """States of some steps ago: nothing at its start."""
    generator = torch.Generator().manual_seed(seed)
    states = [reference.start_state(p, settings) for p in tensors]
    for state in states:
        state["steps"] = 3
        for name, value in state.items():
            if isinstance(value, Tensor):
                value.copy_(torch.randn(value.shape, generator=generator) * (1e-8 if name == "remainder" else 0.2))
                if name.startswith("second"):
                    value.abs_().mul_(1 - 0.999**3)
    return states


def copies(tensors: list[nn.Parameter], states: list[dict[str, Any]]) -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
    twins = [nn.Parameter(p.detach().clone()) for p in tensors]
    for twin, p in zip(twins, tensors, strict=True):
        twin.grad = None if p.grad is None else p.grad.clone()
    return twins, [{k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()} for state in states]


def close(found: Tensor, expected: Tensor, ulps: float = 16, floor: float = 0.0) -> None:
    torch.testing.assert_close(found, expected, rtol=ulps * EPS, atol=floor * EPS)


# Samples.


@pytest.mark.parametrize(
    ("group", "base"),
    [
        (Additive(), Normal(0.2)),
        (DiagonalAffine(), Normal(0.2)),
        (DiagonalAffine(), StudentT(4.0, 0.2)),
        (DiagonalAffine(), Gumbel(0.2)),
        (Multiplicative(), Rayleigh(0.8)),
        (Multiplicative(), LogNormal(0.3)),
    ],
    ids=repr,
)
def test_samples(group: Any, base: Base) -> None:
    tensors = parameters()
    settings = settings_of(group, base)
    states = states_of(tensors, settings)
    if isinstance(group, DiagonalAffine):
        states[3]["log_scale"][:4] = torch.tensor([100.0, -100.0, 79.0, -79.0])  # scales stay within their range
    into = [torch.full_like(p, math.nan, requires_grad=False) for p in tensors]
    numbers = [4, 5, 6, 9, 0, 1, 2]
    gpu.sample(tensors, states, settings, into, numbers=numbers, seed=3, step=5, stream=2)
    for p, state, found, number in zip(tensors, states, into, numbers, strict=True):
        if p.numel():
            noise = philox.draw(base, p.numel(), seed=3, tensor=number, step=5, stream=2)
            bucket = Bucket([p])
            fetched = reference.fetch(bucket, [state], settings)
            expected = fetched.layout.sample(group, fetched.point, fetched.element, noise)
            close(bucket.read([found], torch.float32), expected, floor=16)


# Steps.


def by_torch(
    tensors: list[nn.Parameter], states: list[dict[str, Any]], settings: dict[str, Any], samples: list[Tensor], folds: int
) -> int:
    """`reference`'s step; with several folds from the mean of as many covectors, here equal ones."""
    bounded = 0
    state_of, sample_of = dict(zip(tensors, states, strict=True)), dict(zip(tensors, samples, strict=True))
    for bucket in buckets(list(tensors), flat=True, together=True):
        own = [state_of[p] for p in bucket.parameters]
        fetched = reference.fetch(bucket, own, settings)
        grads = [p.grad for p in bucket.parameters]
        xi = reference.covector(fetched.element, bucket, [sample_of[p] for p in bucket.parameters], grads, settings)
        xi = type(xi)(*(block * folds / folds for block in xi))
        form = settings["metric"].on(settings["group"], settings["base"], fetched.element)
        bounded += int(reference.advance(fetched, bucket, own, settings, form, xi))
    return bounded


def by_kernel(
    tensors: list[nn.Parameter], states: list[dict[str, Any]], settings: dict[str, Any], samples: list[Tensor], folds: int
) -> int:
    if folds == 0:
        return int(gpu.step(tensors, states, settings, samples=samples))
    blocks = 2 if isinstance(settings["group"], DiagonalAffine) else 1
    sums = [[torch.zeros_like(p, requires_grad=False) for _ in range(blocks)] for p in tensors]
    for _ in range(folds):
        gpu.fold(tensors, states, settings, samples, sums)
    return int(gpu.step(tensors, states, settings, sums=sums, folds=folds))


def completed(p: Tensor, state: dict[str, Any]) -> Tensor:
    return p.detach().double().log() + state["remainder"].double()


def compare(settings: dict[str, Any], folds: int = 0, size: float = 1.0, steps: int = 3) -> tuple[list[nn.Parameter], int]:
    """Some steps both ways; the gradients of each step are drawn anew."""
    tensors = parameters()
    states = states_of(tensors, settings)
    twins, twin_states = copies(tensors, states)
    generator = torch.Generator().manual_seed(7)
    bounded = 0
    for step in range(steps):
        samples = [p.detach() * torch.rand(p.shape, generator=generator).add(0.5) for p in tensors]
        for k, (p, twin) in enumerate(zip(tensors, twins, strict=True)):
            p.grad = None if k == 2 and step == 1 else torch.randn(p.shape, generator=generator) * size
            twin.grad = p.grad
        expected = by_torch(twins, twin_states, settings, samples, max(folds, 1))
        assert by_kernel(tensors, states, settings, samples, folds) == expected
        bounded += expected
        for p, twin, state, twin_state in zip(tensors, twins, states, twin_states, strict=True):
            if p.numel():
                close(p.detach(), twin.detach(), floor=16 * float(twin.detach().abs().max()))
                for name, value in twin_state.items():
                    if name == "remainder":  # completes its point: the sum has to agree where roundings differ
                        logarithms = float(twin.detach().log().abs().max())  # long steps round two of them
                        close(completed(p, state), completed(twin, twin_state), ulps=0, floor=4 + 2 * logarithms)
                    elif isinstance(value, Tensor):
                        close(state[name], value, floor=2 + 16 * float(value.abs().max()))  # summands are of order 1
            state["steps"] += 1
            twin_state["steps"] += 1
    return tensors, bounded


@pytest.mark.parametrize("folds", [0, 3])
@pytest.mark.parametrize("metric", [Absorbed(), Fisher(), Adaptive()], ids=repr)
@pytest.mark.parametrize(("group", "base"), [(g(), b) for g, b in GROUPS.items()], ids=repr)
def test_steps(group: Any, base: Base, metric: Metric, folds: int) -> None:
    compare(settings_of(group, base, metric, prior=2.0), folds)


@pytest.mark.parametrize(
    ("group", "maximize", "max_step"), list(product([kind() for kind in GROUPS], (False, True), (0.001, 0.5))), ids=repr
)
def test_bounded_steps(group: Any, maximize: bool, max_step: float) -> None:
    _, bounded = compare(settings_of(group, GROUPS[type(group)], maximize=maximize, max_step=max_step, momentum=0.0), 0)
    assert bounded > 0 or max_step == 0.5


def test_a_skewed_base_has_a_full_metric() -> None:
    compare(settings_of(DiagonalAffine(), Gumbel(0.4), Fisher(), prior=1.0, max_step=0.3))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("group", [DiagonalAffine(), Multiplicative()], ids=repr)
def test_extreme_gradients(group: Any) -> None:
    """Finite and positive through the bound; the same numbers as torch's."""
    tensors, bounded = compare(settings_of(group, GROUPS[type(group)], max_step=5.0, momentum=0.0), 0, 1e20, steps=2)
    assert bounded > 0
    assert all(bool(p.isfinite().all()) for p in tensors)
    assert isinstance(group, DiagonalAffine) or all(bool((p > 0).all()) for p in tensors)


def test_tiny_steps_add_up() -> None:
    """Each is a sixtieth of an ulp of the point; the remainder keeps them."""
    settings = settings_of(Multiplicative(), Rayleigh(), momentum=0.0, temperature=0.0, lr=1e-9)
    p = nn.Parameter(torch.linspace(0.3, 3.0, 40))
    start, state = p.detach().clone(), reference.start_state(p, settings)
    for _ in range(100):
        p.grad = -torch.ones(40)
        gpu.step([p], [state], settings, samples=[torch.ones(40)])
    moved = completed(p, state) - start.double().log()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-7), rtol=1e-3, atol=0)
    assert not torch.equal(p, start)  # by now an ulp, here and there


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_point_stays_within_the_range_of_its_floats() -> None:
    settings = settings_of(Multiplicative(), Rayleigh(), momentum=0.0, max_step=8.0, lr=100.0)
    for gradient, limit in ((1.0, torch.finfo(torch.float32).tiny), (-1.0, torch.finfo(torch.float32).max)):
        p = nn.Parameter(torch.ones(9))
        state = reference.start_state(p, settings)
        for _ in range(12):
            p.grad = torch.full_like(p, gradient)
            gpu.step([p], [state], settings, samples=[torch.ones(9)])
        assert p.tolist() == [limit] * 9


def test_without_noise_and_momentum_this_is_gradient_descent() -> None:
    settings = settings_of(Additive(), Dirac(), momentum=0.0, temperature=0.0)
    p = nn.Parameter(torch.randn(3000, generator=torch.Generator().manual_seed(0)))
    expected = p.detach().clone()
    state, out = reference.start_state(p, settings), torch.empty(3000)
    for _ in range(5):
        gpu.sample([p], [state], settings, [out], numbers=[0], seed=0, step=0, stream=0)
        assert torch.equal(out, p)
        p.grad = out.sin()
        gpu.step([p], [state], settings, samples=[out])
        expected.add_(expected.sin(), alpha=-0.1)
        assert torch.equal(p, expected)


# What surrounds the kernels.


def test_states_in_another_order_or_precision() -> None:
    settings = settings_of(DiagonalAffine(), Normal())
    tensors = [nn.Parameter(torch.rand(4, 5, generator=torch.Generator().manual_seed(0)))]
    tensors[0].grad = torch.rand(5, 4).T
    states = states_of(tensors, settings)
    twins, twin_states = copies(tensors, states)
    states[0]["log_scale"] = states[0]["log_scale"].T.contiguous().T
    states[0]["momentum_shift"] = states[0]["momentum_shift"].double()
    samples = [torch.rand(5, 4).T]
    gpu.step(tensors, states, settings, samples=samples)
    gpu.step(twins, twin_states, settings, samples=[samples[0].contiguous()])
    assert torch.equal(tensors[0], twins[0])
    assert torch.equal(states[0]["log_scale"], twin_states[0]["log_scale"])
    assert torch.equal(states[0]["momentum_shift"].float(), twin_states[0]["momentum_shift"])
    assert states[0]["log_scale"].stride() == (1, 4)


def test_autograd_knows_what_was_written() -> None:
    settings = settings_of(Additive(), Normal())
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    with torch.no_grad():
        out = torch.ones(3)
    loss = (p * p).sum()
    gpu.step([p], [reference.start_state(p, settings)], settings, samples=[out])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_supported() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    good = settings_of(DiagonalAffine(), Normal())

    class OwnNormal(Normal):
        pass

    assert gpu.supports(p, good)
    assert not gpu.supports(p.double(), good)
    assert not gpu.supports(torch.ones(8, 8)[::2], good)
    assert not gpu.supports(p, {**good, "base": OwnNormal()})
    assert not gpu.supports(p, {**good, "prior": torch.sum})
    with pytest.raises(ValueError, match="samples"):
        gpu.step([p], [reference.start_state(p, good)], good)
