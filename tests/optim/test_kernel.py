"""The native kernel against torch: the same words, the same noise and the same steps, to rounding; the same bits for any
number of threads. `philox` and the rule in torch are the oracles: they share no code with it."""

from __future__ import annotations

import functools
import itertools
import math
import os
from typing import Any

import pytest
import torch
from support.noise import STREAMED, kernel, reference
from support.tolerances import roundings
from torch import Tensor

import liebayes as lb
from liebayes import native
from liebayes.bases import Base, Exponential, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform, philox
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.optim import LieGroupBLR
from liebayes.rule import Absorbed, Adaptive, Fisher

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernel is not built here")

COUNTS = (1, 7, 8, 31, 33, 2047, 2048, 2049, 10_000)
EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("base", STREAMED, ids=repr)
@pytest.mark.parametrize("seed", [0, 2**63 + 12345])
def test_philox_is_the_reference_to_rounding(base: Base, seed: int) -> None:
    for count in COUNTS:
        mine, expected = kernel(base, count, "philox", seed=seed), reference(base, count, seed=seed)
        # A few roundings in the logarithm, the root and the turn; next to their zeros these are absolute, not relative.
        unit = base.sample((10_000,), generator=torch.Generator().manual_seed(0)).abs().median()
        torch.testing.assert_close(mine, expected, rtol=16 * EPS, atol=float(4 * EPS * unit))


@pytest.mark.parametrize("source", ["philox", "xoshiro"])
@pytest.mark.parametrize("base", STREAMED, ids=repr)
def test_noise_of_a_place_depends_on_nothing_else(base: Base, source: Any) -> None:
    whole = kernel(base, 10_000, source)
    for count in COUNTS:
        assert torch.equal(kernel(base, count, source), whole[:count])
    assert torch.equal(kernel(base, 3_000, source, start=4096), whole[4096:7096])


