"""Fourteen classical posteriors, each written once: minus the log joint density, up to a constant.

A density takes the array module `m` (torch or jax.numpy), the parameters and the data, and uses only names that both modules
have. Parameters live on supports and begin at plain values: 0, 1, or the middle. Data ship with scikit-learn, unscaled, or are
simulated from a fixed seed; the effects of the eight schools are printed in Rubin (1981).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A posterior over named parameters."""

    about: str
    starts: dict[str, Any]
    supports: dict[str, str]
    """positive, unit (the interval from 0 to 1), ordered or simplex; what is not named is real."""
    loss: Callable[[Any, Arrays, Arrays], Any]
    data: Callable[[], Arrays]
    judged: Callable[[Arrays], Arrays] = lambda draws: draws
    """The quantities whose means and widths are compared; the parameters themselves, unless some have no variance."""


SUPPORTS = {"positive": "positive", "unit": "unit_interval", "ordered": "ordered_vector", "simplex": "simplex", None: "real"}
"""Their names as constraints of Pyro and NumPyro."""


def as_program(model: Model, language: Any, m: Any, starts: Arrays, data: Arrays) -> Callable[[], None]:
    """The density as a model of Pyro or NumPyro, which have the same functions."""
    laws = language.distributions

    def joint() -> None:
        theta = {}
        for name, start in starts.items():
            kind = model.supports.get(name)
            event = kind in ("ordered", "simplex")
            none, shape = start.shape[:0], start.shape
            batch, inner = (none, shape) if event else (shape, none)
            law = laws.ImproperUniform(getattr(laws.constraints, SUPPORTS[kind]), batch, inner)
            theta[name] = language.sample(name, law if event else law.to_event(start.ndim))
        language.factor("joint", -model.loss(m, theta, data))

    return joint


def normal(m: Any, x: Any, mean: Any, sd: Any) -> Any:
    """log N(x; mean, sd²), summed, up to a constant."""
    z = (x - mean) / sd
    return -0.5 * m.sum(z * z) - m.sum(m.log(sd + 0 * z))


def half_cauchy(m: Any, x: Any, scale: float) -> Any:
    """The log density of a half-Cauchy, summed."""
    return -m.sum(m.log1p((x / scale) ** 2))


def half_normal(m: Any, x: Any, scale: float) -> Any:
    """The log density of a half-normal, summed."""
    return -0.5 * m.sum((x / scale) ** 2)


# Eight schools.


def schools() -> Arrays:
    """Estimated effects and their standard errors."""
    return {
        "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
        "error": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
    }


def schools_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Effects in units of their spread."""
    prior = normal(m, t["mu"], 0.0, 5.0) + half_cauchy(m, t["tau"], 5.0) + normal(m, t["z"], 0.0, 1.0)
    return -prior - normal(m, d["y"], t["mu"] + t["tau"] * t["z"], d["error"])


def centred_schools_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Effects themselves."""
    prior = normal(m, t["mu"], 0.0, 5.0) + half_cauchy(m, t["tau"], 5.0) + normal(m, t["theta"], t["mu"], t["tau"])
    return -prior - normal(m, d["y"], t["theta"], d["error"])


# Regressions on data as they come.


def with_ones(x: np.ndarray) -> np.ndarray:
    """A first column of ones."""
    return np.concatenate([np.ones((len(x), 1)), x], 1)


def diabetes() -> Arrays:
    """442 patients, ten measurements in their own units."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return {"x": with_ones(x), "y": y}


def diabetes_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Linear regression with unknown noise."""
    prior = normal(m, t["beta"], 0.0, 1000.0) + half_normal(m, t["sigma"], 100.0)
    return -prior - normal(m, d["y"], d["x"] @ t["beta"], t["sigma"])


def tumours() -> Arrays:
    """569 tumours, five measurements in their own units."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return {"x": with_ones(x[:, [1, 3, 4, 8, 9]]), "y": 1.0 - y}


def tumours_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Logistic regression."""
    eta = d["x"] @ t["beta"]
    likelihood = m.sum(d["y"] * eta - m.logaddexp(0 * eta, eta))
    return -normal(m, t["beta"], 0.0, 100.0) - likelihood


