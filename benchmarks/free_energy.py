"""How well posteriors minimise the paper's objective: E_q[Σ loss] + KL(q ‖ prior), against epochs (Eq. 1 with τ = 1).

    python benchmarks/free_energy.py                       # all problems and methods: results/benchmarks/free_energy.json
    python benchmarks/free_energy.py --problems softmax --methods kronecker --epochs 10
    python benchmarks/free_energy.py --picture             # docs/free-energy.png, from what is stored

Every method gets the prior N(0, 1), temperature 1, batches of 32 and a cosine to zero. Our step sizes were chosen with the
softmax problem in view; the peers run at their defaults, and ivon-opt also with settings that suit this problem. What is not
run again keeps its stored figure. References are the optima of the diagonal Gaussians and, where all weights are one row and a
Kronecker factor is therefore a full covariance, of all Gaussians: by `fit` on all data. They give the lowest free energy, and
the widths from which those of a method differ by `log_sd_error`, the root mean square difference of log sd.
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
from liebayes.groups import DiagonalAffine, TriangularAffine

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "benchmarks" / "free_energy.json"
REFERENCES = ROOT / "results" / "benchmarks" / "free_energy_references.json"
PICTURE = ROOT / "docs" / "free-energy.png"
EPOCHS = (10, 40, 160)
BATCH, DRAWS, PRIOR = 32, 1000, 1.0


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


METHODS: dict[str, Callable[[Any, int], Any]] = {
    "diagonal": lambda p, N: lb.AffineBLR(p, data_size=N, prior=PRIOR),
    "diagonal Laplace": lambda p, N: lb.AffineBLR(p, data_size=N, prior=PRIOR, base=Laplace()),
    "kronecker": lambda p, N: lb.KroneckerBLR(p, data_size=N, prior=PRIOR),
    "AffineBLR by samples": lambda p, N: lb.AffineBLR(p, data_size=N, prior=PRIOR, curvature="samples"),
    "iVON": lambda p, N: IVON(p, data_size=N, prior=PRIOR),
    "VOGN": lambda p, N: VOGN(p, data_size=N, prior=PRIOR),
    "ivon-opt": lambda p, N: ivon_opt(p, data_size=N, prior=PRIOR),
    "ivon-opt tuned": lambda p, N: ivon_opt(p, data_size=N, prior=PRIOR, initial_curvature=0.1, scale_momentum=0.9995),
}


def free_energy(problem: Problem, posterior: lb.Posterior) -> float:
    """That of a posterior on all data."""
    return posterior.free_energy([(problem.inputs, problem.targets)], problem.total, prior=PRIOR, samples=DRAWS, seed=9).total


def train(problem: Problem, make: Callable[[Any, int], Any], epochs: int, seed: int) -> tuple[lb.Posterior, float]:
    """The posterior after so many epochs, and seconds of CPU time per epoch."""
    torch.manual_seed(seed)
    model, N = problem.model(), len(problem.targets)
    optimizer = make(model.parameters(), N)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(N / BATCH))
    generator = torch.Generator().manual_seed(seed)
    began = time.process_time()
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
    seconds = (time.process_time() - began) / epochs
    return optimizer.posterior(model), seconds


# References


def references(problem: Problem) -> dict[str, Any]:
    """The optimum of each Gaussian family that has one: its free energy and its widths."""
    if not problem.convex:
        return {}
    shape = next(iter(problem.model().parameters())).shape
    families = {"diagonal": DiagonalAffine(), **({"full": TriangularAffine()} if shape[0] == 1 else {})}
    return {name: optimum(problem, group, shape) for name, group in families.items()}


def optimum(problem: Problem, group: Any, shape: torch.Size) -> dict[str, Any]:
    x, y = problem.inputs.double(), problem.targets
    y = y.double() if y.is_floating_point() else y

    def loss(weights: Tensor) -> Tensor:
        return problem.total(x @ weights.reshape(shape).mT, y) + 0.5 * PRIOR * weights.square().sum()

    q = lb.fit(loss, group, Normal(), torch.zeros(shape.numel(), dtype=torch.float64), initial_scale=0.1)
    losses = [loss(weights).item() for weights in q.sample((DRAWS,), generator=torch.Generator().manual_seed(9))]
    constant = 0.5 * shape.numel() * math.log(2 * math.pi / PRIOR)  # of the prior's density
    energy = sum(losses) / DRAWS + constant - float(q.entropy())
    return {"free_energy": energy, "log_sd": [round(value, 4) for value in (0.5 * q.variance.log()).tolist()]}


def log_sd_error(posterior: lb.Posterior, log_sd: list[float]) -> float:
    """The root mean square difference of the logarithms of standard deviations."""
    [found] = posterior.std().values()
    return (found.flatten().double().log() - torch.tensor(log_sd, dtype=torch.float64)).square().mean().sqrt().item()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def stored_references(name: str) -> dict[str, Any]:
    """Those of a problem, computed if they are not stored; a line of the file for each problem."""
    found = read(REFERENCES)
    if name not in found:
        found[name] = references(PROBLEMS[name]())
        lines = ",\n".join(f"{json.dumps(problem)}: {json.dumps(value)}" for problem, value in found.items())
        REFERENCES.write_text("{\n" + lines + "\n}\n")
    return found[name]


# The picture

PICTURED = {
    "kronecker": ("KroneckerBLR", "#0072B2", "o"),
    "diagonal": ("diagonal, Gauss–Newton", "#56B4E9", "s"),
    "AffineBLR by samples": ("AffineBLR by samples", "#999999", "v"),
    "VOGN": ("VOGN", "#009E73", "^"),
    "iVON": ("iVON", "#CC79A7", "D"),
    "ivon-opt": ("ivon-opt", "#E69F00", "P"),
    "ivon-opt tuned": ("ivon-opt, tuned", "#D55E00", "X"),
}
"""Label, colour and marker of a method; the colours are Okabe and Ito's, which all readers can tell apart."""
PANELS = {"softmax": "softmax regression on the digits", "mlp": "a small tanh network on the digits"}