def xoshiro_oracle(seed: int, tensor: int, step: int, stream: int, count: int) -> list[int]:
    """xoshiro128++ in plain integers, eight generators a chunk, with states from the reference stream."""
    mask = 0xFFFFFFFF

    def rotated(x: int, k: int) -> int:
        return (x << k | x >> 32 - k) & mask

    words: list[int] = []
    for chunk in range(-(-count // 2048)):
        counters = range(8 * chunk, 8 * chunk + 8)
        states = [list(philox.philox((c, tensor, step, stream), (seed & mask, seed >> 32))) for c in counters]
        for _ in range(256):
            for s in states:
                words.append((rotated(s[0] + s[3] & mask, 7) + s[0]) & mask)
                t = s[1] << 9 & mask
                s[2] ^= s[0]
                s[3] ^= s[1]
                s[1] ^= s[2]
                s[0] ^= s[3]
                s[2] ^= t
                s[3] = rotated(s[3], 11)
    return words[:count]


def test_xoshiro_words() -> None:
    count = 5_000
    words = torch.tensor(xoshiro_oracle(5, 4, 3, 2, count))
    signed = words - (words >> 31 << 32)
    mine = kernel(Uniform(1.0), count, "xoshiro")
    assert torch.equal(mine, signed.to(torch.float32) * 2.0**-31)


GROUPS: list[tuple[Any, Base, Any]] = [
    (Additive(), Normal(0.1), Absorbed()),
    (Additive(), Laplace(0.1), Fisher()),
    (Additive(), Uniform(0.1), Adaptive()),
    (DiagonalAffine(), Normal(0.1), Absorbed()),
    (DiagonalAffine(), Gumbel(0.1), Fisher()),
    (DiagonalAffine(), StudentT(4, 0.1), Adaptive()),
    (Multiplicative(), Rayleigh(), Absorbed()),
    (Multiplicative(), LogNormal(0.3), Fisher()),
    (Multiplicative(), Exponential(), Adaptive()),
]


def after_four_steps(
    group: Any, base: Base, metric: Any, monkeypatch: pytest.MonkeyPatch, fast: bool, **settings: Any
) -> dict[str, Tensor]:
    """All tensors of an optimizer after three steps in torch and one more, with the kernel or without it."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.rand(shape, generator=generator) + 0.2 for shape in ((3,), (40, 60), (2, 3, 4, 5), (5000,))]
    values[2] = values[2].to(memory_format=torch.channels_last)
    parameters = [torch.nn.Parameter(value) for value in values]
    optimizer = LieGroupBLR(parameters, group, base, metric=metric, data_size=100, noise="philox", **settings)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(((p - 0.5).square() * 3 + p.sin()).sum() for p in parameters)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(native, "available", lambda: False)
        for _ in range(3 if fast else 4):
            optimizer.step(closure)
    if fast:
        optimizer.step(closure)
    found: dict[str, Tensor] = {"bounded": torch.tensor(int(optimizer.bounded))}
    for i, p in enumerate(parameters):
        state = {f"{name} {i}": v.double() for name, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        if isinstance(group, Multiplicative):  # the element is both: the remainder alone is nothing but rounding
            state[f"log g {i}"] = p.detach().double().log() + state.pop(f"remainder {i}")
        found |= state | {f"point {i}": p.detach().double()}
    return found


@pytest.mark.parametrize(("group", "base", "metric"), GROUPS, ids=repr)
@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.01, "max_step": 0.2},
        {"lr": 0.01, "mc_samples": 3, "prior": 2.0, "temperature": 5.0},
        {"lr": 3.0, "max_step": 0.9, "momentum": 0.3, "temperature": 1.0},
        {"lr": 0.02, "maximize": True, "momentum": 0.0, "max_step": 0.01},
    ],
    ids=["plain", "samples", "bounded", "ascent"],
)
def test_a_step_is_that_of_torch(
    group: Any, base: Base, metric: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = after_four_steps(group, base, metric, monkeypatch, True, **settings)
    in_torch = after_four_steps(group, base, metric, monkeypatch, False, **settings)
    assert abs(int(mine.pop("bounded")) - int(in_torch.pop("bounded"))) <= 1  # a step on the very bound may fall either way
    for name, expected in in_torch.items():
        # A few roundings of the largest numbers that entered: those of the tensor.
        torch.testing.assert_close(mine[name], expected, rtol=16 * EPS, atol=float(16 * EPS * expected.abs().max()), msg=name)


@pytest.mark.parametrize("source", ["philox", "xoshiro"])
@pytest.mark.parametrize(("group", "base", "metric"), GROUPS[::4], ids=repr)
def test_same_bits_for_any_number_of_threads(group: Any, base: Base, metric: Any, source: Any) -> None:
    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        parameters = [torch.nn.Parameter(torch.linspace(0.1, 2.0, n)) for n in (5, 3000, 100_000, 17)]
        optimizer = LieGroupBLR(parameters, group, base, 0.1, metric=metric, data_size=10, noise=source)
        samples = []
        for k in range(3):
            with optimizer.sampled():
                samples += [p.detach().clone() for p in parameters]
            for p in parameters:
                p.grad = torch.linspace(-1.0, 1.0, p.numel()) * (k + 1)
            optimizer.step()
        return [*samples, *(p.detach() for p in parameters), *(v for p in parameters for v in tensors(optimizer.state[p]))]

    before = torch.get_num_threads()
    try:
        runs = [run(threads) for threads in (1, 2, 3, 7)]
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def tensors(state: dict[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(value: float) -> None:
    for count, place in itertools.product((1, 8, 33, 5000), (0, -1)):
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (3, count)]
        optimizer = lb.AdditiveBLR(parameters, 1e-38, data_size=10, nonfinite="skip")
        for factor in (1.0, value):
            with optimizer.sampled():
                for p in parameters:
                    p.grad = torch.full_like(p, 3e38)
                parameters[1].grad[place] = 3e38 if factor == 1 else value  # type: ignore[index]
            optimizer.step()
        assert (optimizer.steps, optimizer.skipped) == (1, 1)


def test_all_instruction_sets_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is made once in a process, and here again for each of them."""
    found, choose = [], native._library.__wrapped__
    for name in (*native.VARIANTS, "off"):
        monkeypatch.setenv("LIEBAYES_KERNEL", name)
        monkeypatch.setattr(native, "_library", functools.cache(choose))
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.rand(5000) + 0.1)
        optimizer = lb.AffineBLR([p], lr=0.1, data_size=100, noise="philox")
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.sampled():
                p.square().sum().backward()
            optimizer.step()
        assert native.available() == (name != "off")
        found.append((p.detach(), optimizer.families()[p].element.log_scale))
    monkeypatch.undo()
    choose()  # as before
    # Some roundings in each of three steps, of numbers near 1: their order and fused products differ.
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], **roundings(3 * 16))


def test_after_fork() -> None:
    """OpenMP loses its threads in a forked process: one thread must do, with the same bits."""
    before = kernel(Normal(), 300_000, "xoshiro")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        again = kernel(Normal(), 300_000, "xoshiro")
        os.write(writer, b"1" if torch.equal(before, again) else b"0")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"1"
    assert os.waitpid(child, 0)[1] == 0


def test_denormal_numbers_survive() -> None:
    """A library linked with -ffast-math would flush them for the whole process."""
    assert float(torch.tensor(1e-40) * torch.tensor(0.5)) > 0


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native._library.__wrapped__() is None
    monkeypatch.undo()
    assert native._library.__wrapped__() is not None


def test_a_checkpoint_needs_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.nn.Parameter(torch.ones(3))
    saved = lb.AdditiveBLR([p], data_size=10, noise="xoshiro").state_dict()
    monkeypatch.setattr(native, "available", lambda: False)
    optimizer = lb.AdditiveBLR([p], data_size=10)
    assert optimizer.noise == "torch"
    with pytest.raises(ValueError, match="native kernel"):
        optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match="noise must be one of"):
        lb.AdditiveBLR([p], data_size=10, noise="dice")  # pyright: ignore[reportArgumentType]
