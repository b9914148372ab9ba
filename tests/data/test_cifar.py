"""CIFAR-10 and -100: both published versions are read exactly, no pickle runs anything, broken files are refused by name."""

import gzip
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import formats
import pytest
import torch
from formats import brief, cut, flipped, load, refused, without_checksum

from liebayes import data
from liebayes.data import DataFileError, IncompleteDataWarning, MissingDataError
from liebayes.data.pickles import read_pickle

PUBLISHED = {
    ("cifar10", "binary"): ("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    ("cifar10", "python"): ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    ("cifar100", "binary"): ("cifar-100-binary", "cifar-100-binary.tar.gz"),
    ("cifar100", "python"): ("cifar-100-python", "cifar-100-python.tar.gz"),
}
FILES = {"cifar10": formats.cifar10_files, "cifar100": formats.cifar100_files}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("form", ["folder", "files", "subfolder", "archive", "archive in subfolder"])
def test_cifar(tmp_path: Path, name: str, version: str, form: str) -> None:
    files, images, labels = FILES[name](version)
    folder, archive = PUBLISHED[name, version]
    if form.startswith("archive"):
        place = tmp_path / name if "subfolder" in form else tmp_path
        place.mkdir(exist_ok=True)
        # Other members, as in the published archives.
        members = {f"{folder}/{file}": content for file, content in files.items()} | {f"{folder}/readme.html": b"hello"}
        formats.write_tar(place / archive, members)
    else:
        place = {"folder": tmp_path / folder, "files": tmp_path, "subfolder": tmp_path / name / folder}[form]
        formats.write_folder(place, files)
    dataset = load(name, tmp_path)
    assert dataset.train_images.equal(images)
    assert dataset.train_labels.equal(labels)
    assert len(dataset.test_labels) == 3
    assert dataset.augmentation == data.Augmentation(padding=4, flip=True)


def test_numpy_reads_the_pickles_of_these_tests() -> None:
    """Our writer against the real unpickler, so that our reader is not judged by its own idea of the format."""
    numpy = pytest.importorskip("numpy")
    images = formats.pixels(3, 3072)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numpy.core
        loaded = pickle.loads(formats.cifar_python(images, labels=[1, 2, 3]), encoding="bytes")
    assert loaded[b"labels"] == [1, 2, 3]
    assert numpy.array_equal(loaded[b"data"], images.numpy())


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_modern_pickles_are_read(tmp_path: Path, protocol: int) -> None:
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


def test_missing_test_images_are_reported(tmp_path: Path) -> None:
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


def test_pickles_cannot_ask_for_all_memory(tmp_path: Path) -> None:
    """LONG_BINPUT with a number near 2³²: Python's unpickler makes room for as many objects, 64 GB."""
    content = formats.cifar_python(torch.zeros(1, 3072, dtype=torch.uint8), labels=[1])
    far = content[:2] + b"}r" + (0xFFFFFFF0).to_bytes(4, "little") + b"0" + content[2:]
    path = tmp_path / "data_batch_1"
    assert set(read_pickle(path, content)) >= {"labels", "data"}
    with pytest.raises(DataFileError, match="instruction 3 remembers an object as number 4,294,967,280"):
        read_pickle(path, far)


@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir, getattr, __import__])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_cannot_run_code(tmp_path: Path, function: Callable[..., object], protocol: int) -> None:
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


def cut_before_it_was_zipped(content: bytes) -> bytes:
    return gzip.compress(cut(gzip.decompress(content)))


@pytest.mark.parametrize("damage", [cut, without_checksum, flipped, cut_before_it_was_zipped])
def test_broken_tar(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    formats.write_tar(path, formats.cifar10_files("binary")[0])
    path.write_bytes(damage(path.read_bytes()))
    assert refused("cifar10", tmp_path, "cut short").path == path


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", gzip.compress(b""), gzip.compress(b"not a tar" * 1000)], ids=brief
)
def test_a_file_that_is_no_tar(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    refused("cifar10", tmp_path, "cut short or broken")


def test_a_tar_with_other_members(tmp_path: Path) -> None:
    path, (files, _, _) = tmp_path / "cifar-10-binary.tar.gz", formats.cifar10_files("binary")
    formats.write_tar(path, {"a/b.txt": b"hello"})
    refused("cifar10", tmp_path, "it holds none of the files data_batch_1.bin", "not the published archive")
    formats.write_tar(path, files | {"data_batch_2.bin": b"short"})
    refused("cifar10", tmp_path, "cifar-10-binary.tar.gz", "data_batch_2.bin", "5 bytes")
    formats.write_tar(path, files | {"test_batch.bin": bytes(31_000_000)})
    refused("cifar10", tmp_path, "test_batch.bin has 31,000,000 bytes; at most 30,730,000 are published")
