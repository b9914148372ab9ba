"""What the two oracles of Bayesian logistic regression on the breast cancer data share: the data, and how results are stored.

scikit-learn's data (569 cases, 30 features), every feature standardised to mean 0 and sd 1 (population sd), then a column of
ones, so that the intercept is the LAST of the 31 weights. Labels y in {0, 1} as scikit-learn gives them,
y_i ~ Bernoulli(sigmoid(x_i . w)), w ~ N(0, I / PRECISION). Nothing here imports the library that it serves to test.
"""

import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

Array = NDArray[np.float64]

HERE = Path(__file__).resolve().parent
PRECISION = 1.0


def load_data() -> tuple[Array, Array]:
    """The design matrix (569, 31), intercept last, and the labels (569,)."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return np.hstack([features, np.ones((len(features), 1))]), labels.astype(np.float64)


def store(name: str, seconds: float, **results: Any) -> None:
    """Writes results beside this file, with what they were computed by."""
    versions = {"numpy": np.__version__, "scipy": scipy.__version__, "scikit-learn": sklearn.__version__}
    content = {
        "model": "logistic regression, breast cancer, standardised, intercept last, w ~ N(0, I / precision)",
        "precision": PRECISION,
        **results,
        "versions": {"python": platform.python_version(), **versions},
        "command": f"python tests/oracles/{name}.py",
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "wall_seconds": round(seconds, 1),
    }
    as_lists = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in content.items()}
    (HERE / f"{name}.json").write_text(json.dumps(as_lists, indent=1) + "\n")
