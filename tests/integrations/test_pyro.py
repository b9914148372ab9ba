"""`from_pyro`: the loss is minus Pyro's log joint density, written here by hand, and the supports are the model's."""

import warnings

import pytest
import torch
from torch import Tensor

import liebayes as lb
from liebayes.groups import CorrelationCholesky, Interval, LowerBounded, Ordered, Positive, Simplex
from liebayes.integrations.pyro import from_pyro

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pyro = pytest.importorskip("pyro")
    dist = pytest.importorskip("pyro.distributions")

Y = torch.tensor([28.0, 8.0, -3.0, 7.0], dtype=torch.float64)
ERROR = torch.tensor([15.0, 10.0, 16.0, 11.0], dtype=torch.float64)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def schools(y: Tensor, error: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(number(0.0), 5.0))
    spread = pyro.sample("spread", dist.HalfCauchy(number(5.0)))
    with pyro.plate("schools", len(y)):
        z = pyro.sample("z", dist.Normal(number(0.0), 1.0))
        pyro.sample("y", dist.Normal(mean + spread * z, error), obs=y)


def by_hand(t: dict[str, Tensor]) -> Tensor:
    """The same density without Pyro."""
    two_pi = 2 * torch.pi
    value = 0.5 * (t["mean"] / 5) ** 2 + torch.log(number(5 * two_pi**0.5))
    value = value + torch.log1p((t["spread"] / 5) ** 2) - torch.log(number(2 / (torch.pi * 5)))
    value = value + (0.5 * t["z"] ** 2 + 0.5 * torch.log(number(two_pi))).sum()
    residual = (Y - t["mean"] - t["spread"] * t["z"]) / ERROR
    return value + (0.5 * residual**2 + ERROR.log() + 0.5 * torch.log(number(two_pi))).sum()


def test_the_loss_is_the_joint_density() -> None:
    problem = from_pyro(schools, Y, ERROR)
    assert list(problem["start"]) == ["mean", "spread", "z"]
    assert problem["supports"] == {"spread": Positive()}
    assert {name: float(x.sum()) for name, x in problem["start"].items()} == {"mean": 0.0, "spread": 1.0, "z": 0.0}
    generator = torch.Generator().manual_seed(0)
    draws = {name: torch.rand(5, *x.shape, generator=generator, dtype=torch.float64) for name, x in problem["start"].items()}
    found = torch.func.vmap(problem["loss"])(draws)
    expected = torch.stack([by_hand({name: x[i] for name, x in draws.items()}) for i in range(5)])
    assert torch.allclose(found, expected, rtol=1e-12)


def test_a_fit_is_that_of_the_loss_by_hand() -> None:
    problem = from_pyro(schools, Y, ERROR)
    q = lb.fit(**problem, steps=30)
    p = lb.fit(by_hand, start=problem["start"], supports=problem["supports"], steps=30)
    for a, b in zip(q.element, p.element, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


def test_supports() -> None:
    def model() -> None:
        pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        pyro.sample("part", dist.Uniform(-1.0, 2.0).expand([2]).to_event(1))
        pyro.sample("late", dist.Pareto(3.0, 2.0))
        pyro.sample("corr", dist.LKJCholesky(3))
        pyro.sample("place", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))
        ordered = dist.transforms.OrderedTransform()
        pyro.sample("cuts", dist.TransformedDistribution(dist.Normal(torch.zeros(3), 1.0).to_event(1), [ordered]))

    problem = from_pyro(model)
    assert problem["supports"] == {
        "share": Simplex(),
        "part": Interval(-1, 2),
        "late": LowerBounded(3.0),
        "corr": CorrelationCholesky(),
        "cuts": Ordered(),
    }
    for name, chart in problem["supports"].items():
        assert chart.contains(problem["start"][name]).all(), name
    assert torch.isfinite(problem["loss"](problem["start"]))


def test_what_has_no_chart_is_refused() -> None:
    def discrete() -> None:
        pyro.sample("coin", dist.Bernoulli(0.5))

    def dependent() -> None:
        top = pyro.sample("top", dist.HalfNormal(1.0))
        pyro.sample("below", dist.Uniform(0.0, top))

    def subsampled() -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 10, subsample_size=3) as index:
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(10)[index])

    refused = {discrete: "'coin' is discrete", dependent: "'below' depends", subsampled: "'data' subsamples"}
    for model, words in refused.items():
        with pytest.raises(ValueError, match=words):
            from_pyro(model)
    with pytest.raises(ValueError, match="no latent"):
        from_pyro(lambda: None)


def test_parameters_that_are_held_are_told() -> None:
    def model(y: Tensor) -> None:
        place = pyro.param("place", torch.zeros(()))
        width = pyro.sample("width", dist.HalfNormal(1.0))
        pyro.sample("y", dist.Normal(place, width).expand(y.shape).to_event(1), obs=y)

    pyro.clear_param_store()
    with pytest.warns(UserWarning, match=r"\['place'\] are held at their present values"):
        problem = from_pyro(model, Y.float())
    assert list(problem["start"]) == ["width"]
    pyro.clear_param_store()
