"""Files of posteriors that were damaged or forged: either the posterior that was saved, or an error in words."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.damage import mutant
from support.posteriors import Net, assert_same, posterior_of
from torch import Tensor

import liebayes as lb
from liebayes.posterior import Posterior
from liebayes.posterior_file import checksum


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Posterior, bytes]:
    path = tmp_path_factory.mktemp("saved") / "q.safetensors"
    posterior = posterior_of(Net())
    posterior.save(path)
    return posterior, path.read_bytes()


def load_or_message(path: Path) -> Posterior | str:
    try:
        return Posterior.load(path, Net())
    except ValueError as error:  # and no other
        return str(error)


def test_mutants_load_equal_or_are_refused(saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    posterior, data = saved
    draw, refused = random.Random(15), 0
    path = tmp_path / "q.safetensors"
    for _ in range(600):
        path.write_bytes(mutant(data, draw))
        found = load_or_message(path)
        if isinstance(found, Posterior):
            assert_same(posterior, found)
        else:
            assert str(path) in found
            refused += 1
    assert refused > 500  # some mutants are no change: a byte for itself, a cut at the end, another space


def test_one_bit_is_noticed(saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    data = bytearray(saved[1])
    data[-21] ^= 0x40
    (tmp_path / "q.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"q\.safetensors is damaged: its checksum does not match its content\. Take another"):
        Posterior.load(tmp_path / "q.safetensors", Net())


# Forged files: their checksum is right.

Edit = Callable[[dict[str, Any], dict[str, Tensor]], None]


def forge(data: bytes, path: Path, edit: Edit) -> None:
    """A file with a checksum of its own, after changes to its header and its tensors."""
    from safetensors.torch import load, save_file

    tensors = load(data)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["liebayes"])
    del header["sha256"]
    edit(header, tensors)
    header["sha256"] = checksum(json.dumps(header), tensors)
    save_file(tensors, path, metadata={"liebayes": json.dumps(header)})


def test_forging_nothing_gives_a_good_file(saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    forge(saved[1], tmp_path / "q", lambda header, tensors: None)
    assert_same(saved[0], Posterior.load(tmp_path / "q", Net()))


def value(key: str, change: Callable[[Tensor], Tensor]) -> Edit:
    return lambda header, tensors: tensors.update({key: change(tensors[key])})


def first(number: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = number
        return tensor

    return change


def header(**entries: Any) -> Edit:
    return lambda header, tensors: header.update(entries)


def family(**texts: Any) -> Edit:
    return lambda header, tensors: header["families"]["first.weight"].update(texts)


SHIFT, SCALE, VARIANCE = "element/shift/first.weight", "element/log_scale/first.weight", "buffer/norm.running_var"
FORGERIES: dict[str, tuple[Edit, str]] = {
    "NaN shift": (value(SHIFT, first(float("nan"))), "shift of the parameter first.weight has values that are not finite"),
    "infinite shift": (
        value(SHIFT, first(float("inf"))),
        "shift of the parameter first.weight has values that are not finite",
    ),
    "NaN scale": (value(SCALE, first(float("nan"))), "log_scale of the parameter first.weight has values .* not finite"),
    "negative variance": (value(VARIANCE, first(-1.0)), r"variances norm\.running_var have negative values"),
    "NaN variance": (value(VARIANCE, first(float("nan"))), r"statistics norm\.running_var have values .* not finite"),
    "NaN in a fixed parameter": (
        value("fixed/again.bias", first(float("nan"))), r"the parameter again\.bias has values that are not numbers"
    ),
    "broadcastable block": (value(SCALE, lambda t: t[:1]), r"first\.weight needs log_scale of shape \(4, 4\)"),
    "broadcastable buffer": (value(VARIANCE, lambda t: t[:1]), r"running_var \(buffer\) has the shape \(1,\)"),
    "integer block": (value(SHIFT, lambda t: t.long()), "first.weight must be floating-point .* shift is torch.int64"),
    "integer buffer": (value(VARIANCE, lambda t: t.long()), "running_var .* of int64 numbers there, and .* floating-point"),
    "block of another precision": (value(SHIFT, lambda t: t.double()), "numbers of one precision, but shift is torch.float64"),
    "missing block": (
        lambda header, tensors: (tensors.pop(SHIFT), None)[1],
        "needs shift of shape .* but the file has nothing",
    ),
    "missing buffer": (lambda header, tensors: (tensors.pop(VARIANCE), None)[1], "running_var .* is missing there"),
    "missing family": (lambda header, tensors: (header["families"].pop("first.weight"), None)[1], r"first\.weight"),
    "another tensor": (lambda header, tensors: tensors.update(more=torch.ones(1)), "has nothing for the tensor 'more'"),
    "no families": (header(families={}), "does not name the group and the base of every trained parameter"),
    "families as a list": (header(families=["first.weight"]), "does not name the group and the base"),
    "a group that is a number": (family(group=3), "does not name the group and the base"),
    "no temperature": (header(temperature=None), "temperature of zero or more, but has None"),
    "NaN temperature": (header(temperature=float("nan")), "temperature of zero or more, but has nan"),
    "a huge temperature": (header(temperature=10**400), "temperature of zero or more, but has 1000"),
    "a later format": (header(format="liebayes posterior 9"), "has the format 'liebayes posterior 9'.* newer"),
    "unknown group": (family(group="Rotation()"), r"uses the group Rotation\(\), which the library does not have"),
    "code as a group": (family(group="__import__('os').system('false')"), "which the library does not have"),
    "code as an argument": (family(group="Kronecker(left=print(1))"), "which the library does not have"),
    "a type as a group": (family(group="LieGroup()"), "which the library does not have"),
    "bad argument": (family(group="Kronecker(left='round')"), "which the library does not have .*factor must be one of"),
    "a huge argument": (
        family(group=f"Conjugated(group=Affine(), chart=Interval(low=0, high={10**400}))"),
        "which the library does not have",
    ),
    "deep text": (family(group="Conjugated(group=" * 5000), "which the library does not have"),
    "signs": (family(group="Kronecker(max_side=" + "-" * 900 + "1)"), "which the library does not have"),
    "another group": (family(group="Additive()"), "has nothing for the tensor"),
    "a matrix group": (family(group="TriangularAffine()"), "first.weight needs .* but the file has nothing"),
    "unknown base": (family(base="Levy(scale=1.0)"), r"uses the base Levy\(scale=1\.0\), which the library does not have"),
    "bad base": (family(base="Normal(scale=-1.0)"), "uses the base"),
    "a base of the half line": (family(base="Rayleigh(scale=1.0)"), "acts on the real line"),
    "empty base": (family(base=""), "uses the base"),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_forgeries_are_refused(kind: str, saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    edit, message = FORGERIES[kind]
    forge(saved[1], tmp_path / "q", edit)
    with pytest.raises(ValueError, match=message):
        Posterior.load(tmp_path / "q", Net())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"families": ' * 100_000, "[]", "", "{", "1" * 5000], ids=lambda t: t[:9])
@pytest.mark.parametrize("old", [False, True])
def test_headers_that_are_none(text: str, old: bool, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    now, of_0_1_0 = {"liebayes": text}, {"format": "liebayes posterior 1", "temperature": "1.0", "families": text}
    save_file({"fixed/x": torch.ones(1)}, tmp_path / "q", metadata=of_0_1_0 if old else now)
    expected = pytest.warns(UserWarning, match="no checksum") if old else nullcontext()
    with expected, pytest.raises(ValueError, match="has a header"):
        Posterior.load(tmp_path / "q", Net())


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    posterior = posterior_of(Net())
    posterior.buffers["norm.running_var"][0] = -1
    with pytest.raises(ValueError, match=r"cannot be saved: the variances norm\.running_var have negative values"):
        posterior.save(tmp_path / "q")
    posterior.families["first.weight"].element.shift[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"cannot be saved: shift of the parameter first\.weight"):
        posterior.save(tmp_path / "q")
    assert list(tmp_path.iterdir()) == []


class WithBuffer(Net):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("extra", buffer)


UNSTORABLE = {
    "sparse": torch.eye(3).to_sparse(),
    "without data": torch.ones(3, device="meta"),
    "complex double": torch.ones(2, dtype=torch.complex128),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_tensors_that_a_file_cannot_hold_are_named(kind: str, tmp_path: Path) -> None:
    posterior = posterior_of(WithBuffer(UNSTORABLE[kind]))
    with pytest.raises(ValueError, match="cannot be saved: extra is a tensor that a file cannot hold"):
        posterior.save(tmp_path / "q")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buffer", [torch.ones(2, dtype=torch.complex64), torch.ones(0, 3), torch.tensor([float("nan")])])
def test_unusual_buffers_are_what_they_were(buffer: Tensor, tmp_path: Path) -> None:
    posterior = posterior_of(WithBuffer(buffer))
    posterior.save(tmp_path / "q")
    loaded = Posterior.load(tmp_path / "q", WithBuffer(buffer))
    torch.testing.assert_close(loaded.buffers["extra"], buffer, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Net,), "A posterior is loaded for a module, but got"),
        ((None,), "A posterior is loaded for a module, but got None"),
        ((Net(), "Affine"), "A group was expected, but got 'A'"),
        ((Net(), [lb.groups.Affine]), "A group was expected, but got <class"),
        ((Net(), None), "groups must be a list of groups"),
        ((Net(), (), [3.0]), "A base distribution was expected, but got 3.0"),
    ],
)
def test_what_a_posterior_cannot_be_loaded_with_is_named(
    arguments: tuple[Any, ...], message: str, saved: tuple[Posterior, bytes], tmp_path: Path
) -> None:
    (tmp_path / "q").write_bytes(saved[1])
    model, *own = arguments
    with pytest.raises(ValueError, match=message):
        Posterior.load(tmp_path / "q", model, **dict(zip(("groups", "bases"), own, strict=False)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_no_file(saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    """Reading would wait for a writer, and writing would put a file in its place."""
    os.mkfifo(tmp_path / "q")
    with pytest.raises(ValueError, match=r"q is a device or a pipe"):
        Posterior.load(tmp_path / "q", Net())
    with pytest.raises(OSError, match="a device or a pipe, and a file was to be written"):
        saved[0].save(tmp_path / "q")
    assert (tmp_path / "q").is_fifo()


def test_a_posterior_does_not_follow_its_file(saved: tuple[Posterior, bytes], tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.write_bytes(saved[1])
    loaded = Posterior.load(path, Net())
    with open(path, "r+b") as file:  # in place, as cp does
        file.write(bytes(len(saved[1])))
    assert_same(saved[0], loaded)
