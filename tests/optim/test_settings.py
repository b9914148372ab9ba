"""Settings, parameter groups, closures and batches: what is accepted, and what is refused in words one can act on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.problems import KINDS, positive_layer, train_layer
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import Multiplicative, TriangularAffine


@pytest.mark.parametrize("key", ["mc_samples", "seed", "noise", "nonfinite", "process_group"])
def test_options_of_the_optimizer_are_refused_in_a_parameter_group(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}=2, but {key} belongs to the whole optimizer"):
        KINDS["affine"]([{"params": positive_layer().parameters(), key: 2}])


@pytest.mark.parametrize(
    ("kind", "key", "hint"),
    [
        ("affine", "temprature", "Did you mean 'temperature'"),
        ("additive", "mc_sample", "Did you mean 'mc_samples'"),
        ("ivon", "dampin", "Did you mean 'damping'"),
        ("affine", "weight_decay", "prior = weight_decay·data_size"),
        ("ivon", "betas", "Use momentum"),
        ("affine", "colour", "The options are base, "),
    ],
)
def test_an_unknown_key_of_a_parameter_group_is_refused(kind: str, key: str, hint: str) -> None:
    optimizer = KINDS[kind]([nn.Parameter(torch.ones(2))])
    with pytest.raises(TypeError, match=f"no option '{key}', which a parameter group has.*{hint}"):
        optimizer.add_param_group({"params": positive_layer().parameters(), key: 2})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", [*KINDS.values(), lambda p: lb.KroneckerBLR(p, data_size=100)])
@pytest.mark.parametrize(
    ("params", "said"),
    [(nn.Linear(2, 2), r"takes parameters, but got a Linear"), ([{"params": nn.Linear(2, 2)}], r"model\.parameters\(\)"),
     ("abc", "str"), ([{"params": ["weight"]}], "str")],
    ids=str,
)  # fmt: skip
def test_what_is_no_parameter_is_refused(kind: Callable[..., Any], params: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        kind(params)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_group_may_have_keys_of_schedulers_and_trainers(kind: str) -> None:
    own = "name initial_lr max_lr min_lr base_lr swa_lr base_momentum max_momentum lr_scale"
    optimizer = KINDS[kind]([{"params": positive_layer().parameters(), **dict.fromkeys(own.split(), 1)}])
    assert optimizer.param_groups[0]["lr_scale"] == 1
    if kind != "ivon":  # which refuses a base, also its own
        copied = {**optimizer.param_groups[0], "params": [nn.Parameter(torch.ones(2))], "initial_scale": 1.0, "scale_lr": None}
        optimizer.add_param_group(copied)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weight_decay": 0.1}, r"AffineBLR has no option 'weight_decay'\. .*prior = weight_decay·data_size"),
        ({"betas": (0.9, 0.999)}, "no option 'betas'.*Use momentum"),
        ({"eps": 1e-8}, "no option 'eps'.*leave it out"),
        ({"momentun": 0.9}, "no option 'momentun'.*Did you mean 'momentum'"),
        ({"colour": "red"}, "no option 'colour'.*The options are base, "),
        ({"lr": "0.1"}, r"lr must be a number.*'0.1'.*float\(lr\)"),
        ({"lr": torch.tensor(0.1)}, r"lr must be a number.*float\(lr\)"),
        ({"params": nn.Linear(2, 2)}, r"takes parameters, but got a Linear\. Pass model\.parameters\(\)"),
    ],
    ids=str,
)
def test_arguments_as_of_other_optimizers_are_refused_helpfully(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        lb.AffineBLR(**{"params": positive_layer().parameters(), "data_size": 100, **given})


OPTIMIZERS = [lb.AdditiveBLR, lb.MultiplicativeBLR, lb.AffineBLR, lb.KroneckerBLR, lb.baselines.IVON, lb.baselines.VOGN]


def options_of(optimizer: type[lb.LieGroupBLR]) -> set[str]:
    with pytest.raises(TypeError) as refused:
        optimizer(positive_layer().parameters(), data_size=100, colour="red")  # type: ignore[call-arg]
    return set(re.findall(r"\w+", str(refused.value).partition("The options are ")[2]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["weight_decay", "betas", "ess", "hess_init", "beta1", "beta2", "clip_radius", "nesterov"])
def test_a_hint_names_options_that_the_optimizer_has(name: str, optimizer: type[lb.LieGroupBLR]) -> None:
    with pytest.raises(TypeError) as refused:
        optimizer(positive_layer().parameters(), data_size=100, **{name: 0.1})
    named = set(re.findall(r"\w+", str(refused.value).partition(". ")[2])) - {name}
    elsewhere = set().union(*map(options_of, OPTIMIZERS)) - options_of(optimizer)
    assert not named & elsewhere


def test_a_subclass_may_take_options_of_its_own() -> None:
    class Own(lb.AffineBLR):
        def __init__(self, params: Any, **others: Any) -> None:
            self.colour = others.pop("colour")
            super().__init__(params, **others)

    assert Own(positive_layer().parameters(), data_size=10, colour="red").colour == "red"


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
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lb.AffineBLR(positive_layer().parameters(), **{"data_size": 100, **settings})


def test_a_group_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"A group was expected, but got .*TriangularAffine.*Pass an instance"):
        lb.LieGroupBLR(positive_layer().parameters(), TriangularAffine, Normal(), 0.1, data_size=10)  # type: ignore[arg-type]


def test_negative_weights_are_refused_with_the_remedy() -> None:
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


def test_numpy_numbers_are_accepted() -> None:
    model = positive_layer()
    optimizer = lb.AffineBLR(model.parameters(), lr=np.float32(0.5), data_size=np.int64(100), prior=np.float32(0.25))  # pyright: ignore[reportArgumentType]
    settings = optimizer.state_dict()["param_groups"][0]
    assert [type(settings[name]) for name in ("lr", "data_size", "prior")] == [float, int, float]
    train_layer(model, optimizer)


def test_a_closure_may_return_more_than_a_loss() -> None:
    model: Any = positive_layer()
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
    assert float(found["loss"]) == pytest.approx(sum(losses) / 2, rel=4 * torch.finfo().eps)
    assert found["output"].shape == (8, 3)
    assert not found["output"].requires_grad
    assert (found["count"], found["note"], found["nothing"]) == (8, "fine", None)
