"""Tasks one after the other, without the data of those before: does the posterior remember as the next prior?

    python benchmarks/continual.py                          # results/continual.json and docs/continual.png
    python benchmarks/continual.py --problems split-digits

Methods see the tasks in the same order with the same network, batches and epochs, and are judged on the test data of all tasks
so far. "plain" goes on with SGD; "EWC" adds ½λ·Σ F(θ − θ*)², with F the Fisher information summed over the tasks so far
(Kirkpatrick et al. 2017; one running penalty); "posterior" has prior=posterior; "counted" has its data counted λ times, as EWC
has; "all data" is SGD on all tasks so far together. λ, the temperature and step sizes are chosen by the mean accuracy over all
tasks on a fifth of the training data that is held out, with seed 0; the rest of the seeds and the test data decide nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.baselines.per_example import SquaredGradients
from liebayes.experiments.run_directory import environment

ROOT = Path(__file__).parents[1]
RESULT, PICTURE = ROOT / "results" / "continual.json", ROOT / "docs" / "continual.png"
SEEDS = (0, 1, 2)


class Task(NamedTuple):
    """Training and test data of a task."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    outputs: slice = slice(None)
    """Which outputs of the network are this task's."""

    def held_out(self) -> Task:
        """A fifth of the training data in place of the test data."""
        out = torch.arange(len(self.y)) % 5 == 0
        return Task(self.x[~out], self.y[~out], self.x[out], self.y[out], self.outputs)


