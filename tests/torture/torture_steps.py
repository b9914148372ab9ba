"""1e5 steps for every rule in float32 and bfloat16, with the kernel and without: all finite, and both paths the same.

The loss is a noisy quadratic, at whose minimum rounding is forgotten: a path that differs in the last digits stays near the
other, and one that is wrong does not. Both draw the same noise (philox), which torch draws for many steps at a time. Half way
an optimizer goes on from its checkpoint.

The kernel takes float32 only: in bfloat16 both are the same path, which is run once, and a tenth of it again for its bits.
"""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import liebayes as lb
from liebayes import native
from liebayes.baselines import IVON, VOGN
from liebayes.bases import Base, Normal, Rayleigh, philox
from liebayes.groups import Additive, DiagonalAffine, Multiplicative
from liebayes.rule import Absorbed, Adaptive, Fisher

STEPS = 100_000
SIZE = 64
AHEAD = 1000
"""Steps whose noise is drawn at once."""
RULES: dict[str, Any] = {
    "additive": lambda p: lb.LieGroupBLR(p, Additive(), Normal(0.1), 0.05, data_size=50, noise="philox"),
    "additive adaptive": lambda p: lb.LieGroupBLR(
        p, Additive(), Normal(0.1), 0.01, data_size=50, metric=Adaptive(), noise="philox"
    ),
    "affine": lambda p: lb.AffineBLR(p, 0.05, base=Normal(0.1), data_size=50, noise="philox"),
    "affine samples": lambda p: lb.AffineBLR(p, 0.05, base=Normal(0.1), data_size=50, curvature="samples", noise="philox"),
    "affine fisher": lambda p: lb.LieGroupBLR(
        p, DiagonalAffine(), Normal(0.1), 0.01, data_size=50, metric=Fisher(), max_step=0.2, noise="philox"
    ),
    "affine gauss-newton": lambda p: lb.LieGroupBLR(
        p, DiagonalAffine(), Normal(), 0.1, data_size=50, metric=Absorbed(), curvature="gauss-newton", start_width=0.1,
        noise="philox",
    ),
    "multiplicative": lambda p: lb.LieGroupBLR(
        p, Multiplicative(), Rayleigh(), 0.05, data_size=50, max_step=0.2, noise="philox"
    ),
    "multiplicative adaptive": lambda p: lb.MultiplicativeBLR(p, 0.01, data_size=50, noise="philox"),
    "kronecker": lambda p: lb.KroneckerBLR(p, data_size=50, noise="philox"),
    "ivon": lambda p: IVON(p, 0.1, data_size=50, noise="philox"),
    "vogn": lambda p: VOGN(p, 0.02, data_size=50, noise="philox"),
}  # fmt: skip
CASES = [(rule, dtype) for dtype in (torch.float32, torch.bfloat16) for rule in RULES]
UNIT, GOAL = "steps", (2 * STEPS + STEPS + STEPS // 10) * len(RULES)


class Campaign:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)

    def case(self, number: int, steps: int = STEPS) -> Counter[str]:
        """One rule in one precision, on both paths."""
        rule, dtype = CASES[number % len(CASES)]
        in_kernel = dtype == torch.float32
        lengths = steps, steps if in_kernel else steps // 10
        paths = [self.train(rule, dtype, number, steps, *path) for path in zip(lengths, (False, True), strict=True)]
        for checked, (without, with_kernel) in enumerate(zip(*paths, strict=False)):
            where = f"{rule} in {dtype} after {(checked + 1) * steps // 10} steps"
            require_near(where, with_kernel, without, 1000 * torch.finfo(torch.float32).eps if in_kernel else 0.0)
        return Counter({"steps": sum(lengths), f"steps of {rule} in {dtype}": sum(lengths)})

    def train(
        self, rule: str, dtype: torch.dtype, seed: int, steps: int, stop: int, kernel: bool
    ) -> list[dict[str, Tensor]]:
        """Points and widths ten times on the way of so many steps, of which the first `stop` are taken."""
        available, draw = native.available, philox.draw
        native.available = (lambda: kernel) if native.available() else available
        philox.draw = Ahead()
        try:
            return self._train(rule, dtype, seed, steps, stop)
        finally:
            native.available, philox.draw = available, draw

    def _train(self, rule: str, dtype: torch.dtype, seed: int, steps: int, stop: int) -> list[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        target = torch.rand(8, SIZE // 8, generator=generator).add(0.5)
        curvature = torch.rand(8, SIZE // 8, generator=generator).add(0.5)
        p = nn.Parameter(torch.ones(8, SIZE // 8, dtype=dtype))
        optimizer, found = RULES[rule]([p]), []
        examples, noise = torch.eye(8, dtype=dtype), torch.empty(0)

        def closure() -> None:
            nonlocal noise
            if len(noise) == 0:
                noise = 0.1 * torch.randn(AHEAD, *p.shape, generator=generator)
            slope, noise = curvature * (p.detach().float() - target) + noise[0], noise[1:]
            if rule == "vogn":  # which asks for the gradients of single examples
                optimizer.zero_grad()
                (nn.functional.linear(examples, p) * slope.t().to(dtype)).sum().backward()
            else:
                p.grad = slope.to(dtype)

        for step in range(1, stop + 1):
            optimizer.step(closure)
            if step == steps // 2:
                saved, optimizer = copy.deepcopy(optimizer.state_dict()), RULES[rule]([p])
                optimizer.load_state_dict(saved)
            if step % (steps // 10) == 0:
                (family,) = optimizer.families().values()
                found.append({"point": p.detach().float().clone(), "width": family.variance.detach().float().sqrt()})
                for name, value in found[-1].items():
                    assert bool(value.isfinite().all()), f"{rule} in {dtype}: {name} is not finite after {step} steps"
        return found


class Ahead:
    """The noise of `philox.draw`, by the same functions, for many steps at once: alone, a step's takes half of its time."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], tuple[int, Tensor]] = {}

    def __call__(self, base: Base, count: int, *, seed: int, tensor: int, step: int, stream: int, **_: Any) -> Tensor:
        block, at = divmod(step, AHEAD)
        place = (repr(base), count, seed, tensor, stream)  # a step of several samples has several streams
        if self.known.get(place, (None,))[0] != block:
            steps = torch.arange(block * AHEAD, (block + 1) * AHEAD).view(-1, 1, 1)
            lanes = torch.arange(count // philox.GROUP * 8).view(1, -1, 8)
            found = philox.philox((lanes, tensor, steps, stream), (seed & 0xFFFFFFFF, seed >> 32))
            words = torch.stack(torch.broadcast_tensors(*found), dim=2)  # (steps, groups, rows, lanes)
            law = philox._LAWS[type(base)]
            self.known[place] = block, law(base, words.flatten(0, 1), words).view(AHEAD, count).to(torch.float32)
        return self.known[place][1][at].clone()


def require_near(where: str, one: dict[str, Tensor], other: dict[str, Tensor], relative: float) -> None:
    """The paths differ by what a thousand roundings make of a number, the older of which the loss forgets; or not at all."""
    for name in one:
        largest = float((one[name] - other[name]).abs().max())
        allowed = relative * float(other[name].abs().max())
        assert largest <= allowed, f"{where}: the {name} differs by {largest:.3g}, and {allowed:.3g} is rounding"
