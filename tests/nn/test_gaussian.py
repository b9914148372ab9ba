"""Gaussian outputs: their loss against torch and scipy, three kinds of noise, and a posterior whose predictive is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import liebayes as lb
from liebayes.bases import Normal
from liebayes.groups import DiagonalAffine
from liebayes.nn import GaussianOutput, gaussian_loss


def test_the_loss_against_torch_and_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, targets = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    variance = torch.rand(30, generator=generator, dtype=torch.float64) + 0.1
    found = float(gaussian_loss((mean, variance), targets))
    assert found == pytest.approx(float(nn.GaussianNLLLoss(full=True)(mean, targets, variance)), rel=1e-12)
    logs = stats.norm(mean.numpy(), variance.sqrt().numpy()).logpdf(targets.numpy())
    assert found == pytest.approx(-float(np.mean(logs)), rel=1e-12)
    columns = [x.view(15, 2) for x in (mean, variance, targets)]
    assert float(gaussian_loss((columns[0], columns[1]), columns[2])) == pytest.approx(2 * found, rel=1e-12)


def test_shapes_that_would_be_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="must have one shape"):
        gaussian_loss((torch.zeros(5, 1), torch.ones(5, 1)), torch.zeros(5))


def test_outputs_are_in_the_units_of_the_targets() -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    network = nn.Linear(3, 2)
    for noise, outputs in (("learned", 2), (0.5, 2), ("predicted", 1)):
        targets = None if noise == "predicted" else 2
        mean, std = (10.0, 4.0) if targets is None else ([10.0, -3.0], [4.0, 0.25])
        model = GaussianOutput(network, noise, targets=targets, mean=mean, std=std)  # type: ignore[arg-type]
        found, variance = model(x)
        raw = network(x)[:, 0] if targets is None else network(x)
        torch.testing.assert_close(found, torch.tensor(mean) + torch.tensor(std) * raw)
        expected = {
            "learned": torch.tensor(std).square().expand_as(found),
            0.5: torch.full_like(found, 0.25),
            "predicted": 16 * (network(x)[:, 1].exp().log1p() + 1e-4),
        }
        torch.testing.assert_close(variance, expected[noise])
        assert found.shape == variance.shape == ((7,) if targets is None else (7, outputs))


def test_learned_noise_is_that_of_the_residuals() -> None:
    """A line through the data has a closed form: the least-squares residuals have the variance of maximum likelihood."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=generator)
    y = 3 * x[:, 0] + 50 + 0.7 * torch.randn(400, generator=generator)
    model = GaussianOutput(nn.Linear(1, 1), "learned", mean=float(y.mean()), std=float(y.std()))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = gaussian_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = np.polyfit(x[:, 0].numpy(), y.numpy(), 1)
    residual = float(np.std(y.numpy() - slope * x[:, 0].numpy() - offset))
    _, variance = model(x)
    assert float(variance[0].detach().sqrt()) == pytest.approx(residual, rel=1e-3)


def test_a_known_predictive() -> None:
    """Weights N(m, s²) of a linear network: the predictive has the mean x·m, and the variance x²·s² beside the noise.

    With K draws the mean errs by its standard deviation over √K and the variance by √(2/K) of itself: five of these.
    """
    sigma, draws = 0.5, 2000
    m, s = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[0.3, 0.1, 0.7]])
    model = GaussianOutput(nn.Linear(3, 1, bias=False), sigma, mean=4.0, std=2.0)
    family = lb.rule.Family(DiagonalAffine(), Normal(), DiagonalAffine().at(m, 1.0)._replace(log_scale=s.log()))
    x = torch.tensor([[0.0, 0.0, 1.0], [2.0, -1.0, 1.0], [-1.0, 3.0, 1.0]])
    found = lb.Posterior(model, {"network.weight": family}).predict(x, draws, task="regression")
    spread = 4 * (x.square() @ s.square()[0])
    assert bool(((found.mean - 4 - 2 * x @ m[0]).abs() < 5 * (spread / draws).sqrt()).all())
    assert bool(((found.epistemic / spread - 1).abs() < 5 * math.sqrt(2 / draws)).all())
    torch.testing.assert_close(found.aleatoric, torch.full((3,), sigma**2))


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, "fixed"])
def test_bad_noise_is_refused(noise: object) -> None:
    with pytest.raises(ValueError, match='noise must be a positive standard deviation, "learned" or "predicted"'):
        GaussianOutput(nn.Linear(2, 1), noise)  # type: ignore[arg-type]


def test_a_network_of_other_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"half of them for the predicted noise: \(inputs, 2\)"):
        GaussianOutput(nn.Linear(2, 1), "predicted")(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="std must be positive numbers"):
        GaussianOutput(nn.Linear(2, 1), std=0.0)
