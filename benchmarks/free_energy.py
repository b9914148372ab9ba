"""How well posteriors minimise the paper's objective: E_q[Σ loss] + KL(q ‖ prior), against epochs (Eq. 1 with τ = 1).

    python benchmarks/free_energy.py                       # all problems and methods: results/benchmarks/free_energy.json
    python benchmarks/free_energy.py --problems softmax --methods kronecker --epochs 10

Every method gets the prior N(0, 1), temperature 1, batches of 32 and a cosine to zero. Our step sizes were chosen with the
softmax problem in view; the peers run at their defaults, untuned. What is not run again keeps its stored figure. `best` is the
optimum of the diagonal Gaussian family, by `fit` on all data.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import liebayes as lb
from liebayes.baselines import IVON, VOGN, ivon_opt
from liebayes.bases import Laplace, Normal
from liebayes.groups import DiagonalAffine

RESULT = Path(__file__).parents[1] / "results" / "benchmarks" / "free_energy.json"
EPOCHS = (10, 40, 160)
BATCH, DRAWS, PRIOR = 32, 64, 1.0


@dataclass(frozen=True)
class Problem:
    """A model, its data, and the sum of losses of outputs and targets."""

    model: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    total: Callable[[Tensor, Tensor], Tensor]
    convex: bool = True


def with_ones(x: Tensor) -> Tensor:
    """A column of ones in place of a bias: one matrix holds all weights."""
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def softmax() -> Problem:
    """Softmax regression on the digits, 650 weights."""
    data = lb.data.load("digits")
    x = with_ones(data.normalize(data.train_images).flatten(1))

    def total(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target, reduction="sum")

    return Problem(lambda: nn.Linear(65, 10, bias=False), x, data.train_labels, total)


def binary(x: Tensor, y: Tensor) -> Problem:
    """Logistic regression."""

    def total(output: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(output.squeeze(-1), target, reduction="sum")

    return Problem(lambda: nn.Linear(x.shape[1], 1, bias=False), x, y.float(), total)


def logistic() -> Problem:
    """Logistic regression on scikit-learn's breast cancer data, standardised."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor(x)
    return binary(with_ones(((x - x.mean(0)) / x.std(0)).float()), torch.tensor(y))


def three_or_five() -> Problem:
    """Logistic regression, MNIST's threes against its fives, on 14×14 pixels."""
    data = lb.data.load("mnist")
    chosen = (data.train_labels == 3) | (data.train_labels == 5)
    x = nn.functional.avg_pool2d(data.normalize(data.train_images[chosen]), 2).flatten(1)
    return binary(with_ones(x), data.train_labels[chosen] == 5)


def regression() -> Problem:
    """Linear regression with noise 1 and correlated inputs."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(20, 20, generator=generator) / math.sqrt(20) + torch.eye(20)
    x = torch.randn(1000, 20, generator=generator) @ mix
    y = x @ torch.randn(20, generator=generator) + torch.randn(1000, generator=generator)
    return Problem(lambda: nn.Linear(20, 1, bias=False), x, y, lambda o, t: 0.5 * (o.squeeze(-1) - t).square().sum())


def network() -> Problem:
    """A tanh network with 32 hidden units on the digits."""
    base = softmax()
    model = lambda: nn.Sequential(nn.Linear(65, 32), nn.Tanh(), nn.Linear(32, 10))  # noqa: E731
    return Problem(model, base.inputs, base.targets, base.total, convex=False)


PROBLEMS = {"softmax": softmax, "logistic": logistic, "mnist-3-5": three_or_five, "regression": regression, "mlp": network}


def gauss_newton(base: Any) -> Callable[[Any, int], Any]:
    """The diagonal family by Gauss–Newton."""
    settings: dict[str, Any] = {"curvature": "gauss-newton", "start_width": 0.01, "prior": PRIOR}
    return lambda p, N: lb.LieGroupBLR(p, DiagonalAffine(), base, 2.5, data_size=N, **settings)


METHODS: dict[str, Callable[[Any, int], Any]] = {
    "diagonal": gauss_newton(Normal()),
    "diagonal Laplace": gauss_newton(Laplace()),
    "kronecker": lambda p, N: lb.KroneckerBLR(p, data_size=N, prior=PRIOR),
    "AffineBLR by samples": lambda p, N: lb.AffineBLR(p, data_size=N, prior=PRIOR),
    "iVON": lambda p, N: IVON(p, data_size=N, prior=PRIOR),
    "VOGN": lambda p, N: VOGN(p, data_size=N, prior=PRIOR),
    "ivon-opt": lambda p, N: ivon_opt(p, data_size=N, prior=PRIOR),
}


def free_energy(problem: Problem, posterior: lb.Posterior) -> float:
    """That of a posterior on all data."""
    return posterior.free_energy([(problem.inputs, problem.targets)], problem.total, prior=PRIOR, samples=DRAWS, seed=9).total


def train(problem: Problem, make: Callable[[Any, int], Any], epochs: int, seed: int) -> tuple[float, float]:
    """The free energy after so many epochs, and seconds per epoch."""
    torch.manual_seed(seed)
    model, N = problem.model(), len(problem.targets)
    optimizer = make(model.parameters(), N)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(N / BATCH))
    generator = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    for _ in range(epochs):
        for chosen in torch.randperm(N, generator=generator).split(BATCH):
            x, y = problem.inputs[chosen], problem.targets[chosen]

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = problem.total(model(x), y) / len(y)
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
    seconds = (time.perf_counter() - began) / epochs
    return free_energy(problem, optimizer.posterior(model)), seconds


def best(problem: Problem) -> float | None:
    """The optimum of the diagonal Gaussian family, where the problem is convex."""
    if not problem.convex:
        return None
    model = problem.model()
    shape = next(iter(model.parameters())).shape
    x, y = problem.inputs.double(), problem.targets
    y = y.double() if y.is_floating_point() else y

    def loss(weights: Tensor) -> Tensor:
        return problem.total(x @ weights.reshape(shape).mT, y) + 0.5 * PRIOR * weights.square().sum()

    q = lb.fit(loss, DiagonalAffine(), Normal(), torch.zeros(shape.numel(), dtype=torch.float64), initial_scale=0.1)
    family = lb.Family(DiagonalAffine(), Normal(), type(q.element)(*(block.float().reshape(shape) for block in q.element)))
    return free_energy(problem, lb.Posterior(model, {"weight": family}))


def main() -> None:
    """Runs what is asked for, and stores every figure as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", nargs="+", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    stored["command"] = "python benchmarks/free_energy.py"
    stored["versions"] = {"liebayes": lb.__version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in asked.problems:
        problem = PROBLEMS[name]()
        figures = stored.setdefault("problems", {}).setdefault(name, {"best": best(problem)})
        print(f"{name}: best diagonal {figures['best']}", flush=True)
        for method in asked.methods:
            for epochs in asked.epochs:
                energy, seconds = train(problem, METHODS[method], epochs, asked.seed)
                row = {"free_energy": energy, "seconds_per_epoch": seconds, "seed": asked.seed}
                figures.setdefault(method, {})[str(epochs)] = row
                print(f"{name:12} {method:22} {epochs:4} epochs: {energy:10.1f}   {seconds:.2f} s an epoch", flush=True)
                RESULT.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
