"""The handwritten digits that scikit-learn carries: 1,797 grey images of 8×8. Needs no file and no network."""

from __future__ import annotations

from pathlib import Path

import torch

from .dataset import Dataset, stratified_folds


def digits(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """1,437 training and 360 test digits: fold 0 of the five stratified folds with seed 0 (`stratified_folds`).

    The embedded pixels run from 0 to 16. They are stored as round(pixel · 255/16), which keeps the 17 levels apart and lets
    255 mean white as in every other data set. `Dataset.folds` gives cross-validation over all of them. Both arguments are
    there for the sake of the other data sets.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits come with scikit-learn: pip install 'liebayes[data]'") from error
    pixels, target = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.as_tensor(target).to(torch.int64)
    test = stratified_folds(labels, 5, seed=0) == 0
    return Dataset(
        "digits",
        images[~test],
        labels[~test],
        images[test],
        labels[test],
        tuple("0123456789"),
        mean=(0.3059,),
        std=(0.3762,),
    )
