"""The loss of every sample, checked to be one number each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .shortcuts import short_vmap


def energy_of(
    loss: Callable[[Any], Tensor],
    regulariser: Callable[[Any], Tensor] | None,
    weight: float,
    unflatten: Callable[[Sequence[Tensor]], Any],
) -> Callable[..., Tensor]:
    """The loss with its regulariser, as a function of the flat tensors, checked to be one number."""

    def checked(what: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise ValueError(f"{what} must return a tensor with one value, but returned {type(value).__name__}.")
        if value.ndim == 0:
            return value
        if value.numel() != 1:
            raise ValueError(
                f"{what} must return one value for one θ, but returned the shape {tuple(value.shape)}. Sum or average it."
            )
        return value.reshape(())

    def energy(*leaves: Tensor) -> Tensor:
        theta = unflatten(leaves)
        value = checked("loss", loss(theta))
        return value if regulariser is None else value + weight * checked("regulariser", regulariser(theta))

    return energy


def over_samples(energy: Callable[..., Tensor], vectorize: bool) -> Callable[..., Tensor]:
    """The energy of every sample."""

    def one_by_one(*leaves: Tensor) -> Tensor:
        try:
            return torch.stack([energy(*sample) for sample in zip(*leaves, strict=True)])
        except RuntimeError:
            _refuse_writing(energy, leaves)
            raise

    if not vectorize:
        return one_by_one
    public, short = torch.func.vmap(energy, randomness="different"), short_vmap(energy)
    vectorized = public

    def energies(*leaves: Tensor) -> Tensor:
        nonlocal vectorized
        try:
            values = vectorized(*leaves)
            vectorized = short  # after one call of the public one, which loads what it needs
            return values
        except RuntimeError as error:
            if vectorized is short:  # it has worked before
                raise
            _refuse_writing(energy, leaves)  # what is wrong with one sample already is told as it is
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            checks = any(Path(name).match("torch/distributions/*.py") for name in files)
            way = "Switch off the checks of that distribution, validate_args=False, or pass" if checks else "Pass"
            raise ValueError(
                f"loss cannot be vectorised over samples ({str(error).splitlines()[0]}). {way} vectorize=False to loop."
            ) from error

    return energies


def _refuse_writing(energy: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Says if a loss that has failed is one that changes θ, which neither way of calling it allows."""
    before = [leaf._version for leaf in leaves]
    with torch.no_grad():
        energy(*(leaf[0] for leaf in leaves))
    if [leaf._version for leaf in leaves] != before:
        raise ValueError(
            "loss writes into θ, which then has no gradient. Use operations that return a new tensor, such as θ.mul(2) in "
            "place of θ.mul_(2), or write into θ.clone()."
        )
