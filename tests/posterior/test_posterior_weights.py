"""What training leaves: the distribution of the weights, against torch's and against what the module holds."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.posteriors import PAIRS, Net, X, Y, assert_same, positive, posterior_of, trained
from support.problems import closure_for
from support.tolerances import roundings
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import Normal as TorchNormal
from torch.func import functional_call

import liebayes as lb
from liebayes.bases import HALF_LINE, Base, Cauchy, Dirac, Gumbel, Laplace, LogNormal, Normal, Rayleigh
from liebayes.groups import Additive, DiagonalAffine, LieGroup, TriangularAffine
from liebayes.posterior import Posterior
from liebayes.rule import Family


def test_a_sample_has_every_parameter_and_the_right_distribution() -> None:
    model = Net()
    posterior = posterior_of(model)
    names = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    draws = [posterior.sample(generator) for _ in range(2000)]
    assert all(draw.keys() == model.state_dict().keys() for draw in draws[:2])
    assert torch.equal(draws[0]["again.bias"], model.again.bias)  # frozen
    std, mean = posterior.std(), posterior.mean()
    assert std.keys() == names.keys() - {"again.bias"}
    for name in std:
        values = torch.stack([draw[name] for draw in draws])
        error = std[name] / math.sqrt(len(draws))
        assert bool(((values.mean(0) - mean[name]).abs() < 5 * error).all())
        assert bool(((values.std(0) / std[name] - 1).abs() < 5 / math.sqrt(2 * len(draws))).all())
    again = posterior.sample(torch.Generator().manual_seed(0))
    assert all(torch.equal(again[name], draws[0][name]) for name in again)


def test_mean_and_point_are_what_the_module_holds() -> None:
    model = Net()
    posterior = posterior_of(model)
    for name, p in model.named_parameters():
        assert torch.equal(posterior.point()[name], p)
        assert torch.equal(posterior.mean()[name], p)  # a Normal base has its mean at the shift


def test_the_mean_of_a_skew_base_is_not_the_point() -> None:
    model = nn.Linear(4, 3)
    posterior = posterior_of(model, kind=lb.LieGroupBLR, group=DiagonalAffine(), base=Gumbel(0.2))
    family = posterior.families["weight"]
    assert torch.equal(posterior.point()["weight"], model.weight)
    torch.testing.assert_close(posterior.mean()["weight"] - model.weight.detach(), family.element.scale * Gumbel(0.2).mean)


class HalfCauchy(Base):
    """A positive base without a mean."""

    support = HALF_LINE

    def sample(self, shape: Any, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
        return (torch.rand(shape, generator=generator, dtype=dtype, device=device) * (math.pi / 2)).tan().clamp(1e-3, 10.0)

    def log_prob(self, x: Tensor) -> Tensor:
        return math.log(2 / math.pi) - torch.log1p(x.square())

    @property
    def mean(self) -> float:
        raise ValueError("HalfCauchy has no mean.")


def test_point_of_the_multiplicative_group() -> None:
    heavy = HalfCauchy()
    for base in (Rayleigh(), LogNormal(0.5), heavy):
        layer = nn.Linear(4, 3)
        posterior = posterior_of(positive(layer), kind=lb.MultiplicativeBLR, base=base)
        torch.testing.assert_close(posterior.point()["weight"], layer.weight.detach())
        if base is heavy:
            torch.testing.assert_close(posterior.families["weight"].element.scale, layer.weight.detach())
            with pytest.raises(ValueError, match="mean"):
                posterior.mean()
        else:
            torch.testing.assert_close(posterior.mean()["weight"], layer.weight.detach())


def test_log_prob_against_torch_distributions() -> None:
    model = Net()
    for base, kind in ((Normal(0.2), TorchNormal), (Laplace(0.2), TorchLaplace)):
        posterior = posterior_of(model, base=base)
        weights = posterior.sample(torch.Generator().manual_seed(0))
        expected = torch.zeros(())
        for name, family in posterior.families.items():
            width = family.element.scale * base.scale  # type: ignore[attr-defined]
            expected = expected + kind(dict(model.named_parameters())[name].detach(), width).log_prob(weights[name]).sum()
        torch.testing.assert_close(posterior.log_prob(weights), expected)
        with pytest.raises(ValueError, match=r"first\.weight"):
            posterior.log_prob({name: value for name, value in weights.items() if name != "first.weight"})


@pytest.mark.parametrize(("group", "base"), PAIRS, ids=str)
def test_as_distribution_agrees_with_the_family(group: LieGroup[Any], base: Base) -> None:
    posterior = posterior_of(positive(nn.Linear(4, 3).double()), kind=lb.LieGroupBLR, group=group, base=base)
    weights = posterior.sample(torch.Generator().manual_seed(0))
    distributions = posterior.as_distribution()
    assert distributions.keys() == {"weight", "bias"}
    for name, distribution in distributions.items():
        family = posterior.families[name]
        assert distribution.event_shape == family.event_shape
        torch.testing.assert_close(
            distribution.log_prob(weights[name]), family.log_prob(weights[name]), **roundings(64, torch.float64)
        )
        if not isinstance(base, Cauchy):
            torch.testing.assert_close(distribution.mean, family.mean, **roundings(64, torch.float64))
        assert isinstance(distribution, (Independent, MultivariateNormal))


def test_a_family_without_a_torch_distribution_is_refused() -> None:
    posterior = posterior_of(nn.Linear(4, 3), kind=lb.LieGroupBLR, group=TriangularAffine(), base=Laplace(0.2))
    with pytest.raises(ValueError, match="TriangularAffine"):
        posterior.as_distribution()
    with pytest.raises(ValueError, match="Dirac"):
        posterior_of(nn.Linear(4, 3), kind=lb.AdditiveBLR, base=Dirac()).as_distribution()


def test_a_snapshot_does_not_follow_training() -> None:
    model = Net()
    optimizer = trained(model)
    posterior = optimizer.posterior(model)
    weights = posterior.sample(torch.Generator().manual_seed(0))
    before = posterior.predict(X, samples=4)
    kept = {name: value.clone() for name, value in weights.items()}
    buffers = {name: value.clone() for name, value in posterior.buffers.items()}
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, X, Y))
    model.again.bias.data.add_(1)
    assert not torch.equal(model.norm.running_mean, buffers["norm.running_mean"])  # type: ignore[arg-type]
    again = posterior.sample(torch.Generator().manual_seed(0))
    assert all(torch.equal(again[name], value) for name, value in kept.items())
    assert all(torch.equal(posterior.buffers[name], value) for name, value in buffers.items())
    assert torch.equal(posterior.predict(X, samples=4).probabilities, before.probabilities)
    posterior.point()["first.weight"].zero_()  # what it hands out is not what it holds
    assert not torch.equal(posterior.point()["first.weight"], torch.zeros(4, 4))


def test_writing_to_what_it_returns_does_not_change_it() -> None:
    """Neither fixed weights, nor buffers that a model counts with."""

    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    posterior = posterior_of(Counting())
    fixed = {name: value.clone() for name, value in posterior.fixed.items()}
    assert fixed, "Net has a frozen parameter"
    for weights in (posterior.sample(), posterior.mean(), posterior.point()):
        for value in weights.values():
            value.zero_()
    with posterior.sampled() as model, torch.no_grad():
        for p in model.parameters():
            p.data.zero_()
    calls = float(posterior.buffers["calls"])
    posterior.predict(X, samples=5)
    assert all(torch.equal(value, fixed[name]) for name, value in posterior.fixed.items())
    assert float(posterior.buffers["calls"]) == calls


def test_before_any_step_the_posterior_is_the_base_at_the_weights() -> None:
    model = nn.Linear(4, 3)
    optimizer = lb.AffineBLR(model.parameters(), data_size=10, base=Normal(0.3), initial_scale=2.0)
    posterior = optimizer.posterior(model)
    assert torch.equal(posterior.mean()["weight"], model.weight)
    torch.testing.assert_close(posterior.std()["weight"], torch.full((3, 4), 0.6))


def test_foreign_models_and_names_are_refused() -> None:
    optimizer = trained(nn.Linear(4, 3))
    with pytest.raises(ValueError, match="None of the model's parameters"):
        optimizer.posterior(nn.Linear(4, 3))
    family = Family(Additive(), Normal(), Additive().at(torch.zeros(3)))
    with pytest.raises(ValueError, match="nothing_like_it"):
        Posterior(nn.Linear(4, 3), {"nothing_like_it": family})


def test_tied_weights_are_sampled_once() -> None:
    model = Net()
    posterior = posterior_of(model)
    assert "again.weight" not in posterior.families
    with posterior.sampled():
        assert torch.equal(model.again.weight, model.first.weight)
        assert model.again.weight is model.first.weight
    # functional_call follows the tie: by hand with both names.
    weights = posterior.sample(torch.Generator().manual_seed(0))
    model.eval()
    both = functional_call(model, {**weights, "again.weight": weights["first.weight"], **posterior.buffers}, (X,))
    torch.testing.assert_close(posterior.predict(X, samples=1).probabilities, both.detach().softmax(-1))


def test_bfloat16_keeps_the_remainder(tmp_path: Path) -> None:
    model = nn.Linear(4, 3).bfloat16()
    optimizer = lb.AffineBLR(model.parameters(), 1e-3, data_size=20, base=Normal(0.01), mc_samples=1)
    with optimizer.sampled():
        model(X.bfloat16()).float().square().mean().backward()
    optimizer.step()
    posterior = optimizer.posterior(model)
    assert posterior.families["weight"].dtype == torch.float32
    assert posterior.sample()["weight"].dtype == torch.bfloat16
    assert torch.equal(posterior.point()["weight"], model.weight)
    assert not torch.equal(posterior.families["weight"].element.shift, model.weight.float())  # what rounding has lost
    posterior.save(tmp_path / "q.safetensors")
    assert_same(posterior, Posterior.load(tmp_path / "q.safetensors", nn.Linear(4, 3).bfloat16()))


def test_repr() -> None:
    assert repr(posterior_of(nn.Linear(4, 3))) == "Posterior(15 weights: DiagonalAffine() on Normal(scale=0.2))"


@pytest.mark.parametrize(
    ("model", "families", "options", "message"),
    [
        (None, {}, {}, "a module and a dictionary of families .* but got a NoneType and a dict"),
        (nn.Linear(1, 1), ["weight"], {}, "a module and a dictionary of families .* but got a Linear and a list"),
        (nn.Linear(1, 1), {}, {"temperature": "1"}, "temperature must be a number, zero or positive, but got '1'"),
        (nn.Linear(1, 1), {}, {"temperature": math.nan}, "temperature must be a number, zero or positive, but got nan"),
    ],
)
def test_what_a_posterior_is_not_made_of(model: Any, families: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Posterior(model, families, **options)


def test_the_density_of_no_weights() -> None:
    with pytest.raises(ValueError, match="needs a tensor for every trained parameter"):
        posterior_of(Net()).log_prob(None)  # type: ignore[arg-type]


def test_weights_of_numpy_are_tensors() -> None:
    """float64 is what numpy makes of numbers."""
    pytest.importorskip("numpy")
    posterior = posterior_of(Net())
    weights = posterior.sample()
    arrays = {name: value.double().numpy() for name, value in weights.items()}
    assert torch.equal(posterior.log_prob(arrays), posterior.log_prob(weights))
    assert torch.equal(posterior.module(arrays)(X), posterior.module(weights)(X))
    centres = posterior.centred_at(arrays).point(), posterior.centred_at(weights).point()
    assert all(torch.equal(centres[0][name], centres[1][name]) for name in weights)
