"""`load_state_dict` of a checkpoint that is not as it was written: the same training goes on, or an error in words."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import pytest
import torch
from support.damage import mutate, places
from support.posteriors import Net, X, Y, positive
from support.problems import closure_for
from torch import Tensor, nn

import liebayes as lb
from liebayes.baselines import IVON

KINDS: dict[str, Any] = {
    "affine": lb.AffineBLR,
    "adaptive": lambda parameters, **options: lb.MultiplicativeBLR(parameters, noise="philox", **options),
    "gauss-newton": lambda parameters, **options: lb.AffineBLR(parameters, curvature="gauss-newton", **options),
    "ivon": IVON,
}


def built(kind: str, steps: int) -> tuple[nn.Module, lb.LieGroupBLR]:
    model = positive(Net())
    optimizer = KINDS[kind](model.parameters(), data_size=20)
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return model, optimizer


def load(optimizer: Any, state: Any) -> str | None:
    """The message of a refusal. A warning counts as one: it says that something begins anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            optimizer.load_state_dict(state)
        except (ValueError, RuntimeError, UserWarning) as error:  # and no other
            return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_load_as_they_are_or_are_refused(kind: str) -> None:
    """What loads is a valid checkpoint: the optimizer has it as it is, and training goes on to finite weights."""
    _, source = built(kind, steps=3)
    saved = source.state_dict()
    draw, refused = random.Random(kind), 0
    everywhere = list(places(saved))
    for _ in range(250):
        mutant = copy.deepcopy(saved)
        what = mutate(mutant, draw.choice(everywhere), draw)
        model, optimizer = built(kind, steps=0)
        before = optimizer.state_dict()
        message = load(optimizer, copy.deepcopy(mutant))
        if message is not None:
            assert len(message) > 40, what
            assert same(before, optimizer.state_dict()), what
            refused += 1
            continue
        assert same(mutant, optimizer.state_dict()), what
        optimizer.step(closure_for(optimizer, model, X, Y))
        assert all(bool(p.isfinite().all()) for p in model.parameters()), what
    assert 150 < refused < 250


def same(a: Any, b: Any) -> bool:
    """Equal trees."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, int) and isinstance(b, float):  # as which integers of more than 62 bits are kept
        return float(a) == b
    return bool(a == b)


def test_states_that_are_missing_begin_anew_with_a_warning() -> None:
    saved = built("affine", steps=3)[1].state_dict()
    del saved["state"][0]
    with pytest.warns(UserWarning, match="no state for some of the parameters .* starts again"):
        built("affine", steps=0)[1].load_state_dict(saved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 10**400}, r"lr must be a number, zero or positive, but got an integer of 1329 bits\."),
        ({"lr": -(10**400)}, "lr must be a number"),
        ({"lr": 1e39}, r"lr must be a number, zero or positive, but got 1e\+39, which float32 cannot hold\."),
        ({"prior": 1e300}, r"prior must be .* but got 1e\+300, which float32 cannot hold\."),
        ({"temperature": 1e39}, "temperature must be zero or positive, but got"),
        ({"data_size": 10**5000}, "data_size must be the number of training data"),
        ({"seed": 1 << 64}, "seed must be a whole number, but got an integer of 65 bits"),
        ({"mc_samples": 1e30}, r"mc_samples must be a whole number of at least 1, but got 1e\+30"),
        ({"mc_samples": 10**400}, "mc_samples must be a whole number"),
        ({"seed": 1e30}, "seed must be a whole number"),
        ({"maximize": "no"}, "maximize must be True or False, but got 'no'"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lb.AffineBLR(Net().parameters(), **{"lr": 0.1, "data_size": 20, **options})


def test_long_integers_are_numbers() -> None:
    model = Net()
    optimizer = lb.AffineBLR(model.parameters(), lr=0.1, data_size=10**30, seed=(1 << 64) - 1, noise="torch")
    optimizer.step(closure_for(optimizer, model, X, Y))
    assert optimizer.seed == (1 << 64) - 1
    assert all(bool(p.isfinite().all()) for p in model.parameters())
