"""Figure 1 of the paper, (a) and (b), drawn with the library. There is no noise in it: all expectations are quadratures.

(a) The orbits of three bases under three groups: a base q₀ (black) and members q_g = π(g)q₀ of its family.
(b) Gaussians as the half-plane of (b, A), A > 0, and a loss that is concave between its two valleys. The Lie-group rule walks
    down g ← g·exp(−αM) and stays; the Bayesian learning rule's straight step from the same place ends at a negative precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from ...bases import Base, Laplace, Normal, Rayleigh, Uniform
from ...groups import Additive, DiagonalAffine, LieGroup, LogScale, Multiplicative, ScaleShift, Shift
from ...rule import Family, Fisher, differential, gaussian_step, initial_state, update
from ..run_directory import writable

INK, RED, BLUE = "#222222", "#c8102e", "#1f5fa8"
PLATE: dict[str, Any] = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
SHADES = ["#f4a582", "#d6604d", "#92c5de", "#4393c3"]
STEP = 0.6  # α of both rules
START = (0.5, 0.5)  # b and A


@contextmanager
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def loss(theta: Tensor) -> Tensor:
    """Two valleys at ±2 with a ridge between them: its curvature is negative for |θ| < 1.15."""
    return 3 / 8 * (theta.square() - 4).square()


def slope(theta: Tensor) -> Tensor:
    return 3 / 2 * (theta**3 - 4 * theta)


def curvature(theta: Tensor) -> Tensor:
    return 3 / 2 * (3 * theta.square() - 4)


def nodes() -> tuple[Tensor, Tensor]:
    """Gauss–Hermite nodes and weights of the standard normal: exact for polynomials, which this loss is."""
    x, w = np.polynomial.hermite_e.hermegauss(20)
    return torch.tensor(x), torch.tensor(w / w.sum())


EPSILON: Tensor
WEIGHT: Tensor
EPSILON, WEIGHT = nodes()


# (b) The two rules.


def lie_path(steps: int) -> Tensor:
    """(b, A) along the Lie-group rule, from START, as rows."""
    group, base = DiagonalAffine(), Normal()
    g = ScaleShift(torch.tensor([START[1]]).log(), torch.tensor([START[0]]))
    form = Fisher().on(group, base, g)
    state = initial_state(group, form, g)
    path = [(g.shift, g.scale)]
    for _ in range(steps):
        theta = group.act(state.element, EPSILON.unsqueeze(-1))
        # The rule averages over samples with equal weights; quadrature weights go in with the gradient.
        gradient = slope(theta) * WEIGHT.unsqueeze(-1) * len(WEIGHT)
        covector = differential(group, state.element, theta, gradient, temperature=1.0)
        state = update(group, form, state, covector, lr=STEP).state
        path.append((state.element.shift, state.element.scale))
    return torch.stack([torch.cat(point) for point in path])


def blr_steps(fractions: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision along the BLR's first step, a straight line in the natural parameters (Sm, S)."""
    b, A = START
    theta = b + A * EPSILON
    hessian, gradient = (WEIGHT * curvature(theta)).sum(), (WEIGHT * slope(theta)).sum()
    before = torch.tensor(b), torch.tensor(A**-2)
    after = gaussian_step(*before, gradient, hessian, lr=STEP)
    first = torch.lerp(before[0] * before[1], after[0] * after[1], fractions)
    precision = torch.lerp(before[1], after[1], fractions)
    return first / precision, precision


def objective(b: Tensor, A: Tensor) -> Tensor:
    """E_q[ℓ] − H(q) on a grid of Gaussians."""
    theta = b.unsqueeze(-1) + A.unsqueeze(-1) * EPSILON
    return (loss(theta) * WEIGHT).sum(-1) - A.log()


# (a) Orbits.


def orbit(
    axes: Axes, group: LieGroup[Any], base: Base, members: Sequence[Any], labels: list[str], span: tuple[float, float]
) -> None:
    x = torch.linspace(*span, 2001)
    for element, shade, label in zip(members, SHADES, labels, strict=False):
        density = Family(group, base, element).log_prob(x.unsqueeze(-1)).exp()
        axes.plot(x, density, color=shade, lw=1.6, label=label)
        axes.fill_between(x, density, color=shade, alpha=0.13, lw=0)
    axes.plot(x, base.log_prob(x).exp(), color=INK, lw=2.0, label="$q_0$")
    axes.set(xlim=span, ylim=(0, None), yticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8, length=2.5)
    axes.legend(fontsize=7.5, frameon=False, loc="upper right", handlelength=1.2, labelspacing=0.25, borderaxespad=0.0)


def one(*values: float) -> list[Tensor]:
    return [torch.tensor([value]) for value in values]


def draw_orbits(column: list[Axes]) -> None:
    top, middle, bottom = column
    shifts = (-2.5, 2.5, 5.0)
    orbit(top, Additive(), Uniform(), [Shift(s) for s in one(*shifts)], [f"$g={s:+g}$" for s in shifts], (-4, 10))
    top.set_title("additive · uniform      $g\\cdot\\theta=\\theta+g$", fontsize=9.5, loc="left")
    scales = (0.5, 2.0, 3.5)
    elements = [LogScale(s.log()) for s in one(*scales)]
    orbit(middle, Multiplicative(), Rayleigh(), elements, [f"$g={s:g}$" for s in scales], (0, 11))
    middle.set_title("multiplicative · Rayleigh      $g\\cdot\\theta=g\\,\\theta$", fontsize=9.5, loc="left")
    pairs = ((0.5, -3.5), (2.0, 3.0), (0.8, 6.0))
    elements = [ScaleShift(torch.tensor([A]).log(), torch.tensor([b])) for A, b in pairs]
    orbit(bottom, DiagonalAffine(), Laplace(), elements, [f"$A={A:g},\\ b={b:+g}$" for A, b in pairs], (-7, 16))
    bottom.set_title("affine · Laplace      $g\\cdot\\theta=A\\theta+b$", fontsize=9.5, loc="left")
    bottom.set_xlabel("parameter $\\theta$", fontsize=9.5)