@dataclass(frozen=True)
class Problem:
    """Tasks, a network, and how long each task is trained."""

    tasks: Callable[[], list[Task]]
    sizes: tuple[int, ...]
    epochs: int
    batch: int = 32

    def network(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(self.sizes):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def split_digits(shared: bool = False) -> list[Task]:
    """Five tasks of two digits each, with two outputs of their own each, or all with the same two: is the digit odd?"""
    data = lb.data.load("digits")
    x, test_x = (data.normalize(images).flatten(1) for images in (data.train_images, data.test_images))
    tasks = []
    for first in range(0, 10, 2):
        one, other = (data.train_labels // 2 * 2 == first), (data.test_labels // 2 * 2 == first)
        outputs = slice(0, 2) if shared else slice(first, first + 2)
        tasks.append(Task(x[one], data.train_labels[one] % 2, test_x[other], data.test_labels[other] % 2, outputs))
    return tasks


def permuted_mnist() -> list[Task]:
    """Five tasks of all digits, each with its own order of the pixels."""
    data = lb.data.load("mnist")
    x, test_x = (data.normalize(images).flatten(1) for images in (data.train_images, data.test_images))
    tasks = []
    for number in range(5):
        order = torch.randperm(784, generator=torch.Generator().manual_seed(number)) if number else torch.arange(784)
        tasks.append(Task(x[:, order], data.train_labels, test_x[:, order], data.test_labels))
    return tasks


PROBLEMS = {
    "split-digits": Problem(split_digits, (64, 100, 10), epochs=20),
    "split-digits-shared": Problem(partial(split_digits, shared=True), (64, 100, 2), epochs=20),
    "permuted-mnist": Problem(permuted_mnist, (784, 100, 10), epochs=2, batch=128),
}


def batches(task: Task, problem: Problem, seed: int) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Batches of all epochs, with the share of the training that is over."""
    generator = torch.Generator().manual_seed(seed)
    count = problem.epochs * -(-len(task.y) // problem.batch)
    orders = (torch.randperm(len(task.y), generator=generator) for _ in range(problem.epochs))
    for step, part in enumerate(part for order in orders for part in order.split(problem.batch)):
        yield task.x[part], task.y[part], step / count


def sgd(model: nn.Module, task: Task, problem: Problem, seed: int, lr: float, penalty: Callable[[], Tensor | float]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=0.1 / len(task.y))
    for x, y, over in batches(task, problem, seed):
        optimizer.param_groups[0]["lr"] = lr * (1 - over)
        optimizer.zero_grad()
        (cross_entropy(model(x)[:, task.outputs], y) + penalty() / len(task.y)).backward()
        optimizer.step()


def fisher(model: nn.Module, task: Task, seed: int) -> list[Tensor]:
    """Σ over the data of squared gradients of log p(y | x) with y drawn from the model's own prediction."""
    parameters = list(model.parameters())
    squares = SquaredGradients()
    with squares.of(parameters):
        predicted = model(task.x)[:, task.outputs]
    torch.manual_seed(seed)
    labels = torch.distributions.Categorical(logits=predicted.detach()).sample()
    cross_entropy(predicted, labels, reduction="sum").backward()
    return [squares.sum_of(p) for p in parameters]


def plain(problem: Problem, tasks: list[Task], seed: int, lr: float) -> Iterator[nn.Module]:
    model = problem.network(seed)
    for task in tasks:
        sgd(model, task, problem, seed, lr, lambda: 0.0)
        yield model


def all_data(problem: Problem, tasks: list[Task], seed: int, lr: float) -> Iterator[nn.Module]:
    for count in range(1, len(tasks) + 1):
        model = problem.network(seed)
        # With outputs of their own, the classes of all tasks are told apart here: a harder task than the others have.
        pairs = [(task.x, task.y + (task.outputs.start or 0)) for task in tasks[:count]]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        sgd(model, Task(x, y, x, y), problem, seed, lr, lambda: 0.0)
        yield model


def ewc(problem: Problem, tasks: list[Task], seed: int, lr: float, strength: float) -> Iterator[nn.Module]:
    model = problem.network(seed)
    parameters = list(model.parameters())
    weights, centre = [torch.zeros_like(p) for p in parameters], [p.detach().clone() for p in parameters]

    def penalty() -> Tensor:
        terms = zip(weights, parameters, centre, strict=True)
        return 0.5 * strength * torch.stack([(w * (p - c).square()).sum() for w, p, c in terms]).sum()

    for task in tasks:
        sgd(model, task, problem, seed, lr, penalty)
        if not all(bool(p.isfinite().all()) for p in parameters):
            return  # a penalty this steep diverges
        weights = [w + f for w, f in zip(weights, fisher(model, task, seed), strict=True)]
        centre = [p.detach().clone() for p in parameters]
        yield model


def posterior(
    problem: Problem, tasks: list[Task], seed: int, lr: float, temperature: float, strength: float = 1.0
) -> Iterator[nn.Module]:
    model = problem.network(seed)
    prior: float | lb.Posterior = 1.0
    for task in tasks:
        optimizer = lb.LieGroupBLR(
            model.parameters(), lb.groups.DiagonalAffine(), lb.bases.Normal(), lr, data_size=len(task.y), prior=prior,
            temperature=temperature, curvature="gauss-newton", start_width=0.01, seed=seed,
        )  # fmt: skip
        for x, y, over in batches(task, problem, seed):
            optimizer.param_groups[0]["lr"] = lr * (1 - over)
            with optimizer.sampled():
                cross_entropy(model(x)[:, task.outputs], y).backward()
            optimizer.step()
            optimizer.zero_grad()
        prior = optimizer.posterior(model).counted(strength, prior=prior)
        yield model


METHODS: dict[str, tuple[Callable[..., Iterator[nn.Module]], dict[str, tuple[float, ...]]]] = {
    "plain": (plain, {"lr": (0.01, 0.03, 0.1)}),
    "EWC": (ewc, {"lr": (0.01, 0.03, 0.1), "strength": (1.0, 10.0, 100.0, 1e4)}),
    "posterior": (posterior, {"lr": (0.1, 0.3, 1.0), "temperature": (1.0, 0.1, 0.01)}),
    "counted": (posterior, {"lr": (0.3, 1.0), "temperature": (0.1, 0.01), "strength": (10.0, 100.0, 1e4)}),
    "all data": (all_data, {"lr": (0.03, 0.1)}),
}


@torch.no_grad()
def accuracy(model: nn.Module, tasks: list[Task]) -> float:
    """The mean over tasks of the share of right answers, of the network at its point."""
    return statistics.fmean(
        float((model(task.test_x)[:, task.outputs].argmax(1) == task.test_y).double().mean()) for task in tasks
    )


def curve(problem: Problem, tasks: list[Task], name: str, seed: int, **options: float) -> list[float]:
    """The accuracy on all tasks so far, after each task."""
    method, _ = METHODS[name]
    return [round(accuracy(model, tasks[: k + 1]), 5) for k, model in enumerate(method(problem, tasks, seed, **options))]


def choose(problem: Problem, tasks: list[Task], name: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The options with the best accuracy over all tasks on held-out training data."""
    grid = METHODS[name][1]
    tried = []
    for values in itertools.product(*grid.values()):
        options = dict(zip(grid, values, strict=True))
        found = curve(problem, [task.held_out() for task in tasks], name, 0, **options)
        tried.append({**options, "held_out_accuracy": found[-1] if len(found) == len(tasks) else 0.0})
        print(name, tried[-1], flush=True)
    best = max(tried, key=lambda row: row["held_out_accuracy"])
    return {key: best[key] for key in grid}, tried


def run(names: list[str], methods: list[str]) -> None:
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"problems": {}}
    for name in names:
        problem = PROBLEMS[name]
        tasks, found = problem.tasks(), result["problems"].get(name, {}).get("methods", {})
        for method in methods:
            began = time.monotonic()
            options, tried = choose(problem, tasks, method)
            curves = [curve(problem, tasks, method, seed, **options) for seed in SEEDS]
            seconds = round(time.monotonic() - began)
            found[method] = {
                "options": options, "tried": tried, "curves": curves, "seconds": seconds, "environment": environment()
            }  # fmt: skip
            print(name, method, options, [c[-1] for c in curves], flush=True)
        result["problems"][name] = {
            "methods": found,
            "epochs": problem.epochs,
            "batch": problem.batch,
            "sizes": problem.sizes,
            "seeds": SEEDS,
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    draw(result)


def draw(result: dict[str, Any]) -> None:
    """Accuracy on all tasks so far, with the range over seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(result["problems"]), figsize=(8.4, 3.2), layout="constrained", squeeze=False)
    for panel, (name, found) in zip(axes[0], result["problems"].items(), strict=True):
        for method, style in (("all data", "0.6"), ("plain", "C3"), ("EWC", "C0"), ("posterior", "C2"), ("counted", "C1")):
            curves = 100 * torch.tensor(found["methods"][method]["curves"])
            tasks = range(1, curves.shape[1] + 1)
            panel.plot(tasks, curves.mean(0), color=style, label=method, ls="--" if method == "all data" else "-")
            panel.fill_between(tasks, curves.amin(0), curves.amax(0), color=style, alpha=0.15, lw=0)
        panel.set(title=name, xlabel="tasks learned", xticks=list(tasks))
    axes[0][0].set_ylabel("accuracy on all of them, %")
    axes[0][0].legend(frameon=False)
    figure.savefig(PICTURE, dpi=130)


def table(result: dict[str, Any]) -> list[str]:
    """The rows of docs/continual.md."""
    rows = ["| | plain | EWC | posterior as prior | counted λ times | all data |", "|---|---|---|---|---|---|"]
    for name, found in result["problems"].items():
        cells = []
        for method in ("plain", "EWC", "posterior", "counted", "all data"):
            ends = [100 * curve[-1] for curve in found["methods"][method]["curves"]]
            error = statistics.stdev(ends) / len(ends) ** 0.5
            cells.append(f"{statistics.fmean(ends):.1f} ± {error:.1f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    given = parser.parse_args()
    run(given.problems, given.methods)
