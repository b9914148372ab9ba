"""The command: chooses the work, measures, shows and stores."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from liebayes import native

from . import checks, contest, floats, networks, parts, picture, quiet, report, scaling, steps
from .environment import ROOT, environment
from .sizes import SIZES, Sizes

TABLE = ROOT / "results" / "benchmarks" / "speed.json"
SCALING = ROOT / "results" / "benchmarks" / "speed_scaling.json"
PARTS = ROOT / "results" / "benchmarks" / "speed_parts.json"
CHECKS = ROOT / "results" / "benchmarks" / "speed_checks.json"
PICTURE = ROOT / "docs" / "speed.png"

ROWS = ("affine", "affine-small", "noise", "mlp-additive", "mlp-multiplicative", "resnet", "prediction", "memory")


def main(description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute: the same as --sizes quick")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--scaling", action="store_true", help="cost with parameters, samples and ranks instead of the table")
    what.add_argument("--parts", action="store_true", help="what rows 2 and 4 consist of, instead of the table")
    what.add_argument("--checks", action="store_true", help="what the checks of a step cost, instead of the table")
    parser.add_argument("--anyway", action="store_true", help="measure although others take the cores; marked as not quiet")
    parser.add_argument("--sizes", choices=SIZES, default=None, help="how large the work is; full by default")
    parser.add_argument("--rounds", type=int, default=None)
    what.add_argument("--rows", nargs="+", choices=ROWS, default=None, help="some rows only")
    parser.add_argument("--output", type=Path, default=None, help="by default the stored result, for all rows at full size")
    parser.add_argument("--redraw", action="store_true", help=f"draw {PICTURE.name} from the stored result, and nothing else")
    args = parser.parse_args()
    if args.redraw:
        picture.draw(json.loads(SCALING.read_text()), PICTURE)
        return 0
    if (args.parts or args.checks) and not native.available():
        parser.error("--parts and --checks take the kernel's path apart, and there is none: liebayes info says why.")
    name = args.sizes or ("quick" if args.quick else "full")
    sizes = SIZES[name]
    if args.rounds:
        sizes = dataclasses.replace(sizes, rounds=args.rounds, scaling_rounds=args.rounds)
    output: Path | None = args.output
    if output is None and name == "full" and args.rows is None:
        output = SCALING if args.scaling else PARTS if args.parts else CHECKS if args.checks else TABLE
    try:
        load = quiet.now(1.0)
        if not (load.quiet or args.anyway or args.checks):
            raise quiet.BusyError(load.message())
        result = {"environment": environment(), "sizes": name, "quiet": not args.anyway}
        began = time.perf_counter()
        if args.scaling:
            result |= scaling.measure(sizes, args.anyway)
        elif args.checks:
            result |= checks.measure(sizes, args.rounds or 200)
        elif args.parts:
            result |= table(sizes, tuple(parts.ROWS), args.anyway)
            print(report.parts_markdown(result))
        else:
            result |= table(sizes, args.rows or ROWS, args.anyway)
            report.show(result)
        print(f"took {time.perf_counter() - began:.0f} s")
    except quiet.BusyError as error:
        print(error, file=sys.stderr)
        return 1
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {output}")
        if args.scaling:
            drawn = PICTURE if output == SCALING else output.with_suffix(".png")
            picture.draw(result, drawn)
            print(f"wrote {drawn}")
    return 0


def table(sizes: Sizes, chosen: tuple[str, ...] | list[str], anyway: bool) -> dict[str, Any]:
    """All rows of the table, their contenders interleaved."""
    makers = {**steps.ROWS, **networks.ROWS, **parts.ROWS, "memory": floats.row}
    rows = [makers[key](sizes) for key in chosen]
    others = contest.run(rows, sizes.rounds, anyway, sizes.seconds)
    return {"rounds": sizes.rounds, "cores_taken_by_others": others, "rows": [row.result() for row in rows]}