def picture(path: Path = PICTURE) -> None:
    """Free energy against epochs, a panel for each of two problems."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    results, optima = read(RESULT)["problems"], read(REFERENCES)
    canvas = Figure(figsize=(8.4, 4.0), dpi=150, layout="constrained", facecolor="white")
    for axes, (problem, title) in zip(canvas.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for method, (label, colour, marker) in PICTURED.items():
            rows = sorted((int(epochs), row["free_energy"]) for epochs, row in results[problem].get(method, {}).items())
            epochs, energies = zip(*rows, strict=True) if rows else ((), ())
            axes.plot(epochs, energies, color=colour, marker=marker, markersize=5.5, linewidth=1.8, label=label)
        if best := optima.get(problem, {}).get("diagonal"):
            axes.axhline(best["free_energy"], color="black", linestyle=":", linewidth=1.2)
            axes.annotate(
                "best diagonal Gaussian", (10, best["free_energy"]), (0, -4), textcoords="offset points", va="top", fontsize=9
            )
        axes.set(xscale="log", yscale="log", xlabel="epochs", title=title)
        axes.set_xticks(EPOCHS, [str(epochs) for epochs in EPOCHS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.axes[0].set_ylabel("free energy in nats (lower is better)")
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    canvas.savefig(path)


def main() -> None:
    """Runs what is asked for, and stores every figure as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", nargs="+", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", action="store_true", help="run nothing, draw what is stored")
    asked = parser.parse_args()
    if asked.picture:
        return picture()
    torch.set_num_threads(1)
    stored = read(RESULT)
    stored["command"] = "python benchmarks/free_energy.py"
    stored["versions"] = {"liebayes": lb.__version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in asked.problems:
        problem, known = PROBLEMS[name](), stored_references(name)
        for method in asked.methods:
            reference = known.get("full" if method == "kronecker" else "diagonal")
            for epochs in asked.epochs:
                posterior, seconds = train(problem, METHODS[method], epochs, asked.seed)
                row = {"free_energy": free_energy(problem, posterior), "seconds_per_epoch": seconds, "seed": asked.seed}
                if reference:
                    row["log_sd_error"] = log_sd_error(posterior, reference["log_sd"])
                stored.setdefault("problems", {}).setdefault(name, {}).setdefault(method, {})[str(epochs)] = row
                RESULT.write_text(json.dumps(stored, indent=1) + "\n")
                figures = f"{row['free_energy']:10.1f}   {seconds:.2f} s an epoch   {row.get('log_sd_error', math.nan):.3f}"
                print(f"{name:12} {method:22} {epochs:4} epochs: {figures}", flush=True)


if __name__ == "__main__":
    main()
