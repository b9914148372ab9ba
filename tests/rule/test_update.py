"""The update (3.5, Alg. 1–3): momentum, step sizes, and steps that are bounded or tiny."""

import math
import re
import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from support.elements import SAME_OPERATIONS, Seeded, assert_close, flattened, plus, scaled
from support.registry import GROUPS, WHOLE_GRID, GroupCase
from torch.utils import _pytree as pytree

from liebayes import Absorbed, Fisher
from liebayes.bases import Gumbel, Normal
from liebayes.groups import (
    Additive,
    Affine,
    DiagonalAffine,
    LogScale,
    LowRankShift,
    MatrixShift,
    Multiplicative,
    ScaleShift,
    TriangularAffine,
    TriangularShift,
)
from liebayes.groups.affine import condition_limit
from liebayes.rule import accumulate, bound, descend, initial_state, update

every_group = pytest.mark.parametrize("case", GROUPS, ids=str)


def start(case: GroupCase, like: Any, dtype: torch.dtype) -> Any:
    return case.group.identity(pytree.tree_map(lambda t: t.to(dtype), like))


def filled(g: Any, value: float, signs: torch.Generator | None = None) -> Any:
    """A covector with one size everywhere, and random signs if asked for."""

    def one(block: torch.Tensor) -> torch.Tensor:
        if signs is None:
            return torch.full_like(block, value)
        return value * (torch.randint(2, block.shape, generator=signs) * 2 - 1).to(block.dtype)

    return pytree.tree_map(one, g)


def scales(g: Any) -> list[torch.Tensor]:
    """Every scale of an element; for a full matrix the singular values."""

    def one(part: Any) -> torch.Tensor | None:
        if isinstance(part, (LogScale, ScaleShift)):
            return part.scale
        if isinstance(part, (LowRankShift, TriangularShift)):
            return part.matrix.diagonal(dim1=-2, dim2=-1)
        if isinstance(part, MatrixShift):
            return torch.linalg.svdvals(part.matrix.double())
        return None

    known = (LogScale, LowRankShift, ScaleShift, TriangularShift, MatrixShift)
    return [s for s in map(one, pytree.tree_leaves(g, is_leaf=lambda x: isinstance(x, known))) if s is not None]


# The formula.


@every_group
def test_one_step_is_the_formula(case: GroupCase) -> None:
    """M ← (1 − β)c + βM, g ← g·exp(−αM)."""
    draw, group = Seeded(case, case.likes[0], 0, 0.4), case.group
    g, first, second = draw.element(), draw.vector(), draw.vector()
    form = Absorbed().on(group, Normal(), g)
    state = initial_state(group, form, g)
    assert float(flattened(state.momentum).abs().max()) == 0
    state = update(group, form, state, first, lr=0.1, momentum=0.75).state
    state = update(group, form, state, second, lr=0.1, momentum=0.75).state
    M1 = scaled(first, 0.25)
    M2 = plus(scaled(second, 0.25), M1, 0.75)
    expected = group.compose(g, group.exp(scaled(M1, -0.1)))
    expected = group.compose(expected, group.exp(scaled(M2, -0.1)))
    assert_close(state.element, expected)
    assert_close(state.momentum, M2, SAME_OPERATIONS)


def test_momentum_commutes_with_a_constant_metric() -> None:
    """The paper keeps M after the sharp, we before it: the same path."""
    group, base = DiagonalAffine(), Gumbel(0.7)
    case = next(c for c in GROUPS if c.group == group)
    draw = Seeded(case, case.likes[1], 1)
    g = draw.element()
    form = Fisher().on(group, base, g)
    state, element, M = initial_state(group, form, g), g, group.zero(g)
    for _ in range(10):
        covector = draw.vector()
        state = update(group, form, state, covector, lr=0.1, momentum=0.9).state
        M = plus(scaled(form.sharp(covector), 0.1), M, 0.9)
        element = group.compose(element, group.exp(scaled(M, -0.1)))
    assert_close(state.element, element)