def accidents() -> Arrays:
    """Counts of forty years."""
    random = np.random.default_rng(1)
    year = np.arange(1970.0, 2010.0)
    return {"year": year, "count": random.poisson(np.exp(3.0 - 0.03 * (year - 1990.0))).astype(float)}


def accidents_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Poisson regression on the calendar year: intercept and slope have a correlation of −0.99999."""
    eta = t["intercept"] + t["slope"] * d["year"]
    prior = normal(m, t["intercept"], 0.0, 100.0) + normal(m, t["slope"], 0.0, 1.0)
    return -prior - m.sum(d["count"] * eta - m.exp(eta))


def growth() -> Arrays:
    """Lengths of 27 animals by age."""
    random = np.random.default_rng(2)
    age = np.sort(random.uniform(1.0, 30.0, 27))
    return {"age": age, "length": 2.65 - 0.97 * 0.86**age + 0.09 * random.standard_normal(27)}


def growth_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """A growth curve α − β·γ^age."""
    mean = t["alpha"] - t["beta"] * m.exp(d["age"] * m.log(t["gamma"]))
    prior = normal(m, t["alpha"], 0.0, 100.0) + normal(m, t["beta"], 0.0, 100.0) + half_normal(m, t["sigma"], 1.0)
    return -prior - normal(m, d["length"], mean, t["sigma"])


def houses() -> Arrays:
    """Log radon levels of 200 houses in twelve counties."""
    random = np.random.default_rng(3)
    county = random.integers(0, 12, 200)
    floor = (random.random(200) < 0.2).astype(float)
    level = 1.4 + 0.35 * random.standard_normal(12)
    y = level[county] - 0.7 * floor + 0.75 * random.standard_normal(200)
    return {"member": np.eye(12)[county], "floor": floor, "y": y}


def houses_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Varying intercepts, in units of their spread."""
    level = t["mu"] + t["tau"] * t["z"]
    prior = normal(m, t["mu"], 0.0, 10.0) + normal(m, t["beta"], 0.0, 10.0) + normal(m, t["z"], 0.0, 1.0)
    prior = prior + half_normal(m, t["tau"], 1.0) + half_normal(m, t["sigma"], 1.0)
    return -prior - normal(m, d["y"], d["member"] @ level + t["beta"] * d["floor"], t["sigma"])


# Time series.


def autoregression() -> Arrays:
    """200 values of an AR(3) about 50."""
    random = np.random.default_rng(4)
    y = [0.0, 0.0, 0.0]
    for _ in range(250):
        y.append(0.5 * y[-1] + 0.2 * y[-2] - 0.3 * y[-3] + 2.0 * random.standard_normal())
    return {"y": 50.0 + np.array(y[-200:])}


def autoregression_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """AR(3) with an intercept, given the first three values."""
    y, phi = d["y"], t["phi"]
    mean = t["alpha"] + phi[0] * y[2:-1] + phi[1] * y[1:-2] + phi[2] * y[:-3]
    prior = normal(m, t["alpha"], 0.0, 100.0) + normal(m, phi, 0.0, 1.0) + half_normal(m, t["sigma"], 10.0)
    return -prior - normal(m, y[3:], mean, t["sigma"])


def returns() -> Arrays:
    """300 values of a GARCH(1, 1)."""
    random = np.random.default_rng(5)
    y, variance = [0.0], 1.0
    for _ in range(350):
        variance = 0.3 + 0.25 * y[-1] ** 2 + 0.55 * variance
        y.append(math.sqrt(variance) * random.standard_normal())
    return {"y": 0.2 + np.array(y[-300:])}


