"""Every format, written by the tests: what is whole is read exactly, what is broken is refused by name."""

import gzip
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import formats
import pytest
import torch

from liebayes import data
from liebayes.data import DataFileError, Dataset, IncompleteDataWarning, MissingDataError


def load(name: str, folder: Path) -> Dataset:
    """Without the warning that there are fewer records than published."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteDataWarning)
        return data.load(name, folder, download=False)


def refused(name: str, folder: Path, *words: str) -> DataFileError:
    with pytest.raises(DataFileError) as caught:
        load(name, folder)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert str(caught.value.path) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    return caught.value


def brief(value: object) -> str | None:
    """Names of tests without the bytes in them, which may be many and, in a gzip file, hold the time."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


# MNIST and Fashion-MNIST


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


def test_the_own_folder_comes_before_the_root(tmp_path: Path) -> None:
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


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_checksum(content: bytes) -> bytes:
    return content[:-8]


def flipped(content: bytes) -> bytes:
    """One bit of gzip's checksum."""
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


@pytest.mark.parametrize("damage", [cut, without_checksum, flipped])
def test_broken_gzip(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    formats.write_mnist(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert refused("mnist", tmp_path, "gzip file is cut short or broken").path == path


def test_not_gzip(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path)
    (tmp_path / f"{IMAGES}.gz").write_bytes(b"<html>404</html>")
    refused("mnist", tmp_path, "not a gzip file")


def test_sibling_labels_are_recognised(tmp_path: Path) -> None:
    formats.write_mnist(tmp_path, train=16)
    labels = torch.tensor([9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9], dtype=torch.uint8)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(formats.idx(labels)))
    refused("mnist", tmp_path, "labels of Fashion-MNIST, not of MNIST")


@pytest.mark.parametrize("labels", [True, False])
def test_a_download_is_never_put_beside_files_of_the_sibling(
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


# CIFAR

FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}
ARCHIVES = {
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
}
FILES = {"cifar10": formats.cifar10_files, "cifar100": formats.cifar100_files}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("form", ["folder", "files", "subfolder", "archive", "archive in subfolder"])
def test_cifar(tmp_path: Path, name: str, version: str, form: str) -> None:
    files, images, labels = FILES[name](version)
    folder = FOLDERS[name, version]
    if form.startswith("archive"):
        place = tmp_path / name if "subfolder" in form else tmp_path
        place.mkdir(exist_ok=True)
        # Other members, as in the published archives.
        members = {f"{folder}/{file}": content for file, content in files.items()} | {f"{folder}/readme.html": b"hello"}
        formats.write_tar(place / ARCHIVES[name, version], members)
    else:
        place = {"folder": tmp_path / folder, "files": tmp_path, "subfolder": tmp_path / name / folder}[form]
        formats.write_folder(place, files)
    dataset = load(name, tmp_path)
    assert dataset.train_images.equal(images)
    assert dataset.train_labels.equal(labels)
    assert len(dataset.test_labels) == 3
    assert dataset.augmentation == data.Augmentation(padding=4, flip=True)


def test_the_written_pickle_is_one_of_numpy() -> None:
    """Our writer against the real unpickler, so that our reader is not judged by its own idea of the format."""
    numpy = pytest.importorskip("numpy")
    images = formats.pixels(3, 3072)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numpy.core
        loaded = pickle.loads(formats.cifar_python(images, labels=[1, 2, 3]), encoding="bytes")
    assert loaded[b"labels"] == [1, 2, 3]
    assert numpy.array_equal(loaded[b"data"], images.numpy())


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickles_of_today_are_read_too(tmp_path: Path, protocol: int) -> None:
    pytest.importorskip("numpy")
    images = formats.pixels(4, 3072)
    for file in ("data_batch_1", "test_batch"):
        content = pickle.dumps({"data": images.numpy(), "labels": [1, 2, 3, 9]}, protocol=protocol)
        formats.write_folder(tmp_path, {file: content})
    dataset = load("cifar10", tmp_path)
    assert dataset.train_images.equal(images.view(-1, 3, 32, 32))
    assert dataset.train_labels.tolist() == [1, 2, 3, 9]


def test_a_missing_batch_warns(tmp_path: Path) -> None:
    files, images, _ = formats.cifar10_files("binary")
    del files["data_batch_3.bin"]
    formats.write_folder(tmp_path, files)
    with pytest.warns(IncompleteDataWarning) as caught:
        dataset = data.load("cifar10", tmp_path, download=False)
    messages = [str(warning.message) for warning in caught]
    assert f"{tmp_path}: 16 of the 50,000 published training images" in messages[0]
    assert "test_batch.bin: 3 of the 10,000 published test images" in messages[1]
    assert dataset.train_images.equal(torch.cat([images[:8], images[12:]]))


def test_without_test_images_it_is_missing(tmp_path: Path) -> None:
    files, _, _ = formats.cifar10_files("binary")
    del files["test_batch.bin"]
    formats.write_folder(tmp_path, files)
    with pytest.raises(MissingDataError, match=r"has data_batch_1\.bin, .*but not the rest"):
        load("cifar10", tmp_path)


CIFAR_BINARY = formats.cifar10_files("binary")[0]["data_batch_1.bin"]
CIFAR_PIXELS = formats.pixels(4, 3, 32, 32)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["0 bytes are not whole records of 3,073 bytes"]),
        (CIFAR_BINARY[:-1], ["12,291 bytes", "3 records and 3,072 bytes more", "cut short"]),
        (CIFAR_BINARY + b"x", ["4 records and 1 bytes more"]),
        (formats.cifar_binary(CIFAR_PIXELS, torch.zeros(4), torch.zeros(4)), ["not whole records"]),
        (formats.cifar_binary(CIFAR_PIXELS, torch.tensor([0, 1, 10, 2])), ["record 2 has the label 10, expected 0 to 9"]),
        (bytes(3073 * 10_000 + 1), ["more than the 30,730,000 bytes"]),
    ],
    ids=brief,
)
def test_broken_cifar_binary(tmp_path: Path, content: bytes, words: list[str]) -> None:
    files, _, _ = formats.cifar10_files("binary")
    formats.write_folder(tmp_path, files | {"data_batch_1.bin": content})
    assert refused("cifar10", tmp_path, *words).path == tmp_path / "data_batch_1.bin"


