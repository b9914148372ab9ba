"""The digits in stratified 5-fold cross-validation: every rule with the program's default settings, beside SGD.

    python benchmarks/digits.py            # writes results/digits.json and prints a table

Every fold is a training run of the program, with the same epochs for all rules. The NLL, ECE and Brier score are pooled: those
of all 1,797 digits, each predicted by the network that has not seen it.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from liebayes import __version__, data
from liebayes.experiments import RunDirectory, TrainSettings, train
from liebayes.experiments.defaults import RULES
from liebayes.experiments.learner import build_network
from liebayes.experiments.settings import Rule
from liebayes.metrics import classification_metrics
from liebayes.posterior import Posterior

FOLDS = 5
TUNED_SGD = {"prior_precision": 1.0, "lr": 0.14}
"""SGD with the regulariser and the step of the additive rule: what of its lead is due to these."""
RESULTS = Path(__file__).parents[1] / "results" / "digits.json"


def cross_validate(rule: Rule, folder: Path, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The figures of a rule over all folds, of the predictive marginal and of the point estimate."""
    folder = folder / "-".join([rule, str(seed), *changes])
    began, accuracies = time.process_time(), []
    marginal, point, labels = [], [], []
    settings = None
    for number, fold in enumerate(data.load("digits").folds(FOLDS)):
        output = folder / str(number)
        asked = TrainSettings(rule=rule, seed=seed, evaluate_every=10**6, output=output, **changes)
        accuracies.append(train(asked, dataset=fold)[-1]["test_accuracy"])
        settings = RunDirectory(output).settings()
        posterior = Posterior.load(RunDirectory(output).posterior, build_network(settings, fold))
        images = fold.normalize(fold.test_images)
        samples = 1 if rule == "sgd" else settings.predictive_samples
        marginal.append(posterior.predict(images, samples, batch_size=500).probabilities)
        point.append(posterior.predict(images, 0, batch_size=500).probabilities)
        labels.append(fold.test_labels)
    assert settings is not None
    return {
        "mean_accuracy": sum(accuracies) / FOLDS,
        "accuracies": accuracies,
        "marginal": classification_metrics(torch.cat(marginal), torch.cat(labels)),
        "point": classification_metrics(torch.cat(point), torch.cat(labels)),
        "epochs": settings.epochs,
        "mc_samples": settings.mc_samples,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures as text."""
    lines = [f"{'rule':15} accuracy     NLL     ECE   Brier   point NLL  CPU seconds"]
    for rule, found in results.items():
        pooled = found["marginal"]
        lines.append(
            f"{rule:15} {100 * found['mean_accuracy']:6.2f} %  {pooled['nll']:.4f}  {pooled['ece']:.4f}  {pooled['brier']:.4f}"
            f"  {found['point']['nll']:10.4f}  {found['cpu_seconds']:11.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="where to write the results")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with this many seeds; the first is the one that counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "versions": {"liebayes": __version__, "torch": torch.__version__, "python": platform.python_version()}
    }
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            found = {rule: cross_validate(rule, Path(folder), seed) for rule in RULES}
            found |= {"sgd, tuned": cross_validate("sgd", Path(folder), seed, **TUNED_SGD)}
            results[f"seed {seed}"] = found
            print(f"seed {seed}\n{table(found)}", flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
