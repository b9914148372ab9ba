"""Sign constraints: same outputs, positive parameters, right signs, and everything a module is used for."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from support.networks import CASES, MODES, build, output
from support.registry import WHOLE_GRID
from torch import Tensor, nn

from liebayes.nn import dale, fixed_sign, plus_minus, restore, split_parameters, unit_signs


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


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


COMPILED = [("resnet20", "plus_minus"), ("transformer", "dale"), ("lstm", "fixed_sign")]
if WHOLE_GRID:
    COMPILED = list(itertools.product(("resnet20", "transformer", "lstm"), MODES))


@pytest.mark.parametrize(("which", "mode"), COMPILED)
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


def not_finite() -> nn.Module:
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.bias, float("nan"))
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
        (not_finite, r"bias .* not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_refused_by_name(make: Callable, message: str, mode: str) -> None:
    model = make()
    before = {name: type(p) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message):
        MODES[mode](model)
    assert {name: type(p) for name, p in model.named_parameters()} == before


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
