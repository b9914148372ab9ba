"""Sign constraints: same outputs, positive parameters, right signs, and everything a module is used for."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import LogNormal, Normal, Rayleigh
from liebayes.groups import Additive, Multiplicative
from liebayes.nn import (
    dale,
    fixed_sign,
    lenet,
    mlp,
    parameter_groups,
    plus_minus,
    resnet20,
    restore,
    split_parameters,
    unit_signs,
)

MODES: dict[str, Callable] = {"plus_minus": plus_minus, "dale": dale, "fixed_sign": fixed_sign}


class Tokens(nn.Module):
    """Embedding, transformer layer and read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.output = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(tokens)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Callable, **settings) -> None:
        super().__init__()
        self.layer = kind(4, 6, num_layers=2, batch_first=True, **settings)
        self.output = nn.Linear(settings.get("proj_size", 6), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layer(x)[0][:, -1])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[:, 0], self.cell(x[:, 1]))


class Attention(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def images(n: int = 5) -> Tensor:
    return torch.rand(n, 1, 8, 8)


def sequence() -> Tensor:
    return torch.rand(5, 3, 4)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: mlp((1, 8, 8), hidden=(12, 7)), images),
    "lenet": (lambda: lenet((1, 8, 8), filters=(5, 6), hidden=(7,)), images),
    "resnet20": (lambda: resnet20((1, 8, 8), width=4, blocks=(1, 1)), images),
    "transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Conv2d(4, 6, 3, groups=2)
        ),
        images,
    ),
    "linear": (lambda: nn.Linear(4, 2), sequence),
    "rnn": (lambda: Recurrent(nn.RNN), sequence),
    "lstm": (lambda: Recurrent(nn.LSTM), sequence),
    "projected lstm": (lambda: Recurrent(nn.LSTM, proj_size=5), sequence),
    "gru": (lambda: Recurrent(nn.GRU), sequence),
    "gru cell": (Cell, sequence),
    "attention": (lambda: Attention(add_bias_kv=True), sequence),
    "attention of other widths": (lambda: Attention(kdim=4, vdim=4), sequence),
    "transformer": (Tokens, lambda: torch.randint(0, 11, (5, 6))),
}


