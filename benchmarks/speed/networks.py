"""Rows 4 to 7: training and predicting with the paper's networks, on images of noise, whose values change nothing."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import liebayes as lb

from . import by_hand
from .contest import Here, Limit, Row
from .sizes import Sizes

DATA_SIZE = 60_000
DEVIATION, PRIOR, TEMPERATURE, MAX_STEP = 0.001**0.5, 250.0, 0.005, 0.2  # App. B.1


def closure_step(model: nn.Module, optimizer: lb.LieGroupBLR, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """One `step(closure)`, as in the README."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def mlp_and_batch(sizes: Sizes) -> tuple[nn.Module, Tensor, Tensor]:
    """The MLP of Table 1 and a batch of MNIST's shape."""
    torch.manual_seed(0)
    return lb.nn.mlp(hidden=sizes.hidden), torch.randn(sizes.batch, 1, 28, 28), torch.arange(sizes.batch) % 10


def additive(sizes: Sizes) -> Row:
    """Row 4, with the settings of Table 1."""
    model, images, labels = mlp_and_batch(sizes)
    shared = {"lr": 0.01, "momentum": 0.9}
    plain = by_hand.additive(
        copy.deepcopy(model), images, labels,
        samples=sizes.samples, deviation=DEVIATION, decay=PRIOR / DATA_SIZE, **shared,
    )  # fmt: skip
    optimizer = lb.AdditiveBLR(
        model.parameters(),
        data_size=DATA_SIZE, base=lb.bases.Normal(DEVIATION), prior=PRIOR, mc_samples=sizes.samples, **shared,
    )  # fmt: skip
    contenders = [Here("AdditiveBLR", closure_step(model, optimizer, images, labels)), Here("torch loop", plain)]
    title = f"MLP of Table 1, batch {sizes.batch}, K = {sizes.samples}, additive"
    return Row("mlp-additive", title, "AdditiveBLR", contenders, [Limit("times", 0.33, "torch loop")])


def multiplicative(sizes: Sizes) -> Row:
    """Row 5, with the settings of Table 1 but a smaller step, since the same batch comes again and again."""
    model, images, labels = mlp_and_batch(sizes)
    lb.nn.plus_minus(model)
    shared = {"lr": 1.0, "momentum": 0.9, "max_step": MAX_STEP}
    plain = by_hand.multiplicative(
        copy.deepcopy(model), images, labels,
        samples=sizes.samples, decay=PRIOR / DATA_SIZE, temperature=TEMPERATURE / DATA_SIZE, **shared,
    )  # fmt: skip
    optimizer = lb.MultiplicativeBLR(
        model.parameters(),
        data_size=DATA_SIZE, prior=PRIOR, temperature=TEMPERATURE, metric=lb.Absorbed(), mc_samples=sizes.samples, **shared,
    )  # fmt: skip
    contenders = [Here("MultiplicativeBLR", closure_step(model, optimizer, images, labels)), Here("torch loop", plain)]
    return Row(
        "mlp-multiplicative", "the same, multiplicative", "MultiplicativeBLR", contenders, [Limit("times", 0.30, "torch loop")]
    )


def resnet(sizes: Sizes) -> Row:
    """Row 6: a whole step of training on a compiled model."""
    torch.manual_seed(0)
    plain = lb.nn.resnet20(width=sizes.resnet_width, blocks=sizes.resnet_blocks)
    bayesian = copy.deepcopy(plain)
    images, labels = torch.randn(sizes.resnet_batch, 3, 32, 32), torch.arange(sizes.resnet_batch) % 10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's compiler, about itself
        models = [torch.compile(model, backend=sizes.compiler) for model in (plain, bayesian)]
    sgd = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, fused=True)
    optimizer = lb.AffineBLR(bayesian.parameters(), lr=0.1, data_size=DATA_SIZE)

    def step_of_sgd() -> None:
        sgd.zero_grad()
        cross_entropy(models[0](images), labels).backward()
        sgd.step()

    contenders = [Here("AffineBLR", closure_step(models[1], optimizer, images, labels)), Here("SGD", step_of_sgd)]
    title = f"ResNet-20, batch {sizes.resnet_batch}, K = 1, whole step, model compiled"
    return Row("resnet", title, "AffineBLR", contenders, [Limit("times", 1.03, "SGD")])


def prediction(sizes: Sizes) -> Row:
    """Row 7: the posterior predictive of an affine posterior on a Normal base."""
    model, _, _ = mlp_and_batch(sizes)
    images = torch.randn(sizes.images, 1, 28, 28)
    posterior = lb.AffineBLR(model.parameters(), data_size=DATA_SIZE).posterior(model)
    points, deviations = list(posterior.mean().values()), list(posterior.std().values())
    batches = images.split(sizes.images_at_once)
    plain = by_hand.prediction(copy.deepcopy(model).eval(), points, deviations, batches, sizes.samples)
    contenders = [
        Here("posterior.predict", lambda: posterior.predict(images, sizes.samples, batch_size=sizes.images_at_once)),
        Here("loop", plain),
    ]
    title = f"{sizes.samples}-sample prediction of {sizes.images:,} images, MLP"
    return Row("prediction", title, "posterior.predict", contenders, [Limit("times", 0.95, "loop")])


ROWS = {"mlp-additive": additive, "mlp-multiplicative": multiplicative, "resnet": resnet, "prediction": prediction}
