"""Posteriors of a small part of a large model: frozen weights are neither copied nor stored, and known again."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.posteriors import X, Y, assert_same, assert_untouched, snapshot
from support.problems import closure_for
from support.processes import TIMEOUT
from torch import Tensor, nn
from torch.func import functional_call

import liebayes as lb
from liebayes.posterior.frozen import fingerprint


class Adapted(nn.Module):
    """Frozen layers of 2,750 weights and a head of 153 that is trained."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(50, affine=False)
        self.frozen = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 50, bias=False), norm)
        self.frozen.requires_grad_(False)
        self.extra = nn.Parameter(torch.zeros(50))  # trained by somebody else
        self.head = nn.Linear(50, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x) + self.extra)


def posterior_of(model: Adapted) -> lb.Posterior:
    optimizer = lb.AffineBLR(model.head.parameters(), lr=0.1, data_size=20)
    for _ in range(3):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return optimizer.posterior(model.eval())


def test_what_is_kept_and_stored(tmp_path: Path) -> None:
    model = Adapted()
    posterior = posterior_of(model)
    assert set(posterior.frozen) == {"frozen.0.weight", "frozen.0.bias", "frozen.2.weight"}
    assert set(posterior.fixed) == {"extra"}
    path = tmp_path / "q.safetensors"
    posterior.save(path)
    assert not any(key.startswith("fixed/frozen") for key in load_file(path))
    other = Adapted()  # with the same frozen weights
    with torch.no_grad():
        other.extra.add_(1)
    loaded = lb.Posterior.load(path, other)
    assert_same(posterior, loaded)
    assert loaded.frozen == posterior.frozen
    generator = torch.Generator().manual_seed(0)
    draws = [functional_call(model, posterior.sample(generator), (X,)).softmax(-1) for _ in range(4)]
    expected = torch.stack(draws).mean(0)
    before = snapshot(other)
    for each in (posterior, loaded):
        torch.testing.assert_close(each.predict(X, samples=4).probabilities, expected)
    assert_untouched(other, before)


def test_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    model = Adapted()
    posterior = posterior_of(model)
    posterior.save(tmp_path / "q")
    with pytest.raises(ValueError, match=r"q does not fit the model: 3 of 3 frozen weights, such as frozen\.0\.weight"):
        lb.Posterior.load(tmp_path / "q", Adapted(seed=1))
    with pytest.raises(ValueError, match=r"beside the frozen parameter frozen\.0\.weight, which the model does not have"):
        lb.Posterior.load(tmp_path / "q", _without_frozen())
    model.frozen[2].weight.data[3, 4].mul_(1.0001)  # unseen by torch's versions
    for use in (
        lambda: posterior.predict(X), lambda: posterior.sampled().__enter__(), posterior.sample, posterior.sample_module,
        lambda: posterior.to(torch.float64), lambda: posterior.save(tmp_path / "whole", frozen=True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"The model has changed: 1 of 3 frozen weights, such as frozen\.2\.weight"):
            use()
    assert os.listdir(tmp_path) == ["q"]


def _without_frozen() -> nn.Module:
    model = Adapted()
    model.frozen = nn.Sequential()
    return model


def test_frozen_weights_are_stored_on_request(tmp_path: Path) -> None:
    model = Adapted()
    posterior = posterior_of(model)
    posterior.save(tmp_path / "q", frozen=True)
    loaded = lb.Posterior.load(tmp_path / "q", Adapted(seed=1))
    assert torch.equal(loaded.predict(X, samples=3).probabilities, posterior.predict(X, samples=3).probabilities)


def test_a_few_frozen_weights_are_copied() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model[0].bias.requires_grad_(False)
    posterior = lb.AffineBLR(model.parameters(), data_size=20).posterior(model)
    assert set(posterior.fixed) == {"0.bias"}
    assert not posterior.frozen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_fingerprints(dtype: torch.dtype) -> None:
    """One bit, one place, one shape: all of them tell. Memory layout does not."""
    value = torch.arange(60, dtype=torch.float32).reshape(3, 20).to(dtype)
    prints = {fingerprint(value), fingerprint(value.T.contiguous()), fingerprint(value.flip(0)), fingerprint(value.flatten())}
    for place in (0, 31, 59):
        other = value.clone()
        other.view(-1).view(torch.uint8)[place * value.element_size()] ^= 1
        prints.add(fingerprint(other))
    assert len(prints) == 7
    assert fingerprint(value.T.contiguous().T) == fingerprint(value)
    assert fingerprint(torch.empty(0, dtype=dtype)) != fingerprint(torch.empty(0, 2, dtype=dtype))


@pytest.mark.parametrize("length", [1, 131_072, 131_073, 300_000])
def test_a_fingerprint_is_that_of_its_definition(length: int) -> None:
    """In chunks of 2¹⁷ numbers Σ (2k + 1)·⌊2⁶⁴/φ⌋·bits_k modulo 2⁶⁴: files hold it, so it may not change."""
    np = pytest.importorskip("numpy")
    value = torch.randn(length, generator=torch.Generator().manual_seed(0))
    bits, odd = value.numpy().view("int32").astype("int64").view("uint64"), np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        chunks = np.split(bits, range(1 << 17, length, 1 << 17))
        terms = [(2 * np.arange(len(chunk), dtype="uint64") + 1) * odd * chunk for chunk in chunks]
        sums = [int(products.sum().view("int64")) for products in terms]
    expected = hashlib.blake2b(f"torch.float32 ({length},) {sums}".encode(), digest_size=8).hexdigest()
    assert fingerprint(value) == expected


def test_memory_and_file_beside_50_million_frozen_weights(tmp_path: Path) -> None:
    """8,196 trained weights in a new process: a file below 1 MB, and below 10 MB for all that one does with a posterior."""
    command = [sys.executable, __file__, str(tmp_path / "q")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "None":
        pytest.skip("The peak of memory is that of Linux")
    assert (tmp_path / "q").stat().st_size < 1_000_000
    assert 0 < int(done.stdout) < 10e6


def extra_memory(path: Path) -> int | None:
    """How far this process grows at most while a posterior is made, used, copied, saved and loaded."""
    model, inputs = Large(), torch.ones(1, 2048)
    optimizer = lb.AffineBLR(model.parameters(), data_size=20)
    with optimizer.sampled():
        model(inputs).mean().backward()
    optimizer.step()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # lets the kernel's record of the peak begin anew
    except OSError:
        return None
    before = memory("VmRSS")
    posterior = optimizer.posterior(model)
    modules = [posterior.sample_module() for _ in range(3)]
    posterior.predict(inputs, samples=2)
    posterior.save(path)
    lb.Posterior.load(path, model).predict(inputs, samples=2)
    assert sum(family.event_shape.numel() for family in posterior.families.values()) == 8196
    assert all(torch.isfinite(module(inputs)).all() for module in modules)
    return memory("VmHWM") - before


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.ParameterList([torch.ones(1000, 10_000) for _ in range(5)]).requires_grad_(False)
        self.head = nn.Linear(2048, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.base[0][0, 0])


def memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


if __name__ == "__main__":
    print(extra_memory(Path(sys.argv[1])))
