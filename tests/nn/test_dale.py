"""Dale's law: whose sign it is, layer by layer, and an initialisation in which excitation and inhibition cancel."""

import math

import pytest
import torch
from torch import Tensor, nn

from liebayes.nn import Signed, dale, lenet, mlp, resnet20, unit_signs
from liebayes.nn.units import balanced_magnitudes


def require_signs(weight: Tensor, axis: int, expected: Tensor) -> None:
    """Number by number: every weight has the sign of the unit it comes from."""
    for unit in range(weight.shape[axis]):
        assert set(weight.select(axis, unit).sign().flatten().tolist()) == {float(expected[unit])}, unit


def is_signed(module: nn.Module, name: str = "weight") -> bool:
    return isinstance(module.parametrizations[name][0], Signed)  # pyright: ignore


# Whose sign.


def test_columns_of_linear_layers() -> None:
    network = dale(mlp((6,), 4, hidden=(11, 9)), 0.75)
    assert not is_signed(network[1])
    assert set(network[1].weight.sign().flatten().tolist()) == {-1.0, 1.0}  # pyright: ignore
    require_signs(network[3].weight, 1, unit_signs(11, 0.75))  # pyright: ignore
    require_signs(network[5].weight, 1, unit_signs(9, 0.75))  # pyright: ignore
    assert not any(is_signed(network[i], "bias") for i in (1, 3, 5))


def test_channels_behind_flattening() -> None:
    network = dale(lenet((2, 16, 16), filters=(5, 6), hidden=(7,)))
    require_signs(network[3].weight, 1, unit_signs(5))  # pyright: ignore
    linear = network[7]
    assert linear.in_features == 6 * 9
    require_signs(linear.weight.view(7, 6, 9), 1, unit_signs(6))  # pyright: ignore
    require_signs(network[9].weight, 1, unit_signs(7))  # pyright: ignore


def test_inputs_as_units() -> None:
    network = dale(mlp((6,), 4, hidden=(11,)), inputs="units")
    require_signs(network[1].weight, 1, unit_signs(6))  # pyright: ignore


def test_input_layers_by_name() -> None:
    network = dale(nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7)), input_layers=["1"])
    assert is_signed(network[0])
    assert not is_signed(network[1])


def test_grouped_convolutions() -> None:
    """An output reads the channels of its group."""
    network = dale(nn.Sequential(nn.Conv2d(1, 12, 1), nn.Conv2d(12, 6, 3, groups=3)))
    signs = unit_signs(12)
    for out in range(6):
        group = out // 2
        require_signs(network[1].weight[out : out + 1], 1, signs[4 * group : 4 * group + 4])  # pyright: ignore


def test_transposed_convolutions() -> None:
    network = dale(nn.Sequential(nn.Conv2d(1, 12, 1), nn.ConvTranspose2d(12, 6, 3, groups=3)))
    require_signs(network[1].weight, 0, unit_signs(12))  # pyright: ignore


def test_embeddings_and_attention() -> None:
    """Tokens are inputs; components of the embedding are the units that queries, keys and values read."""
    network = nn.Sequential(nn.Embedding(9, 8), nn.TransformerEncoderLayer(8, 2, 13))
    dale(network)
    attention = network[1].self_attn
    assert not is_signed(network[0])
    require_signs(attention.in_proj_weight, 1, unit_signs(8))
    require_signs(attention.out_proj.weight, 1, unit_signs(8))
    require_signs(network[1].linear1.weight, 1, unit_signs(8))  # the same stream, the same units
    require_signs(network[1].linear2.weight, 1, unit_signs(13))
    require_signs(dale(nn.Embedding(9, 8), inputs="units").weight, 0, unit_signs(9))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers(kind) -> None:
    layer = dale(kind(5, 7, num_layers=2))
    assert not is_signed(layer, "weight_ih_l0")
    for name in ("weight_hh_l0", "weight_ih_l1", "weight_hh_l1"):
        require_signs(getattr(layer, name), 1, unit_signs(7))
    with pytest.raises(ValueError, match=r"1 \(nn.*\) is bidirectional"):
        dale(nn.Sequential(nn.Linear(5, 5), kind(5, 7, bidirectional=True)))