def test_alg_3_as_printed() -> None:
    """b ← b + A(exp(−αM_U) − 1)/M_U·M_V, A ← A·exp(−αM_U), with U and V divided by c_X = 2 and c_y = 1/σ²."""
    group, sigma, lr = DiagonalAffine(), 0.5, 0.3
    g = ScaleShift(torch.tensor([2.0, 0.5], dtype=torch.float64).log(), torch.tensor([1.0, -1.0], dtype=torch.float64))
    U, V = torch.tensor([0.8, -0.6], dtype=torch.float64), torch.tensor([0.3, 2.0], dtype=torch.float64)
    form = Fisher().on(group, Normal(sigma), g)
    new = update(group, form, initial_state(group, form, g), ScaleShift(U, V), lr=lr).state.element
    M_U, M_V = U / 2, V * sigma**2
    torch.testing.assert_close(new.shift, g.shift + g.scale * (torch.exp(-lr * M_U) - 1) / M_U * M_V)
    torch.testing.assert_close(new.scale, g.scale * torch.exp(-lr * M_U))


def test_step_sizes_for_each_block() -> None:
    vector = ScaleShift(torch.ones(2), torch.ones(2))
    step = descend(vector, ScaleShift(0.05, 1.0))  # type: ignore[arg-type]
    torch.testing.assert_close(tuple(step), (torch.full((2,), -0.05), torch.full((2,), -1.0)))


def test_no_momentum_is_the_covector_itself() -> None:
    covector = LogScale(torch.tensor([1.0, 2.0]))
    assert accumulate(LogScale(torch.zeros(2)), covector, 0.0) is covector


@every_group
def test_no_step_is_bounded_without_a_bound(case: GroupCase) -> None:
    g = case.group.identity(case.likes[0])
    form = Absorbed().on(case.group, Normal(), g)
    covector = filled(g, 0.3)
    free = update(case.group, form, initial_state(case.group, form, g), covector, lr=0.1)
    loose = update(case.group, form, initial_state(case.group, form, g), covector, lr=0.1, max_step=10.0)
    assert int(free.bounded) == int(loose.bounded) == 0
    assert_close(free.state.element, loose.state.element, 0.0)


# Bounds.


def test_elementwise_bounds_count_coordinates() -> None:
    step = ScaleShift(torch.tensor([0.1, 5.0, -3.0]), torch.tensor([-0.2, 0.2, 7.0]))
    limited, count = bound(DiagonalAffine(), step, 0.5)
    torch.testing.assert_close(tuple(limited), (torch.tensor([0.1, 0.5, -0.5]), torch.tensor([-0.2, 0.2, 0.5])))
    assert int(count) == 3


def test_matrix_bounds_count_blocks_and_keep_the_direction() -> None:
    step = MatrixShift(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0.1, 0.2]))
    limited, count = bound(Affine(), step, 0.5)
    torch.testing.assert_close(limited.matrix, step.matrix / 10)
    torch.testing.assert_close(limited.shift, step.shift)
    assert int(count) == 1
    _, count = bound(TriangularAffine(), TriangularShift(torch.ones(2), 9 * torch.ones(2, 2).tril(-1), torch.ones(2)), 0.5)
    assert int(count) == 3


@every_group
def test_update_reports_its_bounded_steps(case: GroupCase) -> None:
    g = case.group.identity(case.likes[0])
    form = Absorbed().on(case.group, Normal(), g)
    taken = update(case.group, form, initial_state(case.group, form, g), filled(g, 1e4), lr=1.0, max_step=0.1)
    blocks = [block for block in pytree.tree_leaves(g) if block.numel()]
    expected = sum(block.numel() for block in blocks) if case.group.elementwise else len(blocks)
    assert int(taken.bounded) == expected


def dilation(g: Any, size: float) -> Any:
    """A covector that moves all scales alike and nothing else."""

    def one(part: Any) -> Any:
        zero = pytree.tree_map(torch.zeros_like, part)
        if isinstance(part, MatrixShift):
            return zero._replace(
                matrix=size * torch.eye(part.matrix.shape[-1], dtype=part.matrix.dtype).expand_as(part.matrix)
            )
        return zero._replace(**{name: torch.full_like(getattr(part, name), size) for name in part._fields if "log" in name})

    return pytree.tree_map(one, g, is_leaf=lambda x: hasattr(x, "_fields"))


def assert_in_the_group(element: Any, sign: int = 1) -> None:
    """Everything finite, no scale at zero or below; a matrix within its condition number, its determinant of one sign.

    The last by exact rational arithmetic. A product of orthogonal factors and singular values is rounded by about
    2√P·eps·σ_max, a quarter of the smallest singular value at the limit; ours here are rounded too: 3/2 covers both.
    """
    assert bool(torch.isfinite(flattened(element)).all())
    for scale in scales(element):
        assert bool((scale > 0).all())
        assert bool(torch.isfinite(scale).all())
    for part in pytree.tree_leaves(element, is_leaf=lambda x: isinstance(x, MatrixShift)):
        if isinstance(part, MatrixShift):
            values = torch.linalg.svdvals(part.matrix.double())
            limit = condition_limit(part.matrix.dtype, part.matrix.shape[-1])
            assert bool((values[..., 0] <= 1.5 * limit * values[..., -1]).all())
            matrices = part.matrix.double().reshape(-1, *part.matrix.shape[-2:]).tolist()
            assert all(determinant([[Fraction(x) for x in row] for row in matrix]) * sign > 0 for matrix in matrices)