def build(case: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    make, data = CASES[case]
    model, x = make().to(dtype).eval(), data()
    return model, x.to(dtype) if x.is_floating_point() else x


def output(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def effective(model: nn.Module) -> dict[str, Tensor]:
    """The weights and biases a constrained model uses."""
    return {
        f"{name}.{tensor}": getattr(module, tensor).detach()
        for name, module in model.named_modules()
        if hasattr(module, "parametrizations")
        for tensor in module.parametrizations
    }


# What conversion does.


def test_conversion_in_place(case: str, mode: str) -> None:
    """The same module comes back; all connections are positive magnitudes, all else is as it was; gradients reach all."""
    model, x = build(case)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = output(model, x)
    converted = MODES[mode](model)
    assert converted is model
    if mode != "dale":
        torch.testing.assert_close(output(model, x), expected, rtol=1e-4, atol=1e-4)  # zeros got a small magnitude
    magnitudes, others = split_parameters(model)
    assert magnitudes
    assert all(bool((p > 0).all()) for _, p in magnitudes)
    for name, p in others:
        torch.testing.assert_close(p.detach(), before[name], rtol=0, atol=0)
        assert any(word in name for word in ("norm", "shortcut.1")), f"{name} was not converted"
    model.train()
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        unused = "bias_kv" in name
        assert unused or p.grad is not None, name


def test_restore_gives_the_same_outputs(case: str, mode: str) -> None:
    """To the bit, with the names of a plain network, in place; a copy that stays constrained is not touched."""
    plain, x = build(case)
    names = {name: p.shape for name, p in plain.named_parameters()}
    types = [type(m) for m in plain.modules()]
    model = MODES[mode](plain)
    expected = output(model, x)
    kept = copy.deepcopy(model)
    assert restore(model) is model
    assert [(name, p.shape) for name, p in model.named_parameters()] == list(names.items())
    assert [type(m) for m in model.modules()] == types
    assert not list(model.named_buffers())
    for module in model.modules():
        if isinstance(module, nn.RNNBase):  # which keeps a list of its weights
            assert all(
                w is getattr(module, name) for w, name in zip(module._flat_weights, module._flat_weights_names, strict=True)
            )
    torch.testing.assert_close(output(model, x), expected, rtol=0, atol=0)
    torch.testing.assert_close(output(kept, x), expected, rtol=0, atol=0)
    model(x).sum().backward()
    assert split_parameters(model).magnitudes == []
    assert split_parameters(kept).magnitudes


def test_copies_are_independent(case: str, mode: str) -> None:
    """deepcopy, also after a forward pass and a move to another dtype."""
    model, x = build(case)
    MODES[mode](model)
    model(x)
    model.to(torch.float64)
    other = copy.deepcopy(model)
    expected = output(model, x)
    with torch.no_grad():
        for _, p in split_parameters(other).magnitudes:
            p.mul_(1.5)
    torch.testing.assert_close(output(model, x), expected, rtol=0, atol=0)
    assert not torch.equal(output(other, x), expected)


def test_state_dict(case: str, mode: str) -> None:
    """Into a network that was converted from other weights, with other signs."""
    model, x = build(case)
    MODES[mode](model)
    other = CASES[case][0]().double().eval()
    MODES[mode](other)
    assert not torch.equal(output(other, x), output(model, x))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(output(other, x), output(model, x), rtol=0, atol=0)


def test_functional_call(case: str, mode: str) -> None:
    model, x = build(case)
    MODES[mode](model)
    doubled = {name: 2 * p.detach() for name, p in model.named_parameters()}
    got = torch.func.functional_call(model, doubled, (x,))
    expected = output(model, x)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(doubled[name])
    assert not torch.equal(output(model, x), expected)
    torch.testing.assert_close(got.detach(), output(model, x), rtol=0, atol=0)


@pytest.mark.parametrize("which", ["resnet20", "transformer", "lstm"])
def test_compile(which: str, mode: str) -> None:
    """Traced, with gradients; the code generator is torch's affair. Recurrent layers are not traced, but run."""
    model, x = build(which)
    MODES[mode](model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=which != "lstm")
    torch.testing.assert_close(compiled(x).detach(), output(model, x))
    model.zero_grad()
    model(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    compiled(x).square().sum().backward()
    for name, p in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad, expected[name])
    with torch.no_grad():
        split_parameters(model).magnitudes[0][1].mul_(3.0)
    torch.testing.assert_close(compiled(x).detach(), output(model, x))  # the weight was not frozen into the graph


# plus_minus and fixed_sign.


@pytest.mark.parametrize("offset", [1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plus_minus_starts_where_the_weight_was(offset: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 100).to(dtype)
    with torch.no_grad():
        layer.weight[0].mul_(1e4)
        layer.weight[1].zero_()
        layer.weight[2].mul_(1e-6)
    weight = layer.weight.detach().clone()
    plus_minus(layer, offset=offset)
    plus, minus = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1  # pyright: ignore
    assert bool((plus > 0).all())
    assert bool((minus > 0).all())
    large = weight.abs() > offset
    assert torch.equal(layer.weight[large], weight[large])
    spacing = offset * torch.finfo(dtype).eps  # of numbers as small as the offset
    assert float((layer.weight.detach() - weight)[~large].double().abs().max()) <= spacing
    rounding = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(torch.minimum(plus, minus).detach()[3:].double().mean().item(), offset, rtol=0.05, atol=0)
    torch.testing.assert_close(
        plus.detach(), weight.clamp_min(0) + offset, rtol=rounding, atol=float(weight.abs().max()) * rounding
    )


def test_fixed_sign_starts_where_the_weight_was() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(30, 400)
    with torch.no_grad():
        layer.bias.zero_()
    weight = layer.weight.detach().clone()
    fixed_sign(layer, smallest=1e-4)
    assert torch.equal(layer.weight, weight)
    torch.testing.assert_close(layer.bias.abs(), torch.full((400,), 1e-4))
    assert 150 < int((layer.bias > 0).sum()) < 250  # zeros have no sign: half of them get either


def test_fixed_signs_are_reproducible() -> None:
    def biases(seed: int) -> Tensor:
        layer = nn.Linear(2, 64)
        nn.init.zeros_(layer.bias)
        return fixed_sign(layer, generator=torch.Generator().manual_seed(seed)).bias

    assert torch.equal(biases(1), biases(1))
    assert not torch.equal(biases(1), biases(2))


def test_assigning_a_weight_keeps_or_refuses_its_signs() -> None:
    layer = fixed_sign(nn.Linear(3, 2))
    target = layer.weight.detach() * 2
    layer.weight = target  # pyright: ignore
    assert torch.equal(layer.weight, target)
    with pytest.raises(ValueError, match="restore first"):
        layer.weight = -target  # pyright: ignore
    assert torch.equal(layer.weight, target)


def test_frozen_parameters_stay_frozen(mode: str) -> None:
    model, _ = build("mlp")
    model[1].weight.requires_grad_(False)  # pyright: ignore
    MODES[mode](model)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen
    assert all(name.startswith("1.parametrizations.weight") for name in frozen)
    assert [name for name, p in restore(model).named_parameters() if not p.requires_grad] == ["1.weight"]


def test_exclude(mode: str) -> None:
    model, _ = build("resnet20")
    MODES[mode](model, exclude=["stage2_block1", "output"])
    names = {name for name, _ in split_parameters(model).others if "norm" not in name}
    assert "output.weight" in names
    assert "stage2_block1.conv1.weight" in names
    assert "conv.weight" not in names


# Refusals.


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 5), nn.Linear(5, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def tied_inside() -> nn.Module:
    layer = nn.RNN(4, 4, 2)
    layer.weight_hh_l1 = layer.weight_hh_l0
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (tied_inside, "weight_hh_l0 and weight_hh_l1 are one tensor"),
        (tied, "0.weight and 1.weight are one tensor"),
        (lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=0)), r"0 \(nn.Embedding\) has padding_idx"),
        (lambda: nn.Sequential(nn.Embedding(5, 3, max_norm=1.0)), "max_norm"),
        (lambda: nn.Sequential(nn.Embedding(5, 3, sparse=True)), "sparse"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "Run one batch"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), r"weight \(nn.Linear\) has the dtype torch.complex64"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), "0 .* has a parametrization already"),
        (lambda: fixed_sign(nn.Linear(2, 2)), r"the module itself \(nn.Linear\) .*restore"),
        (lambda: nn.LayerNorm(3), "no layer with connections"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_refused_by_name(make: Callable, message: str, mode: str) -> None:
    model = make()
    before = {name: type(p) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message):
        MODES[mode](model)
    assert {name: type(p) for name, p in model.named_parameters()} == before


def test_not_finite_is_refused(mode: str) -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"bias .* not finite"):
        MODES[mode](layer)


