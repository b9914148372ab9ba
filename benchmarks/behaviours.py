"""Who behaves like an optimizer of torch.optim: every behaviour of tests/support/behaviours on ours, our baselines, ivon-opt
and SGD.

    python benchmarks/behaviours.py [--output results/behaviours]

Prints the table, and stores it as .json (with the reason of every "no") and .md. "–": does not apply.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.behaviours import REGISTRY, verdict
from support.behaviours.adapters import BASELINES, IVON, OURS, SGD

COMMAND = "python benchmarks/behaviours.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/behaviours"), help="path of both files, without suffix")
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    others = [*BASELINES, IVON, SGD]
    adapters = [*OURS, *others]
    answers = {case.name: {adapter.name: verdict(case, adapter) for adapter in adapters} for case in REGISTRY}
    passed = {a.name: sum(row[a.name][0] == "yes" for row in answers.values()) for a in adapters}
    applying = {a.name: sum(row[a.name][0] != "–" for row in answers.values()) for a in adapters}
    about = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("liebayes", "torch", "ivon-opt")},
    }

    # In the table ours stand as one column: all of them, or how many.
    def ours(row: dict[str, tuple[str, str]]) -> str:
        given = [row[a.name][0] for a in OURS if row[a.name][0] != "–"]
        return "yes" if all(answer == "yes" for answer in given) else f"{given.count('yes')} of {len(given)}"

    columns = ["behaviour", "what it checks", f"ours ({len(OURS)})", *(a.name for a in others)]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for case in REGISTRY:
        row = answers[case.name]
        lines.append(f"| {case.name} | {case.meaning} | {' | '.join([ours(row), *(row[a.name][0] for a in others)])} |")
    totals = [f"{passed[a.name]}/{applying[a.name]}" for a in others]
    mine = f"{sum(passed[a.name] for a in OURS)}/{sum(applying[a.name] for a in OURS)}"
    lines.append(f"| **passed of those that apply** | | {' | '.join([mine, *totals])} |")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    text = "\n".join(
        [
            "# Who passes what",
            "",
            f"`{COMMAND}`, {about['date']}, Python {about['python']}, {versions}. Ours: {', '.join(a.name for a in OURS)}.",
            "“–”: does not apply. Reasons are in the .json file.",
            "",
            *lines,
            "",
        ]
    )
    print(text)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    table = {name: {who: {"answer": a, "reason": r} for who, (a, r) in row.items()} for name, row in answers.items()}
    results = {"about": about, "passed": passed, "applying": applying, "behaviours": table}
    output.with_suffix(".json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
