"""Left-equivariance: training on ℓ(h⁻¹·θ) from h·g gives h times the original run, momentum included, to rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.elements import Seeded, assert_close, flattened, on_domain, plus
from support.registry import ON_SUPPORTS_TOO, GroupCase
from torch.utils import _pytree as pytree

from liebayes import Absorbed, Adaptive, Fisher
from liebayes.bases import Base, Gumbel, Rayleigh
from liebayes.groups import LieGroup, Product
from liebayes.rule import Metric, differential, initial_state, update

STEPS, SAMPLES, TEMPERATURE = 15, 4, 0.3


def base_of(group: LieGroup[Any]) -> Base:
    return Rayleigh() if group.positive else Gumbel()


def metrics_of(case: GroupCase) -> list[Metric]:
    constant = [Fisher()] if case.bases and not case.is_product else []  # a product has one metric for each part
    return [*constant, Absorbed(), Adaptive(0.9)]


CASES = [pytest.param(case, metric, id=f"{case}-{metric}") for case in ON_SUPPORTS_TOO for metric in metrics_of(case)]


def loss(theta: Any) -> torch.Tensor:
    """A smooth loss that mixes all coordinates: one value for every sample."""
    leaves = pytree.tree_leaves(theta)
    flat = torch.cat([leaf.reshape(SAMPLES, -1) for leaf in leaves], -1)
    return (flat - 0.5).square().sum(-1) + torch.sin(flat.sum(-1)) + 0.1 * flat.prod(-1)


def noise(group: LieGroup[Any], like: Any, step: int) -> Any:
    """The same noise in every run, as the counters of the rule give it."""
    if isinstance(group, Product):
        return group.join([noise(part, t, step) for part, t in group.split("like", like)])
    generator = torch.Generator().manual_seed(step)
    draws = base_of(group).sample((SAMPLES, *like.shape), generator=generator, dtype=torch.float64)
    return draws if group.positive else on_domain(group, draws)


def run(case: GroupCase, metric: Metric, like: Any, start: Any, energy: Callable[[Any], torch.Tensor]) -> list[Any]:
    group = case.group
    base = Gumbel() if case.is_product else base_of(group)
    form = metric.on(group, base, group.identity(like))
    state = initial_state(group, form, start)
    path = [start]
    for step in range(STEPS):
        theta = pytree.tree_map(lambda t: t.requires_grad_(), group.act(state.element, noise(group, like, step)))
        leaves, spec = pytree.tree_flatten(theta)
        gradients = torch.autograd.grad(energy(theta).sum(), leaves)
        covector = differential(
            group,
            state.element,
            pytree.tree_map(lambda t: t.detach(), theta),
            pytree.tree_unflatten(list(gradients), spec),
            TEMPERATURE,
        )
        state = update(group, form, state, covector, lr=0.05, momentum=0.8, max_step=0.2).state
        path.append(state.element)
    return path


@pytest.mark.parametrize(("case", "metric"), CASES)
def test_a_run_moves_with_its_problem(case: GroupCase, metric: Metric) -> None:
    group = case.group
    like = case.likes[-1]
    draw = Seeded(case, like, 5, 0.4)
    g, h = draw.element(), draw.element(mirrored=True)
    inverse = group.inverse(h)
    original = run(case, metric, like, g, loss)

    def moved_loss(theta: Any) -> torch.Tensor:
        back = group.act(inverse, theta)
        if group.affine_action or case.is_product:
            return loss(back)
        # h moves the entropy too, by E[log |det ∂(h·θ)/∂θ|]: a constant for affine actions only.
        return loss(back) + TEMPERATURE * group.log_jacobian(h, back)

    moved = run(case, metric, like, group.compose(h, g), moved_loss)
    # Rounding of some 1e-15 a step, magnified by the losses' curvature and, for Adaptive, by dividing small covectors.
    for ours, theirs in zip(moved, original, strict=True):
        assert_close(ours, group.compose(h, theirs), 1e-9)
    travelled = flattened(plus(original[-1], original[0], -1.0)).abs().max()
    assert float(travelled) > 0.05, "a run that stands still is equivariant under anything"