def test_a_module_used_twice_is_not_tied(mode: str) -> None:
    layer = nn.Linear(3, 3)
    model = MODES[mode](nn.Sequential(layer, nn.ReLU(), layer))
    assert all(name.startswith("0.") for name, _ in split_parameters(model).magnitudes)
    assert model[0] is model[2]


def test_settings_are_checked() -> None:
    for call, message in (
        (lambda m: plus_minus(m, offset=0.0), "offset"),
        (lambda m: fixed_sign(m, smallest=-1.0), "smallest"),
        (lambda m: dale(m, 1.2), "excitatory_fraction"),
        (lambda m: dale(m, "0.8"), "excitatory_fraction .* got '0.8'"),
        (lambda m: plus_minus(m, offset="1"), "offset .* got '1'"),
        (lambda m: dale(m, inputs="none"), "inputs"),
        (lambda m: dale(m, initialisation="xavier"), "initialisation"),
        (lambda m: dale(m, input_layers=["7"]), "input_layers .* 7"),
        (lambda m: dale(m, channels={"7": 2}), "channels .* 7"),
        (lambda m: dale(m, exclude=["7"]), "exclude .* 7"),
    ):
        model = nn.Sequential(nn.Linear(3, 3))
        with pytest.raises(ValueError, match=message):
            call(model)
        assert not split_parameters(model).magnitudes


def test_restore_refuses_foreign_parametrizations() -> None:
    layer = plus_minus(nn.Linear(3, 3))
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Tanh())
    with pytest.raises(ValueError, match="Remove those first"):
        restore(layer)


# Training.


@pytest.mark.parametrize("which", ["mlp", "resnet20"])
def test_signs_never_change_in_training(which: str, mode: str) -> None:
    """Thousands of steps, far too large, on labels without sense."""
    model, x = build(which, torch.float32)
    if which == "mlp":
        model = mlp((6,), 3, hidden=(5,))
        x = torch.rand(5, 6)
    else:
        model = resnet20((1, 4, 4), 3, width=2, blocks=(1,))
        x = torch.rand(4, 1, 4, 4)
    MODES[mode](model)
    magnitudes, others = split_parameters(model)
    for _, p in others:
        p.requires_grad_(False)
    optimizer = lb.MultiplicativeBLR(magnitudes, lr=2.0, data_size=10, mc_samples=1, max_step=1.0)
    signs = {name: w.sign() for name, w in effective(model).items()}
    start = {name: p.detach().clone() for name, p in magnitudes}
    steps = 2000 if which == "mlp" else 200
    for step in range(steps):
        labels = torch.randint(0, 3, (len(x),))
        with optimizer.sampled():
            loss = nn.functional.cross_entropy(model(x), labels)
            if step % 250 == 0 and mode != "plus_minus":  # also for the samples, not only for their mean
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


def constrained(mode: str, name: str) -> bool:
    """Under Dale's law the first layer and the biases are plus-minus."""
    return mode == "fixed_sign" or (name.endswith("weight") and name not in ("1.weight", "conv.weight"))


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
    labels = torch.arange(5)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        with optimizer.sampled():
            loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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


# Posterior.


def test_predictions_of_a_constrained_network(mode: str) -> None:
    """A posterior over magnitudes predicts through the signs, in the module and without touching it."""
    model, x = build("mlp", torch.float32)
    MODES[mode](model)
    optimizer = lb.MultiplicativeBLR(split_parameters(model).magnitudes, data_size=50, base=LogNormal(1e-3))
    optimizer.step(lambda: _backward(model, x))
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


def _backward(model: nn.Module, x: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)))
    loss.backward()
    return loss


def test_signs_of_units_are_spread() -> None:
    for fraction in (0.0, 0.25, 0.5, 0.75, 0.8, 1.0):
        signs = unit_signs(1000, fraction)
        assert set(signs.tolist()) <= {-1, 1}
        assert int((signs > 0).sum()) == round(1000 * fraction)
        for width in (20, 100):
            share = (signs.view(-1, width) > 0).double().mean(1)
            assert float((share - fraction).abs().max()) < 1e-9
        assert torch.equal(unit_signs(37, fraction), signs[:37])
    assert int((unit_signs(3) < 0).sum()) == 1
