"""Metrics of predictions, with intervals, and of the sparsity and localisation of weights.

Class probabilities are a tensor (inputs, classes) whose rows add up to 1, labels a tensor with one integer for each input.
Gaussian predictions are a mean and a variance of the shape of their targets. Arrays of numpy are taken too. Everything is
computed in float64 and returned as Python numbers, or as tensors of one value for each input or bin.
"""

from .bootstrap import Interval, Statistic, auroc_replicates, difference, interval, replicates, unseen
from .classification import (
    BINS,
    Reliability,
    accuracy,
    auroc,
    brier,
    classification_metrics,
    classification_statistics,
    ece,
    nll,
    predictive_entropy,
    reliability,
)
from .features import Sparsity, localisation, sparsity
from .multilabel import multilabel_metrics, multilabel_statistics
from .regression import (
    LEVELS,
    QuantileCalibration,
    coverage,
    crps,
    gaussian_nll,
    probability_transform,
    quantile_calibration,
    regression_metrics,
    regression_statistics,
    rmse,
    sharpness,
)

__all__ = [
    "BINS",
    "LEVELS",
    "Interval",
    "QuantileCalibration",
    "Reliability",
    "Sparsity",
    "Statistic",
    "accuracy",
    "auroc",
    "auroc_replicates",
    "brier",
    "classification_metrics",
    "classification_statistics",
    "coverage",
    "crps",
    "difference",
    "ece",
    "gaussian_nll",
    "interval",
    "localisation",
    "multilabel_metrics",
    "multilabel_statistics",
    "nll",
    "predictive_entropy",
    "probability_transform",
    "quantile_calibration",
    "regression_metrics",
    "regression_statistics",
    "reliability",
    "replicates",
    "rmse",
    "sharpness",
    "sparsity",
    "unseen",
]
