"""Can the free energy choose a prior and a network without validation data? And what does the temperature do?

    python benchmarks/model_choice.py        # results/model_choice.json, for docs/priors.md; some minutes

On the digits of scikit-learn, networks 64-H-10 are trained by `KroneckerBLR` on all training images, at temperature 1 with the
prior N(0, 1/δ), for every H and δ of a grid. Their free energy is computed from the training images, their NLL from the test
images, which nothing is chosen by. From δ = 1, empirical Bayes sets δ to P/E‖θ‖², the best one for the posterior it has, and
trains again.

The temperatures are those of `AffineBLR` and `KroneckerBLR`, otherwise as they come, on the MNIST network of `tasks.py`; the
images that judge are the test images, and the default, 0.01, was chosen with this network in view.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from out_of_the_box import draws, measure, train
from tasks import mnist_mlp
from torch import nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.experiments.run_directory import environment

RESULT = Path(__file__).parents[1] / "results" / "model_choice.json"
HIDDEN, PRIORS, SEEDS = (4, 16, 64), (0.1, 1.0, 10.0, 100.0), (0, 1, 2)
EPOCHS, BATCH, UPDATES = 40, 32, 4
TEMPERATURES = (1.0, 0.1, 0.01, 0.001)
METHODS: dict[str, Callable[..., Any]] = {"AffineBLR": lb.AffineBLR, "KroneckerBLR": lb.KroneckerBLR}


def trained(hidden: int, prior: float, seed: int) -> tuple[nn.Module, lb.Posterior]:
    """A network 64-H-10 with tanh, and its posterior at temperature 1."""
    digits = lb.data.load("digits")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    optimizer = lb.KroneckerBLR(model.parameters(), data_size=len(digits.train_labels), prior=prior, seed=seed)
    batches = lb.data.Batches(digits, BATCH, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    for epoch in range(EPOCHS):
        for x, y in batches.epoch(epoch):
            with optimizer.sampled():
                cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model, optimizer.posterior(model)


def figures(posterior: lb.Posterior, prior: float) -> dict[str, float]:
    """The free energy of the training images, and how the posterior predicts the test images."""
    digits = lb.data.load("digits")
    pairs = [(digits.normalize(digits.train_images), digits.train_labels)]
    energy = posterior.free_energy(pairs, lambda z, y: cross_entropy(z, y, reduction="sum"), prior=prior, samples=100)
    predicted = posterior.predict(digits.normalize(digits.test_images), samples=100)
    found = lb.metrics.classification_metrics(predicted.probabilities, digits.test_labels)
    return {"free_energy": round(energy.total, 1), "nll": round(found["nll"], 4), "accuracy": round(found["accuracy"], 4)}


def best_prior(posterior: lb.Posterior) -> float:
    """P/E‖θ‖², where the free energy of this posterior is least."""
    means, stds = posterior.mean(), posterior.std()
    squares = sum(float(means[name].square().sum() + stds[name].square().sum()) for name in stds)
    return sum(std.numel() for std in stds.values()) / squares


def grid() -> Iterator[dict[str, Any]]:
    for seed in SEEDS:
        for hidden in HIDDEN:
            for prior in PRIORS:
                yield {"hidden": hidden, "prior": prior, "seed": seed, **figures(trained(hidden, prior, seed)[1], prior)}


def empirical_bayes() -> Iterator[dict[str, Any]]:
    for hidden in HIDDEN:
        prior = 1.0
        for update in range(UPDATES + 1):
            _, posterior = trained(hidden, prior, 0)
            yield {"hidden": hidden, "update": update, "prior": round(prior, 4), "seed": 0, **figures(posterior, prior)}
            prior = best_prior(posterior)


def temperatures() -> Iterator[dict[str, Any]]:
    task = mnist_mlp()
    for seed in SEEDS:
        for method, make in METHODS.items():
            for temperature in TEMPERATURES:
                model = task.model(seed)
                optimizer = make(model.parameters(), data_size=task.data_size, seed=seed, temperature=temperature)
                train(task, model, [optimizer], seed)
                point = measure(task, [task.predict(model)])
                marginal = measure(task, draws(task, model, optimizer, seed))
                yield {"method": method, "temperature": temperature, "seed": seed, "point": point, "marginal": marginal}


# Tables for docs/priors.md.


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def grid_table(stored: dict[str, Any]) -> str:
    """Free energy and test NLL, means over seeds; the least of each is bold."""
    cells: dict[tuple[int, float], list[float]] = {}
    for hidden in HIDDEN:
        for prior in PRIORS:
            rows = [row for row in stored["grid"] if (row["hidden"], row["prior"]) == (hidden, prior)]
            cells[hidden, prior] = [mean(row["free_energy"] for row in rows), mean(row["nll"] for row in rows)]
    least = [min(column) for column in zip(*cells.values(), strict=True)]
    lines = []
    for (hidden, prior), found in cells.items():
        words = [f"{value:.{digits}f}" for value, digits in zip(found, (0, 4), strict=True)]
        marked = [f"**{word}**" if value == best else word for word, value, best in zip(words, found, least, strict=True)]
        lines.append((hidden, f"{prior:g}", *marked))
    return table(("hidden units", "δ", "free energy (training images)", "NLL (test images)"), lines)


def empirical_table(stored: dict[str, Any]) -> str:
    lines = [
        (row["hidden"], row["update"], f"{row['prior']:.2f}", f"{row['free_energy']:.0f}", f"{row['nll']:.4f}")
        for row in stored["empirical_bayes"]
    ]
    return table(("hidden units", "update", "δ", "free energy", "NLL (test images)"), lines)


def temperature_table(stored: dict[str, Any]) -> str:
    lines = []
    for method in METHODS:
        for temperature in TEMPERATURES:
            rows = [row for row in stored["temperatures"] if (row["method"], row["temperature"]) == (method, temperature)]
            nlls = [f"{mean(row[part]['nll'] for row in rows):.4f}" for part in ("point", "marginal")]
            accuracy = 100 * mean(row["marginal"]["accuracy"] for row in rows)
            lines.append((method, f"{temperature:g}", *nlls, f"{accuracy:.2f} %"))
    return table(("rule", "τ", "NLL at the point", "NLL of the marginal", "accuracy of the marginal"), lines)


def table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (heads, ["---"] * len(heads), *lines))


def stored() -> dict[str, Any]:
    return json.loads(RESULT.read_text())


TABLES = {
    "priors-grid": lambda: grid_table(stored()),
    "priors-empirical": lambda: empirical_table(stored()),
    "priors-temperature": lambda: temperature_table(stored()),
}


def main() -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    found: dict[str, Any] = {**environment(), "command": "python benchmarks/model_choice.py"}
    for part in (grid, empirical_bayes, temperatures):
        found[part.__name__] = []
        for row in part():
            found[part.__name__].append(row)
            print(part.__name__, row, flush=True)
    found["cpu_seconds"] = round(time.process_time() - began)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
