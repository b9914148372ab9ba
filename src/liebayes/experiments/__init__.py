"""Training runs of the program, from Python: `train(settings)` gives the lines of metrics.jsonl, `resume(folder)` goes on.

`open_run(folder)` has the posterior that a run has left, its data and its settings. `docs/program.md` has an example, on data
from Python.
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
