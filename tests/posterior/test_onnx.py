"""A sample of a posterior as an ONNX file: it computes what the module computes, also after the posterior has moved on."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.posteriors import Net, X, posterior_of
from support.tolerances import roundings
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Normal

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def computed_by(path: Path, x: Tensor) -> Tensor:
    """What a file computes, by onnx's own interpreter."""
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    [output] = reference.ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x.numpy()})
    return torch.from_numpy(output)


def converted() -> nn.Module:
    """A network whose weights are magnitudes with signs: parametrizations, which an exporter must resolve."""
    return lb.nn.fixed_sign(nn.Sequential(nn.Linear(X.shape[1], 6), nn.Tanh(), nn.Linear(6, 3)))


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("make", [Net, converted])
def test_a_sample_is_exported_with_its_weights_and_buffers(make: type[nn.Module], dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    posterior = posterior_of(model, base=Normal(0.5)) if make is Net else _multiplicative(model)
    module = posterior.sample_module(torch.Generator().manual_seed(1))
    expected = module(X).detach()
    before = copy.deepcopy(module.state_dict())
    torch.onnx.export(module, (X,), tmp_path / "sample.onnx", dynamo=dynamo)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    # Two float32 programs with sums in another order.
    torch.testing.assert_close(computed_by(tmp_path / "sample.onnx", X), expected, **roundings(64))
    assert (expected - posterior.module()(X)).abs().max() > 1e-3  # the sample, not the point: 100 times the tolerance


def test_what_a_file_would_have_wrong_is_refused(tmp_path: Path) -> None:
    """Inside a block, the exporter by torch.export would write the point; the one by tracing writes the sample at once."""
    model = Net().eval()
    posterior = posterior_of(model, base=Normal(0.5))
    with posterior.sampled(torch.Generator().manual_seed(1)) as drawn:
        with pytest.raises(Exception, match="Failed to export") as raised:
            torch.onnx.export(drawn, (X,), tmp_path / "refused.onnx", dynamo=True)
        assert "posterior.sample_module()" in "".join(map(str, (raised.value, raised.value.__cause__)))
        torch.onnx.export(drawn, (X,), tmp_path / "traced.onnx", dynamo=False)
        expected = drawn(X).detach()
    assert not (tmp_path / "refused.onnx").exists()
    torch.testing.assert_close(computed_by(tmp_path / "traced.onnx", X), expected, **roundings(64))


def _multiplicative(model: nn.Module) -> lb.Posterior:
    groups = lb.nn.parameter_groups(model, {}, {"group": lb.groups.Additive(), "base": Normal(0.1), "temperature": 0.0})
    return lb.MultiplicativeBLR(groups, data_size=10).posterior(model)
