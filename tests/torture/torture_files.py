"""Damaged and forged posteriors, checkpoints, settings and data: what was written, or an error in words.

Damage is to bytes, and everything with a checksum must notice it. Forgery is to entries, with a checksum that is right: what
loads must then be usable. Tables and plain arrays have no checksum: what loads must be a sound data set.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import math
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formats import cifar10_files, tiny_imagenet_files, write_folder, write_mnist, write_tar, write_zip
from PIL import Image
from support.damage import JUNK, in_words, mutant, mutate, places, time_limit
from support.posteriors import Net, assert_same, positive, posterior_of

import liebayes as lb
from liebayes import data
from liebayes.bases import Laplace, Normal, Rayleigh
from liebayes.data import Dataset
from liebayes.experiments import checkpoint
from liebayes.experiments.defaults import resolved
from liebayes.experiments.run_directory import RunDirectory, fingerprint
from liebayes.experiments.settings import Rule, TrainSettings
from liebayes.experiments.sweep import combinations, read_json
from liebayes.experiments.train import resume, train
from liebayes.posterior import Posterior

UNIT, GOAL = "files", 10_000
LIMIT = 120
"""Seconds for one case, on a machine with other things to do."""
RULES: tuple[Rule, ...] = ("sgd", "additive", "affine", "multiplicative", "kronecker", "ivon", "vogn", "ivon-opt")
PLAIN = [value for value in JUNK if not isinstance(value, (torch.Tensor, bytes))]
"""Junk that JSON can hold."""


class Campaign:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.kept = [
            posterior_of(Net()),
            posterior_of(Net(), kind=lb.AdditiveBLR, base=Laplace(0.1)),
            posterior_of(positive(Net()), kind=lb.MultiplicativeBLR, base=Rayleigh()),
            posterior_of(Net(), kind=lb.KroneckerBLR, base=Normal()),
            posterior_of(Net().bfloat16()),
        ]
        for k, posterior in enumerate(self.kept):
            posterior.save(folder / f"{k}.safetensors")
        self.stopped_runs = [_Run(folder / "runs" / rule, rule) for rule in RULES]
        self.sets = _data_sets(folder / "data")

    def case(self, number: int) -> Counter[str]:
        draw = random.Random(f"files {number}")
        kinds: list[Callable[[random.Random], str]] = [self.posteriors, self.runs, self.settings, self.data]
        kind = kinds[number % len(kinds)]
        with time_limit(LIMIT), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            what = kind(draw)
        return Counter({"files": 1, what: 1})

    def posteriors(self, draw: random.Random) -> str:
        which = draw.randrange(len(self.kept))
        path, original = self.folder / "mutant.safetensors", self.kept[which]
        path.write_bytes(mutant((self.folder / f"{which}.safetensors").read_bytes(), draw))
        with refusals() as refused:
            assert_same(original, Posterior.load(path, copy.deepcopy(original.model)))
        return f"posterior {refused}"

    def runs(self, draw: random.Random) -> str:
        return draw.choice(self.stopped_runs).case(draw)

    def settings(self, draw: random.Random) -> str:
        """A file of settings, or of a sweep, that somebody has written by hand."""
        fixed = {"rule": "affine", "epochs": 2, "lr": 0.1, "base": "Laplace(0.05)", "augment": False}
        content: Any = draw.choice([fixed, {"settings": fixed, "grid": {"seed": [0, 1], "momentum": [0.5, 0.9]}}])
        path, text = self.folder / "settings.json", json.dumps(content)
        changed = copy.deepcopy(content)
        if draw.random() < 0.5:
            mutate(changed, draw.choice(list(places(content))), draw, PLAIN)
            path.write_text(json.dumps(changed))
        else:
            path.write_bytes(mutant(text.encode(), draw))
        with refusals() as refused:
            read = read_json(path)
            found = combinations(read).values() if "grid" in content else [TrainSettings.from_json(read)]
            for one in map(resolved, found):
                numbers = [value for value in dataclasses.asdict(one).values() if isinstance(value, float)]
                assert all(map(math.isfinite, numbers)), one
        return f"settings {refused}"

    def data(self, draw: random.Random) -> str:
        name = draw.choice(list(self.sets))
        source, read, checked = self.sets[name]
        original = read(source)
        place = self.folder / "broken"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place)
        file = draw.choice(sorted(path for path in place.rglob("*") if path.is_file()))
        file.write_bytes(mutant(file.read_bytes(), draw))
        with refusals() as refused:
            found = read(place)
            if checked and len(found.train_labels) == len(original.train_labels):  # fewer than published are told by a warning
                assert fingerprint(found) == fingerprint(original), f"{name}: {file.name} was damaged, and nobody noticed"
            require_sound(found)
        return f"data {name} {refused}"


class _Run:
    """A run that was stopped half way, and what it ends with."""

    FILES = ("settings.json", "environment.json", "metrics.jsonl", "checkpoint.safetensors", "posterior.safetensors")

    def __init__(self, folder: Path, rule: Rule) -> None:
        self.folder, self.whole = folder, folder / "whole"
        settings = TrainSettings(
            rule=rule, epochs=2, batch_size=512, predictive_samples=2, checkpoint_seconds=0, output=self.whole
        )
        with contextlib.redirect_stdout(io.StringIO()):
            train(settings)
        self.end = (self.whole / "posterior.safetensors").read_bytes()
        shutil.copytree(self.whole, folder / "stopped")
        stopped = folder / "stopped"  # before the last step
        (stopped / "previous-checkpoint.safetensors").replace(stopped / "checkpoint.safetensors")
        (stopped / "metrics.jsonl").write_text((self.whole / "metrics.jsonl").read_text().splitlines(keepends=True)[0])

    def case(self, draw: random.Random) -> str:
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "stopped", place)
        path, forged = place / draw.choice(self.FILES), draw.random() < 0.5
        if not forged or path.name == "posterior.safetensors":
            forged = False
            path.write_bytes(mutant(path.read_bytes(), draw))
        elif path.suffix == ".safetensors":
            tree = checkpoint.load(path)
            mutate(tree, draw.choice(list(places(tree))), draw)
            try:
                checkpoint.save(tree, path)
            except (TypeError, ValueError, RuntimeError):  # no tree that a file can hold
                return "run unwritable"
        else:
            content = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None
            tree = content if content is not None else json.loads(path.read_text())
            mutate(tree, draw.choice(list(places(tree))), draw, PLAIN)
            path.write_text("\n".join(map(json.dumps, tree)) if content is not None else json.dumps(tree))
        with refusals() as refused:
            resume(place)
            end = (place / "posterior.safetensors").read_bytes()
            if not (forged and path.suffix == ".safetensors"):
                assert end == self.end, f"{path.name} was changed, and the run ended otherwise"
            RunDirectory(place).finished_metrics()
        return f"run {refused}"


class Refusals:
    def __init__(self) -> None:
        self.text = "loaded"

    def __str__(self) -> str:
        return self.text


@contextlib.contextmanager
def refusals() -> Iterator[Refusals]:
    """Errors in words are refusals. All others, and wrong results, are failures."""
    found = Refusals()
    try:
        yield found
    except (ValueError, RuntimeError, OSError) as error:
        if not in_words(error):
            raise
        found.text = "refused"


def require_sound(found: Dataset) -> None:
    """What training takes for granted."""
    for images, labels in (found.split("train"), found.split("test")):
        assert len(images) == len(labels)
        assert bool(torch.as_tensor(found.normalize(images)).isfinite().all())
        if labels.dtype == torch.long:
            assert not len(labels) or 0 <= int(labels.min()) <= int(labels.max()) < found.num_classes
        else:
            assert bool(labels.float().isfinite().all())


def _data_sets(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Dataset], bool]]:
    """A folder for each format, how to read it, and whether its files have checksums."""

    def public(name: str) -> Callable[[Path], Dataset]:
        return lambda place: data.load(name, place, download=False)

    write_mnist(folder / "gz" / "mnist")
    write_mnist(folder / "plain" / "mnist", zipped=False)
    for version, place in (("binary", "cifar-10-batches-bin"), ("python", "cifar-10-batches-py")):
        write_folder(folder / version / place, cifar10_files(version)[0])
    (folder / "tar").mkdir()
    binary = {f"cifar-10-batches-bin/{name}": content for name, content in cifar10_files("binary")[0].items()}
    write_tar(folder / "tar" / "cifar-10-binary.tar.gz", binary)
    (folder / "zip").mkdir()
    pictures = {f"tiny-imagenet-200/{name}": content for name, content in tiny_imagenet_files().items()}
    write_zip(folder / "zip" / "tiny-imagenet-200.zip", pictures)
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(40, 3)).astype("float32"), np.arange(40) % 3
    for name in ("csv", "npz", "parquet", "png"):
        (folder / name).mkdir()
    import pandas

    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "city": ["Oslo", "Bern"] * 20, "y": y})
    frame.to_csv(folder / "csv" / "t.csv", index=False)
    frame.to_parquet(folder / "parquet" / "t.parquet")
    np.savez(folder / "npz" / "t.npz", x=x, y=y)
    for k in range(12):
        at = folder / "png" / ("cats" if k % 2 else "dogs")
        at.mkdir(exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (8, 8, 3), dtype="uint8")).save(at / f"{k}.png")
    return {
        "idx.gz": (folder / "gz", public("mnist"), True),
        "idx": (folder / "plain", public("mnist"), False),
        "cifar binary": (folder / "binary", public("cifar10"), False),
        "cifar python": (folder / "python", public("cifar10"), False),
        "cifar tar.gz": (folder / "tar", public("cifar10"), True),
        "tiny imagenet zip": (folder / "zip", public("tinyimagenet"), True),
        "csv": (folder / "csv", lambda place: data.from_path(place / "t.csv", target=["y"]), False),
        "parquet": (folder / "parquet", lambda place: data.from_path(place / "t.parquet", target=["y"]), False),
        "npz": (folder / "npz", lambda place: data.from_path(place / "t.npz"), True),
        "png": (folder / "png", lambda place: data.from_path(place), True),
    }
