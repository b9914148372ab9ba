"""The arithmetic of training passes, and the schedule of short runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from liebayes.experiments import TrainSettings, precision, train
from liebayes.experiments.defaults import resolved
from liebayes.experiments.settings import SettingsError, learning_rate


@pytest.mark.parametrize("able", [True, False])
def test_auto_is_what_the_processor_computes(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bfloat16", lambda: able)
    assert resolved(TrainSettings(precision="auto")).precision == ("bfloat16" if able else "float32")
    assert resolved(TrainSettings(precision="float32")).precision == "float32"
    if able:
        assert resolved(TrainSettings(precision="bfloat16")).precision == "bfloat16"
    else:
        with pytest.raises(SettingsError, match="neither AVX512-BF16 nor AMX"):
            resolved(TrainSettings(precision="bfloat16"))


@pytest.mark.parametrize(
    ("machine", "torch_says", "linux_says", "able"),
    [
        ("x86_64", {"avx512_bf16"}, set(), True),
        ("x86_64", set(), {"avx2", "amx_bf16"}, True),
        ("x86_64", set(), {"avx2", "avx512f"}, False),
        ("AMD64", {"avx512_bf16"}, set(), True),
        ("aarch64", {"avx512_bf16"}, {"avx512_bf16"}, False),
    ],
)
def test_processors(machine: str, torch_says: set, linux_says: set, able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision.platform, "machine", lambda: machine)
    monkeypatch.setattr(precision, "_flags_of_torch", lambda: torch_says)
    monkeypatch.setattr(precision, "_flags_of_linux", lambda: linux_says)
    monkeypatch.setattr(precision, "_torch_uses_them", lambda: True)
    assert precision.computes_bfloat16.__wrapped__() == able


def test_passes_are_in_16_bits_and_all_else_in_32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor: emulated, the digits take no time."""
    monkeypatch.setattr(precision, "computes_bfloat16", lambda: True)
    seen: dict[str, set[torch.dtype]] = {"float32": set(), "bfloat16": set()}
    losses = {}
    for name in ("float32", "bfloat16"):
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda module, _, out, name=name: seen[name].add(out.dtype) if torch.is_grad_enabled() else None
        )
        try:
            lines = train(TrainSettings(rule="affine", epochs=2, precision=name, output=tmp_path / name))  # pyright: ignore
        finally:
            handle.remove()
        losses[name] = lines[-1]["train_loss"]
    assert seen["float32"] == {torch.float32}
    assert torch.bfloat16 in seen["bfloat16"]
    assert losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    from liebayes.experiments import open_run

    assert {value.dtype for value in open_run(tmp_path / "bfloat16")[0].point().values()} == {torch.float32}


def test_a_line_to_zero() -> None:
    settings = resolved(TrainSettings(lr=2.0, epochs=10, warmup_epochs=2.0, schedule="linear"))
    assert [learning_rate(settings, p) for p in (0, 1, 2, 4, 6, 10, 11)] == pytest.approx([0, 1, 2, 1.5, 1, 0, 0])
    settings = resolved(TrainSettings(lr=2.0, epochs=10, warmup_epochs=2.0))
    assert [learning_rate(settings, p) for p in (1, 2, 4, 6, 10)] == pytest.approx([1, 2, 1 + 0.5**0.5, 1, 0])
