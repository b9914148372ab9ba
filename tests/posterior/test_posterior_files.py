"""Posteriors in files: what is saved comes back to the bit, and what is no posterior is refused by name."""

import json
import math
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.posteriors import PAIRS, Net, X, assert_same, assert_untouched, positive, posterior_of, snapshot
from torch import Tensor, nn

import liebayes as lb
from liebayes.bases import Base, Dirac, Laplace, Normal, StudentT
from liebayes.groups import Additive, Affine, Conjugated, DiagonalAffine, Interval, Kronecker, LieGroup
from liebayes.posterior import Posterior
from liebayes.rule import Family

MORE = [
    (Additive(), Dirac()),
    (Affine(), Laplace(0.3)),
    (Kronecker(), Normal(0.3)),
    (Kronecker(left="none", right="diagonal", max_side=2), StudentT(4.0, 0.3)),
]


@pytest.mark.parametrize(("group", "base"), [*PAIRS, *MORE], ids=str)
def test_save_and_load(group: LieGroup[Any], base: Base, tmp_path: Path) -> None:
    posterior = posterior_of(positive(Net()), kind=lb.LieGroupBLR, group=group, base=base, temperature=0.7, initial_scale=1.3)
    posterior.save(tmp_path / "q.safetensors")
    other = Net()
    loaded = Posterior.load(tmp_path / "q.safetensors", other)
    assert_same(posterior, loaded)
    before = snapshot(other)
    expected = posterior.predict(X, samples=3).probabilities
    assert torch.equal(loaded.predict(X, samples=3).probabilities, expected)
    assert_untouched(other, before)
    assert os.listdir(tmp_path) == ["q.safetensors"]
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "q.safetensors").read_bytes()


def test_a_conjugated_group_is_known_by_its_text(tmp_path: Path) -> None:
    group = Conjugated(DiagonalAffine(), Interval(-1.0, 2.5))
    model = nn.Linear(3, 2, bias=False)
    element = group.identity(model.weight)._replace(shift=torch.randn(2, 3))
    Posterior(model, {"weight": Family(group, Normal(0.5), element)}).save(tmp_path / "q.safetensors")
    family = Posterior.load(tmp_path / "q.safetensors", model).families["weight"]
    assert family.group == group
    assert torch.equal(family.element.shift, element.shift)


def test_the_header_is_readable(tmp_path: Path) -> None:
    posterior = posterior_of(Net(), base=Laplace(0.25), temperature=0.5)
    posterior.save(tmp_path / "q.safetensors")
    raw = (tmp_path / "q.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["liebayes"])
    assert header["format"] == "liebayes posterior 2"
    assert header["liebayes"] == lb.__version__
    assert header["torch"] == torch.__version__
    assert header["temperature"] == 0.5
    assert header["families"]["first.weight"] == {"group": "DiagonalAffine()", "base": "Laplace(scale=0.25)"}


def test_a_file_that_is_no_posterior_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no tensors at all")
    with pytest.raises(ValueError, match=r"other\.safetensors is not"):
        Posterior.load(path, Net())
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="not a posterior of liebayes"):
        Posterior.load(path, Net())
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "missing.safetensors", Net())
    posterior_of(Net()).save(path)
    path.write_bytes(path.read_bytes()[:-10])  # cut short
    with pytest.raises(ValueError, match=r"other\.safetensors is not"):
        Posterior.load(path, Net())
    with pytest.raises(IsADirectoryError, match=r"is a directory\. Give the file"):
        Posterior.load(tmp_path, Net())


def test_without_safetensors_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = posterior_of(Net())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (posterior.save, lambda path: Posterior.load(path, Net())):
        with pytest.raises(ImportError, match=r"pip install 'liebayes\[files\]'"):
            call(tmp_path / "q.safetensors")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.safetensors"
    posterior_of(Net()).save(path)

    without_buffers, more_frozen, other_statistics = Net(), Net(), Net()
    without_buffers.norm = nn.BatchNorm1d(4, track_running_stats=False)
    more_frozen.extra = nn.Linear(2, 2)
    other_statistics.norm.running_mean = torch.zeros(7)
    for model, message in (
        (Net(outputs=5), r"module\.weight.*\(5, 4\)"),
        (nn.Linear(4, 3), r"first\.weight"),
        (without_buffers, r"norm\.num_batches_tracked.*is missing in the model"),
        (more_frozen, r"extra\.bias.* is missing there, and has the shape \(2,\) of .* in the model"),
        (other_statistics, r"norm\.running_mean.*\(7,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Posterior.load(path, model)


def test_bases_and_groups_of_the_users_own(tmp_path: Path) -> None:
    """Known by class and attributes; what quadrature has found is no attribute."""

    class Tanh(Base):
        def __init__(self, width: float) -> None:
            self.width = width

        def sample(self, shape: Any, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
            return self.width * torch.rand(shape, generator=generator, dtype=dtype, device=device).logit(1e-6)

        def log_prob(self, x: Tensor) -> Tensor:
            return -2 * (x / (2 * self.width)).cosh().log() - math.log(4 * self.width)

    class Numbered(DiagonalAffine):
        def __init__(self, number: int) -> None:
            self.number = number

    assert math.isfinite(Tanh(0.1).variance)
    model, path = nn.Linear(4, 3), tmp_path / "q.safetensors"
    optimizer = lb.LieGroupBLR(model.parameters(), Numbered(1), Tanh(0.1), lr=0.1, data_size=10, metric=lb.rule.Fisher())
    optimizer.posterior(model).save(path)
    with pytest.raises(ValueError, match=r"Numbered\(number=1\).*groups="):
        Posterior.load(path, model)
    with pytest.raises(ValueError, match=r"Tanh\(width=0\.1\).*bases="):
        Posterior.load(path, model, groups=[Numbered(1)])
    loaded = Posterior.load(path, model, groups=[Numbered(1)], bases=[Tanh(0.1)])
    assert_same(optimizer.posterior(model), loaded)
    assert repr(loaded.families["weight"].base) == "Tanh(width=0.1)"
    for group, base in ((Numbered(2), Tanh(0.1)), (Numbered(1), Tanh(0.2))):
        with pytest.raises(ValueError, match=r"Numbered\(number=1\)|Tanh\(width=0\.1\)"):
            Posterior.load(path, model, groups=[group], bases=[base])
    other = lb.LieGroupBLR(model.parameters(), Numbered(1), Tanh(0.1), lr=0.1, data_size=10, metric=lb.rule.Fisher())
    other.load_state_dict(optimizer.state_dict())


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    posterior = posterior_of(Net())
    path = tmp_path / "q.safetensors"
    posterior.save(path)
    good = path.read_bytes()

    def broken(tensors: Any, filename: Any, metadata: Any) -> None:
        Path(filename).write_bytes(b"half a fi")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        posterior.save(path)
    assert os.listdir(tmp_path) == ["q.safetensors"]
    assert path.read_bytes() == good
