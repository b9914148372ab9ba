"""What a run predicts: the network's outputs, the loss, predictions and figures for classes, yes-or-no labels and numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ..data import Dataset
from ..metrics import Statistic, classification_statistics, multilabel_statistics, regression_statistics
from ..nn import GaussianOutput, gaussian_loss
from ..posterior import Posterior
from ..prediction import ClassPrediction, RegressionPrediction
from .settings import SettingsError


class Figure(NamedTuple):
    """A figure of predictions: its name in metrics.jsonl, heading and format, and whether high (1) or low (-1) is good."""

    name: str
    heading: str
    form: str = ".4f"
    sign: int = -1

    def text(self, value: float) -> str:
        """The figure as people write it."""
        return format(value, self.form).replace("%", " %")


class Task(ABC):
    """One kind of prediction."""

    figures: tuple[Figure, ...]

    def outputs(self, dataset: Dataset, noise: str | None) -> int:
        """How many numbers the network gives for each input."""
        return dataset.num_classes

    def network(self, network: nn.Module, dataset: Dataset, noise: str | None) -> nn.Module:
        """The network as it is trained."""
        return network

    @abstractmethod
    def loss(self, output: Any, labels: Tensor) -> Tensor:
        """The mean over a batch of −log-likelihoods, in nats."""

    @abstractmethod
    def predict(self, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int = 500) -> Any:
        """The average over samples of the weights; with 0 samples, the point estimate."""

    @abstractmethod
    def statistics(self, prediction: Any, labels: Tensor) -> dict[str, Statistic]:
        """All figures, as means over the inputs."""

    def metrics(self, prediction: Any, labels: Tensor) -> dict[str, float]:
        """All figures."""
        return {name: statistic.value for name, statistic in self.statistics(prediction, labels).items()}

    @abstractmethod
    def described(self, prediction: Any, number: int, dataset: Dataset) -> dict[str, Any]:
        """The prediction for one input, as JSON values."""

    @abstractmethod
    def finite(self, prediction: Any) -> bool:
        """Whether a prediction has finite numbers only."""


_NLL, _ECE, _BRIER = Figure("nll", "NLL"), Figure("ece", "ECE"), Figure("brier", "Brier")


class Classification(Task):
    """One of several classes."""

    figures: tuple[Figure, ...] = (Figure("accuracy", "accuracy", ".2%", 1), _NLL, _ECE, _BRIER)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(output, labels)

    def predict(self, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int = 500) -> ClassPrediction:
        return posterior.predict(inputs, samples, batch_size=batch_size)

    def statistics(self, prediction: ClassPrediction, labels: Tensor) -> dict[str, Statistic]:
        return classification_statistics(prediction.probabilities, labels)

    def finite(self, prediction: ClassPrediction) -> bool:
        return bool(prediction.probabilities.isfinite().all())

    def described(self, prediction: ClassPrediction, number: int, dataset: Dataset) -> dict[str, Any]:
        p = prediction.probabilities[number]
        best = int(p.argmax())
        return {
            "class": dataset.class_names[best],
            "confidence": rounded(p[best]),
            "entropy": rounded(prediction.entropy[number]),
            "mutual_information": rounded(prediction.mutual_information[number]),
            "probabilities": {name: rounded(x) for name, x in zip(dataset.class_names, p, strict=True)},
        }


class MultiLabel(Task):
    """Several yes-or-no labels."""

    figures: tuple[Figure, ...] = (
        Figure("accuracy", "accuracy", ".2%", 1), Figure("exact", "all right", ".2%", 1), _NLL, _ECE, _BRIER
    )  # fmt: skip

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(output, labels.to(output.dtype), reduction="none").sum(1).mean()

    def predict(self, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int = 500) -> ClassPrediction:
        """Probabilities of shape (inputs, labels, 2): no and yes."""
        return posterior.predict(inputs, samples, batch_size=batch_size, output=lambda logits: logits.unsqueeze(-1))

    def statistics(self, prediction: ClassPrediction, labels: Tensor) -> dict[str, Statistic]:
        return multilabel_statistics(prediction.probabilities[..., 1], labels)

    def finite(self, prediction: ClassPrediction) -> bool:
        return bool(prediction.probabilities.isfinite().all())

    def described(self, prediction: ClassPrediction, number: int, dataset: Dataset) -> dict[str, Any]:
        p = prediction.probabilities[number, :, 1]
        return {
            "labels": [name for name, x in zip(dataset.class_names, p, strict=True) if x > 0.5],
            "entropy": rounded(prediction.entropy[number].sum()),
            "mutual_information": rounded(prediction.mutual_information[number].sum()),
            "probabilities": {name: rounded(x) for name, x in zip(dataset.class_names, p, strict=True)},
        }


class Regression(Task):
    """Numbers, with a Gaussian likelihood."""

    figures: tuple[Figure, ...] = (
        Figure("rmse", "RMSE", ".4g"),
        _NLL,
        Figure("crps", "CRPS", ".4g"),
        Figure("coverage", "90 % holds", ".1%", 0),
        Figure("calibration", "calibration"),
        Figure("sharpness", "sharpness", ".4g", 0),
    )

    def outputs(self, dataset: Dataset, noise: str | None) -> int:
        return dataset.num_classes * (2 if noise == "predicted" else 1)

    def network(self, network: nn.Module, dataset: Dataset, noise: str | None) -> nn.Module:
        labels = dataset.train_labels
        spread = labels.std(0, correction=0)
        return GaussianOutput(
            network,
            noise if noise in ("learned", "predicted") else _deviation(noise),
            targets=None if labels.ndim == 1 else labels.shape[1],
            mean=labels.mean(0),
            std=spread.where(spread > 0, 1.0),
        )

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        return gaussian_loss(output, labels)

    def predict(self, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int = 500) -> RegressionPrediction:
        return posterior.predict(inputs, samples, batch_size=batch_size, task="regression")

    def statistics(self, prediction: RegressionPrediction, labels: Tensor) -> dict[str, Statistic]:
        return regression_statistics(prediction.mean, prediction.variance, labels)

    def finite(self, prediction: RegressionPrediction) -> bool:
        return bool((prediction.mean.isfinite() & prediction.variance.isfinite()).all())

    def described(self, prediction: RegressionPrediction, number: int, dataset: Dataset) -> dict[str, Any]:
        found = {}
        parts = [part[number].reshape(-1) for part in (prediction.mean, prediction.aleatoric, prediction.epistemic)]
        for name, mean, noise, weights in zip(dataset.class_names, *parts, strict=True):
            deviation = (noise + weights).sqrt()
            found[name] = {
                "mean": rounded(mean),
                "std": rounded(deviation),
                "low": rounded(mean - NINETY * deviation),
                "high": rounded(mean + NINETY * deviation),
                "noise": rounded(noise.sqrt()),
                "weights": rounded(weights.sqrt()),
            }
        return found


NINETY = 1.6448536269514722
"""Standard deviations on either side of a Gaussian's mean that hold 90 % of it."""

TASKS: Mapping[str, Task] = {
    "classification": Classification(),
    "multilabel": MultiLabel(),
    "regression": Regression(),
}


def task_of(dataset: Dataset) -> Task:
    """What is predicted follows from the labels."""
    return TASKS[dataset.kind]


def task_of_line(line: Mapping[str, Any]) -> Task:
    """The same from a line of metrics.jsonl."""
    return TASKS["regression" if "test_rmse" in line else "multilabel" if "test_exact" in line else "classification"]


def rounded(value: Any) -> float:
    """A number of a prediction with six decimals, and from 1 on with seven significant digits."""
    number = float(value)
    return round(number, 6) if abs(number) < 1 else float(f"{number:.7g}")


def _deviation(noise: str | None) -> float:
    try:
        return float(noise or "")
    except ValueError:
        raise SettingsError(f'--noise must be learned, predicted or a standard deviation, but is "{noise}".') from None
