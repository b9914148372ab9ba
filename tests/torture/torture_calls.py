"""The public API with arguments made from its signatures by hypothesis: it works, and is right, or says what is wrong.

Half of the calls build an optimizer from sound settings, or fit a quadratic, and must train: finite weights, the same with the
kernel and without, predictions that sum to one, a file that gives the posterior back. The others call any public function,
class or method with whatever its annotations allow, and with what they do not: an error must be one in words.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import types
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
import typing_extensions
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from support.damage import in_words, time_limit
from support.posteriors import Net, X, Y, assert_same, positive, posterior_of
from support.problems import closure_for
from torch import Tensor, distributions

import liebayes as lb
import liebayes.optim.settings
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
    Tensor: tensors | st.sampled_from([torch.eye(3)[Y], Y, X, X.square() + 0.1, X[:, 0], X[:, 1].square() + 0.1]),
    Base: st.sampled_from([*REAL_LINE, *HALF_LINE, bases.Cauchy(0.1), bases.Dirac()]),
    LieGroup: st.sampled_from(GROUPS),
    Chart: st.sampled_from([groups.Positive(), groups.Interval(0.0, 1.0), groups.Simplex()]),
    Metric: st.sampled_from([lb.Absorbed(), lb.Fisher(), lb.Adaptive()]),
    Path: st.just(Path("nowhere")),
    torch.dtype: st.sampled_from([torch.float32, torch.long]),
}


def small_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "params": st.builds(lambda: [torch.nn.Parameter(torch.ones(3))]),
    "loss": st.just(lambda theta, *more: (theta - 1).square().sum()),
    "start": tensors,
    "inputs": st.just(X),
    "batches": st.just([(X, Y)]),
    "loader": st.just([X]),
    "weights": st.builds(lambda: dict(posterior_of(Net()).mean())) | st.just({}),
    "other": st.builds(lambda: posterior_of(Net())),
    "generator": st.none(),
    "model": st.builds(small_network),
    "network": st.builds(small_network),
    "distribution": st.builds(distributions.Normal, st.floats(-2, 2), st.floats(0.1, 3)),
    "magnitudes": st.just({}),
    "others": st.just({"lr": 0.1}),
    "device": st.sampled_from([None, "cpu"]),
}
OBJECTS = {"params", "loss", "batches", "loader", "other", "generator", "device", "model", "network", "distribution"}
"""Arguments whose kind Python or torch itself minds."""


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


OUTSIDE = {
    "groups.LieGroup", "groups.Chart", "bases.Base", "bases.Support", "groups.Joint", "metrics.Statistic",
    "nn.Signed", "nn.SignConstraint", "nn.PlusMinus", "nn.SplitParameters",
    "groups.blocks_of", "groups.map_blocks", "groups.with_blocks", "groups.scale_of", "groups.expm1_ratio",
}  # fmt: skip
"""Interfaces, results, and pieces of groups, which take what they are given."""
METHODS = {
    lb.Posterior: (
        "predict", "free_energy", "recompute_statistics", "to", "pruned", "centred_at", "log_prob", "sample", "merged",
        "counted",
    ),
    lb.Family: ("summary", "diagnose"),
    Base: ("scaled",),
}
"""Of instances, those that take numbers, texts and data of the user's."""


@functools.cache
def public() -> dict[str, Callable[..., Any]]:
    """Functions, classes and methods that users call."""
    found: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in OPTIMIZERS} | {"fit": lb.fit}
    for room in (groups, bases, metrics, nn):
        for name in room.__all__:
            value = getattr(room, name)
            if callable(value) and not inspect.isabstract(value) and not (inspect.isclass(value) and issubclass(value, tuple)):
                found[f"{room.__name__.rpartition('.')[2]}.{name}"] = value
    posterior = posterior_of(Net())
    instances = [posterior, next(iter(posterior.families.values())), *REAL_LINE, *HALF_LINE]
    for instance in instances:
        names = next(names for kind, names in METHODS.items() if isinstance(instance, kind))
        found |= {f"{type(instance).__name__}.{name}": getattr(instance, name) for name in names}
    return {name: value for name, value in sorted(found.items()) if name not in OUTSIDE}


