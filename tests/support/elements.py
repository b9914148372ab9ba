"""Elements, vectors and points of any group, drawn by hypothesis or from a seed."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from liebayes.groups import Conjugated, KroneckerShift, LowRankShift, MatrixShift, Product, TriangularShift

from .registry import GroupCase

Numbers = Callable[[int], list[float]]

NEARNESS = (1.0, 1.0, 1e-3, 1e-7, 0.0)
"""Factors on the distance from the identity."""

SAMPLES = ((), (1,), (4,), (2, 3))
"""Leading dimensions of θ."""

# Tolerances of laws in float64. Elements are products of two exponentials of vectors up to `size`, so that numbers and
# condition numbers reach e^(2·size) to e^(4·size), 3e3 at most; a law takes some tens of roundings of 1.1e-16.
ROUNDING = 1e-11
CONJUGATED = 1e-10
"""Where g and g⁻¹ are both in a formula."""
DIFFERENCED = 1e-8
"""Of central differences with t = 1e-5: t² times a third derivative, and rounding over t, relative to the largest number."""
SAME_OPERATIONS = 1e-14
"""Of the same operations in another order or on other shapes: roundings alone, nothing to magnify them."""


def in_the_algebra(X: Any) -> Any:
    """Nothing on or above the diagonal in a block below it; no trace on the right of a Kronecker product of two factors."""

    def one(x: Any) -> Any:
        if isinstance(x, TriangularShift):
            return x._replace(lower=x.lower.tril(-1))
        if isinstance(x, LowRankShift):
            return x._replace(columns=x.columns.tril(-1))
        if isinstance(x, KroneckerShift):
            x = x._replace(left_lower=x.left_lower.tril(-1), right_lower=x.right_lower.tril(-1))
            if x.left_log_diagonal.numel() and x.right_log_diagonal.numel():
                x = x._replace(right_log_diagonal=x.right_log_diagonal - x.right_log_diagonal.mean(-1, keepdim=True))
        return x

    return pytree.tree_map(one, X, is_leaf=lambda x: isinstance(x, (KroneckerShift, LowRankShift, TriangularShift)))


def vector(case: GroupCase, like: Any, numbers: Numbers, near: float) -> Any:
    """A vector of the algebra for θ like `like`."""
    shape = case.group.identity(like)
    filled = pytree.tree_map(lambda t: torch.tensor(numbers(t.numel()), dtype=t.dtype).reshape(t.shape) * near, shape)
    return in_the_algebra(filled)


def element(case: GroupCase, like: Any, numbers: Numbers, near: float, mirrored: bool = False) -> Any:
    """exp(X)·exp(Y); with a reflection, that of the full affine group also has a negative determinant."""
    X, Y = vector(case, like, numbers, near), vector(case, like, numbers, near)
    g = case.group.compose(case.group.exp(X), case.group.exp(Y))

    def mirror(part: Any) -> Any:
        if not isinstance(part, MatrixShift):
            return part
        sign = torch.ones_like(part.shift)
        sign[..., 0] = -1
        return part._replace(matrix=part.matrix * sign.unsqueeze(-1))

    return pytree.tree_map(mirror, g, is_leaf=lambda x: isinstance(x, MatrixShift)) if mirrored else g


def on_domain(group: Any, theta: Any) -> Any:
    """Real numbers turned into points on which the group acts."""
    if isinstance(group, Product):
        return group.join([on_domain(part, t) for part, t in group.split("θ", theta)])
    if isinstance(group, Conjugated):
        shape = group.chart.real_shape(theta)  # may be of fewer numbers
        return group.chart.from_real(theta if shape == theta.shape else theta.reshape(*shape[:-1], -1)[..., : shape[-1]])
    return theta.exp() if group.positive else theta


def point(case: GroupCase, like: Any, numbers: Numbers, samples: tuple[int, ...] = ()) -> Any:
    """θ with leading sample dimensions."""

    def one(t: torch.Tensor) -> torch.Tensor:
        shape = (*samples, *t.shape)
        return torch.tensor(numbers(torch.Size(shape).numel()), dtype=t.dtype).reshape(shape)

    return on_domain(case.group, pytree.tree_map(one, like))


class Drawn:
    """What a law is about, from hypothesis: `Drawn(data, case)` then ask for elements, vectors and points."""

    def __init__(self, data: st.DataObject, case: GroupCase) -> None:
        self.data = data
        self.case = case
        self.like = data.draw(st.sampled_from(case.likes), label="like")

    def _numbers(self, count: int) -> list[float]:
        numbers = st.floats(-self.case.size, self.case.size, allow_subnormal=False)
        return self.data.draw(st.lists(numbers, min_size=count, max_size=count))

    def near(self) -> float:
        return self.data.draw(st.sampled_from(NEARNESS), label="near")

    def element(self) -> Any:
        return element(self.case, self.like, self._numbers, self.near(), self.data.draw(st.booleans(), label="mirrored"))

    def vector(self) -> Any:
        return vector(self.case, self.like, self._numbers, self.near())

    def samples(self) -> tuple[int, ...]:
        return self.data.draw(st.sampled_from(SAMPLES), label="samples")

    def point(self, samples: tuple[int, ...] = ()) -> Any:
        return point(self.case, self.like, self._numbers, samples)

    def number(self, low: float, high: float) -> float:
        return self.data.draw(st.floats(low, high))


class Seeded:
    """The same from a seed, where hypothesis would only cost time."""

    def __init__(self, case: GroupCase, like: Any, seed: int, size: float | None = None) -> None:
        self.case = case
        self.like = like
        self.size = case.size if size is None else size
        self.generator = torch.Generator().manual_seed(seed)

    def _numbers(self, count: int) -> list[float]:
        return ((torch.rand(count, generator=self.generator, dtype=torch.float64) * 2 - 1) * self.size).tolist()

    def element(self, mirrored: bool = False) -> Any:
        return element(self.case, self.like, self._numbers, 1.0, mirrored)

    def vector(self) -> Any:
        return vector(self.case, self.like, self._numbers, 1.0)

    def point(self, samples: tuple[int, ...] = ()) -> Any:
        return point(self.case, self.like, self._numbers, samples)


def scaled(X: Any, factor: float) -> Any:
    """A multiple of a vector."""
    return pytree.tree_map(lambda x: x * factor, X)


def plus(X: Any, Y: Any, factor: float = 1.0) -> Any:
    """X + factor·Y in the algebra."""
    return pytree.tree_map(lambda x, y: x + factor * y, X, Y)


def pairing(covector: Any, X: Any) -> torch.Tensor:
    """⟨covector, X⟩."""
    return torch.stack([(c * x).sum() for c, x in zip(pytree.tree_leaves(covector), pytree.tree_leaves(X), strict=True)]).sum()


def flattened(X: Any) -> torch.Tensor:
    """All numbers of a tree in one vector."""
    return torch.cat([x.reshape(-1) for x in pytree.tree_leaves(X)])


def basis(case: GroupCase, like: Any) -> list[Any]:
    """The unit vectors of the algebra; a triangular one has none above the diagonal."""
    blocks, spec = pytree.tree_flatten(case.group.identity(like))
    vectors = []
    for which, block in enumerate(blocks):
        for index in range(block.numel()):
            unit = [torch.zeros_like(other) for other in blocks]
            unit[which].view(-1)[index] = 1.0
            X = in_the_algebra(pytree.tree_unflatten(unit, spec))
            if float(flattened(X).abs().sum()) > 0:
                vectors.append(X)
    return vectors


def assert_close(actual: Any, expected: Any, tolerance: float = ROUNDING) -> None:
    """Equal up to rounding: an error of `tolerance`, relative to the largest number where that is above 1."""
    ours, spec = pytree.tree_flatten(actual)
    theirs, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape, f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance * max(1.0, float(b.abs().max()) if b.numel() else 1.0))
