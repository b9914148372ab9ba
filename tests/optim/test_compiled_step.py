"""The step of the torch store as one compiled graph, which is the fused kernel of a GPU: the same numbers as the eager one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.bases import Base, Laplace, Normal, Rayleigh
from liebayes.groups import Additive, DiagonalAffine, LieGroup, Multiplicative
from liebayes.optim import store
from liebayes.rule import Absorbed, Adaptive, Fisher, Metric

CASES: list[tuple[LieGroup[Any], Base, Metric, dict[str, Any]]] = [
    (Additive(), Laplace(0.1), Fisher(), {}),
    (DiagonalAffine(), Normal(0.1), Absorbed(), {}),
    (Multiplicative(), Rayleigh(), Adaptive(), {}),
    (DiagonalAffine(), Normal(), Absorbed(), {"curvature": "gauss-newton", "start_width": 0.01}),
]


@pytest.mark.skipif(not store.COMPILES, reason="this torch cannot compile the step as one graph")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("group", "base", "metric", "settings"), CASES, ids=str)
def test_a_compiled_step_is_one_graph_and_equals_the_eager_one(
    group: LieGroup[Any], base: Base, metric: Metric, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """fullgraph=True refuses graph breaks. The step size changes with every step, which must not compile it anew."""
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward  # as it was captured: not every machine has a compiler that torch's C++ backend can use

    monkeypatch.setattr(native, "available", lambda: False)
    torch._dynamo.reset()
    compiled = torch.compile(store.bucket_step, fullgraph=True, backend=count)

    def trained() -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.rand(shape, generator=generator) + 0.2) for shape in ((40, 60), (7,))]
        optimizer = lb.LieGroupBLR(parameters, group, base, 0.1, data_size=100, metric=metric, max_step=0.2, **settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = torch.stack([((p - 0.5).square() * 3 + p.sin()).mean() for p in parameters]).sum()
            loss.backward()
            return loss

        for _ in range(8):
            optimizer.step(closure)
            schedule.step()
        return [value for p in parameters for value in (p.detach(), *optimizer.state[p].values()) if isinstance(value, Tensor)]

    eager = trained()
    monkeypatch.setattr(store, "bucket_step", compiled)
    fused = trained()
    # One for a first step, one for numbers that change, for each kind of bucket; not one for each of eight steps.
    assert 0 < len(graphs) <= 6
    eps = torch.finfo(torch.float32).eps
    for a, b in zip(eager, fused, strict=True):
        # A few roundings a step; the remainder of a multiplicative element is itself one of its point, which is near 1.
        torch.testing.assert_close(a, b, rtol=64 * eps, atol=64 * eps)