def test_residual_streams_have_one_sign_for_each_channel() -> None:
    """Blocks of a stage and the projection that ends it read the same stream."""
    network = dale(resnet20((1, 8, 8), width=5, blocks=(2, 1)))
    for name in ("stage1_block1.conv1", "stage1_block2.conv1", "stage2_block1.conv1", "stage2_block1.shortcut.0"):
        require_signs(network.get_submodule(name).weight, 1, unit_signs(5))  # pyright: ignore
    require_signs(network.output.weight, 1, unit_signs(10))  # pyright: ignore


def test_ambiguous_flattened_channels_are_refused() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(10, 3))

    with pytest.raises(ValueError, match=r"1 \(nn.Linear\) reads 10 numbers, which are not 4 channels"):
        dale(network())
    require_signs(dale(network(), channels={"1": 5})[1].weight.view(3, 5, 2), 1, unit_signs(5))  # pyright: ignore


def test_bilinear_layers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"nn.Bilinear.*exclude=\['0'\]"):
        dale(nn.Sequential(nn.Bilinear(2, 2, 2)))


# Balance.

KINDS = {
    "linear": (lambda: nn.Linear(60, 40), 1),
    "convolution": (lambda: nn.Conv2d(20, 40, 3), 1),
    "groups": (lambda: nn.Conv2d(40, 20, 3, groups=2), 1),
    "transposed": (lambda: nn.ConvTranspose2d(40, 20, 3, groups=2), 0),
    "embedding": (lambda: nn.Embedding(60, 40), 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [0.5, 0.8])
def test_constant_activity_cancels(kind: str, fraction: float) -> None:
    """Through the layer itself, not its weight: all inputs 1 give 0 for every output (away from the borders)."""
    torch.manual_seed(0)
    make, _ = KINDS[kind]
    layer = make().double()
    square = float(layer.weight.detach().square().mean())
    dale(layer, fraction, inputs="units")
    weight = layer.weight.detach()
    with torch.no_grad():
        for p in layer.parametrizations.bias.parameters() if hasattr(layer, "bias") else ():  # pyright: ignore
            p.fill_(1.0)
        if isinstance(layer, nn.Embedding):
            response = layer(torch.arange(60)).sum(0)
        elif isinstance(layer, nn.Linear):
            response = layer(torch.ones(1, 60, dtype=torch.float64))
        else:
            response = layer(torch.ones(1, layer.in_channels, 7, 7, dtype=torch.float64))[..., 2:5, 2:5]
    assert float(response.abs().max()) < 1e-4 * float(weight.abs().sum()) / len(weight)
    # The variance around the means of the two kinds is the mean square the layer came with: exponentials have a kurtosis of 9,
    # so that of n numbers errs by √(8/n) relatively, here at most 4 standard errors of the smaller class.
    fans = weight if KINDS[kind][1] == 0 else weight.transpose(0, 1)
    spread = []
    for sign in (1, -1):
        part = fans.flatten(1)
        members = part[(part * sign > 0)] if kind == "groups" else part[(part[:, 0] * sign) > 0].flatten()
        spread.append((float(members.var()), len(members)))
    total = sum(v * n for v, n in spread) / sum(n for _, n in spread)
    assert total == pytest.approx(square, rel=4 * math.sqrt(8 / min(n for _, n in spread)))


def square_layers(initialisation: str, width: int = 400, depth: int = 4) -> tuple[list[nn.Linear], float]:
    torch.manual_seed(0)
    network = mlp((width,), width, hidden=[width] * depth, activation=nn.ReLU, gain=math.sqrt(2), bias=0.0)
    plain = [m for m in network if isinstance(m, nn.Linear)]
    radius = float(plain[1].weight.detach().std()) * math.sqrt(width)
    dale(network, initialisation=initialisation)  # pyright: ignore
    return [m for m in network if isinstance(m, nn.Linear)][1:-1], radius


OUTLIER = 0.6 * math.sqrt(2 / math.pi) * math.sqrt(2 / 400) * 400


def test_eigenvalues_have_no_outlier() -> None:
    """The naive one is at n·a·(0.8 − 0.2) with a = σ√(2/π); balanced layers fill the circle of radius σ√n like plain ones."""
    for naive in square_layers("naive")[0]:
        sizes = torch.linalg.eigvals(naive.weight.detach()).abs().sort(descending=True)[0]
        assert float(sizes[0]) == pytest.approx(OUTLIER, rel=0.1)
        assert float(sizes[0]) > 8 * float(sizes[1])
    balanced, radius = square_layers("balanced")
    for layer in balanced:
        sizes = torch.linalg.eigvals(layer.weight.detach()).abs().sort(descending=True)[0]
        assert radius * 0.9 < float(sizes[0]) < radius * 1.15
        assert float(sizes[0]) < 1.1 * float(sizes[1])


def test_singular_outliers_do_not_compound() -> None:
    """Columns of one sign have a singular value of √n·‖u‖, u their means. Balanced layers annihilate what it passes on."""
    gains = {}
    for initialisation in ("naive", "balanced"):
        layers, _ = square_layers(initialisation)
        weights = [layer.weight.detach() for layer in layers]
        single = torch.linalg.matrix_norm(weights[0], 2)
        common = weights[0].mean(0).norm() * math.sqrt(400)
        assert float(single) >= float(common) * 0.999
        product = torch.linalg.multi_dot(weights)
        gains[initialisation] = float(torch.linalg.matrix_norm(product, 2) / single)
        if initialisation == "balanced":
            assert float((weights[1] @ torch.ones(400)).abs().max()) < 1e-3
    assert gains["naive"] == pytest.approx(OUTLIER**2, rel=0.2)  # two more layers, about 180
    assert gains["balanced"] < 3


def test_pre_activations_are_not_shifted() -> None:
    """Non-negative activity, as behind ReLU: naive layers shift all units alike, more from layer to layer."""
    for initialisation in ("naive", "balanced"):
        layers, _ = square_layers(initialisation)
        x = torch.rand(256, 400)
        with torch.no_grad():
            for depth, layer in enumerate(layers):
                y = layer(x)
                shift = abs(float(y.mean()))
                scatter = float((y - y.mean(1, keepdim=True)).std())  # between the units, for one input
                if initialisation == "naive":
                    assert shift > 5 * scatter, depth
                else:
                    assert shift < 0.3 * scatter, depth
                    assert 0.2 < scatter < 2.0, depth
                x = y.relu()


def test_balance_needs_both_kinds() -> None:
    """With one kind there is nothing to cancel: positive magnitudes of the given size."""
    sign = torch.ones(50, 200)
    magnitudes = balanced_magnitudes(sign, 2.0, torch.Generator().manual_seed(0))
    assert bool((magnitudes > 0).all())
    assert float(magnitudes.std()) == pytest.approx(2.0, rel=0.1)


def test_initialisation_is_reproducible() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(7)
        network = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 3))
        return dale(network, generator=torch.Generator().manual_seed(seed))[1].weight.detach()  # pyright: ignore

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_naive_keeps_magnitudes() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 3))
    before = network[1].weight.detach().clone()
    dale(network, initialisation="naive")
    assert torch.equal(network[1].weight.abs(), before.abs())  # pyright: ignore


@pytest.mark.parametrize("initialisation", ["balanced", "naive"])
def test_zero_weights_can_be_trained(initialisation: str) -> None:
    """Last layers often start at 0, which a rule that multiplies would never leave."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    nn.init.zeros_(model[2].weight)
    network = dale(model, initialisation=initialisation)
    sizes = network[2].weight.detach().abs()
    assert 1e-5 < float(sizes.max()) < 0.1
    assert float(sizes.min()) >= 1e-6 or initialisation == "balanced"
