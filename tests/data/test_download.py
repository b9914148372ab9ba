"""Downloads, from file:// addresses that the tests write."""

import gzip
import hashlib
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import formats
import pytest

from liebayes import data
from liebayes.data import DataFileError, IncompleteDataWarning, MissingDataError, cifar, idx

OPEN = urllib.request.urlopen


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose four files are those that MNIST's address serves."""
    folder = tmp_path / "served"
    formats.write_mnist(folder)
    md5 = {stem: hashlib.md5((folder / f"{stem}.gz").read_bytes()).hexdigest() for stem in idx.MNIST.md5}
    monkeypatch.setattr("urllib.request.urlopen", OPEN)
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, addresses=(f"{folder.as_uri()}/",), md5=md5))
    return folder


def test_download(served: Path, tmp_path: Path) -> None:
    target = tmp_path / "data"
    with pytest.warns(IncompleteDataWarning):
        first = data.load("mnist", target)
    assert sorted(path.name for path in target.rglob("*")) == ["mnist", *sorted(path.name for path in served.iterdir())]
    # From now on without the address.
    for path in served.iterdir():
        path.unlink()
    with pytest.warns(IncompleteDataWarning):
        again = data.load("mnist", target)
    assert again.train_images.equal(first.train_images)


def test_only_what_is_missing_is_downloaded(served: Path, tmp_path: Path) -> None:
    """After an interrupted download, or beside files of the user's, which stay as they are."""
    target = tmp_path / "data" / "MNIST" / "raw"
    formats.write_mnist(target, zipped=False)
    (target / "t10k-labels-idx1-ubyte").unlink()
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    with pytest.warns(IncompleteDataWarning):
        data.load("mnist", tmp_path / "data")
    assert {path.name for path in target.iterdir()} - {path.name for path in before} == {"t10k-labels-idx1-ubyte.gz"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_wrong_checksum_is_refused_and_removes_nothing(served: Path, tmp_path: Path) -> None:
    target = tmp_path / "data" / "mnist"
    formats.write_mnist(target)
    (target / "train-images-idx3-ubyte.gz").unlink()
    (target / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in target.iterdir()}
    (served / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataFileError, match=r"idx3-ubyte\.gz: the download has the MD5 sum [0-9a-f]{32} .*expected"):
        data.load("mnist", tmp_path / "data")
    assert {path: path.read_bytes() for path in target.iterdir()} == before


def test_the_next_address_is_tried(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = (tmp_path / "gone").as_uri() + "/"
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, addresses=(gone, *idx.MNIST.addresses)))
    with pytest.warns(IncompleteDataWarning):
        data.load("mnist", tmp_path / "data")


def test_the_next_address_is_tried_after_an_html_page(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.write_folder(tmp_path / "moved", {path.name: b"<html>" for path in served.iterdir()})
    addresses = ((tmp_path / "moved").as_uri() + "/", *idx.MNIST.addresses)
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, addresses=addresses))
    with pytest.warns(IncompleteDataWarning):
        data.load("mnist", tmp_path / "data")
    assert len(list((tmp_path / "data" / "mnist").iterdir())) == 4


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(address: str, timeout: float) -> None:
        raise urllib.error.URLError(OSError(-3, "Temporary failure in name resolution"))

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(MissingDataError) as caught:
        data.load("cifar10", tmp_path)
    message = str(caught.value)
    assert f"there is no {tmp_path / 'cifar-10-binary.tar.gz'}" in message
    assert "Temporary failure in name resolution" in message
    assert "put it there" in message
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> "Answer":
            return self

        def __exit__(self, *_: object) -> None: ...

        chunks = iter([b"first part", None])

        def read(self, size: int) -> bytes:
            chunk = next(self.chunks)
            if chunk is None:
                raise KeyboardInterrupt
            return chunk

    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: Answer())
    with pytest.raises(KeyboardInterrupt):
        data.load("cifar10", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_is_downloaded_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "cifar-100-binary.tar.gz"
    formats.write_tar(served, formats.cifar100_files("binary")[0])
    monkeypatch.setattr(cifar, "ADDRESS", f"{tmp_path.as_uri()}/")
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, md5=hashlib.md5(served.read_bytes()).hexdigest()))
    monkeypatch.setattr("urllib.request.urlopen", OPEN)
    with pytest.warns(IncompleteDataWarning):
        dataset = data.load("cifar100")
    assert len(dataset.train_labels) == 6
    # Without a data directory: in the user's cache.
    assert (tmp_path / "cache" / "liebayes" / "cifar-100-binary.tar.gz").is_file()


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist").write_text("a file where the folder would be")
    with pytest.raises(MissingDataError, match="and no folder for it: File exists"):
        data.load("mnist", tmp_path / "data")
    assert (tmp_path / "data" / "mnist").is_file()
