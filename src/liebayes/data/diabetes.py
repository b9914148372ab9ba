"""The diabetes data of scikit-learn, for regression: 442 patients, ten measurements, a score of the disease a year later."""

from __future__ import annotations

from pathlib import Path

import torch

from .dataset import Dataset, from_tensors, split_rows


def diabetes(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """353 training and 89 test patients: fold 0 of five folds with seed 0. Both arguments are ignored."""
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise ImportError("diabetes comes with scikit-learn: pip install 'liebayes[data]'") from error
    inputs, targets = map(torch.as_tensor, load_diabetes(return_X_y=True, scaled=False))
    test = split_rows(targets)
    return from_tensors(
        inputs[~test], targets[~test], inputs[test], targets[test], name="diabetes", class_names=["progression"]
    )