@functools.cache
def arguments_of(function: Callable[..., Any]) -> dict[str, tuple[bool, st.SearchStrategy[Any] | None]]:
    """For every argument whether it may be left out, and what it may be."""
    plain = function.__init__ if inspect.isclass(function) else function
    known = vars(typing_extensions) | vars(lb.optim.settings)
    try:
        hints = typing.get_type_hints(plain, localns=known)
    except (NameError, TypeError):
        hints = {}
    found = {}
    for name, parameter in inspect.signature(plain).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and get_args(hints.get(name)):
            options = typing.get_type_hints(get_args(hints[name])[0], localns=known)
            found |= {option: (True, strategy(annotation)) for option, annotation in options.items()}
        elif name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            optional = parameter.default is not parameter.empty
            hint = hints.get(name, Any)
            known_by_kind = get_origin(hint) is Literal or hint is Tensor
            found[name] = optional, strategy(hint) if known_by_kind else BY_NAME.get(name) or strategy(hint)
    return found


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Something public, and arguments by name."""
    name = draw(st.sampled_from(list(public())))
    function = public()[name]
    arguments: dict[str, Any] = {}
    for argument, (optional, fitting) in arguments_of(function).items():
        if fitting is None and not optional:  # an object such as a module: one of another kind is Python's own affair
            reject()
        if fitting is not None and not (optional and draw(st.integers(0, 3)) > 0):
            junk = argument not in OBJECTS and draw(st.integers(0, 5)) == 0
            arguments[argument] = draw(JUNK if junk else fitting)
    return name, function, arguments


@st.composite
def sound(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """An optimizer, or `fit`, and settings that must train."""
    kind = draw(st.sampled_from([*OPTIMIZERS, lb.fit]))
    if kind is lb.fit:
        return kind, draw(sound_fits())
    small = {"data_size": st.integers(10, 1000), "seed": st.integers(0, 1 << 40), "mc_samples": st.integers(1, 3)}
    more: dict[str, Any] = {
        "momentum": st.floats(0, 0.95), "prior": st.floats(0.01, 2.0), "foreach": st.booleans(), "maximize": st.just(False),
        "temperature": st.floats(0.01, 1.0), "max_step": st.floats(0.05, 0.5), "initial_scale": st.floats(0.5, 2.0),
        "nonfinite": st.sampled_from(["raise", "skip"]), "noise": st.sampled_from(["philox", "torch"]),
        "width_rate": st.floats(1e-3, 0.1), "start_width": st.floats(1e-3, 0.1), "max_side": st.integers(1, 10),
    }  # fmt: skip
    chosen = {name: draw(values) for name, values in small.items()} | {"lr": draw(st.floats(1e-3, 0.1))}
    without: set[str] = set()
    if kind is lb.MultiplicativeBLR:
        chosen["base"] = draw(st.sampled_from(HALF_LINE))
    elif kind is lb.AdditiveBLR or (kind is lb.AffineBLR and draw(st.booleans())):  # as the paper prints them
        chosen["base"] = draw(st.sampled_from(REAL_LINE))
        chosen["metric"] = draw(st.sampled_from([lb.Absorbed(), lb.Adaptive()]))
        without = {"width_rate", "start_width"}
    elif kind is lb.AffineBLR:
        chosen["curvature"] = "gauss-newton"
        without = {"max_step", "initial_scale"}
    elif kind is lb.LieGroupBLR:
        chosen["group"] = draw(st.sampled_from(GROUPS[:3]))
        chosen["base"] = draw(st.sampled_from(HALF_LINE if chosen["group"].positive else REAL_LINE))
        chosen["max_step"] = 0.2
        without = {"width_rate", "start_width", "temperature"}
    accepted = arguments_of(kind).keys() - chosen.keys() - without
    return kind, chosen | {name: draw(values) for name, values in more.items() if name in accepted and draw(st.booleans())}


@st.composite
def sound_fits(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a fit to a quadratic."""
    chosen: dict[str, Any] = {"group": draw(st.sampled_from([groups.DiagonalAffine(), groups.TriangularAffine()]))}
    chosen["base"] = draw(st.sampled_from([bases.Normal(), bases.Laplace(0.5), bases.StudentT(5.0)]))
    chosen["start"] = torch.zeros(draw(st.integers(1, 4)))
    more = {
        "lr": st.floats(0.01, 0.3), "momentum": st.floats(0, 0.9), "temperature": st.floats(0.1, 2.0),
        "samples": st.integers(1, 8), "antithetic": st.booleans(), "seed": st.integers(0, 1 << 40),
        "schedule": st.sampled_from(["cosine", "constant"]), "vectorize": st.booleans(), "max_step": st.floats(0.1, 0.5),
        "initial_scale": st.floats(0.1, 2.0), "entropy": st.sampled_from(["auto", "exact", "samples"]),
    }  # fmt: skip
    chosen |= {name: draw(values) for name, values in more.items() if draw(st.booleans())}
    return chosen | {"steps": draw(st.integers(5, 30))}


class Campaign:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.file = folder / "q.safetensors"

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
            train(*what, self.file)
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


def train(kind: Any, chosen: dict[str, Any], file: Path) -> None:
    """Trains with the kernel and without; what is learned is finite, the same, and survives a file."""
    if kind is lb.fit:
        q = lb.fit(lambda theta: 0.5 * (theta - 1).square().sum(), **chosen)
        assert bool(q.mean.isfinite().all() and q.stddev.isfinite().all() and (q.stddev > 0).all()), "the fit is not finite"
        return
    ends = []
    for there in (True, False):
        with kernel(there):
            model: Any = Net()
            if kind is lb.MultiplicativeBLR or isinstance(chosen.get("group"), groups.Multiplicative):
                positive(model)
            model.drop.p = 0.0
            if kind is baselines.VOGN:  # per-example gradients know no statistics of batches, and no weight used twice
                model.norm, model.again = torch.nn.Identity(), torch.nn.Linear(4, 4)
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
    posterior.save(file)
    assert_same(posterior, type(posterior).load(file, model))
