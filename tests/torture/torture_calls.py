"""The public API with arguments made from its signatures by hypothesis: it works, and is right, or says what is wrong.

Half of the cases build an optimizer from sound settings, which must train: finite weights, the same with the kernel and
without, predictions that sum to one, a file that gives the posterior back. The others call any public function or class with
whatever its annotations allow, and with what they do not: an error must be one in words.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
import types
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from support.damage import in_words, time_limit
from support.posteriors import Net, X, Y, assert_same, positive
from support.problems import closure_for
from torch import Tensor

import liebayes as lb
from liebayes import baselines, bases, groups, metrics, native, nn
from liebayes.bases import Base
from liebayes.groups import Chart, LieGroup
from liebayes.rule import Metric

UNIT, GOAL = "calls", 10_000
LIMIT = 60
"""Seconds for one call."""
BATCH = 20
"""Calls of one case."""
REAL_LINE = [bases.Normal(0.1), bases.Laplace(0.1), bases.Uniform(0.1), bases.StudentT(5.0, 0.1), bases.Gumbel(0.1)]
HALF_LINE = [bases.Rayleigh(), bases.Exponential(), bases.LogNormal(0.5)]
GROUPS = [groups.Additive(), groups.Multiplicative(), groups.DiagonalAffine(), groups.Affine(), groups.TriangularAffine(),
          groups.Kronecker(), groups.LowRankAffine(2)]  # fmt: skip
OPTIMIZERS = [
    lb.AdditiveBLR, lb.MultiplicativeBLR, lb.AffineBLR, lb.KroneckerBLR, lb.LieGroupBLR, baselines.IVON, baselines.VOGN,
]  # fmt: skip
JUNK = st.sampled_from(
    [None, "", "x", -1, 0, 10**30, 10**400, -0.5, float("nan"), float("inf"), [], {}, (), True, b"x", object, 1j, len]
)

# Strategies from annotations.

shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(
    lambda shape, dtype, offset: (torch.arange(max(1, int(torch.tensor(shape or [1]).prod())))[: torch.Size(shape).numel()]
                                  .reshape(shape).to(torch.float64) * 0.3 + offset).to(dtype),
    shapes, st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.long, torch.bool]),
    st.sampled_from([0.0, -1.0, 0.5, float("nan"), 1e38]),
)  # fmt: skip
KNOWN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-3, 50),
    float: st.floats(1e-4, 2.0) | st.floats(),
    bool: st.booleans(),
    str: st.sampled_from(["Normal(0.1)", "cosine", "none", "", "mean", "lower", "a"]) | st.text(max_size=8),
    type(None): st.none(),
    Tensor: tensors,
    Base: st.sampled_from([*REAL_LINE, *HALF_LINE, bases.Cauchy(0.1), bases.Dirac()]),
    LieGroup: st.sampled_from(GROUPS),
    Chart: st.sampled_from([groups.Positive(), groups.Interval(0.0, 1.0), groups.Simplex()]),
    Metric: st.sampled_from([lb.Absorbed(), lb.Fisher(), lb.Adaptive()]),
    Path: st.just(Path("nowhere")),
    torch.dtype: st.sampled_from([torch.float32, torch.long]),
}


def strategy(annotation: Any) -> st.SearchStrategy[Any] | None:
    """What an annotation allows, as far as this file knows it."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(inside)
    if origin in (typing.Union, types.UnionType):
        found = [values for values in map(strategy, inside) if values is not None]
        return st.one_of(*found) if found else None
    if annotation in KNOWN or origin in KNOWN:
        return KNOWN[annotation if annotation in KNOWN else origin]
    if origin in (tuple, list, Sequence) and inside:
        entries = strategy(inside[0])
        return None if entries is None else st.lists(entries, max_size=3).map(tuple)
    return None


def public() -> dict[str, Callable[..., Any]]:
    """Functions and classes that users call, beside optimizers."""
    found: dict[str, Callable[..., Any]] = {}
    for room in (groups, bases, metrics, nn):
        for name in room.__all__:
            value = getattr(room, name)
            if callable(value) and not inspect.isabstract(value) and not (inspect.isclass(value) and issubclass(value, tuple)):
                found[f"{room.__name__.rpartition('.')[2]}.{name}"] = value
    return {name: value for name, value in found.items() if name not in OUTSIDE}


OUTSIDE = {
    "groups.LieGroup", "groups.Chart", "bases.Base", "bases.Support", "groups.Joint", "metrics.Statistic",
    "nn.Signed", "nn.SignConstraint", "nn.PlusMinus", "nn.SplitParameters",
    "groups.blocks_of", "groups.map_blocks", "groups.with_blocks", "groups.scale_of", "groups.expm1_ratio",
}  # fmt: skip
"""Interfaces, results, and pieces of groups, which take what they are given."""


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """A function or an optimizer, and arguments by name."""
    functions = public() | {kind.__name__: kind for kind in OPTIMIZERS}
    name = draw(st.sampled_from(sorted(functions)))
    function = functions[name]
    try:
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (NameError, TypeError):
        hints = {}
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        optional = parameter.default is not parameter.empty
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or (optional and draw(st.integers(0, 3)) > 0):
            continue
        if parameter.name == "params":
            arguments["params"] = [torch.nn.Parameter(torch.ones(3))]
            continue
        fitting = strategy(hints.get(parameter.name, Any))
        if fitting is not None:
            arguments[parameter.name] = draw(JUNK if draw(st.integers(0, 5)) == 0 else fitting)
        elif not optional:  # an object such as a module: one of another kind is Python's own affair
            reject()
    return name, function, arguments


