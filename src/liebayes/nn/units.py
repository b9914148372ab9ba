"""Dale's law: which units are excitatory, and magnitudes in which excitation and inhibition cancel.

A weight of a Dale layer is W_ij = s_j·m_ij, with one sign s_j for all outgoing weights of unit j. If the magnitudes m have the
same mean a for both kinds, the input Σ_j W_ij x_j of every unit is shifted by a·(n_E − n_I)·mean(x), and W has the eigenvalue
a·(n_E − n_I), far outside the circle of radius σ√n that the others fill.

The balanced initialisation makes Σ_j W_ij = 0 for every unit i. With r = n_E/n_I, excitatory magnitudes have the standard
deviation σ/√r and inhibitory ones σ√r. Their means, proportional to the standard deviations, cancel since n_E/√r = n_I·√r,
and the variance averaged over the row is (n_E/r + n_I·r)σ²/n = σ², the one the layer was initialised with (He, Glorot, ...).
One more factor for each row removes the imbalance of the random draw. Balance of the means alone would not be enough: with
W = J + 1uᵀ, where u are the means of the columns, powers uᵀJᵏ1 move eigenvalues unless J1 = 0 (Rajan and Abbott, 2006).

The largest singular value remains: a matrix with columns of one sign has at least √n_out·‖u‖. It belongs to fluctuations of
E − I that are common to all units of a layer. The next layer is balanced too and does not see them, so signals are carried by
the variance of m around its mean, not by its mean square, and it is the variance that is kept at σ². Magnitudes are drawn
from an exponential distribution, whose mean is no larger than its standard deviation; that of a half-normal or a uniform
distribution is, by a factor of 1.3 or 1.7.
"""

from __future__ import annotations

import numbers
from fractions import Fraction

import torch
from torch import Tensor


def unit_signs(count: int, excitatory_fraction: float = 0.8) -> Tensor:
    """The signs of the units 0, ..., count − 1 of a layer: inhibitory ones are evenly spaced.

    The sign of a unit depends on its number only, so all layers that read the same units agree on it, whatever the data flow
    of the network: branches, residual streams, recurrent layers, attention. The units of a layer are exchangeable before
    training, so the regular order loses nothing.

    >>> unit_signs(10)
    tensor([ 1,  1, -1,  1,  1,  1,  1, -1,  1,  1], dtype=torch.int8)
    """
    if not (isinstance(excitatory_fraction, numbers.Real) and 0 <= excitatory_fraction <= 1):
        raise ValueError(f"excitatory_fraction must be a number between 0 and 1, but got {excitatory_fraction!r}.")
    if not (isinstance(count, int) and 0 <= count < 1 << 31):
        raise ValueError(f"count must be a whole number of units, but got {count!r}.")
    share = 1 - Fraction(excitatory_fraction).limit_denominator(10_000)  # of inhibitory units; exact for decimals such as 0.8
    steps = torch.arange(count + 1) * share.numerator * 2 + share.denominator
    passed = torch.div(steps, 2 * share.denominator, rounding_mode="floor")  # inhibitory units before the n-th: ⌊n·share + ½⌋
    return (1 - 2 * (passed[1:] - passed[:-1])).to(torch.int8)


def balanced_magnitudes(sign: Tensor, deviation: float, generator: torch.Generator | None = None) -> Tensor:
    """Positive magnitudes for signs of shape (outputs, fan in), with Σ_j s_ij·m_ij = 0 in every row that has both signs.

    >>> sign = unit_signs(5).expand(2, 5)
    >>> (sign * balanced_magnitudes(sign, 1.0)).sum(1).abs().max() < 1e-5
    tensor(True)
    """
    draw = torch.empty(sign.shape, device=sign.device).exponential_(generator=generator).clamp_min_(1e-6)
    excitatory = sign > 0
    counts = excitatory.sum(1, keepdim=True), (~excitatory).sum(1, keepdim=True)
    ratio = counts[0] / counts[1]
    left_over = ((draw * excitatory).sum(1, keepdim=True) / counts[0]) / (
        (draw * ~excitatory).sum(1, keepdim=True) / counts[1]
    )
    factor = (ratio * left_over).sqrt()
    factor = torch.where((counts[0] > 0) & (counts[1] > 0), factor, 1.0)  # nothing to balance if there is one kind only
    return deviation * draw * torch.where(excitatory, 1 / factor, factor)