def draw_half_plane(axes: Axes, path: Tensor) -> None:
    right, top = 2.75, 1.32
    b, A = torch.meshgrid(torch.linspace(-0.25, right, 300), torch.linspace(0.03, top, 300), indexing="xy")
    values = objective(b, A)
    axes.contour(b, A, values, levels=float(values.min()) + np.geomspace(0.08, 60, 12), colors="#b5b5b5", linewidths=0.6)
    for x, y in path:
        # A ball of the Fisher metric at this Gaussian: A·ρ/√c_y wide and A·ρ/√c_X high, with c_y = 1 and c_X = 2.
        width = 2 * 0.16 * float(y)
        axes.add_patch(Ellipse((float(x), float(y)), width, width / 2**0.5, fc=RED, ec=RED, alpha=0.2, lw=1.0, zorder=3))
    axes.plot(path[:, 0], path[:, 1], color=RED, lw=1.4, marker="o", ms=2.8, zorder=4)
    axes.text(
        1.66, 0.72, "Lie-group rule\n$g\\leftarrow g\\,\\exp(-\\alpha M)$", color=RED, fontsize=10, va="center", bbox=PLATE
    )

    mean, precision = blr_steps(torch.linspace(0, 1, 4001))
    x, y = mean, precision.clamp_min(1e-9).rsqrt()
    inside = (precision > 0) & (y < top - 0.01) & (x < right)
    x, y = x[inside], y[inside]
    axes.plot(x, y, color=BLUE, lw=1.8, zorder=4)
    axes.annotate("", (x[-1], y[-1]), (x[-60], y[-60]), arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 1.8}, zorder=4)
    note = "BLR: its straight step in $(Sm, S)$\nleaves through $A=\\infty$ and ends\n"
    note += f"at the precision $S={float(precision[-1]):.2f}$"
    axes.text(-0.17, 1.17, note, color=BLUE, fontsize=10, va="center", bbox=PLATE)

    axes.plot(*START, marker="o", color=INK, ms=6, zorder=5)
    axes.text(START[0] - 0.12, START[1], "start", fontsize=9.5, ha="right", va="center", color=INK, bbox=PLATE)
    axes.text(
        float(path[-1, 0]) + 0.12, float(path[-1, 1]) - 0.12, "optimum", fontsize=9.5, color=INK, va="center", bbox=PLATE
    )
    axes.set(xlim=(-0.25, right), ylim=(0, top))
    axes.axhline(0, color=INK, lw=2)
    axes.set_xlabel("mean $b$", fontsize=9.5)
    axes.set_ylabel("standard deviation $A>0$", fontsize=9.5)
    axes.set_title("the half-plane of Gaussians; ovals are balls of the Fisher metric", fontsize=9.5, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=2.5)


def draw_precision(axes: Axes, path: Tensor) -> None:
    steps = np.arange(len(path))
    lie = path[:, 1] ** -2
    axes.axhspan(-4, 0, color="#dddddd", alpha=0.7, lw=0)
    axes.axhline(0, color=INK, lw=1.0)
    axes.plot(steps, lie, color=RED, lw=1.4, marker="o", ms=3.2, label="Lie-group rule")
    _, precision = blr_steps(torch.linspace(0, 1, 2))
    axes.plot([0, 1], precision, color=BLUE, lw=1.8, marker="o", ms=4, label="BLR, one step")
    axes.text(len(path) - 1, -1.1, "$S\\leq 0$: not a distribution", fontsize=9.5, ha="right", va="center", color="#444444")
    axes.plot(0, float(lie[0]), marker="o", color=INK, ms=5, zorder=5)
    axes.set(xlim=(-0.5, len(path) - 0.5), ylim=(-2.2, 1.12 * float(lie.max())))
    axes.set_xlabel("step", fontsize=9.5)
    axes.set_ylabel("precision $S=A^{-2}$", fontsize=9.5)
    axes.set_title("the same, step by step", fontsize=9.5, loc="left")
    axes.legend(fontsize=8.5, frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=2.5)


def draw_figure1(output: Path) -> Path:
    """Writes figure1.png into a folder."""
    with _double():
        figure = _figure()
    path = output / "figure1.png"
    with writable(path, "--results"):
        output.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140, pil_kwargs={"optimize": True})
    return path


def _figure() -> Figure:
    path = lie_path(10)
    figure = Figure(figsize=(12.4, 4.5))
    parts: Any = figure.subfigures(1, 2, width_ratios=[1, 2.15])
    left, right = parts
    column = left.subplots(3, 1, gridspec_kw={"hspace": 0.75, "left": 0.06, "right": 0.97, "top": 0.86, "bottom": 0.12})
    draw_orbits(list(column))
    pair = right.subplots(
        1,
        2,
        gridspec_kw={"width_ratios": [1.75, 1], "wspace": 0.22, "left": 0.085, "right": 0.985, "top": 0.86, "bottom": 0.12},
    )
    draw_half_plane(pair[0], path)
    draw_precision(pair[1], path)
    left.text(0.06, 0.955, "(a) choose a group and a base: a family", fontsize=11, weight="bold")
    right.text(
        0.085, 0.955, "(b) the exponential map stays on the manifold, a straight step need not", fontsize=11, weight="bold"
    )
    return figure
