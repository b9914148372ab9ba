"""Any univariate distribution of torch.distributions as a base."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .base import Base
from .quadrature import HALF_LINE, REAL_LINE, Support

_lending = threading.Lock()
"""The global generator is lent to one thread at a time."""


class Wrapped(Base):
    """A base made of a distribution; see `from_distribution`."""

    def __init__(self, distribution: Distribution, support: Support) -> None:
        self.wrapped = distribution
        self._exact = _in_double(distribution)
        self.support = support

    def sample(
        self, shape: Sequence[int], *, generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None, device: torch.device | str | None = None,
    ) -> Tensor:  # fmt: skip
        if generator is None:
            draws = self.wrapped.sample(torch.Size(shape))
        else:
            # torch.distributions takes no generator: the global one is lent for the draw, seeded from the one given.
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            with _lending, torch.random.fork_rng():
                torch.manual_seed(seed)
                draws = self.wrapped.sample(torch.Size(shape))
        return draws.to(dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)

    def log_prob(self, x: Tensor) -> Tensor:
        # Outside the support torch may raise; ask inside it only.
        low, high = self.support
        inside = (x > low) & (x < high)
        anchor = low + 1.0 if math.isfinite(low) and math.isinf(high) else 0.5 * (low + high) if math.isfinite(low) else 0.0
        value = self._exact.log_prob(torch.where(inside, x, anchor))
        return torch.where(inside, value, -math.inf).to(x.dtype)

    def __repr__(self) -> str:
        return f"from_distribution({self.wrapped})"


def _in_double(distribution: Distribution) -> Distribution:
    """The same with float64 parameters: in float32 the normaliser of a narrow density is off by a part in a thousand."""
    double = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            vars(double)[name] = value.double()
        elif isinstance(value, Distribution):
            vars(double)[name] = _in_double(value)
    return double


def from_distribution(distribution: Distribution) -> Base:
    """Wraps a univariate, continuous `torch.distributions` distribution.

    >>> base = from_distribution(torch.distributions.Gamma(torch.tensor(3.0), torch.tensor(1.0)))
    >>> round(base.mean, 6), round(base.fisher_scale, 6)
    (3.0, 3.0)
    """
    if not isinstance(distribution, Distribution):
        raise ValueError(
            f"from_distribution takes an instance of a torch.distributions class, such as Gamma(3.0, 1.0), but got "
            f"{distribution!r}."
        )
    if distribution.batch_shape or distribution.event_shape:
        raise ValueError(
            f"A base is univariate, but {distribution} has batch shape {tuple(distribution.batch_shape)} and event shape "
            f"{tuple(distribution.event_shape)}. Give scalar parameters; the group moves and scales every coordinate."
        )
    constraint = distribution.support
    if constraint is None or constraint.is_discrete:
        raise ValueError(f"A base has a density, but {distribution} is discrete.")
    if constraint is constraints.real:
        support = REAL_LINE
    elif constraint is constraints.positive or constraint is constraints.nonnegative:
        support = HALF_LINE
    elif hasattr(constraint, "lower_bound") or hasattr(constraint, "upper_bound"):
        support = (
            float(getattr(constraint, "lower_bound", -math.inf)),
            float(getattr(constraint, "upper_bound", math.inf)),
        )
    else:
        raise ValueError(f"The support {constraint} of {distribution} is not an interval. Subclass Base and name its support.")
    return Wrapped(distribution, support)
