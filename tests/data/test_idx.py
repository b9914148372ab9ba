"""MNIST and Fashion-MNIST: idx files are read exactly, broken ones are refused by name; where files are looked for."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import formats
import pytest
import torch
from formats import brief, cut, flipped, load, refused, without_checksum

from liebayes import data
from liebayes.data import IncompleteDataWarning, MissingDataError


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_idx(tmp_path: Path, name: str, zipped: bool, place: int) -> None:
    sub = {"mnist": ["", "mnist", "MNIST/raw"], "fashion-mnist": ["", "fashion-mnist", "FashionMNIST/raw"]}[name][place]
    content = formats.write_mnist(tmp_path / sub, zipped=zipped)
    dataset = load(name, tmp_path)
    assert dataset.train_images.equal(content["train-images-idx3-ubyte"].unsqueeze(1))
    assert dataset.test_images.equal(content["t10k-images-idx3-ubyte"].unsqueeze(1))
    assert dataset.train_labels.equal(content["train-labels-idx1-ubyte"].long())
    assert dataset.test_labels.equal(content["t10k-labels-idx1-ubyte"].long())


def test_its_own_folder_comes_before_the_root(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path, train=12)
    formats.write_mnist(tmp_path / "fashion-mnist", train=20)
    assert len(load("fashion-mnist", tmp_path).train_labels) == 20
    assert len(load("mnist", tmp_path).train_labels) == 12


def test_idx_with_a_dot_in_the_name(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path, zipped=False)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(load("mnist", tmp_path).train_labels) == 12


def test_fewer_records_warn(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path)
    with pytest.warns(IncompleteDataWarning) as caught:
        data.load("mnist", tmp_path, download=False)
    assert len(caught) == 2
    assert "train-images-idx3-ubyte.gz: 12 of the 60,000 published images" in str(caught[0].message)


IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
WHOLE = formats.idx(formats.pixels(12, 28, 28))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (IMAGES, b"", ["(none)", "00 00 08 03"]),
        (IMAGES, b"PK\x03\x04 a zip file, say", ["50 4b 03 04", "not this idx file"]),
        (IMAGES, formats.idx(torch.arange(12, dtype=torch.uint8)), ["00 00 08 01", "expected 00 00 08 03"]),
        (IMAGES, b"\0\0\x0d\x03" + WHOLE[4:], ["00 00 0d 03"]),
        (IMAGES, WHOLE[:10], ["ends inside its header", "10 bytes"]),
        (IMAGES, WHOLE[:-1], ["12×28×28 = 9,408", "9,407 came", "cut short"]),
        (IMAGES, WHOLE[: -28 * 28], ["8,624 came", "cut short"]),
        (IMAGES, WHOLE + b"x", ["more follow"]),
        (IMAGES, formats.idx(formats.pixels(12, 14, 14)), ["14×14", "expected 28×28"]),
        (IMAGES, formats.idx(formats.pixels(11, 28, 28)), ["11 images, but 12 labels"]),
        (IMAGES, b"\0\0\x08\x03" + b"\xff" * 12, ["4294967295", "at most 60,000"]),
        (IMAGES, b"\0\0\x08\x03" + bytes(3) + b"\x05" + b"\xff" * 8, ["4294967295"]),
        (IMAGES, b"\0\0\x08\x03" + bytes(12), ["empty"]),
        (LABELS, formats.idx(torch.full((12,), 10, dtype=torch.uint8)), ["record 0 has the label 10, expected 0 to 9"]),
        (LABELS, formats.idx(torch.tensor([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 200], dtype=torch.uint8)), ["record 11", "200"]),
    ],
    ids=brief,
)
@pytest.mark.parametrize("zipped", [True, False])
def test_broken_idx(tmp_path: Path, file: str, content: bytes, words: list[str], zipped: bool) -> None:
    formats.write_mnist(tmp_path, zipped=zipped)
    path = tmp_path / (f"{file}.gz" if zipped else file)
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert refused("mnist", tmp_path, *words).path == path


@pytest.mark.parametrize("damage", [cut, without_checksum, flipped])
def test_broken_gzip(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    formats.write_mnist(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert refused("mnist", tmp_path, "gzip file is cut short or broken").path == path
    path.write_bytes(b"<html>404</html>")
    refused("mnist", tmp_path, "not a gzip file")


def test_sibling_labels_are_recognised(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path, train=16)
    labels = torch.tensor([9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9], dtype=torch.uint8)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(formats.idx(labels)))
    refused("mnist", tmp_path, "labels of Fashion-MNIST, not of MNIST")


@pytest.mark.parametrize("labels", [True, False])
def test_fashion_mnist_is_not_downloaded_into_mnists_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: bool
) -> None:
    """A flat folder of MNIST that lacks a file: Fashion-MNIST's would be found there as MNIST's ever after."""
    formats.write_mnist(tmp_path, train=16)
    published = torch.tensor([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5, 3, 6, 1, 7], dtype=torch.uint8)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(formats.idx(published)))
    (tmp_path / f"{IMAGES}.gz").unlink()
    if not labels:
        for path in tmp_path.glob("*labels*"):
            path.unlink()
    before = sorted(path.name for path in tmp_path.iterdir())
    asked: list[Path] = []

    def fetch(_address: str, path: Path, _md5: str) -> Path:
        asked.append(path)
        raise OSError("no network")

    monkeypatch.setattr("liebayes.data.locate._fetch", fetch)
    with pytest.raises(MissingDataError):
        data.load("fashion-mnist", tmp_path)
    assert {path.parent for path in asked} == {tmp_path / "fashion-mnist"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == before


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "tinyimagenet"])
def test_a_missing_file_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingDataError) as caught:
        data.load(name, tmp_path / "nowhere", download=False)
    message = str(caught.value)
    assert str(tmp_path / "nowhere") in message
    assert re.search(r"(\.gz|\.zip)", message)
    assert "LIEBAYES_DATA" in message
    assert "http" in message
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)
    assert not (tmp_path / "nowhere").exists()


def test_data_dir_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(data.DataError, match="is a file"):
        data.load("mnist", tmp_path / "file", download=False)


def test_the_argument_overrides_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.write_mnist(tmp_path / "one", train=12)
    formats.write_mnist(tmp_path / "two", train=13)
    formats.write_mnist(tmp_path / "cache" / "liebayes" / "mnist", train=14)

    def count(folder: Path | None) -> int:
        with pytest.warns(IncompleteDataWarning):
            return len(data.load("mnist", folder, download=False).train_labels)

    assert count(None) == 14
    monkeypatch.setenv("LIEBAYES_DATA", str(tmp_path / "one"))
    assert count(None) == 12
    assert count(tmp_path / "two") == 13


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "tinyimagenet"])
def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By a stand-in for the system, since the tests may run as root, who may read everything."""
    formats.write_mnist(tmp_path)
    formats.write_folder(tmp_path, formats.cifar10_files("binary")[0])
    formats.write_tar(tmp_path / "cifar-100-binary.tar.gz", formats.cifar100_files("binary")[0])
    formats.write_zip(tmp_path / "tiny-imagenet-200.zip", {"wnids.txt": b""})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("gzip.open", refuse)
    monkeypatch.setattr("zipfile.ZipFile", refuse)
    refused(name, tmp_path, "cannot be read: Permission denied")
