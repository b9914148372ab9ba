"""What every distribution with samples and a density offers: a diagnosis against its target, a summary, draws for ArviZ."""

from __future__ import annotations

import importlib
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..bases.base import is_positive
from .importance import Diagnosis, columns, named_parts


class Member(ABC):
    """A distribution over θ: a tensor, or tuples and dictionaries of them."""

    @abstractmethod
    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Any:
        """θ with the leading dimensions `shape`."""

    @abstractmethod
    def log_prob(self, theta: Any) -> Tensor:
        """log q(θ), one value per sample."""

    def diagnose(
        self,
        loss: Callable[[Any], Tensor],
        draws: int = 4000,
        *,
        temperature: float = 1.0,
        vectorize: bool = True,
        seed: int = 0,
    ) -> Diagnosis:
        """How well the family fits the posterior e^(−loss/τ), by importance weights on fresh draws.

        Args:
            loss: everything that was fitted, including the regulariser.
            draws: how many of the family, and as many again each time that families are matched to their weights, up to six
                times. The loss is called for each, without gradients.
            temperature: τ of the fit.
            vectorize: use `torch.func.vmap` over draws, as in `fit`.
            seed: fixes the draws.
        """
        _require_draws(draws)
        if not is_positive(temperature):
            raise ValueError(f"temperature must be positive and finite, but got {temperature!r}.")
        if not (isinstance(seed, numbers.Integral) and -1 << 63 <= seed < 1 << 64):
            raise ValueError(f"seed must be a whole number of 64 bits, but got {seed!r}.")
        from .matching import diagnosed  # which matches a family, a member itself

        def energies(theta: Any) -> Tensor:
            leaves, spec = pytree.tree_flatten(theta)

            def one(*parts: Tensor) -> Tensor:
                return loss(pytree.tree_unflatten(list(parts), spec)).reshape(())

            if vectorize:
                losses = torch.func.vmap(one, randomness="different", chunk_size=256)(*leaves)
            else:
                losses = torch.stack([one(*parts) for parts in zip(*leaves, strict=True)])
            return losses.double() / temperature

        with torch.no_grad():
            return diagnosed(self, energies, draws, seed)

    def reweighted(self, loss: Callable[[Any], Tensor], shape: Sequence[int] = (1000,), **options: Any) -> Any:
        """Draws of the posterior itself: those of the family resampled by importance weights. Options as in `diagnose`."""
        found = self.diagnose(loss, **options)
        return found.sample(shape, torch.Generator(found.weights.device).manual_seed(options.get("seed", 0)))

    def summary(self, draws: int = 4000) -> Summary:
        """Mean, standard deviation and the central 90 % of every parameter, from draws; print it for a table."""
        _require_draws(draws)
        theta = self.sample((draws,), torch.Generator(self._device()).manual_seed(0))
        rows = [
            Row(
                name,
                float(x.mean()),
                float(x.std()),
                *torch.quantile(x.double(), x.new_tensor([0.05, 0.95]).double()).tolist(),
            )
            for part, values in named_parts(theta).items()
            for name, x in columns(part, values)
        ]
        return Summary(tuple(rows))

    def to_arviz(self, draws: int = 1000) -> Any:
        """Draws for ArviZ, which must be installed, as four chains: `az.summary(q.to_arviz())`, `az.plot_pair(...)`."""
        try:
            arviz = importlib.import_module("arviz")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_arviz needs ArviZ: pip install arviz") from error
        _require_draws(draws)
        theta = self.sample((4, draws), torch.Generator(self._device()).manual_seed(0))
        posterior = {name: values.detach().cpu().numpy() for name, values in named_parts(theta).items()}
        modern = int(arviz.__version__.split(".")[0]) >= 1
        return arviz.from_dict({"posterior": posterior}) if modern else arviz.from_dict(posterior=posterior)

    def _device(self) -> torch.device:
        return pytree.tree_leaves(self.sample((0,)))[0].device


@dataclass(frozen=True)
class Row:
    """One parameter of a summary."""

    name: str
    mean: float
    stddev: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """A table of parameters."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        shown = self.rows if len(self.rows) <= 60 else [*self.rows[:30], None, *self.rows[-30:]]
        names = ["…" if row is None else row.name for row in shown]
        width = max(9, *map(len, names))
        lines = [f"{'':{width}s} {'mean':>10s} {'sd':>10s} {'5 %':>10s} {'95 %':>10s}"]
        for name, row in zip(names, shown, strict=True):
            figures = () if row is None else (row.mean, row.stddev, row.low, row.high)
            lines.append(f"{name:{width}s} " + " ".join(f"{_short(x):>10s}" for x in figures))
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def _require_draws(draws: int) -> None:
    if not (isinstance(draws, numbers.Integral) and not isinstance(draws, bool) and 1 <= draws < 1 << 31):
        raise ValueError(f"draws must be a whole number of at least 1, but got {draws!r}.")


def _short(x: float) -> str:
    """The number with four significant digits."""
    if not math.isfinite(x) or not 1e-3 <= abs(x) < 1e5:
        return f"{x:.4g}"
    return f"{x:.{max(0, 3 - math.floor(math.log10(abs(x))))}f}"
