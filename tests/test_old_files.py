"""Files written by earlier versions (tests/fixtures) still load: training goes on, and posteriors are what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.problems import closure_for
from torch import Tensor, nn
from torch.func import functional_call

import liebayes as lb
from liebayes.baselines import IVON, VOGN
from liebayes.bases import Laplace, Normal
from liebayes.groups import TriangularAffine

FIXTURES = Path(__file__).parent / "fixtures"
INPUTS, LABELS = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 2

OPTIMIZERS: dict[str, Callable[[Any], lb.LieGroupBLR]] = {
    "affine": lambda p: lb.AffineBLR(p, 0.1, data_size=8, noise="philox", base=Laplace(0.05), curvature="samples"),
    "additive": lambda p: lb.AdditiveBLR(p, 0.1, data_size=8, noise="philox"),
    "multiplicative": lambda p: lb.MultiplicativeBLR(p, data_size=8, noise="philox"),
    "triangular": lambda p: lb.LieGroupBLR(p, TriangularAffine(), Normal(0.05), 0.1, data_size=8, noise="philox"),
    "ivon": lambda p: IVON(p, data_size=8, noise="philox"),
    "vogn": lambda p: VOGN(p, data_size=8, noise="philox"),
}
"""The optimizers that wrote checkpoints-0.1.0.pt."""


def stored(name: str) -> dict[str, Any]:
    return torch.load(FIXTURES / name, weights_only=True)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_from_a_checkpoint(kind: str) -> None:
    """Three more steps with the stored noise counters lead to the stored weights, up to the rounding of float32.

    Logarithms and angles of the noise may differ by 16 units in the last place between processors, and three steps of lr 0.1
    pass that on about once: a bound of 64 units.
    """
    checkpoint = stored("checkpoints-0.1.0.pt")[kind]
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model.load_state_dict(checkpoint["model"])
    optimizer = OPTIMIZERS[kind](model.parameters())
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert optimizer.steps == 3
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, INPUTS, LABELS))
    bound = 64 * torch.finfo(torch.float32).eps
    for name, expected in checkpoint["after"].items():
        assert not torch.allclose(checkpoint["model"][name], expected, rtol=10 * bound), "the file's run did not move"
        torch.testing.assert_close(model.state_dict()[name], expected, rtol=bound, atol=bound * float(expected.abs().max()))


def test_what_has_become_of_the_affine_rule_is_said() -> None:
    optimizer = lb.AffineBLR(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).parameters(), 0.1, data_size=8)
    with pytest.raises(ValueError, match=r'written by version 0\.1\.0.*curvature="samples"'):
        optimizer.load_state_dict(stored("checkpoints-0.1.0.pt")["affine"]["optimizer"])
    assert not optimizer.state


def test_a_posterior_is_what_it_was() -> None:
    """Means and widths are stored numbers; predictions are means over 4 draws, whose noise may be another one now."""
    values = stored("posterior-0.1.0-values.pt")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match=r"posterior-0\.1\.0.* was written by version 0\.1\.0.* no checksum.* Save it again"):
        posterior = lb.Posterior.load(FIXTURES / "posterior-0.1.0.safetensors", model)
    for found, expected in ((posterior.mean(), values["mean"]), (posterior.std(), values["std"])):
        assert found.keys() >= expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=4 * torch.finfo(torch.float32).eps, atol=0)
    generator, draws = torch.Generator().manual_seed(0), []
    model.eval()
    for _ in range(1000):
        draws.append(output(model, {**posterior.sample(generator), **posterior.buffers}))
    # 5 standard errors of a mean over 4.
    spread, centre = torch.stack(draws).std(0), torch.stack(draws).mean(0)
    assert float(spread.max()) < 0.1
    assert bool(((values["probabilities"] - centre).abs() < 5 * spread / 2).all())
    assert bool(((posterior.predict(INPUTS, 4).probabilities - centre).abs() < 5 * spread / 2).all())


def output(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    return functional_call(model, weights, (INPUTS,)).detach().softmax(-1)
