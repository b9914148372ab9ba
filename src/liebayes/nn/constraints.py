"""Sign constraints as parametrizations: a layer's weight computed from positive magnitudes (Sec. 4.2).

They are registered with `torch.nn.utils.parametrize`, so the code of a layer stays the same, and its parameters, as an
optimizer sees them, are the magnitudes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SignConstraint(nn.Module):
    """A parametrization whose parameters are positive magnitudes."""


class PlusMinus(SignConstraint):
    """weight = w⁺ − w⁻ (the ± trick of Ghai, Hazan and Singer, 2020).

    Args:
        offset: added to the positive and the negative part of a weight, so that both magnitudes are positive.
    """

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, plus: Tensor, minus: Tensor) -> Tensor:
        """The weight."""
        return plus - minus

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The magnitudes of a weight: its positive and negative part, plus the offset.

        The smaller one is the larger one, as rounded, minus |weight|. So their difference is exactly the weight where that is
        larger than the offset; elsewhere it is as close as two numbers of the offset's size can come.
        """
        size = weight.abs()
        large = size + self.offset
        small = large - size
        # An offset below the weight's rounding is lost in the larger magnitude; the smaller one must then be lost too.
        lost = (size * (torch.finfo(weight.dtype).eps / 8)).clamp_max(self.offset)
        small = torch.where(small > 0, small, lost)
        positive = weight > 0
        return torch.where(positive, large, small), torch.where(positive, small, large)

    def extra_repr(self) -> str:
        return f"offset={self.offset:g}"


class Signed(SignConstraint):
    """weight = sign·magnitude with a sign that is never trained.

    Args:
        sign: ±1, in the shape of the weight or one that broadcasts to it; kept as an int8 buffer.
    """

    sign: Tensor

    def __init__(self, sign: Tensor) -> None:
        super().__init__()
        self.register_buffer("sign", sign.to(torch.int8))

    def forward(self, magnitude: Tensor) -> Tensor:
        """The weight."""
        return self.sign * magnitude

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The magnitudes of a weight, which must have these signs."""
        magnitude = self.sign * weight
        if not bool((magnitude > 0).all()):
            wrong = int((magnitude <= 0).sum())
            raise ValueError(
                f"{wrong} of {weight.numel()} weights do not have the sign of their constraint. "
                "Use liebayes.nn.restore first, and constrain the network again afterwards."
            )
        return magnitude

    def extra_repr(self) -> str:
        return f"{int((self.sign > 0).sum())} of {self.sign.numel()} positive"
