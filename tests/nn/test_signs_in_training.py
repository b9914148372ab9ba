"""Networks with sign constraints in training and prediction: signs stay, magnitudes and other parameters are told apart."""

import pytest
import torch
from support.networks import MODES, build, output
from support.problems import closure_for, parameters_of
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import LogNormal, Normal, Rayleigh
from liebayes.groups import Additive, Multiplicative
from liebayes.nn import mlp, parameter_groups, plus_minus, resnet20, split_parameters

every_mode = pytest.mark.parametrize("mode", MODES)


def effective(model: nn.Module) -> dict[str, Tensor]:
    """The weights and biases a constrained model uses."""
    return {
        f"{name}.{tensor}": getattr(module, tensor).detach()
        for name, module in model.named_modules()
        if hasattr(module, "parametrizations")
        for tensor in module.parametrizations
    }


def constrained(mode: str, name: str) -> bool:
    """Under Dale's law the first layer and the biases are plus-minus."""
    return mode == "fixed_sign" or (name.endswith("weight") and name not in ("1.weight", "conv.weight"))


@every_mode
@pytest.mark.parametrize("which", ["mlp", "resnet20"])
def test_signs_never_change_in_training(which: str, mode: str) -> None:
    """Many steps, far too large, on random labels."""
    torch.manual_seed(3)
    model, x, steps = {
        "mlp": (mlp((6,), 3, hidden=(5,)), torch.rand(5, 6), 300),
        "resnet20": (resnet20((1, 4, 4), 3, width=2, blocks=(1,)), torch.rand(4, 1, 4, 4), 60),
    }[which]
    MODES[mode](model)
    magnitudes, others = split_parameters(model)
    for _, p in others:
        p.requires_grad_(False)
    optimizer = lb.MultiplicativeBLR(magnitudes, lr=2.0, data_size=10, mc_samples=1, max_step=1.0)
    signs = {name: w.sign() for name, w in effective(model).items()}
    start = {name: p.detach().clone() for name, p in magnitudes}
    for step in range(steps):
        labels = torch.randint(0, 3, (len(x),))
        with optimizer.sampled():
            loss = nn.functional.cross_entropy(model(x), labels)
            if step % 50 == 0 and mode != "plus_minus":  # also for the samples, not only for their mean
                assert all(
                    torch.equal(w.sign(), signs[name]) for name, w in effective(model).items() if constrained(mode, name)
                )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(bool((p > 0).all()) and bool(torch.isfinite(p).all()) for _, p in magnitudes)
    ratio = torch.cat([(p.detach() / start[name]).log().abs().flatten() for name, p in magnitudes])
    assert float(ratio.max()) > 2.0  # the steps were large
    if mode != "plus_minus":
        compared = [name for name in signs if constrained(mode, name)]
        assert compared
        for name in compared:
            assert torch.equal(effective(model)[name].sign(), signs[name]), name


@every_mode
def test_two_groups_in_one_optimizer(mode: str) -> None:
    """Magnitudes multiplicative, norms additive."""
    model, x = build("resnet20", torch.float32)
    MODES[mode](model)
    magnitudes, others = split_parameters(model)
    optimizer = lb.LieGroupBLR(
        [
            {"params": magnitudes, "group": Multiplicative(), "base": Rayleigh()},
            {"params": others, "group": Additive(), "base": Normal(0.01)},
        ],
        Additive(), Normal(0.01), lr=0.05, data_size=50,
    )  # fmt: skip
    before = parameters_of(model)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, x, torch.arange(5)))
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(bool((p > 0).all()) for _, p in magnitudes)
    prediction = optimizer.posterior(model).predict(x, samples=4)
    torch.testing.assert_close(prediction.probabilities.sum(-1), torch.ones(5))


def test_parameter_groups() -> None:
    model = plus_minus(resnet20((1, 8, 8), width=2, blocks=(1,)))
    groups = parameter_groups(
        model, {"group": Multiplicative(), "base": Rayleigh()}, {"group": Additive(), "base": Normal(0.01)}
    )
    assert [group["kind"] for group in groups] == ["magnitudes", "others"]
    optimizer = lb.LieGroupBLR(groups, Additive(), Normal(0.01), lr=0.1, data_size=10)
    assert [str(group["group"]) for group in optimizer.param_groups] == ["Multiplicative()", "Additive()"]
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in model.parameters()}
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["kind"] == "magnitudes"
    only = parameter_groups(plus_minus(nn.Linear(2, 2)), {}, {})
    assert [group["kind"] for group in only] == ["magnitudes"]


def test_unconverted_networks_have_no_magnitudes() -> None:
    magnitudes, others = split_parameters(mlp((3,), hidden=(2,)))
    assert magnitudes == []
    assert [name for name, _ in others] == ["1.weight", "1.bias", "3.weight", "3.bias"]


@every_mode
def test_predictions_of_a_constrained_network(mode: str) -> None:
    """A posterior over magnitudes predicts through the signs, in the module and without touching it."""
    model, x = build("mlp", torch.float32)
    MODES[mode](model)
    optimizer = lb.MultiplicativeBLR(split_parameters(model).magnitudes, data_size=50, base=LogNormal(1e-3))
    optimizer.step(closure_for(optimizer, model, x, torch.arange(len(x))))
    posterior = optimizer.posterior(model)
    expected = output(model, x).softmax(-1)
    # A base as narrow as this one predicts almost what the point does.
    torch.testing.assert_close(posterior.predict(x, samples=20).probabilities, expected, rtol=0, atol=0.01)
    signs = {name: w.sign() for name, w in effective(model).items()}
    with posterior.sampled():
        assert not torch.equal(output(model, x).softmax(-1), expected)
        for name, w in effective(model).items():
            if mode != "plus_minus" and constrained(mode, name):
                assert torch.equal(w.sign(), signs[name])
    assert torch.equal(output(model, x).softmax(-1), expected)
