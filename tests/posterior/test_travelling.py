"""Posteriors elsewhere: on another device or in another precision, as plain modules, around an average, pruned, merged."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.posteriors import Net, X, Y, assert_same, assert_untouched, posterior_of, snapshot, trained
from support.problems import closure_for
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import liebayes as lb
from liebayes.bases import Cauchy, Exponential, Laplace, Normal
from liebayes.groups import DiagonalAffine, Kronecker, Multiplicative
from liebayes.groups.diagonal_affine import ScaleShift
from liebayes.posterior import Posterior
from liebayes.rule import Family

# Devices and precisions.


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision(dtype: torch.dtype) -> None:
    model = Net()
    posterior = posterior_of(model)
    before = snapshot(model)
    moved = posterior.to(dtype=dtype)
    assert_untouched(model, before)
    assert moved.model is not model
    assert {p.dtype for p in moved.model.parameters()} == {dtype}
    assert moved.buffers["norm.running_mean"].dtype == dtype
    assert moved.buffers["norm.num_batches_tracked"].dtype == torch.int64
    assert {f.dtype for f in moved.families.values()} == {torch.float64 if dtype == torch.float64 else torch.float32}
    # The point is what the module of either gives.
    found, expected = moved.predict(X.to(dtype), samples=0).probabilities, posterior.predict(X, samples=0).probabilities
    torch.testing.assert_close(found, expected, rtol=0, atol=8 * torch.finfo(dtype).eps + 1e-6)
    back = moved.to("cpu", torch.float32)
    assert all(torch.equal(width, back.std()[name]) for name, width in posterior.std().items())
    if dtype == torch.float64:
        assert_same(back, posterior)
        assert torch.equal(back.predict(X, samples=3).probabilities, posterior.predict(X, samples=3).probabilities)
    with pytest.raises(ValueError, match=r"floating-point numbers, but got the dtype torch\.int8"):
        posterior.to(torch.int8)


def test_another_device() -> None:
    """The meta device has no numbers, but says where everything went."""
    moved = posterior_of(Net()).to("meta")
    tensors = [*moved.model.state_dict().values(), *moved.buffers.values(), *moved.std().values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# Modules.


def test_a_sample_as_a_module() -> None:
    model = Net()
    posterior = posterior_of(model)
    model.norm.running_mean.add_(1)  # after the snapshot
    before = snapshot(model)
    module = posterior.sample_module(torch.Generator().manual_seed(0))
    assert_untouched(model, before)
    weights = posterior.sample(torch.Generator().manual_seed(0))
    assert not any(m.training for m in module.modules())
    assert module.again.weight is module.first.weight  # tied as before
    assert not module.again.bias.requires_grad
    torch.testing.assert_close(module(X), functional_call(model.eval(), weights, (X,)))
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert_untouched(model.train(), before)
    torch.testing.assert_close(posterior.module()(X).softmax(-1), posterior.predict(X, samples=0).probabilities)
    with pytest.raises(ValueError, match=r"these are missing: \['first\.bias'"):
        posterior.module({})
    with pytest.raises(ValueError, match=r"of shape \(.*\) for first\.bias, but got \(1,\)"):
        posterior.module({**weights, "first.bias": torch.ones(1)})


def test_a_sample_is_a_state_dictionary() -> None:
    """Of a model with batch norms, tied weights, and buffers that do not belong to its state."""
    model = Net()
    model.register_buffer("passing", torch.ones(3), persistent=False)
    posterior = posterior_of(model)
    weights = posterior.sample()
    other = Net()
    other.load_state_dict(weights)
    torch.testing.assert_close(other.eval()(X), functional_call(model.eval(), weights, (X,)))


def test_export_of_a_sample() -> None:
    posterior = posterior_of(Net(), base=Normal(0.5))
    module = posterior.sample_module()
    expected = module(X)
    exported = torch.export.export(module, (X,)).module()
    torch.testing.assert_close(exported(X), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("strict", [False, True])
def test_export_inside_a_block_is_refused(strict: bool) -> None:
    """Without the refusal the program holds the point after the block."""
    model = Net().eval()
    posterior = posterior_of(model, base=Normal(0.5))
    said = r"cannot be exported or traced inside posterior\.sampled"
    if strict and not hasattr(torch.compiler, "is_exporting"):
        said = "whole graph export"  # of torch 2.6 itself, which cannot export modules with hooks
    with posterior.sampled() as drawn:
        with pytest.raises(Exception, match=said):
            torch.export.export(drawn, (X,), strict=strict)
        with pytest.raises(RuntimeError, match=r"Export posterior\.sample_module"):
            torch.jit.trace(drawn, (X,))
        assert drawn(X).shape == (20, 3)
    torch.export.export(model, (X,))  # afterwards it is a module like any other


def test_the_refusal_compiles_nothing_again() -> None:
    model = Net().eval()
    posterior = posterior_of(model)
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend)
    outputs = []
    for _ in range(3):
        with posterior.sampled(), torch.no_grad():
            outputs.append(compiled(X))
    assert len(graphs) == 1
    assert not torch.equal(outputs[0], outputs[1])


# Averages of weights.


@pytest.mark.parametrize("named", [True, False])
def test_widths_around_an_average(named: bool) -> None:
    model = Net()
    optimizer = trained(model, steps=0)
    if named:
        optimizer = lb.AffineBLR(model.named_parameters(), lr=0.1, data_size=20)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    for _ in range(4):
        optimizer.step(closure_for(optimizer, model, X, Y))
        ema.update_parameters(model)
    plain = optimizer.posterior(model)
    assert not torch.equal(ema.module.module.weight, model.module.weight)
    posterior = optimizer.posterior(ema) if named else plain.centred_at(ema)
    weights = posterior.point()
    for name, value in ema.module.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)
    for name, width in plain.std().items():
        assert torch.equal(posterior.std()[name], width)
    assert torch.equal(plain.point()["module.weight"], model.module.weight)  # that one has stayed
    if not named:
        with pytest.raises(ValueError, match=r"optimizer\.posterior\(model\)\.centred_at\(average\)"):
            optimizer.posterior(ema)


def test_the_point_of_scales_is_their_mean() -> None:
    model = nn.Linear(3, 2)
    for base in (Exponential(0.7), Cauchy(0.7)):
        group = Multiplicative() if base == Exponential(0.7) else DiagonalAffine()
        posterior = Posterior(model, {"weight": Family(group, base, group.identity(model.weight.detach()))})
        values = {"weight": torch.rand(2, 3) + 0.1}
        torch.testing.assert_close(posterior.centred_at(values).point()["weight"], values["weight"])
    with pytest.raises(ValueError, match=r"these are missing: \['weight'\]"):
        posterior.centred_at({})
    with pytest.raises(ValueError, match=r"weight has the shape \(2, 3\), but the new values have \(3,\)"):
        posterior.centred_at({"weight": torch.ones(3)})


# Pruning.


@pytest.mark.parametrize("kronecker", [False, True])
def test_the_least_certain_weights_become_zero(kronecker: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    kind = {"kind": lb.LieGroupBLR, "group": Kronecker(), "base": Normal(0.5)} if kronecker else {"base": Normal(0.5)}
    posterior = posterior_of(model, **kind)
    names = ["0.weight", "2.weight"]
    signal = torch.cat([(posterior.mean()[name].abs() / posterior.std()[name]).flatten() for name in names])
    limit = signal.sort().values[round(0.6 * 42) - 1]
    pruned = posterior.pruned(0.6)
    pruned.save(tmp_path / "q")
    for each in (pruned, Posterior.load(tmp_path / "q", model), pruned.to("cpu")):
        generators = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
        weights, whole = each.sample(generators[0]), posterior.sample(generators[1])
        gone = torch.cat([weights[name].flatten() == 0 for name in names])
        assert torch.equal(gone, signal <= limit)
        for name, value in whole.items():
            own = signal.split([24, 18])[names.index(name)] if name in names else torch.full_like(value, torch.inf)
            keep = (own > limit).reshape(value.shape)
            torch.testing.assert_close(weights[name], value * keep, rtol=0, atol=0)
            torch.testing.assert_close(each.mean()[name], posterior.mean()[name] * keep, rtol=0, atol=0)
            torch.testing.assert_close(each.std()[name], posterior.std()[name] * keep, rtol=0, atol=0)
        generator = torch.Generator().manual_seed(0)
        draws = [functional_call(model, each.sample(generator), (X,)).softmax(-1) for _ in range(3)]
        torch.testing.assert_close(each.predict(X, samples=3).probabilities, torch.stack(draws).mean(0))
    further = pruned.pruned(0.8)
    assert sum(int((~keep).sum()) for keep in further.kept.values()) == round(0.8 * 42)
    assert all(bool((~further.kept[name][~keep]).all()) for name, keep in pruned.kept.items())
    assert posterior.pruned(0.0).kept == {}


def test_what_cannot_be_pruned_is_refused() -> None:
    posterior = posterior_of(Net())
    for share in (1.0, -0.1, float("nan"), "0.5", True):
        with pytest.raises(ValueError, match="share of weights to set to zero"):
            posterior.pruned(share)  # type: ignore[arg-type]
    pruned = posterior.pruned(0.5)
    energy = partial(pruned.free_energy, [], max, prior=1.0)
    for use in (partial(pruned.log_prob, pruned.sample()), pruned.as_distribution, energy):
        with pytest.raises(ValueError, match="pruned weights do not have: they are zero"):
            use()
    model = nn.Linear(3, 2)
    family = Family(Multiplicative(), Exponential(1.0), Multiplicative().identity(model.weight.detach()))
    with pytest.raises(ValueError, match="same ratio of mean and width everywhere"):
        Posterior(model, {"weight": family}).pruned(0.5)
    with pytest.raises(ValueError, match="none of the trained parameters is one"):
        Posterior(model, {"bias": Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(2)))}).pruned(0.5)


# Two posteriors of one base.


def gaussian(model: nn.Module, precision: Tensor, mean: Tensor, base: float, temperature: float = 1.0) -> Posterior:
    element = ScaleShift((-0.5 * precision.log() - math.log(base)).float(), mean.float())
    return Posterior(model, {"weight": Family(DiagonalAffine(), Normal(base), element)}, temperature=temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("given", ["precision", "posterior"])
def test_merging_equals_training_on_all_data(given: str, temperature: float) -> None:
    """Regression on orthogonal inputs, where the exact posterior has independent weights."""
    model, generator = nn.Linear(3, 1, bias=False), torch.Generator().manual_seed(0)
    prior, m0 = torch.tensor([2.0]), torch.tensor([[0.3, -1.0, 0.0]]) if given == "posterior" else torch.zeros(1, 3)
    parts = []
    for scale in (1.0, 3.0):
        x = scale * torch.linalg.qr(torch.randn(8, 3, generator=generator, dtype=torch.float64)).Q
        parts.append((x, torch.randn(8, generator=generator, dtype=torch.float64)))

    def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        precision = x.square().sum(0) + prior
        return (precision / temperature)[None], ((x.T @ y + prior * m0[0]) / precision)[None]

    one, two = (gaussian(model, *exact(*part), base, temperature) for part, base in zip(parts, (0.5, 2.0), strict=True))
    before = gaussian(model, prior.expand(1, 3) / temperature, m0, 0.1, temperature)
    merged = one.merged(two, prior=2.0 if given == "precision" else before)
    precision, mean = exact(*(torch.cat(both) for both in zip(*parts, strict=True)))
    torch.testing.assert_close(merged.std()["weight"], precision.rsqrt().float())
    torch.testing.assert_close(merged.mean()["weight"], mean.float())


def test_what_cannot_be_merged_is_refused() -> None:
    model = nn.Linear(3, 1, bias=False)
    ones = torch.ones(1, 3)
    plain = gaussian(model, ones, ones, 1.0)
    laplace = Posterior(model, {"weight": Family(DiagonalAffine(), Laplace(), DiagonalAffine().at(ones))})
    other = nn.Linear(3, 1)
    biased = Posterior(other, {name: Family(DiagonalAffine(), Normal(), DiagonalAffine().at(p.detach()))
                               for name, p in other.named_parameters()})  # fmt: skip
    wide = gaussian(nn.Linear(1, 1, bias=False), ones[:, :1], ones[:, :1], 1.0)  # its numbers would be broadcast
    for b, prior, said in (
        (laplace, 1.0, r"weight is of DiagonalAffine\(\) on Laplace"),
        (biased, 1.0, r"Only one of the posteriors is over bias of shape \(1,\); both must be"),
        (wide, 1.0, r"Only one of the posteriors is over weight of shape \(1, 1\)"),
        (plain, wide, r"over the same parameters as the posterior, but only one is over weight of shape \(1, 1\)"),
        (None, 1.0, "A posterior is merged with another, but got None"),
        (gaussian(model, ones, ones, 1.0, 0.5), 1.0, "theirs are 1 and 0.5"),
        (plain.pruned(0.5), 1.0, "Merge first, then prune"),
        (plain, 5.0, "more precise than both posteriors together"),
        (plain, "1", "prior must be the precision"),
        (plain, biased, "over the same parameters"),
    ):
        with pytest.raises(ValueError, match=said):
            plain.merged(b, prior=prior)  # type: ignore[arg-type]
    frozen = nn.Linear(3, 1)
    frozen.weight.requires_grad_(False)

    def beside(value: float) -> Posterior:
        with torch.no_grad():
            frozen.weight.fill_(value)
        return Posterior(frozen, {"bias": Family(DiagonalAffine(), Normal(), DiagonalAffine().at(torch.zeros(1)))})

    with pytest.raises(ValueError, match="beside different frozen weights"):
        beside(1.0).merged(beside(2.0), prior=1.0)


@pytest.mark.parametrize("given", ["precision", "posterior"])
def test_counting_data_several_times_equals_seeing_them_so_often(given: str) -> None:
    """Of a quadratic loss the precision is the prior's and N times the curvature; the point stays."""
    temperature, times, model = 0.5, 7.0, nn.Linear(2, 1, bias=False)
    curvature, mean = torch.tensor([[3.0, 0.0]]), torch.full((1, 2), 0.3)
    before = torch.full((1, 2), 2.0 / temperature)
    found = gaussian(model, before + curvature / temperature, mean, 0.1, temperature)
    prior = 2.0 if given == "precision" else gaussian(model, before, torch.zeros(1, 2), 2.0, temperature)
    counted = found.counted(times, prior=prior)
    torch.testing.assert_close(counted.std()["weight"], (before + times * curvature / temperature).rsqrt())
    torch.testing.assert_close(counted.mean()["weight"], mean)
    assert counted.temperature == temperature
    torch.testing.assert_close(found.counted(1, prior=prior).std(), found.std())


@pytest.mark.parametrize("times", [0, -1.0, float("nan"), True, "2"])
def test_what_cannot_be_counted_is_refused(times: Any) -> None:
    model = nn.Linear(2, 2)
    found = lb.AffineBLR(model.parameters(), data_size=5, prior=1.0).posterior(model)
    with pytest.raises(ValueError, match="times must be a positive number"):
        found.counted(times, prior=1.0)
    with pytest.raises(ValueError, match="prior must be the precision"):
        found.counted(2.0, prior=-1.0)
    with pytest.raises(ValueError, match="that is not pruned"):
        found.pruned(0.5).counted(2.0, prior=1.0)