@pytest.mark.parametrize(
    ("coarse", "fine", "word"), [(20, 5, "label 20, expected 0 to 19"), (3, 100, "label 100, expected 0 to 99")]
)
def test_broken_cifar100_labels(tmp_path: Path, coarse: int, fine: int, word: str) -> None:
    files, _, _ = formats.cifar100_files("binary")
    content = formats.cifar_binary(CIFAR_PIXELS, torch.tensor([0, coarse, 1, 1]), torch.tensor([0, fine, 1, 1]))
    formats.write_folder(tmp_path, files | {"train.bin": content})
    refused("cifar100", tmp_path, "record 1", word)


def python_variant(labels: object = (1, 2, 3, 4), key: bytes = b"labels") -> bytes:
    """A pickle without an array, to put anything in the place of the labels."""
    return pickle.dumps({key: labels, b"data": 3}, protocol=2)


GOOD_PICKLE = formats.cifar_python(CIFAR_PIXELS, labels=[1, 2, 3, 4])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not a CIFAR file of the python version"]),
        (GOOD_PICKLE[:-1], ["not a CIFAR file of the python version"]),
        (GOOD_PICKLE[:5000], ["not a CIFAR file of the python version"]),
        (b"<html>", ["not a CIFAR file of the python version"]),
        (pickle.dumps([1, 2], protocol=2), ["expected a pickled dictionary, but a list came"]),
        (python_variant(), ["expected 'data' and 'labels'", "'labels', 'data'"]),
        (formats.cifar_python(CIFAR_PIXELS, fine_labels=[1, 2, 3, 4]), ["expected 'data' and 'labels'", "'fine_labels'"]),
        (formats.cifar_python(CIFAR_PIXELS, labels=[1, 2, 3]), ["4 images, but 3 labels"]),
        (formats.cifar_python(CIFAR_PIXELS, labels=[1, 2, 3, 10]), ["record 3 has the label 10, expected 0 to 9"]),
        (formats.cifar_python(CIFAR_PIXELS, labels=[-1, 2, 3, 1]), ["record 0 has the label -1"]),
        (formats.cifar_python(formats.pixels(4, 100), labels=[1, 2, 3, 4]), ["at most 10,000×3072", "(4, 100) came"]),
        (GOOD_PICKLE.replace(b"U\x02u1", b"U\x02f8"), ["another kind than bytes"]),
        (GOOD_PICKLE.replace(b"U\x02u1", b"U\x02O8"), ["another kind than bytes"]),
        (GOOD_PICKLE.replace(b"J\x04\0\0\0J\x00\x0c", b"J\x05\0\0\0J\x00\x0c"), ["shape (5, 3072) with 12,288 bytes"]),
        (GOOD_PICKLE.replace(b"J\x04\0\0\0J\x00\x0c", b"J\xff\xff\xff\xffJ\x00\x0c"), ["without a proper shape"]),
    ],
    ids=brief,
)
def test_broken_cifar_python(tmp_path: Path, content: bytes, words: list[str]) -> None:
    files, _, _ = formats.cifar10_files("python")
    formats.write_folder(tmp_path, files | {"data_batch_1": content})
    assert refused("cifar10", tmp_path, *words).path == tmp_path / "data_batch_1"


