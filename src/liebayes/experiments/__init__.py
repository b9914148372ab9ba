"""Training runs of the program, from Python:

    from pathlib import Path
    from liebayes.experiments import TrainSettings, resume, train
    lines = train(TrainSettings(dataset="digits", rule="affine", epochs=20, output=Path("runs/mine")))
    lines = train(TrainSettings(rule="additive", output=...), dataset=(images, labels, test_images, test_labels))
    lines = resume("runs/mine")

`docs/program.md` describes what a run leaves and who reads it.
"""

from .load_run import open_run
from .run_directory import RunDirectory, RunError
from .settings import SettingsError, TrainSettings
from .train import InterruptedRunError, evaluate, resume, train

__all__ = [
    "InterruptedRunError",
    "RunDirectory",
    "RunError",
    "SettingsError",
    "TrainSettings",
    "evaluate",
    "open_run",
    "resume",
    "train",
]