def returns_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """GARCH(1, 1): h_t = a₀ + a·e²_(t−1) + b·h_(t−1), all at once by doubling; (a, b, 1 − a − b) on the simplex."""
    e, a, b = d["y"] - t["mu"], t["share"][0], t["share"][1]
    h = t["level"] + a * e[:-1] ** 2
    h = m.concatenate([h[:1] + b * m.mean(d["y"] ** 2), h[1:]])
    reach = 1
    while reach < len(h):  # h has the terms of the last `reach` times
        h = h + b**reach * m.concatenate([0 * h[:reach], h[:-reach]])
        reach *= 2
    prior = normal(m, t["mu"], 0.0, 10.0) + half_normal(m, t["level"], 10.0)
    return -prior - normal(m, e[1:], 0.0, m.sqrt(h))


def chain() -> Arrays:
    """128 values of a hidden Markov chain with two states."""
    random = np.random.default_rng(6)
    state, y = 0, []
    for _ in range(128):
        state = state if random.random() < (0.9, 0.8)[state] else 1 - state
        y.append((0.0, 3.0)[state] + random.standard_normal())
    return {"y": np.array(y)}


def chain_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """The states summed out by products of 2×2 matrices, pair by pair, scaled as they grow."""
    y = d["y"][:, None]
    emission = m.exp(-0.5 * ((y - t["mu"]) / t["sigma"]) ** 2) / t["sigma"] + 1e-300
    stay = t["stay"]
    rows = m.stack([m.stack([stay[0], 1 - stay[0]]), m.stack([1 - stay[1], stay[1]])])
    products, total = rows * emission[:, None, :], 0.0
    while len(products) > 1:
        products = products[0::2] @ products[1::2]
        size = m.sum(m.sum(products, -1), -1)
        products, total = products / size[:, None, None], total + m.sum(m.log(size))
    prior = normal(m, t["mu"], 0.0, 10.0) + half_normal(m, t["sigma"], 5.0) + m.sum(m.log(stay))
    return -prior - total - m.log(m.sum(products))


# Others.


def mixture() -> Arrays:
    """200 values of two normals."""
    random = np.random.default_rng(7)
    second = random.random(200) < 0.4
    return {"y": np.where(second, 2.5 + 0.7 * random.standard_normal(200), -1.0 + 1.2 * random.standard_normal(200))}


def mixture_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Two normals with ordered means."""
    z = (d["y"][:, None] - t["mu"]) / t["sigma"]
    parts = -0.5 * z**2 - m.log(t["sigma"])
    w = t["weight"]
    likelihood = m.sum(m.logaddexp(m.log(w) + parts[:, 0], m.log(1 - w) + parts[:, 1]))
    prior = normal(m, t["mu"], 0.0, 5.0) + half_normal(m, t["sigma"], 2.0) + 4 * (m.log(w) + m.log(1 - w))
    return -prior - likelihood


def curve() -> Arrays:
    """30 noisy values of a smooth curve."""
    random = np.random.default_rng(8)
    x = np.linspace(0.0, 10.0, 30)
    return {
        "y": 2 * np.sin(x) * np.exp(-0.1 * x) + 0.4 * random.standard_normal(30),
        "square": (x[:, None] - x) ** 2,
        "eye": np.eye(30),
    }


def curve_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """A Gaussian process: its length, its height and the noise."""
    kernel = t["height"] ** 2 * m.exp(-0.5 * d["square"] / t["length"] ** 2) + (t["noise"] ** 2 + 1e-8) * d["eye"]
    factor = m.linalg.cholesky(kernel)
    fit = m.linalg.solve(kernel, d["y"])
    prior = -5 * m.log(t["length"]) - 5 / t["length"] + half_normal(m, t["height"], 3.0) + half_normal(m, t["noise"], 1.0)
    return -prior + 0.5 * m.sum(d["y"] * fit) + m.sum(m.log(m.diagonal(factor)))


def nothing() -> Arrays:
    """No data."""
    return {"zero": np.zeros(1)}


def funnel_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """Neal's funnel in ten dimensions."""
    return -normal(m, t["v"], 0.0, 3.0) - normal(m, t["x"], 0.0, m.exp(0.5 * t["v"]))


