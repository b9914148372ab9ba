"""The paper's networks: parameter counts, shapes, initial signals, and filter response normalisation against its formula."""

import math

import pytest
import torch
from torch import nn

from liebayes.nn import FilterResponseNorm, lenet, mlp, resnet20
from liebayes.nn.lenet import ELU_GAIN


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "parameters", "shape"),
    [(mlp, 1_594_122, (1, 28, 28)), (lenet, 6_600_202, (3, 32, 32)), (resnet20, 274_042, (3, 32, 32))],
)
def test_parameter_counts_of_the_paper(model, parameters: int, shape: tuple[int, ...]) -> None:
    network = model()
    assert count(network) == parameters
    with torch.no_grad():
        assert network(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    "network",
    [mlp((1, 8, 8), 7, hidden=(5,)), lenet((1, 8, 8), 7, filters=(3, 4), hidden=()), resnet20((1, 8, 8), 7, width=2)],
    ids=["mlp", "lenet", "resnet20"],
)
def test_small_versions(network: nn.Module) -> None:
    out = network(torch.rand(3, 1, 8, 8))
    assert out.shape == (3, 7)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in network.parameters())


def test_mlp_biases_and_activation() -> None:
    network = mlp((4,), 3, hidden=(5, 6))
    linear = [m for m in network if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(4, 5), (5, 6), (6, 3)]
    assert all(bool((m.bias == 0.05).all()) for m in linear)
    assert [type(m) for m in network] == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert bool((mlp((4,), 3, hidden=(), bias=0.5)[1].bias == 0.5).all())  # pyright: ignore


def test_lenet_layers() -> None:
    network = lenet()
    kinds = [type(m).__name__ for m in network]
    assert kinds == ["Conv2d", "ELU", "MaxPool2d"] * 3 + ["Flatten"] + ["Linear", "ELU"] * 2 + ["Linear"]
    assert {(m.kernel_size, m.padding) for m in network if isinstance(m, nn.Conv2d)} == {((5, 5), (2, 2))}
    assert {(m.kernel_size, m.stride, m.padding) for m in network if isinstance(m, nn.MaxPool2d)} == {(3, 2, 0)}


def test_resnet_blocks() -> None:
    """Projections where the shape changes, and only there; the threshold of a block after its addition."""
    network = resnet20()
    blocks = [m for m in network if hasattr(m, "shortcut")]
    projected = [not isinstance(m.shortcut, nn.Identity) for m in blocks]
    assert projected == [False] * 3 + [True, False, False] * 2
    block = blocks[1]
    x = torch.randn(2, 16, 8, 8)
    with torch.no_grad():
        block.norm2.tau.fill_(0.3)
        inner = block.norm1(block.conv1(x))
        y = block.conv2(inner)
        y = y / (y.square().mean((2, 3), keepdim=True) + 1e-6).sqrt() + x
        torch.testing.assert_close(block(x), y.clamp_min(0.3))
        assert inner.min() == 0


def test_elu_gain() -> None:
    """By quadrature: the standard deviation of a signal stays through a wide layer."""
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    assert abs(ELU_GAIN**2 * float(torch.trapezoid(nn.functional.elu(z).square() * density, z)) - 1) < 1e-4


@pytest.mark.parametrize(
    "make", [lambda: mlp((400,), hidden=[400] * 4, bias=0.0), lambda: lenet((8, 32, 32), filters=(32, 64))]
)
def test_initial_signals_neither_vanish_nor_explode(make) -> None:
    torch.manual_seed(0)
    network = make()
    shape = (400,) if isinstance(network[0], nn.Flatten) else (8, 32, 32)
    with torch.no_grad():
        logits = network(torch.randn(64, *shape))
    assert 0.2 < float(logits.std()) < 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp((0,)), "at least 1"),
        (lambda: mlp(hidden=(3, -1)), "hidden"),
        (lambda: lenet((1, 8, 8)), "Give fewer filters"),
        (lambda: lenet((64,)), "height, width"),
        (lambda: resnet20((3, 32)), "height, width"),
        (lambda: resnet20(classes=0), "classes"),
        (lambda: FilterResponseNorm(0), "at least 1"),
        (lambda: FilterResponseNorm(True), "at least 1 .* True"),
        (lambda: FilterResponseNorm(1, initial_threshold=math.nan), "finite"),
        (lambda: FilterResponseNorm(3)(torch.zeros(1, 4, 2, 2)), "3 channels"),
    ],
)
def test_bad_sizes_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("positions", [(5,), (3, 4), (2, 3, 2)])
def test_filter_response_norm_against_its_formula(positions: tuple[int, ...]) -> None:
    """Number by number, in Python floats."""
    torch.manual_seed(1)
    norm = FilterResponseNorm(3, eps=0.01).double()
    with torch.no_grad():
        for p in norm.parameters():
            p.normal_()
    x = torch.randn(2, 3, *positions, dtype=torch.float64)
    got = norm(x).flatten(2).tolist()
    for n in range(2):
        for c in range(3):
            values = x[n, c].flatten().tolist()
            nu2 = sum(v * v for v in values) / len(values)
            gamma, beta, tau = norm.gamma[c].item(), norm.beta[c].item(), norm.tau[c].item()
            for value, result in zip(values, got[n][c], strict=True):
                assert result == pytest.approx(max(gamma * value / math.sqrt(nu2 + 0.01) + beta, tau), rel=1e-12)


def test_thresholds_start_at_the_given_value() -> None:
    thresholds = [m.tau for m in resnet20(width=4, initial_threshold=-1.0).modules() if isinstance(m, FilterResponseNorm)]
    assert len(thresholds) == 19 + 2  # one for each convolution, two of them shortcuts
    assert all(tau.eq(-1).all() for tau in thresholds)
    assert all(m.tau.eq(0).all() for m in resnet20(width=4).modules() if isinstance(m, FilterResponseNorm))


def test_filter_response_norm_in_16_bits() -> None:
    """Squares of 400 overflow float16."""
    x = torch.full((1, 2, 4, 4), 400.0, dtype=torch.float16)
    out = FilterResponseNorm(2).half()(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones_like(out))


def test_filter_response_norm_gradients() -> None:
    norm = FilterResponseNorm(2).double()
    with torch.no_grad():
        norm.tau.fill_(-0.3)
    x = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,))


def test_the_threshold_is_the_same_without_gradients() -> None:
    norm = FilterResponseNorm(3).double()
    with torch.no_grad():
        norm.tau.copy_(torch.tensor([-0.5, 0.0, 0.7]))
    y = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    expected = torch.where(y > norm.tau.view(-1, 1, 1), y, norm.tau.view(-1, 1, 1))
    torch.testing.assert_close(norm.thresholded(y), expected)
    with torch.no_grad():
        assert torch.equal(norm.thresholded(y), expected)
