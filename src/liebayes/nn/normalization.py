"""Filter response normalisation with a learned threshold (Singh and Krishnan, 2020), which needs no batch statistics.

For each image and channel, with the mean over positions: ν² = mean(x²), y = γ·x/√(ν² + ε) + β, z = max(y, τ).
"""

from __future__ import annotations

import numbers

import torch
from torch import Tensor, nn


class FilterResponseNorm(nn.Module):
    """Normalises every channel of every image by its own root mean square, then thresholds.

    Args:
        channels: how many channels there are, the second dimension of the input.
        eps: ε. For feature maps of one position, where ν² is one number, take something like 1e-4.
        threshold: whether `forward` ends with max(y, τ). If not, `thresholded` applies it later, e.g. after an addition.
        initial_threshold: τ before the first step. At −1 little is cut off at first, and a ResNet-20 learns several times
            faster in its first epochs than from the 0 of Singh and Krishnan.

    >>> norm = FilterResponseNorm(2)
    >>> norm(torch.tensor([[[[3.0, -3.0]], [[4.0, 4.0]]]])).round(decimals=3)
    tensor([[[[1., 0.]],
             [[1., 1.]]]], grad_fn=<RoundBackward1>)
    """

    def __init__(self, channels: int, *, eps: float = 1e-6, threshold: bool = True, initial_threshold: float = 0.0) -> None:
        super().__init__()
        if type(channels) is not int or not 0 < channels < 1 << 31 or not isinstance(eps, numbers.Real) or not eps > 0:
            raise ValueError(f"channels must be at least 1 and eps positive, but got {channels!r} and {eps!r}.")
        if not (isinstance(initial_threshold, numbers.Real) and abs(initial_threshold) <= torch.finfo(torch.float32).max):
            raise ValueError(f"initial_threshold must be a finite number, but got {initial_threshold}.")
        self.channels = channels
        self.eps = eps
        self.threshold = threshold
        self.gamma: nn.Parameter = nn.Parameter(torch.ones(channels))
        self.beta: nn.Parameter = nn.Parameter(torch.zeros(channels))
        self.tau: nn.Parameter = nn.Parameter(torch.full((channels,), float(initial_threshold)))

    def forward(self, x: Tensor) -> Tensor:
        """z, or y if the threshold is left for later."""
        if x.ndim < 3 or x.shape[1] != self.channels:
            raise ValueError(
                f"Expected images of {self.channels} channels, (batch, {self.channels}, positions...), "
                f"but got the shape {tuple(x.shape)}."
            )
        # 16-bit squares overflow at 256 (float16) or lose small summands (both), so ν² is computed in float32.
        wide = x.float() if x.dtype.itemsize < 4 else x
        response = torch.rsqrt(wide.square().mean(tuple(range(2, x.ndim)), keepdim=True) + self.eps).to(x.dtype)
        y = self._per_channel(self.gamma, x) * (x * response) + self._per_channel(self.beta, x)
        return self.thresholded(y) if self.threshold else y

    def thresholded(self, y: Tensor) -> Tensor:
        """max(y, τ), computed as y + (|y − τ| − (y − τ))/2: the same up to rounding, with the same gradients (half at ties).

        torch.maximum saves masks for its gradients, which compiled code stores slowly. It is used where no gradient is needed,
        and for 16-bit numbers, where the rounding would show and large numbers would overflow.
        """
        tau = self._per_channel(self.tau, y)
        if y.dtype.itemsize < 4 or not torch.is_grad_enabled():
            return torch.maximum(y, tau)
        above = y - tau
        return y + 0.5 * (above.abs() - above)

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps:g}" + ("" if self.threshold else ", threshold=False")

    @staticmethod
    def _per_channel(p: Tensor, x: Tensor) -> Tensor:
        return p.view(-1, *[1] * (x.ndim - 2))
