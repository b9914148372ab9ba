"""`make torture`: campaigns that try to break the package, counted over as many invocations as it takes.

    python tests/torture [NAME ...] [--minutes M] [--results FOLDER]
    python tests/torture NAME --cases NUMBER ...

kills   `kill -9` at random moments of `train`, `sweep` and `reproduce`: the ends are those of undisturbed runs, bit by bit
files   damaged and forged posteriors, checkpoints, settings and data: what was written, or an error in words
calls   the public API with arguments made from its signatures: it works, and is right, or says what is wrong
steps   1e5 steps for every rule and precision, with the kernel and without: finite, and the same

A case is a function of its number. An invocation first repeats the cases that failed before, then goes on where the last one
ended, the campaigns in turn, until each has reached its goal. With `--cases` it runs these only, also those that held before:
the code may have changed since. What is known is in results/torture/NAME.json.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import platform
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), *(str(TESTS / room) for room in ("torture", "experiments", "data"))]
import matrix  # noqa: E402

CAMPAIGNS = ("kills", "files", "calls", "steps")
TURN = 60.0
"""Seconds that a campaign works before it is the next one's turn."""
KEPT = 20
"""Failures that are kept in words; of the others, their numbers."""


class Record:
    """What is known of a campaign: its file, written after every turn."""

    def __init__(self, name: str, folder: Path, unit: str, goal: int) -> None:
        self.path = folder / f"{name}.json"
        self.known: dict[str, Any] = {
            "cases": 0, "counts": {}, "failed": 0, "mended": 0, "failing": [], "failures": [], "sessions": []
        }  # fmt: skip
        if self.path.exists():
            self.known = json.loads(self.path.read_text())
        self.known |= {"command": f"python tests/torture {name}", "unit": unit, "goal": goal}
        self.session: dict[str, Any] = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "code": matrix.code(),
            "cpu": matrix.cpu(),
            "versions": _versions(),
            "first_case": self.known["cases"],
            "seconds": 0.0,
        }

    @property
    def done(self) -> int:
        return self.known["counts"].get(self.known["unit"], 0)

    def finished(self) -> bool:
        return self.done >= self.known["goal"]

    def add(self, counts: Counter[str]) -> None:
        self.known["counts"] = dict(sorted((Counter(self.known["counts"]) + counts).items()))

    def write(self, seconds: float) -> None:
        if self.session not in self.known["sessions"]:
            self.known["sessions"].append(self.session)
        self.session["seconds"] = round(self.session["seconds"] + seconds, 1)
        self.session["cases"] = self.known["cases"] - self.session["first_case"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(json.dumps(self.known, indent=1) + "\n")
        part.replace(self.path)


def turns(name: str, record: Record, folder: Path, asked: list[int] | None = None) -> Iterator[None]:
    """Works on a campaign, a turn at a time; or on the cases that are asked for."""
    campaign = importlib.import_module(f"torture_{name}").Campaign(folder)
    known, began = record.known, time.monotonic()
    again = list(known["failing"] if asked is None else asked)
    if asked is not None:
        record.session["asked"] = []
    while again or (asked is None and not record.finished()):
        number = again.pop(0) if again else known["cases"]
        try:
            counts = campaign.case(number)
        except Exception:
            counts = Counter()
            _note(known, number)
        else:
            known["mended"] += number in known["failing"]
            known["failing"] = [case for case in known["failing"] if case != number]
            known["failures"] = [failure for failure in known["failures"] if failure["case"] != number]
        known["cases"] += number == known["cases"]
        record.add(counts)
        if asked is not None:
            record.session["asked"].append(number)
        if time.monotonic() - began > TURN or record.finished() or (asked is not None and not again):
            record.write(time.monotonic() - began)
            yield
            began = time.monotonic()


def _note(known: dict[str, Any], number: int) -> None:
    text = traceback.format_exc()
    print(f"case {number} failed: {text.splitlines()[-1][:300]}", flush=True)
    known["failures"] = [failure for failure in known["failures"] if failure["case"] != number]
    text = text.replace(str(TESTS.parent), ".").replace(sys.prefix, "environment").replace(sys.base_prefix, "python")
    known["failures"] = [*known["failures"], {"case": number, "error": text[-3000:]}][-KEPT:]
    known["failed"] += number not in known["failing"]
    known["failing"] = sorted({*known["failing"], number})


def _versions() -> dict[str, str]:
    import hypothesis
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "hypothesis": hypothesis.__version__}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="not all campaigns")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--results", type=Path, default=TESTS.parent / "results" / "torture", metavar="FOLDER")
    parser.add_argument("--cases", nargs="+", type=int, metavar="NUMBER", help="these cases of one campaign only")
    asked = parser.parse_args(arguments)
    if asked.cases is not None and len(asked.names) != 1:
        parser.error("--cases needs the name of one campaign")
    unknown = set(asked.names) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"there is no campaign {min(unknown)!r}; they are {', '.join(CAMPAIGNS)}")
    faulthandler.enable()
    end = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory() as temporary:
        work = {}
        for name in asked.names or CAMPAIGNS:
            module, folder = importlib.import_module(f"torture_{name}"), Path(temporary) / name
            folder.mkdir()
            record = Record(name, asked.results, module.UNIT, module.GOAL)
            work[name] = record, turns(name, record, folder, asked.cases)
        going = dict(work)
        while going and time.monotonic() < end:
            for name, (record, campaign) in list(going.items()):
                if next(campaign, StopIteration) is StopIteration:
                    del going[name]
                known = record.known
                print(f"{name}: {record.done:,} of {known['goal']:,} {known['unit']}, {known['failed']} failures, of which "
                      f"{known['mended']} are mended", flush=True)  # fmt: skip
    return int(any(record.known["failed"] > record.known["mended"] for record, _ in work.values()))


if __name__ == "__main__":
    sys.exit(main())
