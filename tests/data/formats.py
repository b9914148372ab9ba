"""Writers of the public formats, made from their descriptions, for small data sets of random pixels; ways to break them."""

import gzip
import io
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from liebayes import data
from liebayes.data import DataFileError, Dataset, IncompleteDataWarning


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def idx(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(struct.pack(">I", size) for size in values.shape)
    return header + bytes(values.flatten().tolist())


def write_mnist(folder: Path, train: int = 12, test: int = 5, zipped: bool = True) -> dict[str, Tensor]:
    """Four idx files; returns what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "train-images-idx3-ubyte": pixels(train, 28, 28),
        "train-labels-idx1-ubyte": torch.arange(train, dtype=torch.uint8) % 10,
        "t10k-images-idx3-ubyte": pixels(test, 28, 28, seed=1),
        "t10k-labels-idx1-ubyte": torch.arange(test, dtype=torch.uint8) % 10,
    }
    for name, values in content.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values), mtime=0))
        else:
            (folder / name).write_bytes(idx(values))
    return content


def cifar_binary(images: Tensor, *labels: Tensor) -> bytes:
    columns = [column.to(torch.uint8)[:, None] for column in labels]
    return bytes(torch.cat([*columns, images.flatten(1)], 1).flatten().tolist())


def cifar_python(images: Tensor, **labels: list[int]) -> bytes:
    """The pickle that Python 2 wrote: protocol 2, byte strings, the array by numpy.core.multiarray._reconstruct."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    content = bytes(images.flatten().tolist())
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    array += b"(" + number(1) + number(len(images)) + number(images[0].numel()) + b"\x86" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(content)) + content + b"tb"
    lists = b"".join(
        text(key.encode()) + b"](" + b"".join(number(value) for value in values) + b"e" for key, values in labels.items()
    )
    return b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"data") + array + lists + b"u."


def cifar10_files(version: str, train: int = 4, test: int = 3, batches: int = 5) -> tuple[dict[str, bytes], Tensor, Tensor]:
    """Contents by file name, the training images and their labels."""
    files: dict[str, bytes] = {}
    images, labels = pixels(batches * train, 3, 32, 32), torch.arange(batches * train) % 10
    parts = [(f"data_batch_{k + 1}", slice(k * train, (k + 1) * train)) for k in range(batches)]
    test_images, test_labels = pixels(test, 3, 32, 32, seed=1), torch.arange(test) % 10
    for name, some_images, some_labels in [
        *((name, images[part], labels[part]) for name, part in parts),
        ("test_batch", test_images, test_labels),
    ]:
        if version == "binary":
            files[f"{name}.bin"] = cifar_binary(some_images, some_labels)
        else:
            files[name] = cifar_python(some_images, labels=some_labels.tolist())
    return files, images, labels


def cifar100_files(version: str, train: int = 6, test: int = 3) -> tuple[dict[str, bytes], Tensor, Tensor]:
    files: dict[str, bytes] = {}
    content = {
        "train": (pixels(train, 3, 32, 32), 99 - torch.arange(train)),
        "test": (pixels(test, 3, 32, 32, seed=1), torch.arange(test)),
    }
    for name, (images, fine) in content.items():
        coarse = fine // 5
        if version == "binary":
            files[f"{name}.bin"] = cifar_binary(images, coarse, fine)
        else:
            files[name] = cifar_python(images, coarse_labels=coarse.tolist(), fine_labels=fine.tolist())
    return files, *content["train"]


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def jpeg(size: tuple[int, int] = (64, 64), mode: str = "RGB", shade: int = 100, form: str = "JPEG") -> bytes:
    from PIL import Image

    colour = shade if mode == "L" else (shade, shade // 2, 0)
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, form, quality=95)
    return out.getvalue()


def tiny_imagenet_files(per_class: int = 11) -> dict[str, bytes]:
    """Two classes, the second with a grey image; the shade of each image tells its number."""
    classes = ["n02000000", "n01000000"]
    files = {
        "wnids.txt": "\n".join(classes).encode(),
        "words.txt": b"n01000000\tcrane, a bird\nn02000000\tcrane, a machine\nn03000000\tnobody\n",
        "val/val_annotations.txt": b"val_10.JPEG\tn01000000\t0\t0\t1\t1\nval_2.JPEG\tn02000000\t0\t0\t1\t1\n",
        "val/images/val_10.JPEG": jpeg(shade=200),
        "val/images/val_2.JPEG": jpeg(shade=50),
        "test/images/test_0.JPEG": b"never read",
    }
    for wnid in classes:
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"never read"
        for k in range(per_class):
            grey = wnid == classes[0] and k == 0
            files[f"train/{wnid}/images/{wnid}_{k}.JPEG"] = jpeg(mode="L" if grey else "RGB", shade=10 * k)
    return files


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


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_checksum(content: bytes) -> bytes:
    return content[:-8]


def flipped(content: bytes) -> bytes:
    """One bit of gzip's checksum."""
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]