def determinant(matrix: list[list[Fraction]]) -> Fraction:
    """By its first row."""
    if not matrix:
        return Fraction(1)
    minors = ([row[:i] + row[i + 1 :] for row in matrix[1:]] for i in range(len(matrix)))
    terms = ((-1) ** i * x * determinant(minor) for i, (x, minor) in enumerate(zip(matrix[0], minors, strict=True)))
    return sum(terms, Fraction())


@pytest.mark.filterwarnings("ignore:The matrix of an Affine element has reached the condition number")
@pytest.mark.parametrize("pattern", ["up", "down", "alternating", "random", "dilation", "contraction"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [c for c in GROUPS if not type(c.group).__module__.endswith("user_defined")], ids=str)
def test_extreme_steps_stay_in_the_group(case: GroupCase, dtype: torch.dtype, pattern: str) -> None:
    """αM = ±1e4, each step bounded: the element is one of the group all the way.

    Together they are 120 in the logarithm of a scale, more than float32 has on either side of 1.
    """
    group = case.group
    g = start(case, case.likes[-1], dtype)
    form = Absorbed().on(group, Normal(), g)
    state, signs = initial_state(group, form, g), torch.Generator().manual_seed(0)
    steps, largest = (240, 0.5) if WHOLE_GRID else (60, 2.0)
    for step in range(steps):
        if pattern in ("dilation", "contraction"):
            covector = dilation(g, -1e4 if pattern == "dilation" else 1e4)
        else:
            size = {"up": -1e4, "down": 1e4, "alternating": 1e4 * (-1) ** step, "random": 1e4}[pattern]
            covector = filled(g, size, signs if pattern == "random" else None)
        taken = update(group, form, state, covector, lr=1.0, momentum=0.5, max_step=largest)
        state = taken.state
        assert int(taken.bounded) > 0 or isinstance(group, Additive)
        if step % 10 == 9:
            assert_in_the_group(state.element)
    assert {block.dtype for block in pytree.tree_leaves(state.element)} == {dtype}
    assert bool(torch.isfinite(flattened(state.momentum)).all())
    ones = pytree.tree_map(lambda t: torch.ones_like(t, dtype=dtype), case.likes[-1])
    assert bool(torch.isfinite(flattened(group.act(state.element, ones))).all())


# The condition number of a matrix.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("step", [0.5, 3.0, 8.0])
def test_the_condition_number_of_a_matrix_is_bounded(dtype: torch.dtype, dim: int, step: float) -> None:
    """Steps in one direction, up to the largest the float's range has room for (`scale_of` leaves e^8.8 in float32)."""
    group = Affine()
    g = group.identity(torch.zeros(dim, dtype=dtype))
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)).Q
    X = rotation @ torch.linspace(-step, step, dim, dtype=torch.float64).diag() @ rotation.mT
    # log(1/eps) = 36 in float64, and a step raises the logarithm of the condition number by 2·step.
    g = moved(g, MatrixShift(X.to(dtype), torch.zeros(dim, dtype=dtype)), 10 + math.ceil(25 / step))
    assert bool(torch.isfinite(group.log_jacobian(g, g.shift)))
    back = group.move(g, MatrixShift(-X.to(dtype), torch.zeros(dim, dtype=dtype)), 0.5 / step)
    narrower, wider = (float(torch.linalg.cond(element.matrix.double())) for element in (back, g))
    assert narrower < wider  # and the way back is free


def moved(g: MatrixShift, X: MatrixShift, steps: int) -> MatrixShift:
    """Steps along X, which end in a warning that names the limit."""
    message = r"Affine element has reached the condition number .* in torch\..*TriangularAffine"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sign = -1 if float(g.matrix.double().det()) < 0 else 1
        for _ in range(steps):
            g = Affine().move(g, X, 1.0)
            assert_in_the_group(g, sign)
    assert caught
    assert all(re.search(message, str(warning.message)) for warning in caught)
    return g


