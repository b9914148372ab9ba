"""The reference stream: its words against published answers and an oracle, its numbers against their distributions."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from support.noise import STREAMED
from support.registry import BASES
from torch import Tensor

from liebayes import bases
from liebayes.bases import Base, Normal, StudentT, Uniform, philox

COUNT = 200_000

LAWS: list[tuple[Base, Any]] = [
    *((case.base, case.scipy) for case in BASES if philox.supports(case.base)),
    (StudentT(0.7), stats.t(0.7)),
]


def noise(base: Base, count: int = COUNT, **counter: int) -> Tensor:
    return philox.draw(base, count, **({"seed": 7, "tensor": 3, "step": 11, "stream": 1} | counter))


# Words.


def oracle_philox(counter: list[int], key: list[int]) -> list[int]:
    """As the paper has it (Salmon et al. 2011, Sec. 3.3), on plain integers."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second // 2**32) ^ counter[1] ^ key[0],
            second % 2**32,
            (first // 2**32) ^ counter[3] ^ key[1],
            first % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def oracle_word(i: int, seed: int, tensor: int, step: int, stream: int) -> int:
    q, j, lane = i // 32, i % 32 // 8, i % 8
    return oracle_philox([8 * q + lane, tensor, step, stream], [seed % 2**32, seed // 2**32])[j]


ALL = 0xFFFFFFFF
ANSWERS = [  # of Random123's kat_vectors: counter, key, words
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ALL] * 4, [ALL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), ANSWERS)
def test_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert oracle_philox(counter, key) == answer
    assert list(philox.philox(tuple(counter), tuple(key))) == answer  # type: ignore[arg-type]
    in_torch = philox.philox(tuple(torch.tensor([number]) for number in counter), tuple(key))  # type: ignore[arg-type]
    assert [int(w) for w in in_torch] == answer


@pytest.mark.parametrize(
    ("seed", "tensor", "step", "stream"),
    [(0, 0, 0, 0), (2**40 + 12345, 5, 1000, 3), (2**64 - 1, 2**31 + 7, 2**32 - 1, 2**32 - 1)],
)
def test_words_are_those_of_the_oracle(seed: int, tensor: int, step: int, stream: int) -> None:
    found = philox.words(333, seed=seed, tensor=tensor, step=step, stream=stream).tolist()
    assert found == [oracle_word(i, seed, tensor, step, stream) for i in range(333)]


def test_far_elements() -> None:
    """The first counter has 32 bits, so that a tensor may have 2³⁴ elements and no more."""
    last = 2**34
    found = philox.words(70, start=last - 70, seed=1, tensor=2, step=3, stream=4).tolist()
    assert found == [oracle_word(i, 1, 2, 3, 4) for i in range(last - 70, last)]
    with pytest.raises(ValueError, match="2³⁴"):
        philox.words(71, start=last - 70, seed=1, tensor=2, step=3, stream=4)


@pytest.mark.parametrize("base", [base for base, _ in LAWS], ids=repr)
def test_a_part_is_a_part_of_the_whole(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise(base, 1000)
    for count in (0, 1, 8, 31, 32, 33, 999):
        assert torch.equal(noise(base, count), whole[:count])
    for start, count in ((5, 20), (30, 5), (32, 64), (64, 1), (17, 983)):
        assert torch.equal(noise(base, count, start=start), whole[start : start + count])
    monkeypatch.setattr(philox, "_PIECE", 3)  # not a matter of how much is worked on at once
    assert torch.equal(noise(base, 1000), whole)


# Numbers.


def oracle_u(w: int) -> float:
    exact = torch.tensor(float(w % 2**31), dtype=torch.float32)
    return min(float((exact + torch.tensor(0.5)) / 2**31), 1 - 2.0**-24)


def signed(w: int) -> int:
    return w - 2**32 if w >= 2**31 else w


def oracle_normal(i: int, word: Callable[[int], int]) -> float:
    above = i - 8 if i % 16 >= 8 else i  # rows 0 and 2 have the radius, the row below the angle
    r = math.sqrt(-2 * math.log(oracle_u(word(above))))
    phi = math.pi * signed(word(above + 8)) / 2**31
    return r * (math.cos(phi) if above == i else math.sin(phi))


def oracle_number(base: Base, i: int, word: Callable[[int], int], second: Callable[[int], int]) -> float:
    u, sign = oracle_u(word(i)), -1 if word(i) >= 2**31 else 1
    match base:
        case bases.Normal(scale):
            return scale * oracle_normal(i, word)
        case bases.LogNormal(sigma, mu):
            return math.exp(sigma * oracle_normal(i, word) + mu)
        case bases.Laplace(scale):
            return -scale * sign * math.log(u)
        case bases.Uniform(half_width):
            return half_width * signed(word(i)) / 2**31
        case bases.Cauchy(scale):
            return scale * sign / math.tan(math.pi / 2 * u)
        case bases.StudentT(df, scale):
            t = math.sqrt(df * math.expm1(-2 / df * math.log(u))) * math.cos(math.pi * signed(second(i)) / 2**31)
            return scale * t
        case bases.Gumbel(scale):
            return -scale * math.log(-math.log(u))
        case bases.Rayleigh(scale):
            return scale * math.sqrt(-2 * math.log(u))
        case bases.Exponential(scale):
            return -scale * math.log(u)
        case _:
            return 0.0


@pytest.mark.parametrize("base", STREAMED, ids=repr)
def test_numbers_are_those_of_the_oracle(base: Base) -> None:
    seed, tensor, step, stream = 2**33 + 9, 4, 21, 2
    found = philox.draw(base, 150, seed=seed, tensor=tensor, step=step, stream=stream)
    expected = [
        oracle_number(
            base,
            i,
            lambda i: oracle_word(i, seed, tensor, step, stream),
            lambda i: oracle_word(i, seed, tensor + 2**31, step, stream),
        )
        for i in range(150)
    ]
    assert found.dtype == torch.float32
    # The uniform base rounds three times, all others once.
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=2.0**-22, atol=0)


def test_extreme_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """u is within (0, 1), so that all logarithms are finite and positive draws positive; signs and angles at their edges."""
    edges = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
    monkeypatch.setattr(philox, "_groups", lambda first, groups, *_: edges.repeat(7)[:groups].view(-1, 1, 1).expand(-1, 4, 8))
    for base, _ in LAWS:
        numbers = noise(base, 5 * 32)
        assert bool(numbers.isfinite().all())
        assert base.support[0] < 0 or bool((numbers > 0).all())
    exact = noise(Uniform(1.0), 5 * 32)[::32]
    assert exact.tolist() == [0.0, 2.0**-31, 1.0, -1.0, -(2.0**-31)]


@pytest.mark.parametrize(("base", "law"), [pytest.param(*pair, id=repr(pair[0])) for pair in LAWS])
def test_distribution(base: Base, law: Any) -> None:
    """Kolmogorov–Smirnov: in the limit P(√n·D > x) = 2e^(−2x²), which is 1e-5 at 2.5."""
    numbers = noise(base).double().numpy()
    assert stats.kstest(numbers, law.cdf).statistic < 2.5 / math.sqrt(COUNT)
    for row in range(4):  # every row of a group on its own
        rows = numbers.reshape(-1, 4, 8)[:, row].ravel()
        assert stats.kstest(rows, law.cdf).statistic < 2.5 / math.sqrt(rows.size)


def test_independence() -> None:
    """Over tensors, steps, streams, seeds and lags, in value and in size: a shared radius would show in the squares."""
    counters = [
        {name: number}
        for name, numbers in {
            "tensor": (0, 1, 2, 2**31 + 3),
            "step": (0, 1, 2, 2**24),
            "stream": (0, 2, 255, 256),
            "seed": (0, 1, 2**32, 2**32 + 7),
        }.items()
        for number in numbers
    ]
    count = 20_000
    rows = torch.stack([noise(Normal(), count, **counter) for counter in counters]).double()
    for values in (rows, rows.square()):
        off = torch.corrcoef(values) - torch.eye(len(counters))
        assert float(off.abs().max()) < 5 / math.sqrt(count)
        for lag in (1, 7, 8, 16, 24, 32, 256):  # lanes, rows, groups
            shifted = torch.corrcoef(torch.cat([values[:, lag:], values[:, :-lag]]))[: len(counters), len(counters) :]
            assert float(shifted.abs().max()) < 5.5 / math.sqrt(count - lag)


class OwnNormal(Normal):
    """May draw in its own way."""


def test_only_the_named_bases() -> None:
    assert len({type(base) for base in STREAMED}) == 10
    for other in (OwnNormal(), bases.from_distribution(torch.distributions.Normal(0.0, 1.0))):
        assert not philox.supports(other)
    with pytest.raises(ValueError, match="own `sample`"):
        noise(OwnNormal())
