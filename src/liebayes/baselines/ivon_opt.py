"""IVON of the package `ivon-opt` (Shen et al., 2024), which is not ours, with what the training program asks of an optimizer.

Where they overlap it is our `IVON` with damping 0: its `weight_decay` is δ/N, its `hess_init` the first h. By default it
multiplies the step size by hess_init + δ/N. Its noise comes from torch's own generator and its count of steps is in no
checkpoint; here both are a function of the seed and the step, so that runs resume to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..bases import Normal
from ..distributed import rank
from ..groups import DiagonalAffine, ScaleShift
from ..optim.noise import stream_generator
from ..posterior import Posterior, unwrap
from ..rule import Family


def ivon_opt(
    params: Iterable[Any],
    lr: float = 0.1,
    *,
    data_size: int,
    momentum: float = 0.9,
    scale_momentum: float = 0.99999,
    prior: float = 0.1,
    initial_curvature: float = 0.1,
    mc_samples: int = 1,
    seed: int = 0,
) -> Any:
    """An `ivon.IVON` with our `sampled()`, `step(closure)` and `posterior(model)`; needs the package `ivon-opt`.

    Backward belongs in the block of `sampled()`. It has the package's behaviours otherwise (`results/behaviours.md`).

    >>> model = nn.Linear(3, 1)
    >>> optimizer = ivon_opt(model.parameters(), data_size=100)
    >>> with optimizer.sampled():
    ...     model(torch.ones(8, 3)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.posterior(model).std()["bias"].shape
    torch.Size([1])
    """
    try:
        import ivon
    except ImportError as error:
        raise ImportError("ivon-opt is a separate package, which is not installed: pip install ivon-opt.") from error

    return _with_our_protocol(ivon.IVON, seed)(
        params,
        lr=lr,
        ess=data_size,
        hess_init=initial_curvature,
        beta1=momentum,
        beta2=scale_momentum,
        weight_decay=prior / data_size,
        mc_samples=mc_samples,
        sync=True,
    )


def _with_our_protocol(kind: Any, seed: int) -> Any:
    """The package's optimizer as a class with our methods."""

    class IVONOpt(kind):
        def _sample_params(self) -> tuple[Tensor, Tensor]:
            stream = rank() * self.mc_samples + self.state["count"]
            generator = stream_generator(seed, self.current_step, stream, torch.device("cpu"))
            with torch.random.fork_rng():
                torch.manual_seed(generator.initial_seed())
                return super()._sample_params()

        @contextmanager
        def sampled(self) -> Iterator[None]:
            mean, noise = self._sample_params()
            try:
                yield
            except BaseException:  # the package's own block would leave the sample in the module
                self._restore_param_average(False, mean, noise)
                raise
            self._restore_param_average(True, mean, noise)

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            def at_a_sample() -> Any:
                with self.sampled():
                    return cast(Any, closure)()

            return super().step(cast(Any, None if closure is None else at_a_sample))

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "current_step": self.current_step}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self.current_step = state_dict["current_step"]

        def posterior(self, model: nn.Module) -> Posterior:
            families: dict[Tensor, Family[ScaleShift]] = {}
            for group in self.param_groups:
                widths = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
                sizes = [p.numel() for p in group["params"]]
                for p, width in zip(group["params"], widths.split(sizes), strict=True):
                    element = ScaleShift(width.log().view_as(p), p.detach().clone())
                    families[p] = Family(DiagonalAffine(), Normal(), element)
            return Posterior(model, {name: families[p] for name, p in unwrap(model).named_parameters() if p in families})

    return IVONOpt
