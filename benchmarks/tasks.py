"""Small tasks on which optimizers are compared: regression, classification, convolutions, recurrence, attention, fine-tuning.

    from tasks import TASKS
    task = TASKS["digits-mlp"]()
    model = task.model(seed=0)
    for batch in task.batches(seed=0):                    # task.steps of them
        loss = task.loss(model(batch[0]), batch[1])       # the mean over the batch, in nats

A task gives everything except the optimizer: a network for a seed, batches for a seed, the loss, the number N of training
examples, and held-out data. `evaluate` is the held-out NLL at the weights that the network holds; `predict` and
`log_likelihood` give it for the marginal over samples: the logarithm of the mean over samples of exp(log-likelihood).

Nothing is downloaded: scikit-learn carries three data sets, MNIST and CIFAR-10 are read by `liebayes.data`, and text is that
of Python's own help pages and library, so that it is the same for one version of Python (`text_digest`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import liebayes as lb

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """One problem. Losses and log-likelihoods are functions of the network's output and the target, per example in nats."""

    name: str
    data_size: int
    """N: how many training examples the mean of the loss stands for."""
    steps: int
    model: Callable[[int], nn.Module]
    """A fresh network for a seed."""
    batches: Callable[[int], Iterator[Batch]]
    """The batches of one run, `steps` of them, for a seed."""
    negative_log_likelihood: Callable[[Tensor, Tensor], Tensor]
    """(output, target) ↦ one number for each target."""
    held_out: Batch
    classifies: bool = True
    """Whether the output holds logits in its last dimension."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over the batch, which is what an optimizer is handed."""
        return self.negative_log_likelihood(output, target).mean()

    @torch.no_grad()
    def predict(self, model: nn.Module, chunk: int = 1000) -> Tensor:
        """The output on the held-out inputs, in evaluation mode; the mode is put back afterwards."""
        training = model.training
        model.eval()
        try:
            return torch.cat([model(part) for part in self.held_out[0].split(chunk)])
        finally:
            model.train(training)

    def log_likelihood(self, output: Tensor) -> Tensor:
        """log p(target | input) of the held-out targets, one after the other: (targets,)."""
        return -self.negative_log_likelihood(output, self.held_out[1]).flatten()

    def evaluate(self, model: nn.Module) -> float:
        """The held-out NLL at the weights in the network."""
        return -self.log_likelihood(self.predict(model)).mean().item()

    def evaluate_marginal(self, outputs: list[Tensor]) -> float:
        """The held-out NLL of the mixture of the outputs of several samples."""
        each = torch.stack([self.log_likelihood(output) for output in outputs])
        return -(each.logsumexp(0) - math.log(len(outputs))).mean().item()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−log softmax(logits)[target], for logits of shape (..., classes)."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)


# Tensors in batches


def shuffled(inputs: Tensor, targets: Tensor, batch: int, steps: int) -> Callable[[int], Iterator[Batch]]:
    """Epoch after epoch in an order fixed by the seed, whole batches only."""

    def batches(seed: int) -> Iterator[Batch]:
        source = lb.data.Batches((inputs, targets), batch, seed=seed, drop_last=True)
        epochs = (source.epoch(epoch) for epoch in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(epochs), steps)

    return batches


