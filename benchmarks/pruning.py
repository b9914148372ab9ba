"""Which weights can go: those with the least |mean|/width, or those with the least |mean|?

    python benchmarks/pruning.py        # results/pruning.json and docs/pruning.png

A network on the digits of scikit-learn is trained by `AffineBLR`, and its weights are set to zero by signal-to-noise
(`posterior.pruned`) and by the magnitude of their means, over all matrices together; beside it one trained by SGD, by
magnitude. Nothing is trained after pruning. Accuracy and NLL are those of the point, on the test data, for every share of
weights that is left. No setting was chosen by them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb
from liebayes.experiments.run_directory import environment

ROOT = Path(__file__).parents[1]
RESULT, PICTURE = ROOT / "results" / "pruning.json", ROOT / "docs" / "pruning.png"
SEEDS = (0, 1, 2)
GONE = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
EPOCHS, BATCH = 30, 32
OPTIONS: dict[str, Any] = {"prior": 1.0, "temperature": 0.1}
WAYS = {
    "signal": "posterior, by signal-to-noise",
    "magnitude": "posterior, by magnitude",
    "sgd": "SGD, by magnitude",
}


def trained(seed: int, bayes: bool) -> tuple[nn.Module, Any]:
    """A network and its optimizer after a schedule to zero."""
    digits = lb.data.load("digits")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 10))
    N = len(digits.train_labels)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=OPTIONS["prior"] / N)
    if bayes:
        optimizer = lb.AffineBLR(model.parameters(), data_size=N, seed=seed, **OPTIONS)
    batches = lb.data.Batches(digits, batch_size=BATCH, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    for epoch in range(EPOCHS):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            if bayes:
                with optimizer.sampled():
                    cross_entropy(model(x), y).backward()
            else:
                cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    return model, optimizer


def smallest_gone(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The weights with this share of the numbers in matrices set to zero, the smallest of all matrices together."""
    sizes = torch.cat([w.abs().flatten() for w in weights.values() if w.ndim > 1])
    limit = sizes.sort().values[round(share * len(sizes)) - 1] if share else -1.0
    return {name: w.where(w.abs() > limit, 0.0) if w.ndim > 1 else w for name, w in weights.items()}


def measured(model: nn.Module) -> dict[str, float]:
    """Accuracy and NLL on the test data."""
    digits = lb.data.load("digits")
    with torch.no_grad():
        found = lb.metrics.classification_metrics(model(digits.normalize(digits.test_images)).softmax(1), digits.test_labels)
    return {name: round(found[name], 5) for name in ("accuracy", "nll")}


def curves(seed: int) -> dict[str, list[dict[str, float]]]:
    """The figures of all ways and shares."""
    model, optimizer = trained(seed, bayes=True)
    posterior = optimizer.posterior(model)
    plain, _ = trained(seed, bayes=False)
    centre, found = posterior.point(), {name: [] for name in WAYS}
    for share in GONE:
        found["signal"].append(measured(posterior.pruned(share).module()))
        found["magnitude"].append(measured(posterior.module(smallest_gone(centre, share))))
        weights = smallest_gone({name: p.detach() for name, p in plain.named_parameters()}, share)
        found["sgd"].append(measured(lambda x, w=weights: torch.func.functional_call(plain, w, (x,))))  # type: ignore[arg-type]
    return found


def run() -> None:
    began = time.monotonic()
    found = {str(seed): curves(seed) for seed in SEEDS}
    result = {
        "gone": GONE, "epochs": EPOCHS, "batch_size": BATCH, "options": OPTIONS, "seeds": found,
        "seconds": round(time.monotonic() - began), "environment": environment(),
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    draw(result)
    print("\n".join(table(result)))


def mean_of(result: Mapping[str, Any], way: str, what: str) -> list[list[float]]:
    """For every share, the figures of all seeds."""
    return [[seed[way][k][what] for seed in result["seeds"].values()] for k in range(len(result["gone"]))]


def draw(result: Mapping[str, Any]) -> None:
    """Accuracy and NLL over the share that is left."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    left = [100 * (1 - share) for share in result["gone"]]
    for panel, what in zip(axes, ("accuracy", "nll"), strict=True):
        for (way, label), colour in zip(WAYS.items(), ("C2", "C0", "C3"), strict=True):
            factor = 100 if what == "accuracy" else 1
            values = factor * torch.tensor(mean_of(result, way, what))
            panel.plot(left, values.mean(1), color=colour, label=label, marker="o", ms=3)
            panel.fill_between(left, values.amin(1), values.amax(1), color=colour, alpha=0.15, lw=0)
        panel.set(xscale="log", xlabel="weights left, %", xticks=[2, 5, 10, 20, 50, 100])
        panel.set_xticklabels(["2", "5", "10", "20", "50", "100"])
        panel.minorticks_off()
        panel.invert_xaxis()
    axes[0].set_ylabel("test accuracy, %")
    axes[1].set(ylabel="test NLL, nats", yscale="log")
    axes[0].legend(frameon=False)
    figure.savefig(PICTURE, dpi=130)


def table(result: Mapping[str, Any]) -> list[str]:
    """The rows of docs/adapters.md."""
    shown = [k for k, share in enumerate(result["gone"]) if share in (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)]
    rows = [
        "| weights left | " + " | ".join(f"{100 * (1 - result['gone'][k]):.0f} %" for k in shown) + " |",
        "|---|" + "---|" * len(shown),
    ]
    for way, label in WAYS.items():
        cells = [f"{100 * statistics.fmean(mean_of(result, way, 'accuracy')[k]):.1f} %" for k in shown]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    run()
