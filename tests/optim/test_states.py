"""A state and its parameter fit together: after checkpoints of other models and dtypes, and after changes in mid-training."""

from __future__ import annotations

import collections
import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.baselines import IVON
from liebayes.bases import Exponential, Normal, Rayleigh
from liebayes.groups import Multiplicative, TriangularAffine

KINDS: dict[str, Callable[..., Any]] = {
    "affine": lambda p, **more: lb.AffineBLR(p, lr=0.1, data_size=100, base=Normal(0.1), **more),
    "additive": lambda p, **more: lb.AdditiveBLR(p, lr=0.1, data_size=100, base=Normal(0.1), **more),
    "multiplicative": lambda p, **more: lb.MultiplicativeBLR(p, 0.1, data_size=100, base=Rayleigh(), mc_samples=1, **more),
    "ivon": lambda p, **more: IVON(p, data_size=100, **more),
}


def network(width: int = 4, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(width, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.abs_().add_(0.1)
    return model.to(dtype)


def train(model: Any, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        x = torch.randn(8, model.weight.shape[1], generator=torch.Generator().manual_seed(step)).to(model.weight.dtype)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_model_is_refused_by_name(kind: str, noise: str | None) -> None:
    model, other = network(4), network(6)
    optimizer, fresh = (KINDS[kind](m.named_parameters(), noise=noise) for m in (model, other))
    train(model, optimizer)
    train(other, fresh)
    before = [p.detach().clone() for p in other.parameters()]
    spread = fresh.posterior(other).std()
    with pytest.raises(ValueError, match=r"weight of shape \(3, 6\) needs a state .*has the shape \(3, 4\).*same model"):
        fresh.load_state_dict(optimizer.state_dict())
    assert all(map(torch.equal, before, other.parameters()))
    assert all(torch.equal(value, spread[name]) for name, value in fresh.posterior(other).std().items())
    train(other, fresh)


@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
def test_a_parameter_that_grows_is_refused_by_name(noise: str | None) -> None:
    """Also when it is tried again: memory of another size must never be written to."""
    model: Any = network()
    optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
    train(model, optimizer)
    model.weight.data = torch.cat([model.weight.data, torch.randn(3, 100_000)], 1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"weight of shape \(3, 100004\).*build a new optimizer"):
            train(model, optimizer, 1)
        with pytest.raises(ValueError, match=r"weight of shape \(3, 100004\)"):
            optimizer.posterior(model)


@pytest.mark.parametrize("change", [lambda t: torch.cat([t, t], 1), lambda t: t.float()], ids=["shape", "dtype"])
def test_a_change_between_a_sample_and_its_step_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    """Where the kernel would read the numbers; torch refuses or casts them."""
    model: Any = network(dtype=torch.float64)
    optimizer = KINDS["affine"](model.named_parameters())
    with optimizer.sampled():
        model(torch.ones(1, 4).double()).square().sum().backward()
    model.weight.data, model.weight.grad = change(model.weight.data), None
    model.weight.grad = torch.ones_like(model.weight)
    if native.available() or change(torch.ones(1, 1)).numel() == 2:
        with pytest.raises(RuntimeError, match=r"shape|size|dtype"):
            optimizer.step()


def test_a_matrix_of_another_size_is_refused_by_name() -> None:
    points = [nn.Parameter(torch.zeros(size)) for size in (3, 4)]
    first, second = (lb.LieGroupBLR([p], TriangularAffine(), Normal(), 0.1, data_size=10) for p in points)
    with first.sampled():
        points[0].square().sum().backward()
    first.step()
    with pytest.raises(ValueError, match=r"number 0 of shape \(4,\) needs a state"):
        second.load_state_dict(first.state_dict())


DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("by", ["checkpoint", "model.to"])
@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
@pytest.mark.parametrize("after", DTYPES, ids=str)
@pytest.mark.parametrize("before", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_another_dtype_keeps_the_posterior(
    kind: str, before: torch.dtype, after: torch.dtype, noise: str | None, by: str
) -> None:
    """Widths are those learned so far, in the posterior and in the samples of training."""
    model: Any = network(dtype=before)
    optimizer = KINDS[kind](model.named_parameters(), noise=noise)
    train(model, optimizer)
    for p in model.parameters():
        if "log_scale" in optimizer.state[p]:
            optimizer.state[p]["log_scale"].fill_(-3.0)
    expected = optimizer.posterior(model).std()
    if by == "checkpoint":
        other: Any = network(dtype=after)
        other.load_state_dict(model.state_dict())
        loaded = KINDS[kind](other.named_parameters(), noise=noise)
        loaded.load_state_dict(optimizer.state_dict())
        model, optimizer = other, loaded
    else:
        model.to(after)
    found = optimizer.posterior(model).std()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=0.01, atol=0)
    draws = []
    for _ in range(200):
        with optimizer.sampled():
            draws.append(model.weight.detach().double().clone())
    spread = (torch.stack(draws) - model.weight.detach().double()).square().mean(0).sqrt()
    # A bfloat16 sample is rounded by up to 0.4 %, which is of the order of the narrowest widths here.
    rounding = 0.003 if after is torch.bfloat16 else 0.0
    torch.testing.assert_close(spread, expected["weight"].double(), rtol=0.3, atol=rounding)
    train(model, optimizer)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_look_at_a_sample_in_inference_mode(kind: str, noise: str | None) -> None:
    """Buffers and states made there serve training as any others."""
    results = []
    for look in (False, True):
        model: Any = network()
        optimizer = KINDS[kind](model.named_parameters(), noise=noise)
        with torch.inference_mode(look), optimizer.sampled():
            model(torch.ones(1, 4))
        train(model, optimizer)
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


def test_numbers_of_numpy() -> None:
    model = network()
    optimizer = lb.AffineBLR(model.parameters(), lr=np.float32(0.5), data_size=np.int64(100), prior=np.float32(0.25))  # pyright: ignore[reportArgumentType]
    settings = optimizer.state_dict()["param_groups"][0]
    assert [type(settings[name]) for name in ("lr", "data_size", "prior")] == [float, int, float]
    train(model, optimizer)


def test_closures_that_return_more_than_a_loss() -> None:
    model: Any = network()
    optimizer = KINDS["affine"](model.named_parameters(), mc_samples=2)
    x = torch.ones(8, 4)
    losses: list[float] = []

    def closure() -> dict[str, Any]:
        optimizer.zero_grad()
        output = model(x)
        loss = output.square().mean()
        loss.backward()
        losses.append(loss.item())
        return {"loss": loss, "output": output, "count": 8, "note": "fine", "nothing": None}

    found = optimizer.step(closure)
    assert float(found["loss"]) == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert found["output"].shape == (8, 3)
    assert not found["output"].requires_grad
    assert (found["count"], found["note"], found["nothing"]) == (8, "fine", None)


def test_samples_of_a_step_that_failed_are_forgotten() -> None:
    """A closure with another structure for each sample fails; the next step is as if it had not been tried."""
    model: Any = network()
    optimizer = KINDS["affine"](model.named_parameters(), mc_samples=2)
    calls = [0]

    def closure() -> Any:
        calls[0] += 1
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        return {"loss": loss} if calls[0] == 1 else [loss, loss]

    with pytest.raises(ValueError, match=r"dict|list"):
        optimizer.step(closure)
    assert (optimizer.steps, optimizer._folds) == (0, 0), "no sample waits for the next step"
    train(model, optimizer, 1)
    assert optimizer.steps == 1


@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
@pytest.mark.parametrize("when", ["states", "sample"])
def test_storages_that_move(noise: str | None, when: str) -> None:
    """share_memory_() gives a tensor other memory; what was there belongs to somebody else by the next step."""
    results = []
    for moving in (False, True):
        model: Any = network()
        optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
        train(model, optimizer)
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


@pytest.mark.parametrize("noise", ["torch", None], ids=["torch", "kernel"])
def test_states_that_are_reset_or_put_back(noise: str | None) -> None:
    model: Any = network()
    optimizer = KINDS["affine"](model.named_parameters(), noise=noise)
    train(model, optimizer)
    saved = copy.deepcopy(optimizer.state[model.weight])
    optimizer.state = collections.defaultdict(dict)
    train(model, optimizer, 1)
    assert optimizer.state[model.weight]["steps"] == 1, "it has begun anew"
    assert optimizer.state_dict()["state"][0]["steps"] == 1
    optimizer.state[model.weight] = copy.deepcopy(saved)
    train(model, optimizer, 1)
    assert optimizer.state[model.weight]["steps"] == saved["steps"] + 1
    assert not torch.equal(optimizer.state[model.weight]["momentum_shift"], saved["momentum_shift"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [-40.0, -20.0, -14.0, -3.0, -0.7, 0.3, 3.0, 20.0, 80.0])
def test_multiplicative_steps_of_any_length(step: float, dtype: torch.dtype) -> None:
    """g ← g·e^X also where e^X has no digits beside 1: log g is the logarithm of the point and the remainder."""
    p = nn.Parameter(torch.full((37,), 2.0, dtype=dtype))
    settings: dict[str, Any] = {"data_size": 10, "momentum": 0.0, "temperature": 0.0, "max_step": None}
    optimizer = lb.LieGroupBLR([p], Multiplicative(), Exponential(), 1.0, **settings)
    with optimizer.sampled():
        theta = p.detach().clone()
    p.grad = -step / theta
    optimizer.step()
    found = p.detach().double().log() + optimizer.state[p]["remainder"].double()
    torch.testing.assert_close(found, torch.full_like(found, math.log(2) + step), rtol=1e-5, atol=1e-5)


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
    content = pickle.dumps(KINDS["affine"](network().parameters()))
    monkeypatch.setattr(native, "available", lambda: False)
    with pytest.raises(ValueError, match=r'noise "xoshiro" is drawn by the native kernel, which is not here'):
        pickle.loads(content)


# Settings that are refused.


@pytest.mark.parametrize("key", ["mc_samples", "seed", "noise", "nonfinite", "foreach", "parallel", "process_group"])
def test_options_of_the_optimizer_are_no_options_of_a_parameter_group(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}=2, but {key} belongs to the whole optimizer"):
        KINDS["affine"]([{"params": network().parameters(), key: 2}])


@pytest.mark.parametrize(
    ("kind", "key", "meant"),
    [("affine", "temprature", "temperature"), ("additive", "mc_sample", "mc_samples"), ("ivon", "dampin", "damping")],
)
def test_a_misspelt_option_of_a_parameter_group_is_refused(kind: str, key: str, meant: str) -> None:
    optimizer = KINDS[kind]([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match=f"'{key}', which is no option.*Did you mean '{meant}'"):
        optimizer.add_param_group({"params": network().parameters(), key: 2})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_group_may_have_keys_of_its_own(kind: str) -> None:
    """Names, and what schedulers, other optimizers and trainers write."""
    own = "kind name initial_lr max_lr min_lr base_lr swa_lr base_momentum max_momentum lr_scale weight_decay fused betas eps"
    optimizer = KINDS[kind]([{"params": network().parameters(), **dict.fromkeys(own.split(), 1)}])
    assert optimizer.param_groups[0]["lr_scale"] == 1
    if kind != "ivon":  # which refuses a base, also its own
        copied = {**optimizer.param_groups[0], "params": [nn.Parameter(torch.ones(2))], "initial_scale": 1.0, "scale_lr": None}
        optimizer.add_param_group(copied)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data_size": "100"}, r"data_size must be the number of training data, at least 1, but got '100'\. Pass a number"),
        ({"data_size": [1, 2]}, r"data_size must be .* but got \[1, 2\]"),
        ({"data_size": math.nan}, "data_size must be .* but got nan"),
        ({"data_size": 0}, "data_size must be .* but got 0"),
        ({"mc_samples": None}, "mc_samples must be a whole number of at least 1, but got None"),
        ({"mc_samples": "2"}, "mc_samples must be .* but got '2'"),
        ({"mc_samples": math.nan}, "mc_samples must be .* but got nan"),
        ({"seed": None}, "seed must be a whole number, but got None"),
        ({"seed": 1.5}, "seed must be a whole number, but got 1.5"),
        ({"base": Normal}, "A base distribution was expected.*Pass an instance"),
        ({"base": "Normal(0.1)"}, r"but got 'Normal\(0.1\)'\. liebayes\.bases\.parse"),
        ({"base": torch.distributions.Normal(0.0, 1.0)}, r"liebayes\.bases\.from_distribution"),
        ({"metric": lb.Fisher}, "metric must be an instance"),
    ],
    ids=str,
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lb.AffineBLR(network().parameters(), **{"data_size": 100, **settings})


def test_a_group_is_an_instance() -> None:
    with pytest.raises(ValueError, match=r"A group was expected, but got .*TriangularAffine.*Pass an instance"):
        lb.LieGroupBLR(network().parameters(), TriangularAffine, Normal(), 0.1, data_size=10)  # type: ignore[arg-type]


def test_what_is_not_positive_is_refused_with_the_way_to_magnitudes() -> None:
    converted = lb.nn.plus_minus(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    for model in (nn.Linear(3, 2), converted):
        with pytest.raises(ValueError, match=r"liebayes\.nn\.plus_minus, dale or fixed_sign.*liebayes\.nn\.parameter_groups"):
            lb.MultiplicativeBLR(model.parameters(), data_size=10)
    with pytest.raises(ValueError, match=r"liebayes\.nn\.plus_minus, dale or fixed_sign"):
        Multiplicative().at(torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize(
    ("prior", "said"),
    [(lambda t: 1.0, "returned a float"), (lambda t: t.detach().sum(), "returned a tensor without a gradient")],
)
def test_a_prior_must_depend_on_its_argument(prior: Callable[[Tensor], Any], said: str) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = lb.AffineBLR([p], data_size=10, prior=prior)
    with optimizer.sampled():
        p.sum().backward()
    with pytest.raises(ValueError, match=said):
        optimizer.step()
    assert torch.equal(p, torch.ones(3))


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_batch_is_a_tuple(mc_samples: int) -> None:
    optimizer = KINDS["affine"]([nn.Parameter(torch.ones(3))], mc_samples=mc_samples)
    with pytest.raises(ValueError, match=r"batch must be a tuple of tensors.*but is a Tensor.*\(inputs,\)"):
        optimizer.step(lambda x: x.sum(), batch=torch.ones(2, 3))


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_closure_without_backward_is_refused(mc_samples: int) -> None:
    p, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = KINDS["affine"]([p, frozen], mc_samples=mc_samples)
    with pytest.raises(RuntimeError, match="A sample ended without a gradient"):
        optimizer.step(lambda: p.square().sum())
    assert optimizer.steps == 0

    def closure() -> Tensor:
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.steps == 1
    p.requires_grad_(False)
    if mc_samples == 1:
        optimizer.step(lambda: p.square().sum())  # all are frozen: there is nothing to train
