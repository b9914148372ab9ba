"""One network of every kind of layer that sign constraints know, with inputs for it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from liebayes.nn import dale, fixed_sign, lenet, mlp, plus_minus, resnet20

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