def split(inputs: Tensor, targets: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training inputs and targets, then held-out ones: a fixed random half, because a few hundred records test little."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    out = round(share * len(inputs))
    kept, held = order[out:], order[:out]
    return inputs[kept], targets[kept], inputs[held], targets[held]


def standardised(values: Tensor, of: Tensor) -> Tensor:
    """Every column with the mean 0 and the standard deviation 1 of the training rows `of`."""
    return (values - of.mean(0)) / of.std(0)


def seeded(build: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """`build` with torch's generator at a seed, and the caller's generator untouched."""

    def model(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build()

    return model


def images(name: str, flat: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalised images and labels of a data set, for training and held out."""
    data = lb.data.load(name)
    train, test = data.normalize(data.train_images), data.normalize(data.test_images)
    if flat:
        train, test = train.flatten(1), test.flatten(1)
    return train, data.train_labels, test, data.test_labels


def multilayer(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def classification(
    name: str, data: tuple[Tensor, Tensor, Tensor, Tensor], build: Callable[[], nn.Module], batch: int, epochs: int
) -> Task:
    inputs, targets, test_inputs, test_targets = data
    steps = epochs * (len(inputs) // batch)
    batches = shuffled(inputs, targets, batch, steps)
    return Task(name, len(inputs), steps, seeded(build), batches, cross_entropy, (test_inputs, test_targets))


# Tables


def softmax_digits(epochs: int = 40) -> Task:
    """Softmax regression on the digits: convex, and its free energy can be computed.

    The bias is a column of ones, so that all 650 weights are one matrix: a posterior of Kronecker form then covers them all.
    """
    train, labels, test, test_labels = images("digits", flat=True)
    train, test = (functional.pad(part, (0, 1), value=1.0) for part in (train, test))
    data = train, labels, test, test_labels
    return classification("softmax-digits", data, lambda: nn.Linear(65, 10, bias=False), 32, epochs)


def digits_mlp(epochs: int = 40) -> Task:
    """64-128-10 with tanh on the digits."""
    return classification("digits-mlp", images("digits", flat=True), lambda: multilayer(64, 128, 10), 32, epochs)


def logistic(epochs: int = 40) -> Task:
    """Logistic regression on the breast-cancer table: 285 records of 30 standardised features."""
    from sklearn.datasets import load_breast_cancer

    features, labels = (torch.as_tensor(part) for part in load_breast_cancer(return_X_y=True))
    inputs, targets, test_inputs, test_targets = split(features.float(), labels.long())
    data = standardised(inputs, inputs), targets, standardised(test_inputs, inputs), test_targets
    return classification("logistic", data, lambda: nn.Linear(30, 2), 32, epochs)


DIABETES_NOISE = 0.5
"""The variance of the diabetes targets' noise, where the targets have variance 1: what a linear model leaves unexplained."""


def diabetes_loss(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (target - output).square() / DIABETES_NOISE + 0.5 * math.log(2 * math.pi * DIABETES_NOISE)


def diabetes(epochs: int = 40) -> Task:
    """Regression on the diabetes table by a network 10-50-1: 221 records, standardised, noise of known variance."""
    from sklearn.datasets import load_diabetes

    features, progression = (torch.as_tensor(part).float() for part in load_diabetes(return_X_y=True))
    inputs, targets, test_inputs, test_targets = split(features, progression[:, None])
    held_out = standardised(test_inputs, inputs), standardised(test_targets, targets)
    inputs, targets = standardised(inputs, inputs), standardised(targets, targets)
    steps = epochs * (len(inputs) // 32)
    build = seeded(lambda: multilayer(10, 50, 1, activation=nn.ReLU))
    batches = shuffled(inputs, targets, 32, steps)
    return Task("diabetes", len(inputs), steps, build, batches, diabetes_loss, held_out, classifies=False)


# Images


def mnist_mlp(epochs: int = 2) -> Task:
    """784-200-200-10 with ReLU on MNIST, batches of 128."""
    return classification(
        "mnist-mlp", images("mnist", flat=True), lambda: multilayer(784, 200, 200, 10, activation=nn.ReLU), 128, epochs
    )


def mnist_cnn(epochs: int = 1) -> Task:
    """Three convolutions with batch normalisation on MNIST, batches of 128."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for channels, width in ((1, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(channels, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))

    return classification("mnist-cnn", images("mnist", flat=False), build, 128, epochs)


def resnet20_cifar10(epochs: int = 2) -> Task:
    """ResNet-20 (App. B.2) on CIFAR-10 with crops and flips, batches of 128. Minutes an epoch."""
    data = lb.data.load("cifar10")
    epoch_steps = len(data.train_labels) // 128

    def batches(seed: int) -> Iterator[Batch]:
        source = lb.data.Batches(data, 128, seed=seed, drop_last=True)
        for epoch in range(epochs):
            yield from source.epoch(epoch)

    held_out = data.normalize(data.test_images), data.test_labels
    build = seeded(lambda: lb.nn.resnet20())
    return Task("resnet20", len(data.train_labels), epochs * epoch_steps, build, batches, cross_entropy, held_out)


# Text

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
"""96 characters; any other is read as a question mark."""
CONTEXT = 64


@functools.cache
def prose() -> Tensor:
    """The pages of Python's `help()`, as numbers of characters: about half a million."""
    from pydoc_data.topics import topics

    return _characters("\n".join(topics[name] for name in sorted(topics)))


@functools.cache
def source_code() -> Tensor:
    """Modules of Python's library, as numbers of characters."""
    import argparse
    import ast
    import datetime
    import json.decoder
    import textwrap
    import typing

    modules = (argparse, ast, datetime, json.decoder, textwrap, typing)
    return _characters("\n".join(inspect.getsource(module) for module in modules))


def text_digest(text: Tensor) -> str:
    """What identifies a text in stored results: texts differ between versions of Python."""
    return hashlib.sha256(bytes(text.tolist())).hexdigest()[:16]


def _characters(text: str) -> Tensor:
    number = {character: k for k, character in enumerate(ALPHABET)}
    unknown = number["?"]
    return torch.tensor([number.get(character, unknown) for character in text])


def windows(text: Tensor, starts: Tensor) -> Batch:
    """CONTEXT characters from each start, and the characters that follow them."""
    places = starts[:, None] + torch.arange(CONTEXT + 1)
    return text[places[:, :-1]], text[places[:, 1:]]


def held_out_windows(text: Tensor, number: int = 200) -> Batch:
    return windows(text, torch.linspace(0, len(text) - CONTEXT - 1, number).long())


def random_windows(text: Tensor, batch: int, steps: int) -> Callable[[int], Iterator[Batch]]:
    def batches(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            yield windows(text, torch.randint(len(text) - CONTEXT, (batch,), generator=generator))

    return batches


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class GPT(nn.Module):
    """Characters to logits of the next ones. Matrices start with standard deviation 0.02 as in GPT-2."""

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET), bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, text: Tensor) -> Tensor:  # (batch, time) -> (batch, time, characters)
        x = self.characters(text) + self.places.weight[: text.shape[-1]]
        return self.head(self.norm(self.blocks(x)))


class CharLSTM(nn.Module):
    """Characters to logits of the next ones, by one LSTM layer."""

    def __init__(self, embedding: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.lstm(self.characters(text))[0])


def _language(name: str, build: Callable[[], nn.Module], steps: int) -> Task:
    text = prose()
    cut = int(0.9 * len(text))
    train = text[:cut]
    batches = random_windows(train, 32, steps)
    return Task(name, cut, steps, seeded(build), batches, cross_entropy, held_out_windows(text[cut:]))


def char_gpt(steps: int = 1000) -> Task:
    """A transformer of 2 layers, d = 128, on English prose; every position of the text is an example."""
    return _language("char-gpt", GPT, steps)


def char_lstm(steps: int = 500) -> Task:
    """An LSTM of 128 cells on the same prose."""
    return _language("char-lstm", CharLSTM, steps)


@functools.cache
def _pretrained(steps: int = 600) -> dict[str, Tensor]:
    """The weights of a char-GPT after training on prose by AdamW."""
    task = char_gpt(steps)
    model = task.model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for inputs, targets in task.batches(0):
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def fine_tuning(steps: int = 200, data_size: int = 1000) -> Task:
    """The char-GPT, pretrained on prose, on 1,000 windows of source code: few data, and a start that is worth keeping."""
    text = source_code()
    cut = int(0.9 * len(text))
    chosen = torch.randperm(cut - CONTEXT, generator=torch.Generator().manual_seed(0))[:data_size]
    inputs, targets = windows(text[:cut], chosen)

    def model(seed: int) -> nn.Module:
        network = seeded(GPT)(seed)
        network.load_state_dict(_pretrained())
        return network

    batches = shuffled(inputs, targets, 32, steps)
    return Task("fine-tuning", data_size, steps, model, batches, cross_entropy, held_out_windows(text[cut:]))


TASKS: dict[str, Callable[[], Task]] = {
    "softmax-digits": softmax_digits,
    "digits-mlp": digits_mlp,
    "logistic": logistic,
    "diabetes": diabetes,
    "mnist-mlp": mnist_mlp,
    "mnist-cnn": mnist_cnn,
    "resnet20": resnet20_cifar10,
    "char-gpt": char_gpt,
    "char-lstm": char_lstm,
    "fine-tuning": fine_tuning,
}
"""Every task by name; building one reads its data."""