def test_a_reflection_stays_one() -> None:
    """The sign of the determinant is that of the factors, also where rounding has lost it."""
    g = MatrixShift(torch.diag(torch.tensor([1.0, -1.0])), torch.zeros(2))
    moved(g, MatrixShift(torch.tensor([[0.0, 0.5], [0.5, 0.0]]), torch.zeros(2)), 60)


def test_only_the_matrix_past_its_limit_is_changed() -> None:
    group = Affine()
    narrow = torch.diag(torch.tensor([1.0, 1e-5]))
    g, h = (MatrixShift(torch.stack([torch.eye(2), narrow]), torch.zeros(2, 2)) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="condition number"):
        product = group.compose(g, h).matrix
    assert torch.equal(product[0], torch.eye(2))
    torch.testing.assert_close(product[1], torch.diag(torch.tensor([1.0, 1 / condition_limit(torch.float32, 2)])))


def test_well_conditioned_products_are_left_alone() -> None:
    """To the bit, up to the limit; condition numbers of real posteriors in float32 are far below it."""
    narrow = torch.diag(torch.tensor([1.0, 1.0, 2e-3]))
    g = MatrixShift(narrow, torch.zeros(3))
    assert torch.equal(Affine().compose(g, g).matrix, narrow @ narrow)


@every_group
def test_an_infinite_covector_is_bounded_too(case: GroupCase) -> None:
    if not case.group.elementwise:
        return
    g = case.group.identity(case.likes[0])
    form = Absorbed().on(case.group, Normal(), g)
    taken = update(case.group, form, initial_state(case.group, form, g), filled(g, math.inf), lr=1.0, max_step=0.5)
    assert bool(torch.isfinite(flattened(taken.state.element)).all())


# Tiny steps.


@pytest.mark.parametrize("group", [Multiplicative(), DiagonalAffine(), TriangularAffine()], ids=str)
def test_tiny_steps_add_up(group: Any) -> None:
    """For growing and for shrinking scales. A stored scale of 1 would round each of them to 0 or to eps = 1.19e-7.

    The sum is below 2⁻⁹, so that every addition is rounded by 2⁻³⁴ at most: by 6e-4 of a step.
    """
    steps = 10_000
    g = group.identity(torch.zeros(2))
    logarithm = "log_diagonal" if isinstance(group, TriangularAffine) else "log_scale"
    covector = group.zero(g)._replace(**{logarithm: torch.tensor([-1.0, 1.0])})
    form = Absorbed().on(group, Normal(), g)
    state = initial_state(group, form, g)
    for _ in range(steps):
        state = update(group, form, state, covector, lr=1e-7).state
    total = getattr(state.element, logarithm)
    torch.testing.assert_close(total, torch.tensor([1e-7, -1e-7]) * steps, rtol=1e-3, atol=0)


def test_a_step_that_is_not_a_number_is_the_largest_in_any_block() -> None:
    group, form = DiagonalAffine(), Absorbed().on(DiagonalAffine(), Normal(), ScaleShift(torch.zeros(2), torch.zeros(2)))
    start = initial_state(group, form, ScaleShift(torch.zeros(2), torch.zeros(2)))
    for bad in (0, 1):
        blocks = [torch.full((2,), math.nan if which == bad else 0.1) for which in (0, 1)]
        assert math.isnan(update(group, form, start, ScaleShift(*blocks), lr=1.0, max_step=0.5).largest or 0.0)


def test_tiny_steps_add_up_from_a_large_scale() -> None:
    """Relative to a start of 1e6, as `fit` keeps it: a logarithm of 13.8 could not take a step of 1e-7 in float32."""
    group = Multiplicative()
    first = group.at(torch.tensor([1e6]))
    h = group.identity(torch.zeros(1))
    for _ in range(10_000):
        h = group.compose(h, group.exp(LogScale(torch.tensor([1e-7]))))
    # Logarithms of 13.8 are rounded by 5e-7, twice; the steps together by as much.
    assert float(group.compose(first, h).scale) == pytest.approx(1e6 * math.exp(1e-3), rel=2e-6)
    assert float(first.log_scale + 1e-7) == float(first.log_scale)


def test_additive_steps_are_plain() -> None:
    group = Additive()
    g = group.at(torch.tensor([1.0, 2.0]))
    form = Absorbed().on(group, Normal(), g)
    taken = update(group, form, initial_state(group, form, g), g, lr=0.5)
    torch.testing.assert_close(taken.state.element.shift, torch.tensor([0.5, 1.0]))
