"""Pyro's models for `liebayes.fit`: the log joint density as a loss, its latent variables as a start with supports.

`lb.fit(**from_pyro(model, x, y))` fits one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.distributions import constraints

from .. import groups


class Problem(TypedDict):
    """The arguments of `fit` that state the problem."""

    loss: Callable[[dict[str, Tensor]], Tensor]
    start: dict[str, Tensor]
    supports: dict[str, groups.Chart]


def from_pyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Problem:
    """A Pyro model with its data as loss, start and supports: `lb.fit(**from_pyro(model, x, y))`.

    The loss is minus the log joint density of the observations and of the latent variables, which are θ by name, so that minus
    the objective is a lower bound of the log evidence. The start is the origin of each support's chart: 0 for real numbers, 1
    for positive ones, the middle of an interval, equal shares on a simplex.

    Args:
        model: a function with `pyro.sample` statements. Observations are given with `obs=`, or by `pyro.condition`.
        args: what the model is called with.
        kwargs: the same by name.

    Raises:
        ValueError: for latent variables that are discrete, on supports without a chart or with bounds that depend on other
            variables, and for plates that subsample: give the whole data (or see `fit(..., data=..., batch_size=...)`).

    >>> import pyro  # doctest: +SKIP
    >>> def model(y):  # doctest: +SKIP
    ...     width = pyro.sample("width", pyro.distributions.HalfNormal(1.0))
    ...     pyro.sample("y", pyro.distributions.Normal(0.0, width).expand(y.shape).to_event(1), obs=y)
    >>> q = lb.fit(**from_pyro(model, torch.randn(100)))  # doctest: +SKIP
    """
    try:
        import pyro
        from pyro import poutine
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("from_pyro needs Pyro: pip install pyro-ppl") from error

    def loss(theta: dict[str, Tensor]) -> Tensor:
        with pyro.validation_enabled(False):  # its checks read values, which vectorised samples do not have
            trace = poutine.trace(poutine.condition(model, theta)).get_trace(*args, **kwargs)
            return -torch.as_tensor(trace.log_prob_sum())

    charts: dict[str, groups.Chart] = {}
    start: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = (_sites(poutine.trace(model).get_trace(*args, **kwargs)) for _ in range(2))
    held = sorted(name for name, site in first.items() if site["type"] == "param")
    if held:
        warnings.warn(
            f"The model's parameters {held} are held at their present values, since `fit` learns what is sampled. Sample them "
            "from a prior to learn them too.",
            stacklevel=2,
        )
    for name, site in first.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if type(site["fn"]).__name__ == "_Subsample":  # a plate
            if len(site["value"]) < site["fn"].size:
                raise ValueError(f"The plate {name!r} subsamples, so the density changes from call to call. Give all data.")
            continue
        chart = _chart(name, site["fn"].support)
        if name not in second or chart != _chart(name, second[name]["fn"].support):
            raise ValueError(f"The support of {name!r} depends on other variables. Scale one on a fixed support instead.")
        value = site["value"]
        start[name] = chart.from_real(value.new_zeros(chart.real_shape(value)))
        if not isinstance(chart, groups.Real):
            charts[name] = chart
    if not start:
        raise ValueError("The model has no latent variables: every pyro.sample statement is observed.")

    return {"loss": loss, "start": start, "supports": charts}


def _sites(trace: Any) -> dict[str, Any]:
    return dict(trace.nodes)


def _chart(name: str, support: Any) -> groups.Chart:
    """The chart of one of torch's or Pyro's constraints."""
    if isinstance(support, constraints.independent):
        return _chart(name, support.base_constraint)
    kind = type(support).__name__.lstrip("_")
    low, high = (_bound(name, getattr(support, bound, None)) for bound in ("lower_bound", "upper_bound"))
    if kind in ("Real", "RealVector"):
        return groups.Real()
    if kind in ("Interval", "HalfOpenInterval") and low is not None and high is not None:
        return groups.Interval(low, high)
    if kind in ("GreaterThan", "GreaterThanEq") and low is not None:
        return groups.Positive() if low == 0 else groups.LowerBounded(low)
    if kind == "LessThan" and high is not None:
        return groups.UpperBounded(high)
    known: dict[str, groups.Chart] = {
        "Simplex": groups.Simplex(),
        "OrderedVector": groups.Ordered(),
        "CorrCholesky": groups.CorrelationCholesky(),
        "PositiveDefinite": groups.Covariance(),
    }
    if kind in known:
        return known[kind]
    what = "discrete" if support.is_discrete else f"on {support}"
    raise ValueError(f"The variable {name!r} is {what}, for which there is no chart. Sum it out, or transform it.")


def _bound(name: str, bound: Any) -> float | None:
    if bound is None:
        return None
    values = torch.as_tensor(bound, dtype=torch.float64).unique()
    if len(values) != 1:
        raise ValueError(f"The bounds of {name!r} differ from entry to entry. Scale an interval of (0, 1) in the model.")
    return float(values)
