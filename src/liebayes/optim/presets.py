"""The three algorithms of the paper (Alg. 1–3), with defaults that work out of the box, and one for matrices.

The defaults of Alg. 1–3 were chosen by stratified 5-fold cross-validation on the digits of scikit-learn
(`benchmarks/optimizers.py`, `results/optimizers.json`), those of rules with `curvature="gauss-newton"` on the tasks that
docs/out-of-the-box.md names. `common` are the options of `LieGroupBLR` that have the same defaults in all of them: seed,
noise, maximize, nonfinite, foreach and process_group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..bases import Base, Normal, Rayleigh
from ..groups import Additive, DiagonalAffine, Kronecker, Multiplicative
from ..rule import Absorbed, Adaptive, Metric
from .optimizer import LieGroupBLR
from .rule import matrix_sides
from .settings import AffineOptions, Common, Curvature, Prior, named_tensors, require_data_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


def default_base(data_size: int) -> Base:
    """Normal(3/√N): a posterior's width falls with the root of the number of data."""
    require_data_size({"data_size": data_size})
    return Normal(3 / math.sqrt(data_size))


class AdditiveBLR(LieGroupBLR):
    """The additive rule (Sec. 4.1, Alg. 1): weights g + ε, of which g is learned. With a Dirac base it is SGD.

    The entropy does not depend on g, so there is no temperature. For the other arguments see `LieGroupBLR`; the defaults:

    - `lr=1.0` with `momentum=0.9`: the paper's momentum is an average, so this is `SGD(lr=0.1, momentum=0.9)`.
    - `base`: Normal(3/√N), see `default_base`.
    - `mc_samples=1`: the cost of SGD.
    - `prior=0.1`: a weak N(0, 10).
    - `metric=Absorbed()`: the Fisher constant is one number, and a part of the step size; so Uniform and Dirac bases work too.
    - `max_step=None`: steps have the units of weights here, so no bound would suit all networks.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = AdditiveBLR(model.parameters(), lr=0.1, data_size=100)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = model(torch.ones(8, 3)).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        *,
        data_size: int,
        base: Base | None = None,
        momentum: float = 0.9,
        mc_samples: int = 1,
        prior: Prior = 0.1,
        metric: Metric = Absorbed(),
        max_step: float | None = None,
        initial_scale: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            params,
            Additive(),
            default_base(data_size) if base is None else base,
            lr,
            data_size=data_size,
            temperature=0.0,
            momentum=momentum,
            mc_samples=mc_samples,
            prior=prior,
            metric=metric,
            max_step=max_step,
            initial_scale=initial_scale,
            **common,
        )


class MultiplicativeBLR(LieGroupBLR):
    """The multiplicative rule (Sec. 4.2, Alg. 2): positive weights gε, of which g is learned.

    Parameters must be positive: magnitudes of weights whose signs are fixed, rates, standard deviations. The defaults:

    - `metric=Adaptive()` with `lr=0.1`: with a constant metric the step must suit the largest covector, and the rule needs
      many samples; `Adaptive` does with one or two. The paper's setting is `metric=Absorbed(), lr=50, mc_samples=32`.
    - `mc_samples=2`: one is a little worse at half the cost.
    - `base=Rayleigh()`: the paper's; the mean of the posterior starts at the parameter whatever its scale.
    - `temperature=0.01`: a mean and its spread are tied in this family, so that the entropy pulls weights up; the paper's
      experiments have 0.001 to 0.006.
    - `prior=0.03`: without any, weights run away behind saturated units.
    - `max_step=0.2`: the logarithm of a weight moves by at most 0.2 in one step; a few are bounded in the first epochs.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        data_size: int,
        base: Base = Rayleigh(),
        temperature: float = 0.01,
        momentum: float = 0.9,
        mc_samples: int = 2,
        prior: Prior = 0.03,
        metric: Metric = Adaptive(),
        max_step: float | None = 0.2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            params,
            Multiplicative(),
            base,
            lr,
            data_size=data_size,
            temperature=temperature,
            momentum=momentum,
            mc_samples=mc_samples,
            prior=prior,
            metric=metric,
            max_step=max_step,
            **common,
        )