class Attack:
    """What unpickling must not do."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir, getattr, __import__])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_runs_nothing(tmp_path: Path, function: Callable[..., object], protocol: int) -> None:
    target = tmp_path / "harmed"
    argument = {os.system: f"mkdir {target}", os.mkdir: str(target)}.get(function, f"__import__('os').mkdir({str(target)!r})")
    content = pickle.dumps({b"labels": Attack(function, argument)}, protocol=protocol)
    files, _, _ = formats.cifar10_files("python")
    formats.write_folder(tmp_path, files | {"data_batch_1": content})
    refused("cifar10", tmp_path, "it asks for ", function.__name__, "which no CIFAR file needs")
    assert not target.exists()
    if function in (os.system, os.mkdir):
        # The attack is a real one: Python's own unpickler falls for it.
        pickle.loads(content)
        assert target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02c_codecs\nencode\n}U\x01aU\x01bsb.",  # BUILD on a function would set its attributes
        b"\x80\x02cnumpy\ndtype\n}U\x01aU\x01bsb.",
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x04\0\0\0zlib\x86R.",
        b"\x80\x02cnumpy\nload\n.",
        b"\x80\x02cnumpy.core.multiarray\nscalar\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        b"\x80\x02U\x01aQ.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension
    ],
    ids=brief,
)
def test_known_names_cannot_be_misused(tmp_path: Path, content: bytes) -> None:
    files, images, _ = formats.cifar10_files("python")
    formats.write_folder(tmp_path, files | {"data_batch_1": content})
    refused("cifar10", tmp_path, "not a CIFAR file of the python version")
    formats.write_folder(tmp_path, files)
    assert load("cifar10", tmp_path).train_images.equal(images)


@pytest.mark.parametrize("damage", [cut, without_checksum, flipped])
def test_broken_tar(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    formats.write_tar(path, formats.cifar10_files("binary")[0])
    path.write_bytes(damage(path.read_bytes()))
    assert refused("cifar10", tmp_path, "cut short or broken").path == path


def test_a_tar_cut_before_it_was_zipped(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    formats.write_tar(path, formats.cifar10_files("binary")[0])
    path.write_bytes(gzip.compress(cut(gzip.decompress(path.read_bytes()))))
    refused("cifar10", tmp_path, "cut short")


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", gzip.compress(b""), gzip.compress(b"not a tar" * 1000)], ids=brief
)
def test_foreign_tar(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    refused("cifar10", tmp_path, "cut short or broken")


def test_a_tar_of_something_else(tmp_path: Path) -> None:
    formats.write_tar(tmp_path / "cifar-10-binary.tar.gz", {"a/b.txt": b"hello"})
    refused("cifar10", tmp_path, "it holds none of the files data_batch_1.bin", "not the published archive")


def test_a_tar_with_a_broken_record(tmp_path: Path) -> None:
    files, _, _ = formats.cifar10_files("binary")
    formats.write_tar(tmp_path / "cifar-10-binary.tar.gz", files | {"data_batch_2.bin": b"short"})
    refused("cifar10", tmp_path, "cifar-10-binary.tar.gz", "data_batch_2.bin", "5 bytes")


def test_a_tar_with_too_large_a_member(tmp_path: Path) -> None:
    files, _, _ = formats.cifar10_files("binary")
    formats.write_tar(tmp_path / "cifar-10-binary.tar.gz", files | {"test_batch.bin": bytes(31_000_000)})
    refused("cifar10", tmp_path, "test_batch.bin has 31,000,000 bytes; at most 30,730,000 are published")


@pytest.mark.parametrize("name", ["../evil.bin", "/evil.bin", "a/../../evil.bin", "..\\evil.bin", "C:/evil.bin"])
def test_paths_out_of_an_archive(tmp_path: Path, name: str) -> None:
    pytest.importorskip("PIL")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    formats.write_tar(inner / "cifar-10-binary.tar.gz", formats.cifar10_files("binary")[0] | {name: b"evil"})
    refused("cifar10", inner, "leads out of its folder")
    formats.write_zip(inner / "tiny-imagenet-200.zip", formats.tiny_imagenet_files() | {name: b"evil"})
    refused("tinyimagenet", inner, "leads out of its folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "cifar-10-binary.tar.gz", "tiny-imagenet-200.zip"]


# TinyImageNet


@pytest.mark.parametrize("form", ["folder", "files", "subfolder", "zip", "zip in subfolder"])
def test_tiny_imagenet(tmp_path: Path, form: str) -> None:
    pytest.importorskip("PIL")
    files = formats.tiny_imagenet_files()
    top = "tiny-imagenet-200"
    if form.startswith("zip"):
        place = tmp_path / "tinyimagenet" if "subfolder" in form else tmp_path
        place.mkdir(exist_ok=True)
        formats.write_zip(place / f"{top}.zip", {f"{top}/{file}": content for file, content in files.items()})
    else:
        place = {"folder": tmp_path / top, "files": tmp_path, "subfolder": tmp_path / "tinyimagenet" / top}[form]
        formats.write_folder(place, files)
    dataset = load("tinyimagenet", tmp_path)
    assert dataset.train_images.shape == (22, 3, 64, 64)
    assert dataset.train_labels.tolist() == [0] * 11 + [1] * 11
    assert dataset.class_names == ("crane (n01000000)", "crane (n02000000)")
    # By number, not as text; JPEG keeps a plain colour to a step or two.
    assert (dataset.train_images[:11, 0, 0, 0].int() - 10 * torch.arange(11)).abs().max() <= 2
    assert (dataset.train_images[12, :, 30, 30].int() - torch.tensor([10, 5, 0])).abs().max() <= 3
    # The grey one.
    assert dataset.train_images[11].unique().tolist() == [0]
    assert dataset.test_labels.tolist() == [1, 0]
    assert (dataset.test_images[:, 0, 0, 0].int() - torch.tensor([50, 200])).abs().max() <= 2


def test_tiny_imagenet_warns_of_fewer(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    formats.write_zip(tmp_path / "tiny-imagenet-200.zip", formats.tiny_imagenet_files())
    with pytest.warns(IncompleteDataWarning) as caught:
        data.load("tinyimagenet", tmp_path, download=False)
    messages = [str(warning.message) for warning in caught]
    assert "22 of the 100,000 published training images" in messages[0]
    assert "2 of the 10,000 published validation images" in messages[1]


IMAGE = "train/n01000000/images/n01000000_3.JPEG"


def tiny_damages() -> list[tuple[str, bytes | None, list[str]]]:
    if not pytest.importorskip("importlib.util").find_spec("PIL"):
        return []
    return [
        (IMAGE, formats.jpeg((32, 32)), ["an image of 32×32, expected 64×64"]),
        (IMAGE, formats.jpeg()[:300], ["not a whole JPEG image"]),
        (IMAGE, formats.jpeg(form="PNG"), ["not a whole JPEG image"]),
        (IMAGE, b"", ["not a whole JPEG image"]),
        (IMAGE, bytes(1_000_001), ["1,000,00"]),
        ("train/n09999999/images/n09999999_0.JPEG", formats.jpeg(), ["n09999999 is not in wnids.txt"]),
        ("wnids.txt", b"", ["expected one class id"]),
        ("wnids.txt", b"cat\ndog", ["expected one class id"]),
        ("wnids.txt", b"n01000000\nn01000000", ["each once"]),
        ("wnids.txt", b"\xff\xfe\x00", ["not a text file"]),
        ("val/val_annotations.txt", b"val_2.JPEG", ["line 1 is 'val_2.JPEG'"]),
        ("val/val_annotations.txt", b"val_2.JPEG\tn03000000", ["line 1", "a class of wnids.txt"]),
        ("val/val_annotations.txt", b"val_2.JPEG\tn01000000\n", ["no line for val_10.JPEG (1 such"]),
        ("val/val_annotations.txt", None, ["val_annotations.txt"]),
    ]


@pytest.mark.parametrize(("file", "content", "words"), tiny_damages(), ids=brief)
@pytest.mark.parametrize("zipped", [True, False])
def test_broken_tiny_imagenet(tmp_path: Path, file: str, content: bytes | None, words: list[str], zipped: bool) -> None:
    files = formats.tiny_imagenet_files()
    if content is None:
        del files[file]
    else:
        files[file] = content
    if zipped:
        formats.write_zip(tmp_path / "tiny-imagenet-200.zip", files)
    else:
        formats.write_folder(tmp_path / "tiny-imagenet-200", files)
    refused("tinyimagenet", tmp_path, "tiny-imagenet-200", *words)


def test_broken_zip(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    path = tmp_path / "tiny-imagenet-200.zip"
    formats.write_zip(path, formats.tiny_imagenet_files())
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refused("tinyimagenet", tmp_path, "zip archive is cut short or broken")
    path.write_bytes(b"<html>")
    refused("tinyimagenet", tmp_path, "zip archive is cut short or broken")
    with zipfile.ZipFile(path, "w") as archive:  # stored, so that a flipped byte only breaks the checksum
        for name, content in formats.tiny_imagenet_files().items():
            archive.writestr(name, content)
    content = bytearray(path.read_bytes())
    content[content.index(b"n02000000\nn01000000")] ^= 1
    path.write_bytes(content)
    refused("tinyimagenet", tmp_path, "wnids.txt is broken", "CRC")
    formats.write_zip(path, {"a.txt": b"hello"})
    refused("tinyimagenet", tmp_path, "no wnids.txt")
    formats.write_zip(path, {"wnids.txt": b"n01000000"})
    refused("tinyimagenet", tmp_path, "no training images")


# Where files are, and where they come from


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


def test_the_variable_and_the_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
