"""Whether the target has finite mass: the loss far out, on the rays along which a run would go on for ever.

With separable classes and a flat prior the loss falls towards its infimum along rays, and the best mean and widths are
infinite. Both drift, ever more slowly next to themselves: the gradients come from the few draws behind the border of the
classes, so that near the result there is nothing but noise. Far out it shows. The conditional of a density of finite mass has
finite mass on almost every line, and so the loss over τ rises by more than the logarithm of the distance. On a ray where it
does not, over many powers of ten, there is more mass than at the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..groups import blocks_of
from .factors import Factor, direction_in_words

POWERS = {torch.float64: 6}
"""Up to which power of ten a ray is followed: in float64 any prior worth the name is seen, in narrower types (`FEW`) the
differences of a loss are lost in its rounding soon."""
FEW = 3
MANY = 32
"""In more dimensions gradients further out are not asked for: that would take more of them than a part of the run."""
LEVEL = 1e-4
"""A second moment of gradients in a direction, next to the largest, that is worth a look: near an optimum all are alike."""


def endless(
    factors: Sequence[Factor],
    loss: Callable[[list[Tensor]], Tensor],
    level: Sequence[Tensor] = (),
    batches: int = 1,
) -> str | None:
    """The ray on which there is no finite mass, in words: away from the start, along the widest coordinate, or where gradients
    vanish at nearly all draws.

    Args:
        factors: where the run ended, all with affine actions.
        loss: the loss − τ·log |J|, over τ, at points in the coordinates of each factor's chart; each call on the next batch.
        level: directions of ε, of all factors beside each other, along which the loss seems to be level.
        batches: how many there are in a pass over the data. One on which the loss rises on all rays is enough.
    """
    # From a draw: a line through the mean may be one of the few with a conditional of its own, where there is symmetry.
    generator = torch.Generator(blocks_of(factors[0].start)[-1].device).manual_seed(0)
    places = [factor.group.act(factor.element, factor.noise(1, 1, generator)[0, 0]) for factor in factors]
    rays = [ray for ray in _rays(factors, level) if any(bool(part.any()) for part in ray)]
    if not rays:
        return None
    powers = POWERS.get(places[0].dtype, FEW)
    distances = torch.tensor([0.0, *(10.0**k for k in range(1, powers + 1))], dtype=torch.float64)
    points = [
        torch.stack([place + step * part for part in parts for step in distances.tolist()])
        for place, *parts in zip(places, *rays, strict=True)
    ]
    total, found = torch.zeros(len(rays), len(distances), dtype=torch.float64), list[int]()
    for count in range(1, batches + 1):
        total += loss(points).double().cpu().reshape(total.shape)
        found = _level(total / count, distances).nonzero().flatten().tolist()
        if not found:
            return None
    vector = torch.cat([part.reshape(-1) for part in rays[found[0]]])
    return direction_in_words(vector, [name for factor in factors for name in factor.coordinates()])


def _level(values: Tensor, distances: Tensor) -> Tensor:
    """For each ray whether the values rise by less than the logarithm of the distance, and neither rise nor fall in the end.

    Infinite values and NaN, as where numbers end, speak against it: all comparisons are false.
    """
    rises = values[:, 1:] - values[:, :1]
    return (rises <= distances[1:].log()).all(1) & (rises[:, 1:].diff(dim=1).abs() <= math.log(10.0)).all(1)


def _rays(factors: Sequence[Factor], level: Sequence[Tensor]) -> list[list[Tensor]]:
    """For each ray the vector of each factor: as long as the way from the start, or as a width if that is longer."""
    widths = [_widths(factor) for factor in factors]
    ways = [f.group.act(f.element, f.middle) - f.group.act(f.start, f.middle) for f in factors]
    relative = max(float((way / width).abs().max()) if way.numel() else 0.0 for way, width in zip(ways, widths, strict=True))
    rays = [[way / min(relative, 1.0) for way in ways]] if 0 < relative < math.inf else []
    for number, width in enumerate(widths):
        for sign in (1.0, -1.0):
            ray = [torch.zeros_like(way) for way in ways]
            if width.numel() and bool(torch.isfinite(width).all()):
                widest = int(width.argmax())
                ray[number].view(-1)[widest] = sign * width.view(-1)[widest]
            rays.append(ray)
    for direction in level:
        noise = parted(factors, direction)
        rays.append([f.group.act(f.element, e) - f.group.act(f.element, 0 * e) for f, e in zip(factors, noise, strict=True)])
    return rays


def parted(factors: Sequence[Factor], rows: Tensor) -> list[Tensor]:
    """Numbers of all factors beside each other, in the last dimension, as the noise of each."""
    pieces = rows.split([factor.middle.numel() for factor in factors], -1)
    return [piece.reshape(rows.shape[:-1] + factor.middle.shape) for factor, piece in zip(factors, pieces, strict=True)]


def level_directions(gradients: Tensor | None, slopes: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Directions along which the loss may be level, to one side and to the other.

    Args:
        gradients: of the loss at draws, in ε.
        slopes: the same at other draws, moved by a vector: further along a direction it shows more clearly.
    """
    first = None if gradients is None else level_direction(gradients)
    if first is None or len(first) > MANY:
        return [] if first is None else [first, -first]
    found = []
    for direction in (first, -first):
        for distance in (10.0, 1000.0):
            there = level_direction(slopes(distance * direction))
            if there is None:
                break
            direction = there if float(there @ direction) > 0 else -there
        found.append(direction)
    return found


def level_direction(gradients: Tensor) -> Tensor | None:
    """A unit vector on which nearly all gradients have nothing, if there is one.

    Draws behind the border of a class have large gradients, and those far from it have next to none along the direction in
    which it is left. So it is the direction of the smallest second moment over the draws that have least along it.
    """
    w = gradients.double()
    if len(w) < 8 * w.shape[1] or not bool(torch.isfinite(w).all()):
        return None
    along = w.norm(dim=1)
    sizes, vector = along, w[0]
    for part in (2, 2, 4, 8):
        least = w[along.argsort()[: max(len(w) // part, 4 * w.shape[1])]]
        sizes, vectors = torch.linalg.eigh(least.mT @ least)
        vector = vectors[:, 0]
        along = (w @ vector).abs()
    return vector.to(gradients.dtype) if float(sizes[0]) < LEVEL * float(sizes[-1]) else None


def _widths(factor: Factor) -> Tensor:
    """The standard deviations of the coordinates; infinite for groups that do not know them."""
    try:
        return factor.group.stddev(factor.element, factor.width).reshape(factor.middle.shape)
    except ValueError:
        return torch.full_like(factor.middle, math.inf)
