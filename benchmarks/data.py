"""How many images a second batches bring, beside what training consumes.

    python benchmarks/data.py [--data-dir DIR] [--seconds 2] [--force] [--output results/benchmarks/data.json]

Whole epochs through `Batches` with shuffling and normalisation on one thread: MNIST as the MLP takes it (batches of 50),
CIFAR-10 as ResNet-20 takes it (crops padded by 4, flips), and both with other batch sizes. A data set that is not in the data
directory is replaced by random pixels of its size: the pixels' values change nothing. Beside them, what training takes on the
same thread: a forward and backward pass and a step of SGD on the MLP of App. B (1024, 512, 256, 256, 256, tanh), and of a
convolutional network with ResNet-20's layers. Batches may cost at most a tenth of either, so that they are never what
training waits for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from speed.environment import environment
from speed.quiet import now
from torch import Tensor, nn

from liebayes import data
from liebayes.data import Augmentation, Batches, Dataset

SHAPES = {"mnist": (60_000, 1, 28, 28), "cifar10": (50_000, 3, 32, 32)}


def get(name: str, data_dir: Path | None) -> tuple[Dataset, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", data.IncompleteDataWarning)
            return data.load(name, data_dir, download=False), "real"
    except data.MissingDataError:
        images = torch.randint(256, SHAPES[name], dtype=torch.uint8)
        labels = torch.arange(len(images)) % 10
        augmentation = Augmentation() if name == "cifar10" else None
        return data.from_tensors(images, labels, images[:1], labels[:1], augmentation=augmentation), "random pixels"


def images_per_second(batches: Batches, seconds: float, rounds: int) -> int:
    """The median over rounds; each starts an epoch, so the shuffling is in it."""
    rates = []
    for epoch in range(rounds):
        began, number = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds / rounds:
            for _, labels in batches.epoch(epoch):
                number += len(labels)
                if number % 1000 < len(labels) and (passed := time.perf_counter() - began) >= seconds / rounds:
                    break
        rates.append(number / passed)
    return round(statistics.median(rates))


def mlp() -> nn.Module:
    widths = [784, 1024, 512, 256, 256, 256]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(before, after, 3, stride, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.normal_one, self.normal_two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.normal_two(self.two(torch.relu(self.normal_one(self.one(x)))))
        return torch.relu(inner + self.shortcut(x))


def resnet20() -> nn.Module:
    blocks = [Block(16, 16, 1) for _ in range(3)]
    blocks += [Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def trained_per_second(network: Callable[[], nn.Module], shape: tuple[int, ...], batch_size: int, seconds: float) -> int:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(batch_size, *shape), torch.arange(batch_size) % 10

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        step()
        steps += 1
    return round(steps * batch_size / passed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    parser.add_argument("--force", action="store_true", help="measure although other processes use the cores")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/data.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)

    load = now(1.0).cores
    if load > 0.25 and not args.force:
        sys.exit(
            f"Other processes use {load:.1f} cores; the figures would be theirs. Wait until it is quiet, or pass --force."
        )
    figures: list[dict[str, object]] = []
    rate: dict[tuple[str, int], int] = {}
    for name in ("mnist", "cifar10"):
        began = time.perf_counter()
        dataset, origin = get(name, args.data_dir)
        seconds = time.perf_counter() - began
        for batch_size in (50, 128, 1024):
            rate[name, batch_size] = images_per_second(Batches(dataset, batch_size), args.seconds, 5)
            figures.append(
                {
                    "dataset": name,
                    "pixels": origin,
                    "load_seconds": round(seconds, 2),
                    "augmentation": dataset.augmentation is not None,
                    "batch_size": batch_size,
                    "images_per_second": rate[name, batch_size],
                }
            )
            print(f"{name:8} batches of {batch_size:5}: {rate[name, batch_size]:>9,} images/s ({origin})")
    training = {
        "MLP on MNIST, SGD, batches of 50": (trained_per_second(mlp, (1, 28, 28), 50, args.seconds), rate["mnist", 50]),
        "ResNet-20 on CIFAR-10, SGD, batches of 50": (
            trained_per_second(resnet20, (3, 32, 32), 50, args.seconds),
            rate["cifar10", 50],
        ),
    }
    consumed = []
    for what, (images, batches) in training.items():
        share = images / batches
        consumed.append(
            {"training": what, "images_per_second": images, "share_of_time_in_batches": round(share / (1 + share), 4)}
        )
        print(f"{what}: {images:,} images/s; batches would take {share / (1 + share):.1%} of the time")
    result = {
        # Without the place of the data, which is this machine's own.
        "environment": environment("benchmarks/data.py")
        | {"command": "python benchmarks/data.py --data-dir DIR" + " --force" * args.force},
        "other_load_before": round(load, 2),
        "other_load_after": round(now(1.0).cores, 2),
        "forced": args.force,
        "batches": figures,
        "training": consumed,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
