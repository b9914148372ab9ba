"""Whether the kernel's noise is what it says: distributions and independence, at 1e8 numbers for each source and test.

    python benchmarks/noise_statistics.py [--quick] [--output results/noise/statistics.json]

Every check gives a p-value. With m of them, one below 0.001/m rejects the source (Bonferroni): a perfect generator is rejected
in one run of a thousand. `controls` are generators with a known fault, which must be rejected.

**Moments.** The means of z, z², z³ and z⁴ with z = (ε − μ)/σ, μ and σ exact, against E[zᵏ] in units of √(Var(zᵏ)/n). A moment
is taken where E|z|³ᵏ exists, as the central limit theorem is slow without it.

**Kolmogorov–Smirnov.** Numbers are counted in bins of 512 neighbouring float32 values, and D is taken at the edges of bins.
What a bin hides is its own fluctuation, about √(p/n) with p ≤ 1e-4 its probability: 1e-6, where D itself is about 1e-4.
What float32 does is smaller still. A number is rounded by 2⁻²⁴ of itself, which moves the cdf by at most 2⁻²⁴·sup|x·f(x)|,
below 1e-7. u has 31 bits, but those of (½, 1) are multiples of 2⁻²⁴, and all above 1 − 1.5·2⁻²⁴ are the last one: atoms of up
to 1.5·2⁻²⁴ = 9e-8 next to ε = 0 for Laplace, Exponential, Rayleigh and Cauchy, and in the upper tail of Gumbel, which ends at
16.6. A distance of 9e-8 shows in D from n ≈ 1/9e-8² ≈ 1e14 numbers on; at 1e8 the test is blind to it.

**Independence.** Correlations of values, of squares and of signs:
- within a tensor, between places at every distance (`places`, by FFT: the circular autocorrelation);
- between neighbouring tensors, steps, streams and seeds, at every shift of places (`… shifted`). A plain hash of step + place
  passes every test of one step's numbers, and fails here: consecutive steps share shifted values;
- along the counter, at the same place (`… series`): every two tensors, steps, streams or seeds of the first 16,384, by their
  distance. Samples and ranks are streams, so these are the correlations between samples and between ranks as well.
Each is three p-values: at shift 0 (which the others do not have), the largest |z| at shifts 1 to 64, 128, 2048 and 4096 either
way, and the largest of all.
And 2-d χ² tests on 256 × 256 cells: neighbouring places, neighbouring rows, the two numbers of a Box–Muller pair, and the same
place in consecutive steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from scipy import integrate, special, stats
from torch import Tensor

from liebayes import native
from liebayes.bases import Base, Cauchy, Exponential, Gumbel, Laplace, LogNormal, Normal, Rayleigh, StudentT, Uniform
from liebayes.optim.noise import Noise, Source, kernel_noise

LEVEL = 0.001
SOURCES: tuple[Source, ...] = ("xoshiro", "philox")
COUNTERS = ("tensor", "step", "stream", "seed")
NEAR = [*range(1, 65), 128, 2048, 4096]

LAWS: list[tuple[Base, Any, int]] = [
    (Normal(), stats.norm(), 4),
    (Laplace(), stats.laplace(), 4),
    (Uniform(), stats.uniform(-1, 2), 4),
    (Rayleigh(), stats.rayleigh(), 4),
    (Cauchy(), stats.cauchy(), 0),
    (StudentT(7.0), stats.t(7.0), 2),
    (Gumbel(), stats.gumbel_r(), 4),
    (Exponential(), stats.expon(), 4),
    (LogNormal(0.25), stats.lognorm(0.25), 4),
]
"""Each base with its distribution, and how many moments are tested."""

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "values": lambda x: x,
    "squares": lambda x: (x.square() - 1) / math.sqrt(2),
    "signs": torch.sign,
}
"""Functions of a standard Normal with mean 0 and variance 1."""


class Counter(NamedTuple):
    seed: int = 20_240_601
    tensor: int = 0
    step: int = 0
    stream: int = 0

    def moved(self, name: str, by: int) -> Counter:
        return self._replace(**{name: getattr(self, name) + by})


Generator = Callable[[Base, int, Counter, int], Tensor]
"""(base, count, counter, start) ↦ the numbers at the places [start, start + count)."""


class Size(NamedTuple):
    """Every test has blocks·block numbers; series have `length` terms."""

    block: int
    blocks: int
    length: int


FULL = Size(1 << 22, 24, 1 << 14)  # 100,663,296 numbers
QUICK = Size(1 << 16, 16, 1 << 9)  # 1,048,576


class Check(NamedTuple):
    base: str
    test: str
    statistic: float
    p: float


def from_kernel(source: Source) -> Generator:
    def draw(base: Base, count: int, counter: Counter, start: int = 0) -> Tensor:
        noise = Noise(source, counter.seed, counter.step, counter.stream, {})
        return kernel_noise(base, count, noise, counter.tensor, start)

    return draw


def checks(generator: Generator, size: Size, report: Callable[[str], None] = lambda _: None) -> list[Check]:
    """All of them for one generator."""
    found: list[Check] = []
    for base, law, moments in LAWS:
        report(repr(base))
        found += distribution_checks(generator, size, base, law, moments)
    report("independence")
    return found + independence_checks(generator, size)


def independence_checks(generator: Generator, size: Size) -> list[Check]:
    found = place_checks(generator, size)
    for name in COUNTERS:
        found += shifted_checks(generator, size, name)
        found += series_checks(generator, size, name)
    return found + pair_checks(generator, size)


def least(found: Iterable[Check]) -> tuple[Check, bool]:
    """The check with the smallest p, and whether the generator is rejected for it."""
    found = list(found)
    worst = min(found, key=lambda check: check.p)
    return worst, worst.p < LEVEL / len(found)


# Distributions.


def distribution_checks(generator: Generator, size: Size, base: Base, law: Any, moments: int) -> list[Check]:
    mean, deviation = (law.mean(), law.std()) if moments else (0.0, 1.0)
    sums = np.zeros(moments)
    counts = np.zeros(1 << 23, dtype=np.int64)
    for block in range(size.blocks):
        x = generator(base, size.block, Counter(), block * size.block)
        z = (x.double() - mean) / deviation
        power = torch.ones_like(z)
        for k in range(moments):
            power *= z
            sums[k] += float(power.sum())
        np.add.at(counts, _bin(x), 1)
    n = size.block * size.blocks
    found = [_distance(base, law, counts, n)]
    exact = [_moment(law, k) for k in range(2 * moments + 1)] if moments else []
    for k in range(1, moments + 1):
        z_score = (sums[k - 1] / n - exact[k]) / math.sqrt((exact[2 * k] - exact[k] ** 2) / n)
        found.append(Check(repr(base), f"moment {k}", z_score, _two_sided(z_score)))
    return found


@cache
def _moment(law: Any, k: int) -> float:
    """E[zᵏ], by quadrature on either side of the median, where Laplace's density has its kink."""
    mean, deviation = law.mean(), law.std()
    ends = (law.support()[0], law.median(), law.support()[1])
    with np.errstate(over="ignore"):  # scipy's Gumbel, far below, has e^(−∞) on its way to 0
        return sum(
            integrate.quad(lambda x: ((x - mean) / deviation) ** k * law.pdf(x), low, high, epsabs=1e-11, epsrel=1e-10)[0]
            for low, high in pairwise(ends)
        )