@st.composite
def sound(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """An optimizer and settings that must train."""
    kind = draw(st.sampled_from(OPTIMIZERS))
    small = {"data_size": st.integers(10, 1000), "seed": st.integers(0, 1 << 40), "mc_samples": st.integers(1, 3)}
    more: dict[str, Any] = {
        "lr": st.floats(1e-3, 0.1), "momentum": st.floats(0, 0.95), "prior": st.floats(0, 2.0), "foreach": st.booleans(),
        "temperature": st.floats(0.01, 1.0), "max_step": st.floats(0.05, 0.5), "initial_scale": st.floats(0.5, 2.0),
        "nonfinite": st.sampled_from(["raise", "skip"]), "noise": st.sampled_from(["philox", "torch"]),
    }  # fmt: skip
    accepted = {*inspect.signature(kind).parameters, "foreach", "nonfinite", "noise"}
    chosen = {name: draw(values) for name, values in small.items()}
    chosen["lr"] = draw(more.pop("lr"))
    chosen |= {name: draw(values) for name, values in more.items() if name in accepted and draw(st.booleans())}
    if kind is lb.MultiplicativeBLR:
        chosen["base"] = draw(st.sampled_from(HALF_LINE))
    elif kind in (lb.AdditiveBLR, lb.AffineBLR):
        chosen["base"] = draw(st.sampled_from(REAL_LINE))
        chosen["metric"] = draw(st.sampled_from([lb.Absorbed(), lb.Adaptive()]))
    elif kind is lb.LieGroupBLR:
        positive_only = draw(st.booleans())
        chosen["group"] = groups.Multiplicative() if positive_only else draw(st.sampled_from(GROUPS[::2][:2]))
        chosen["base"] = draw(st.sampled_from(HALF_LINE if positive_only else REAL_LINE))
        chosen.setdefault("max_step", 0.2)
        if positive_only is False and isinstance(chosen["group"], groups.Additive):
            chosen["temperature"] = 1.0
    return kind, chosen


class Campaign:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)

    def case(self, number: int) -> Counter[str]:
        """A batch of calls, half of them sound."""
        counts: Counter[str] = Counter()
        plain = settings(
            max_examples=BATCH // 2, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        )  # fmt: skip

        @seed(number)
        @plain
        @given(calls())
        def fuzzed(what: Any) -> None:
            counts.update({"calls": 1, try_call(*what): 1})

        @seed(number)
        @plain
        @given(sound())
        def trained(what: Any) -> None:
            train(*what)
            counts.update({"calls": 1, "trained": 1})

        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            fuzzed()
            trained()
        return counts


def try_call(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Whether a call was refused, in words, or taken."""
    try:
        with time_limit(LIMIT):
            function(**arguments)
    except Exception as error:
        if in_words(error):
            return "refused"
        raise AssertionError(f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())}) raised a raw error") from error
    return "taken"


@contextlib.contextmanager
def kernel(there: bool) -> Iterator[None]:
    available = native.available
    native.available = available if there else lambda: False
    try:
        yield
    finally:
        native.available = available


def train(kind: Any, chosen: dict[str, Any]) -> None:
    """Trains with the kernel and without; what is learned is finite, the same, and survives a file."""
    ends = []
    for there in (True, False):
        with kernel(there):
            model: Any = Net()
            if kind is lb.MultiplicativeBLR or isinstance(chosen.get("group"), groups.Multiplicative):
                positive(model)
            model.drop.p = 0.0
            if kind is baselines.VOGN:  # per-example gradients know no statistics of batches
                model.norm = torch.nn.Identity()
            optimizer = kind([p for p in model.parameters() if p.requires_grad], **chosen)
            for _ in range(3):
                optimizer.step(closure_for(optimizer, model, X, Y))
            ends.append([p.detach().clone() for p in model.parameters()])
            posterior = optimizer.posterior(model)
    assert all(bool(p.isfinite().all()) for p in ends[0]), "weights are not finite"
    if chosen.get("noise") is not None:
        for one, other in zip(*ends, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    found = posterior.predict(X, 2).probabilities
    torch.testing.assert_close(found.sum(1), torch.ones(len(X)), rtol=0, atol=1e-5)
    with tempfile.TemporaryDirectory() as place:
        posterior.save(Path(place) / "q")
        assert_same(posterior, type(posterior).load(Path(place) / "q", model))
