"""A standard battery on the raw words of the kernel's noise: dieharder, from Debian's package of that name.

    python benchmarks/noise_battery.py [--full] [--only xoshiro-steps ...] [--output results/noise]

`noise_battery.c` (built here by a C compiler from the kernel's own noise.h) writes the words of one stream: a source and an
order in which its counters run. dieharder reads them through one pipe, test after test, so that no word is used twice.
`--full` takes 100 samples a test and every tuple, as `dieharder -a` does, but not all of its 33 lags; without it there are 10
samples, and fewer tuples and lags. A stream that has its result is not run again: delete it in battery.json to have it anew.

A test gives a p-value for each of its samples, which should be uniform on (0, 1). dieharder judges that by a
Kolmogorov–Smirnov test that is not exact: for few samples its p-values crowd near 1, and it says FAILED of values such as 0.13
and 0.85; so it does of its own AES generator. Its verdict is kept in the report, and ours is by scipy's exact test of the same
values, too good being as suspect as too bad. A stream is rejected if one of its m p-values is below 0.001/m. Test 14 (sums) is
left out, as dieharder advises.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from scipy import stats

LEVEL = 0.001
SEED = 20_240_601
SOURCES = ("xoshiro", "philox")
ORDERS = ("places", "training", "chunks", "steps", "tensors", "streams", "seeds")
STREAMS = (
    *(f"{source}-{order}" for order in ORDERS for source in SOURCES),
    *(f"{source}-places-reversed" for source in SOURCES),
)
CONTROLS = ("hash-chunks", "aes")  # a bad generator, which must be rejected, and dieharder's own good one, which must not be
WORDS = Path(__file__).with_suffix(".c")


class Test(NamedTuple):
    number: int
    samples: int
    tuple: int | None = None


class Statistic(NamedTuple):
    test: str
    tuple: int
    samples: int
    p: float
    dieharder_p: float
    dieharder: str


def tests(full: bool) -> list[Test]:
    many = 100 if full else 10
    bits, sizes, lags = (range(1, 13), range(2, 6), (0, 1, 3, 7, 15, 31)) if full else ((1, 4, 8, 12), (2, 5), (0, 1, 7))
    return [
        *(Test(number, many) for number in (*range(14), 15, 16)),
        Test(17, 100 if full else 2),  # 1e7 pairs a sample
        *(Test(number, many) for number in (100, 101, 102)),
        *(Test(200, many, size) for size in bits),
        *(Test(number, many, size) for number in (201, 202) for size in sizes),
        *(Test(203, many, lag) for lag in lags),  # one number in 8 is a lane, in 32 a place of the group
        Test(204, many),
        *(Test(number, 1) for number in range(205, 210)),  # one sample is up to 5e7 words
    ]


def build(folder: Path) -> Path:
    program = folder / "noise_battery"
    flags = ["-O3", "-std=gnu11", "-march=native", "-Wno-psabi"]
    subprocess.run(["cc", *flags, str(WORDS), "-lm", "-o", str(program)], check=True)
    return program


def command(program: Path, stream: str) -> list[str]:
    source, order, *turned = stream.split("-")
    return [str(program), source, order, str(SEED), *turned]


def run(program: Path, stream: str, full: bool) -> tuple[list[Statistic], str]:
    """All tests on a stream: their statistics, and dieharder's report."""
    found: list[Statistic] = []
    reports: list[str] = []
    process = None if stream == "aes" else subprocess.Popen(command(program, stream), stdout=subprocess.PIPE)
    for place, test in enumerate(tests(full)):
        report = dieharder(test, SEED + place if process is None else process.stdout)
        found += parse(report)
        reports.append(report)
        print(f"  {stream}: {found[-1].test} {found[-1].tuple}, p = {found[-1].p:.4f}", flush=True)
    if process is not None:
        process.terminate()
        process.communicate()
    # Without the frames around the values of samples, and ten of these a line.
    lines = re.sub(r"(#.*)?\n", "\n", "".join(reports))
    rows = re.sub(r"\|\n\|(?=\d)", "|", re.sub(r"\n+", "\n", lines))
    return found, re.sub(r"((?:\|[\d.]+){10}\|)(?=\d)", r"\1\n|", rows)


