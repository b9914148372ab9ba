"""Predictions for models with named inputs and outputs, as those of transformers, against averages by hand."""

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.posteriors import X, Y, posterior_of
from torch import Tensor, nn
from torch.func import functional_call

from liebayes.posterior import Posterior


class Tagger(nn.Module):
    """Logits for every token of a row, or for the row."""

    def __init__(self, per_token: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.per_token = nn.Linear(4, 3), per_token

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> dict[str, Tensor]:
        y = self.layer(x) * scale
        y = y if mask is None else y * mask.unsqueeze(-1)
        logits = torch.stack([y, 2 * y], 1) if self.per_token else y
        return {"loss": y.sum(), "logits": logits}


def by_hand(posterior: Posterior, inputs: dict[str, Any], samples: int, read: Callable[[Any], Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    draws = [functional_call(posterior.model, posterior.sample(generator), (), inputs) for _ in range(samples)]
    return torch.stack([read(draw).detach().double().softmax(-1) for draw in draws]).mean(0).float()


def tagger(per_token: bool) -> Posterior:
    class Plain(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:  # what the helper trains
            return self[0](x)["logits"].flatten(1)[:, :3]

    model = Tagger(per_token)
    trained = posterior_of(Plain(model))
    return Posterior(model, {name.removeprefix("0."): family for name, family in trained.families.items()})


MASK = torch.ones(20)
MASK[3:] = 0.5


@pytest.mark.parametrize("per_token", [False, True])
def test_named_inputs_and_logits(per_token: bool) -> None:
    posterior = tagger(per_token)
    inputs = {"x": X, "mask": MASK, "scale": 2.0}
    expected = by_hand(posterior, inputs, 5, lambda out: out["logits"])
    assert expected.shape == ((20, 2, 3) if per_token else (20, 3))
    batch = {"x": X, "mask": MASK, "scale": 2.0, "labels": Y}  # the model takes no labels
    parts = [{"x": X[i : i + 7], "mask": MASK[i : i + 7], "scale": 2.0} for i in range(0, 20, 7)]
    for given, options in (
        (inputs, {}), (UserDict(batch), {}), (batch, {"batch_size": 6}), (parts, {}), ([(part, Y) for part in parts], {}),
    ):  # fmt: skip
        found = posterior.predict(given, samples=5, **options)
        torch.testing.assert_close(found.probabilities, expected)
        assert found.entropy.shape == found.mutual_information.shape == expected.shape[:-1]
    with pytest.raises(TypeError, match="colour"):  # no misspelt input is passed over
        posterior.predict({"x": X, "colour": X})


def test_a_function_of_the_output() -> None:
    posterior = tagger(per_token=True)
    last = posterior.predict({"x": X}, samples=4, output=lambda out: out["logits"][:, -1])
    torch.testing.assert_close(last.probabilities, by_hand(posterior, {"x": X}, 4, lambda out: out["logits"][:, -1]))
    across = posterior.predict({"x": X}, samples=4, output=lambda out: out["logits"].movedim(1, -1))
    torch.testing.assert_close(across.probabilities, by_hand(posterior, {"x": X}, 4, lambda out: out["logits"].movedim(1, -1)))
    values = posterior.predict({"x": X}, samples=4, task="regression")
    assert values.mean.shape == (20, 2, 3)


def test_outputs_of_different_lengths_are_refused() -> None:
    posterior = tagger(per_token=True)
    lengths = iter([1, 2] * 3)
    with pytest.raises(ValueError, match=r"different shapes: \[\(1, 3\), \(2, 3\)\]. Pad all batches to one length"):
        posterior.predict([{"x": X}, {"x": X}], samples=3, output=lambda out: out["logits"][:, : next(lengths)])


def test_free_energy_of_named_inputs() -> None:
    posterior = tagger(per_token=False)

    def loss(out: Any, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out["logits"], y, reduction="sum")

    named = posterior.free_energy([{"x": X, "labels": Y}], lambda out, batch: loss(out, batch["labels"]), prior=1.0, samples=3)
    pairs = posterior.free_energy([({"x": X}, Y)], loss, prior=1.0, samples=3)
    assert named == pairs