class AffineBLR(LieGroupBLR):
    """The affine rule (Sec. 4.3): weights Aε + b, of which both A and b are learned.

    Widths A come from squares of gradients at the level of the paper's own covector (`curvature="gauss-newton"`,
    docs/curvature.md), and steps on b are Adam's in units of each tensor. The defaults:

    - `lr=2.0`: a step changes a weight by about 2/√inputs of the size its tensor started with, and by 2/inputs at most,
      whatever the loss, N, the base and the widths are; it grows to that over the first 20 steps. Schedule it to zero.
    - `prior=None`: a precision of 0.7, and widths of at most the size that each tensor started with. With a prior that
      is given, `temperature=None` is 1, the posterior itself; otherwise it is 0.01, a cold posterior: at 1 the widths of deep
      networks cost more than they give.
    - `width_rate=0.005`: widths are learned in some 200 steps; faster at first.
    - `start_width=0.01`: of the size of each tensor, so that a pretrained network starts as it is; None is the base's own.
    - `base=Normal()`: the shape of the posterior.

    With `curvature="samples"`, or any of the options `scale_lr`, `scale_momentum`, `metric`, `max_step` and `initial_scale`,
    which are its own, it is Alg. 3 as printed. Its defaults:

    - `lr=1.0` with `momentum=0.9`: the step of `SGD(lr=0.1, momentum=0.9)` on b while A is 1.
    - `scale_lr=0.05`: the published experiments' beside 1.0. b moves by A·α·A∇ℓ, so that an A that grows makes steps longer
      with its square: at `scale_lr=1.0` and a constant `lr` a small network is lost after some 40 epochs of A's growth.
    - `scale_momentum=0.999`: the covector of the scales is mostly noise with one sample; the paper's β₂.
    - `base`: Normal(3/√N), see `default_base`; A starts at `initial_scale=1.0`.
    - `temperature=1.0` and `prior=0.1`: the posterior itself, with a weak N(0, 10).
    - `metric=Absorbed()`: what the paper's experiments run. `Fisher()` is the metric of Alg. 3; its step on b falls with the
      square of the base's scale, so `lr` must be that much larger; give it `scale_lr=None`, which is `lr`.
    - `max_step=0.2`: a bound on the logarithm of a scale, and on a shift in units of A.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = AffineBLR(model.parameters(), data_size=100)
    >>> with optimizer.sampled():
    ...     model(torch.ones(8, 3)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        data_size: int,
        base: Base | None = None,
        temperature: float | None = None,
        momentum: float = 0.9,
        mc_samples: int = 1,
        prior: Prior | None = None,
        curvature: Curvature | None = None,
        width_rate: float = 0.005,
        start_width: float | None = 0.01,
        **options: Unpack[AffineOptions],
    ) -> None:
        printed = [name for name in options if name in ALGORITHM_3]
        if curvature is None:
            curvature = "samples" if printed else "gauss-newton"
        if curvature == "samples":
            base = default_base(data_size) if base is None else base
            settings: dict[str, Any] = {**ALGORITHM_3, **options}
        elif printed:
            raise TypeError(
                f"{', '.join(printed)}: an option of Alg. 3 as printed, which has no meaning with curvature={curvature!r}. "
                'Leave it out, or pass curvature="samples".'
            )
        else:
            settings = {**_gauss_newton(AFFINE_LR, prior, width_rate, start_width), **options}
        given = {"lr": lr, "temperature": temperature, "prior": prior}
        settings |= {name: value for name, value in given.items() if value is not None}
        super().__init__(
            params,
            DiagonalAffine(),
            Normal() if base is None else base,
            data_size=data_size,
            momentum=momentum,
            mc_samples=mc_samples,
            curvature=curvature,
            **settings,
        )


ALGORITHM_3: dict[str, Any] = {
    "lr": 1.0, "scale_lr": 0.05, "scale_momentum": 0.999, "temperature": 1.0, "prior": 0.1, "metric": Absorbed(),
    "max_step": 0.2, "initial_scale": 1.0,
}  # fmt: skip
"""Defaults of `AffineBLR` with `curvature="samples"`."""

AFFINE_LR = 2.0
"""Its step size with `curvature="gauss-newton"`."""
LR_OF_ELEMENTS = 4.0
"""The step size of elementwise groups in units of that of `KroneckerBLR`: that of `AffineBLR` where its own is 0.5."""


def _gauss_newton(lr: float, prior: Prior | None, width_rate: float, start_width: float | None) -> dict[str, Any]:
    """Settings of the rules whose widths come from squares of gradients."""
    temperature = COLD if prior is None else 1.0
    return {"lr": lr, "temperature": temperature, "prior": prior, "width_rate": width_rate, "start_width": start_width}


class KroneckerBLR(LieGroupBLR):
    """Correlated widths for matrices: W = LERᵀ + M on the Kronecker group, its factors from squares of gradients.

    L and R learn which combinations of outputs and of inputs the data determine, and both the posterior and the steps use
    them: M moves along LLᵀ·∇ℓ·RRᵀ, so training is that of a second-order method. Convolutions are matrices of outputs by
    inputs. Vectors and scalars (biases, norms) have a width for every number, and so have matrices both of whose sides are
    long; each of these is a parameter group of its own. The defaults:

    - `lr=None`: 0.7 with a prior that is given, which holds back weights that the data do not determine; 0.5 without. A step
      changes a weight by `lr` over the number of inputs of its unit (root mean square), whatever the loss and N are; one that
      all inputs share changes the output by `lr`. Schedule it to zero.
    - `prior`, `temperature`, `width_rate` and `start_width` are those of `AffineBLR`.
    - `block=128`: the factor of a longer side has triangular blocks of at most so many rows, which makes steps of a
      transformer a third cheaper; None is one block.
    - `max_side=600`: a longer side has a diagonal factor. A matrix with two such sides is trained as by `AffineBLR`, with
      four times `lr`.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = KroneckerBLR(model.parameters(), data_size=100)
    >>> with optimizer.sampled():
    ...     model(torch.ones(8, 3)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        data_size: int,
        base: Base = Normal(),
        temperature: float | None = None,
        momentum: float = 0.9,
        mc_samples: int = 1,
        prior: Prior | None = None,
        width_rate: float = 0.005,
        start_width: float | None = 0.01,
        max_side: int = 600,
        block: int | None = 128,
        **common: Unpack[Common],
    ) -> None:
        settings = _gauss_newton(kronecker_lr(prior) if lr is None else lr, prior, width_rate, start_width)
        if temperature is not None:
            settings["temperature"] = temperature
        super().__init__(
            params,
            Kronecker(max_side=max_side, block=block),
            base,
            data_size=data_size,
            momentum=momentum,
            mc_samples=mc_samples,
            curvature="gauss-newton",
            **settings,
            **common,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters as up to three groups: matrices, matrices with two long sides, and vectors.

        With a `group` of their own they stay together.
        """
        pairs = named_tensors(param_group["params"])
        plain = all(name is None for name, _ in pairs)
        limit, lr = self.defaults["group"].max_side, param_group.get("lr", self.defaults["lr"])
        matrices = [pair for pair in pairs if pair[1].ndim > 1 and min(matrix_sides(pair[1])) <= limit]
        long = [pair for pair in pairs if pair[1].ndim > 1 and min(matrix_sides(pair[1])) > limit]
        vectors = [pair for pair in pairs if pair[1].ndim < 2]
        elementwise: dict[str, Any] = {"group": DiagonalAffine()}
        longer = {"lr": lr * LR_OF_ELEMENTS} if long and isinstance(lr, (int, float)) else {}  # others are refused below
        parts = [(matrices, {}), (long, elementwise | longer), (vectors, elementwise | ({} if matrices else longer))]
        if "group" in param_group or not pairs:
            parts = [(pairs, {})]
        count = len(self.param_groups)
        try:
            for part, settings in parts:
                own = [p for _, p in part] if plain else part  # a generator is used up by now
                if part or not pairs:
                    super().add_param_group({**param_group, "params": own, **settings})
        except Exception:
            del self.param_groups[count:]
            raise
        if vectors and "group" not in param_group:
            first = self.param_groups[count]
            self.param_groups[-1].update({key: first[key] for key in ("typical_size", "typical_unit")})


def kronecker_lr(prior: Prior | None) -> float:
    """The default step size of `KroneckerBLR`: a prior that is given holds back weights that the data do not determine."""
    return 0.5 if prior is None else 0.7


COLD = 0.01
"""The temperature where neither prior nor temperature is given."""