def dieharder(test: Test, words: IO[bytes] | int | None) -> str:
    """The report of a test on the words of a pipe, or on those of AES with a seed."""
    source = ["-g", 205, "-S", words] if isinstance(words, int) else ["-g", 200]
    # What to print: name, tuple, sizes, p, verdict (8 + … + 256) and the p-values of the samples, without blanks.
    options = ["-d", test.number, "-p", test.samples, "-k", 2, "-D", 504, "-D", 65536, "-D", 32768]
    options += [] if test.tuple is None else ["-n", test.tuple]
    pipe = None if isinstance(words, int) else words
    return subprocess.run(
        ["dieharder", *map(str, [*source, *options])], stdin=pipe, capture_output=True, text=True, check=True
    ).stdout


def version() -> str:
    shown = subprocess.run(["dieharder", "-l"], capture_output=True, text=True).stdout
    found = re.search(r"dieharder version (\S+)", shown)
    return f"dieharder {found[1]}" if found else "dieharder"


def parse(report: str) -> list[Statistic]:
    """The statistics of a report: each a line of results, followed by the values of its samples."""
    found = []
    for line, values in re.findall(r"^(\w+\|.*)\n((?:#.*\n|\|.*\n)*)", report, flags=re.MULTILINE):
        name, size, _, samples, p, verdict = line.split("|")
        sample = [float(value) for value in re.findall(r"\d\.\d+", values)]
        exact = float(stats.kstest(sample, "uniform", method="exact").pvalue)
        found.append(Statistic(name, int(size), int(samples), min(1.0, 2 * min(exact, 1 - exact)), float(p), verdict.strip()))
    return found


def summary(found: list[Statistic]) -> dict[str, Any]:
    worst = min(found, key=lambda statistic: statistic.p)
    return {
        "rejected": worst.p < LEVEL / len(found),
        "statistics": len(found),
        "bound": LEVEL / len(found),
        "least": worst._asdict(),
        "below_0.01": sum(statistic.p < 0.01 for statistic in found),
        "all": [list(statistic) for statistic in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="as many samples as dieharder -a")
    parser.add_argument("--only", nargs="+", choices=(*STREAMS, *CONTROLS), default=[*STREAMS, *CONTROLS])
    parser.add_argument("--output", type=Path, default=Path("results/noise"))
    arguments = parser.parse_args()
    if shutil.which("dieharder") is None or shutil.which("cc") is None:
        sys.exit("This needs a C compiler and dieharder: apt-get install gcc dieharder")
    path: Path = arguments.output / "battery.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "full" if arguments.full else "short"
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for stream in arguments.only:
            # Read anew each time: another run may have added to it.
            content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"level": LEVEL, "seed": SEED}
            if stream in content.get(mode, {}):
                continue
            started = time.monotonic()
            found, report = run(program, stream, arguments.full)
            content = json.loads(path.read_text()) if path.exists() else content
            result = {
                "command": f"python benchmarks/noise_battery.py{' --full' if arguments.full else ''} --only {stream}",
                "date": datetime.date.today().isoformat(),
                "battery": version(),
                "machine": platform.machine(),
                "seconds": round(time.monotonic() - started),
                **summary(found),
            }
            content.setdefault(mode, {})[stream] = result
            (arguments.output / f"dieharder-{mode}-{stream}.txt").write_text(report)
            # One list a line is readable, one number a line is not.
            text = re.sub(r"\n {5}(?=\S)|\n {4}(?=\])", " ", json.dumps(content, indent=1, ensure_ascii=False))
            path.write_text(text + "\n")
            verdict = "rejected" if result["rejected"] else "passes"
            print(f"{stream}: {verdict}; least p of {len(found)}: {result['least']['p']:.2g}", flush=True)


if __name__ == "__main__":
    main()
