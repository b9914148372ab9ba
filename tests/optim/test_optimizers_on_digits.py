"""The optimizers with their defaults on real data, through a plain loop."""

import sys
from pathlib import Path

import torch

import liebayes as lb

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from optimizers import train


def test_every_rule_is_accurate_and_its_nll_below_that_of_sgd() -> None:
    """The two hardest folds of the five in results/optimizers.json, pooled; the same budget for all rules."""
    folds = [lb.data.load("digits").folds(5)[k] for k in (0, 2)]
    labels, nll = torch.cat([fold.test_labels for fold in folds]), {}
    for rule in ("sgd", "additive", "affine", "multiplicative"):
        found = []
        for fold in folds:
            images, test_images = (x.flatten(1) / 255 for x in (fold.train_images, fold.test_images))
            model, optimizer = train(rule, images, fold.train_labels, seed=0)
            if isinstance(optimizer, lb.LieGroupBLR):
                found.append(optimizer.posterior(model).predict(test_images, samples=32).probabilities)
            else:
                found.append(model(test_images).detach().softmax(-1))
        nll[rule] = lb.metrics.nll(torch.cat(found), labels)
        assert lb.metrics.accuracy(torch.cat(found), labels) >= 0.96, rule
    assert max(nll.values()) == nll["sgd"], nll