def sparse() -> Arrays:
    """60 values that depend on two of ten inputs."""
    random = np.random.default_rng(9)
    x = random.standard_normal((60, 10))
    return {"x": x, "y": x[:, 0] * 1.5 - x[:, 1] + random.standard_normal(60)}


def sparse_loss(m: Any, t: Arrays, d: Arrays) -> Any:
    """The horseshoe, coefficients in units of their scales."""
    beta = t["z"] * t["local"] * t["all"]
    prior = normal(m, t["z"], 0.0, 1.0) + half_cauchy(m, t["local"], 1.0) + half_cauchy(m, t["all"], 0.1)
    return -prior - half_normal(m, t["sigma"], 3.0) - normal(m, d["y"], d["x"] @ beta, t["sigma"])


def coefficients(draws: Arrays) -> Arrays:
    """The horseshoe's local scales have no variance: its coefficients and its noise are compared."""
    return {"beta": draws["z"] * draws["local"] * draws["all"][..., None], "sigma": draws["sigma"]}


def _model(loss: Callable[..., Any], data: Callable[[], Arrays], starts: Arrays, **supports: str) -> Model:
    return Model((loss.__doc__ or "").rstrip("."), starts, supports, loss, data)


def zeros(count: int) -> list[float]:
    return [0.0] * count


MODELS: dict[str, Model] = {
    "eight schools": _model(schools_loss, schools, {"mu": 0.0, "tau": 1.0, "z": zeros(8)}, tau="positive"),
    "eight schools, centred": _model(
        centred_schools_loss, schools, {"mu": 0.0, "tau": 1.0, "theta": zeros(8)}, tau="positive"
    ),
    "diabetes": _model(diabetes_loss, diabetes, {"beta": zeros(11), "sigma": 1.0}, sigma="positive"),
    "tumours": _model(tumours_loss, tumours, {"beta": zeros(6)}),
    "accidents": _model(accidents_loss, accidents, {"intercept": 0.0, "slope": 0.0}),
    "growth": _model(
        growth_loss, growth, {"alpha": 0.0, "beta": 0.0, "gamma": 0.5, "sigma": 1.0}, gamma="unit", sigma="positive"
    ),
    "radon": _model(
        houses_loss,
        houses,
        {"mu": 0.0, "beta": 0.0, "tau": 1.0, "sigma": 1.0, "z": zeros(12)},
        tau="positive",
        sigma="positive",
    ),
    "AR(3)": _model(autoregression_loss, autoregression, {"alpha": 0.0, "phi": zeros(3), "sigma": 1.0}, sigma="positive"),
    "GARCH(1, 1)": _model(
        returns_loss, returns, {"mu": 0.0, "level": 1.0, "share": [1 / 3] * 3}, level="positive", share="simplex"
    ),
    "hidden Markov": _model(
        chain_loss,
        chain,
        {"mu": [-1.0, 1.0], "sigma": 1.0, "stay": [0.5, 0.5]},
        mu="ordered",
        sigma="positive",
        stay="unit",
    ),
    "mixture": _model(
        mixture_loss,
        mixture,
        {"mu": [-1.0, 1.0], "sigma": [1.0, 1.0], "weight": 0.5},
        mu="ordered",
        sigma="positive",
        weight="unit",
    ),
    "Gaussian process": _model(
        curve_loss,
        curve,
        {"length": 1.0, "height": 1.0, "noise": 1.0},
        length="positive",
        height="positive",
        noise="positive",
    ),
    "funnel": _model(funnel_loss, nothing, {"v": 0.0, "x": zeros(9)}),
    "horseshoe": Model(
        "The horseshoe, coefficients in units of their scales",
        {"z": zeros(10), "local": [1.0] * 10, "all": 1.0, "sigma": 1.0},
        {"local": "positive", "all": "positive", "sigma": "positive"},
        sparse_loss,
        sparse,
        coefficients,
    ),
}
