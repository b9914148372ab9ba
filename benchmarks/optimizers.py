"""The optimizers with their default settings on the digits, in stratified 5-fold cross-validation, beside SGD.

    python benchmarks/optimizers.py        # writes results/optimizers.json and prints a table

A plain loop as users write it: a network of 64-128-10 with tanh, 40 epochs in batches of 32, a cosine to zero; the
multiplicative rule on the same network with weights w⁺ − w⁻. SGD has the step that the defaults of the additive and affine
rules amount to, lr 0.1 with momentum 0.9. The NLL is pooled: that of all 1,797 digits, each predicted by the network that has
not seen it.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb

EPOCHS, BATCH = 40, 32
RESULTS = Path(__file__).parents[1] / "results" / "optimizers.json"


def train(rule: str, images: Tensor, labels: Tensor, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    if rule == "multiplicative":
        lb.nn.plus_minus(model, offset=0.01)
    parameters, size = model.parameters(), len(labels)
    optimizer: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "additive": lambda: lb.AdditiveBLR(parameters, data_size=size, seed=seed),
        "affine": lambda: lb.AffineBLR(parameters, data_size=size, seed=seed, curvature="samples"),
        "multiplicative": lambda: lb.MultiplicativeBLR(parameters, data_size=size, seed=seed),
    }[rule]()
    batches = lb.data.Batches((images, labels), BATCH, seed=seed, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    for epoch in range(EPOCHS):
        for x, y in batches.epoch(epoch):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
            scheduler.step()
    return model, optimizer


def cross_validate(rule: str, seed: int = 0) -> dict[str, Any]:
    began = time.process_time()
    probabilities, labels, accuracies = [], [], []
    for fold in lb.data.load("digits").folds(5):
        train_images, test_images = (x.flatten(1) / 255 for x in (fold.train_images, fold.test_images))
        model, optimizer = train(rule, train_images, fold.train_labels, seed)
        if isinstance(optimizer, lb.LieGroupBLR):
            found = optimizer.posterior(model).predict(test_images, samples=32).probabilities
        else:
            with torch.no_grad():
                found = model(test_images).softmax(-1)
        probabilities.append(found)
        labels.append(fold.test_labels)
        accuracies.append(lb.metrics.accuracy(found, fold.test_labels))
    pooled = lb.metrics.classification_metrics(torch.cat(probabilities), torch.cat(labels))
    return {"mean_accuracy": sum(accuracies) / 5, **pooled, "cpu_seconds": round(time.process_time() - began, 1)}


def main() -> None:
    torch.set_num_threads(1)
    results = {rule: cross_validate(rule) for rule in ("sgd", "additive", "affine", "multiplicative")}
    for rule, row in results.items():
        figures = f"{100 * row['mean_accuracy']:6.2f} %  NLL {row['nll']:.4f}  ECE {row['ece']:.4f}"
        print(f"{rule:15} {figures}  {row['cpu_seconds']} s")
    content = {
        "command": ["python", "benchmarks/optimizers.py"],
        "seed": 0,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "liebayes": lb.__version__,
        "results": results,
    }
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