def _bin(x: Tensor) -> np.ndarray[Any, Any]:
    """The number of a float's bin among 2²³, in the order of floats: the bits of negative ones run the other way."""
    bits = x.numpy().view(np.int32)
    return ((bits ^ (bits >> 31 & 0x7FFFFFFF)) >> 9) + (1 << 22)


def _upper_edge(bins: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The largest float of each bin."""
    keys = (((bins - (1 << 22)) << 9) | 511).astype(np.int32)
    return (keys ^ (keys >> 31 & 0x7FFFFFFF)).view(np.float32).astype(np.float64)


def _distance(base: Base, law: Any, counts: np.ndarray[Any, Any], n: int) -> Check:
    used = np.flatnonzero(counts)
    edges = np.union1d(used, used - 1)  # on both sides of every bin that has a number
    difference = counts.cumsum()[edges] / n - law.cdf(_upper_edge(edges))
    distance = float(np.abs(difference).max())
    p = float(special.kolmogorov(math.sqrt(n) * distance))
    return Check(repr(base), "Kolmogorov–Smirnov D", distance, _either_end(p, 1 - p))


# Independence.


def place_checks(generator: Generator, size: Size) -> list[Check]:
    found = []
    for name, feature in FEATURES.items():
        spectrum = torch.zeros(size.block // 2 + 1, dtype=torch.float64)
        for block in range(size.blocks):
            x = generator(Normal(), size.block, Counter(), block * size.block)
            spectrum += torch.fft.rfft(feature(x)).abs().square().double()
        z = torch.fft.irfft(spectrum) / math.sqrt(size.block * size.blocks)
        found += _largest(f"places, {name}", z[1 : size.block // 2], [shift - 1 for shift in NEAR])
    return found


def shifted_checks(generator: Generator, size: Size, counter: str) -> list[Check]:
    found = []
    for name, feature in FEATURES.items():
        cross = torch.zeros(size.block // 2 + 1, dtype=torch.complex128)
        before: Tensor | None = None
        for block in range(size.blocks):
            x = generator(Normal(), size.block, Counter().moved(counter, block), 0)
            spectrum = torch.fft.rfft(feature(x))
            if before is not None:
                cross += spectrum * before.conj()
            before = spectrum
        z = torch.fft.irfft(cross) / math.sqrt(size.block * (size.blocks - 1))
        what = f"{counter}s shifted, {name}"
        found.append(Check(repr(Normal()), f"{what}, shift 0", float(z[0]), _two_sided(float(z[0]))))
        found += _largest(what, z, [*NEAR, *(-shift for shift in NEAR)])
    return found


def series_checks(generator: Generator, size: Size, counter: str) -> list[Check]:
    width = size.block * size.blocks // size.length
    rows = torch.empty(size.length, width)
    for term in range(size.length):
        rows[term] = generator(Normal(), width, Counter().moved(counter, term), 0)
    found = []
    for name, feature in FEATURES.items():
        spectrum = torch.zeros(size.length // 2 + 1, dtype=torch.float64)
        for columns in rows.split(64, dim=1):
            spectrum += torch.fft.rfft(feature(columns.T.contiguous())).abs().square().double().sum(0)
        z = torch.fft.irfft(spectrum) / math.sqrt(size.length * width)
        near = [shift - 1 for shift in NEAR if shift < size.length // 2]
        found += _largest(f"{counter}s series, {name}", z[1 : size.length // 2], near)
    return found


def pair_checks(generator: Generator, size: Size) -> list[Check]:
    def blocks(base: Base, step: int = 0) -> Iterator[Tensor]:
        for block in range(size.blocks):
            yield generator(base, size.block, Counter(step=step), block * size.block)

    def rows(u: Tensor) -> tuple[Tensor, Tensor]:
        """Places that are eight apart: of a Normal, the two coordinates of a point."""
        groups = u.view(-1, 4, 8)
        return groups[:, 0::2], groups[:, 1::2]

    flat, normal = Uniform(1.0), Normal()
    u, v = ((x / 2 + 0.5 for x in blocks(flat)) for _ in range(2))
    steps = (tuple(x / 2 + 0.5 for x in both) for both in zip(blocks(flat), blocks(flat, step=1), strict=True))
    turns = (rows(torch.special.ndtr(x)) for x in blocks(normal))
    return [
        _chi_square(flat, "neighbouring places", ((x[0::2], x[1::2]) for x in u)),
        _chi_square(flat, "neighbouring rows", map(rows, v)),
        _chi_square(flat, "consecutive steps", steps),
        _chi_square(normal, "neighbouring rows", turns),
    ]


def _chi_square(base: Base, name: str, pairs: Iterable[tuple[Tensor, ...]]) -> Check:
    cells = 256
    counts = torch.zeros(cells * cells, dtype=torch.int64)
    for pair in pairs:
        row, column = ((u.flatten() * cells).to(torch.int64).clamp_(0, cells - 1) for u in pair)
        counts += torch.bincount(row * cells + column, minlength=cells * cells)
    expected = float(counts.sum()) / counts.numel()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    law = stats.chi2(counts.numel() - 1)
    return Check(repr(base), f"χ² of pairs, {name}", statistic, float(_either_end(law.sf(statistic), law.cdf(statistic))))


def _either_end(above: float, below: float) -> float:
    """Too good is as suspect as too bad."""
    return min(1.0, 2 * min(above, below))


def _largest(what: str, z: Tensor, near: list[int]) -> list[Check]:
    """The largest |z| near and of all, with the chance of one as large among as many independent ones (Šidák)."""
    found = []
    for where, some in (("near", z[near]), ("all", z)):
        largest = float(some.abs().max())
        p = -math.expm1(some.numel() * math.log1p(-min(_two_sided(largest), 1 - 1e-16)))
        found.append(Check(repr(Normal()), f"{what}, {where}: largest |z| of {some.numel():,}", largest, p))
    return found


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


# Generators with a fault.


def plain_hash(base: Base, count: int, counter: Counter, start: int = 0) -> Tensor:
    """A good hash of step + place: each step has the numbers of the one before, shifted by one place."""
    x = np.arange(start + counter.step, start + counter.step + count, dtype=np.uint64).astype(np.uint32)
    x += np.uint32((counter.seed * 0x9E3779B1 + counter.tensor * 0x85EBCA77 + counter.stream * 0xC2B2AE3D) % 2**32)
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):  # Wellons' triple32
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    u = (torch.from_numpy((x ^ x >> np.uint32(14)).astype(np.float64)) + 0.5) * 2.0**-32
    return (torch.special.ndtri(u) if isinstance(base, Normal) else 2 * u - 1).float()


def forgetting(generator: Generator, name: str) -> Generator:
    """The same numbers for every tensor, or step, stream, seed."""
    return lambda base, count, counter, start: generator(base, count, counter._replace(**{name: 7}), start)


def repeating(generator: Generator, period: int) -> Generator:
    """A generator whose chunks are all seeded alike."""
    return lambda base, count, counter, start: generator(base, period, counter, 0).repeat(-(-count // period))[:count]


def stretched(generator: Generator, factor: float) -> Generator:
    return lambda base, count, counter, start: generator(base, count, counter, start) * factor


def controls(generator: Generator, size: Size) -> dict[str, list[Check]]:
    base, law, moments = LAWS[0]
    found = {
        "a plain hash of step + place": independence_checks(plain_hash, size),
        "the same chunk of 2,048 again and again": place_checks(repeating(generator, 2048), size),
        "numbers 1% too large": distribution_checks(stretched(generator, 1.01), size, base, law, moments),
    }
    for name in COUNTERS:
        found[f"the same numbers for every {name}"] = shifted_checks(forgetting(generator, name), size, name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1e6 numbers instead of 1e8")
    parser.add_argument("--output", type=Path, default=Path("results/noise/statistics.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if arguments.quick else FULL
    content: dict[str, Any] = {
        "command": ["python", "benchmarks/noise_statistics.py", *(["--quick"] if arguments.quick else [])],
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {module.__name__: module.__version__ for module in (torch, np, scipy)},
        "machine": platform.machine(),
        "kernel": native.describe(),
        "numbers": size.block * size.blocks,
        "level": LEVEL,
        "sources": {},
        "controls": {},
    }

    def summary(kind: str, name: str, found: list[Check]) -> None:
        worst, rejected = least(found)
        content[kind][name] = {
            "rejected": rejected, "checks": len(found), "bound": LEVEL / len(found),
            "least": worst._asdict(), "below_0.01": sum(check.p < 0.01 for check in found),
        }  # fmt: skip
        verdict = "rejected" if rejected else "passes"
        print(f"{name}: {verdict}; least p of {len(found)}: {worst.p:.2g} ({worst.base}, {worst.test})", flush=True)

    for source in SOURCES:
        found = checks(from_kernel(source), size, lambda what: print(f"  {what}", flush=True))
        summary("sources", source, found)
        content["sources"][source]["all"] = [check._asdict() for check in found]
    for name, found in controls(from_kernel("xoshiro"), QUICK).items():
        summary("controls", name, found)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
