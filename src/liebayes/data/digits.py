"""The handwritten digits of scikit-learn: 1,797 grey images of 8×8, without files or network."""

from __future__ import annotations

from pathlib import Path

import torch

from .dataset import Dataset, split_rows


def digits(data_dir: Path | str | None = None, download: bool = True) -> Dataset:
    """1,437 training and 360 test digits: fold 0 of the five stratified folds with seed 0 (`stratified_folds`).

    Pixels from 0 to 16 are stored as round(pixel · 255/16), which keeps the 17 levels distinct and makes 255 white, as in the
    other data sets. `Dataset.folds` gives cross-validation over all digits. Both arguments are ignored.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits come with scikit-learn: pip install 'liebayes[data]'") from error
    pixels, target = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.as_tensor(target).to(torch.int64)
    test = split_rows(labels)
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
