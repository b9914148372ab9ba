"""Short settings, ours: the paper's networks, data, augmentation and priors in hours on a desktop.

Settings for 180 epochs are of little use for 24. Here steps are smaller and more (batches of 50), the step size rises over a
fifth of the run and falls to zero along a line, the thresholds of FRN start at −1, and passes are in bfloat16 where the
processor has it. Beside the paper's methods there are rows of ours: “learned” is the affine rule whose widths come from
squares of gradients, “Kronecker” is `KroneckerBLR`, both at the temperature of their defaults.

The step size of a method is the best of its sweep by the NLL on 10,000 training images held out, after two epochs: `liebayes
sweep benchmarks/short/NAME.json`, with the tables in `results/short/`. Methods that have none there yet have a first guess,
and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...optim.presets import COLD
from .recipe import Budget, Experiment, Method, Printed

BASES = {"uniform": "Uniform(0.0025)", "Gaussian": "Normal(0.005)", "Laplace": "Laplace(0.005)"}
"""The bases of App. B.2."""
_WHERE = "ours: bases, priors, β₂ and damping of App. B"
SWEPT = ("SGD", "additive", "affine", "iVON")
"""The first words of the methods whose sweep is stored."""
_SHARED: dict[str, Any] = {"batch_size": 50, "augment": True, "mc_samples": 1, "schedule": "linear", "momentum": 0.9}
_EXECUTION: dict[str, Any] = {"compile": True, "precision": "auto"}


def _method(name: str, **settings: Any) -> Method:
    known = name.split()[0] in SWEPT
    swept = "a sweep on held-out training images (`results/short/`)" if known else "a guess, not swept yet"
    return Method(name, "short", settings, f"{_WHERE}; α by {swept}")


_AFFINE: dict[str, Any] = {
    "rule": "affine", "lr": 0.5, "scale_lr": 1.0, "scale_momentum": 0.999, "temperature": 1.0, "metric": "absorbed",
    "max_step": 0.2,
}  # fmt: skip
_LEARNED: dict[str, Any] = {"rule": "affine", "curvature": "gauss-newton", "lr": 2.0, "temperature": COLD}
RESNET20 = [
    _method("SGD", rule="sgd", lr=0.1),
    *(_method(f"additive {name}", rule="additive", base=base, lr=0.25, metric="absorbed") for name, base in BASES.items()),
    *(_method(f"affine {name}", base=base, **_AFFINE) for name, base in BASES.items()),
    _method("iVON", rule="ivon", lr=0.5, scale_momentum=0.999, damping=1.0, initial_curvature=0.1),
    _method("learned Gaussian", base="Normal", **_LEARNED),
    _method("learned Laplace", base="Laplace", **_LEARNED),
    _method("Kronecker", rule="kronecker", lr=0.5, temperature=COLD),
    _method("VOGN", rule="vogn", lr=0.02, scale_momentum=0.999, damping=0.01, initial_curvature=0.01, compile=False),
]


def short_resnet20(printed: Mapping[str, Printed]) -> Experiment:
    """CIFAR-10, ResNet-20, 24 epochs."""
    shared = {"dataset": "cifar10", "model": "resnet20", "epochs": 24, "warmup_epochs": 4.8, "initial_threshold": -1.0}
    often = ("SGD", "iVON", "additive Laplace", "affine Gaussian", "affine Laplace", "learned Gaussian", "learned Laplace")
    return Experiment(
        "cifar10-resnet20-short",
        "CIFAR-10, ResNet-20, short",
        {**shared, **_SHARED, "prior_precision": 100.0},
        _WHERE,
        RESNET20,
        printed,
        {
            "paper": Budget(seeds=5, settings=_EXECUTION),
            "desktop": Budget(seeds=1, seeds_of=dict.fromkeys(often, 3), settings=_EXECUTION),
            "smoke": Budget(seeds=1, epochs=1, images=20, settings={"batch_size": 20, "predictive_samples": 2}),
        },
        images=50_000,
    )
