"""TinyImageNet: folders and archives are read exactly, broken ones are refused by name, no path leads out of an archive."""

import importlib.util
import zipfile
from pathlib import Path

import formats
import pytest
import torch
from formats import brief, load, refused

from liebayes import data
from liebayes.data import IncompleteDataWarning

pytestmark = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")


@pytest.mark.parametrize("form", ["folder", "files", "subfolder", "zip", "zip in subfolder"])
def test_tiny_imagenet(tmp_path: Path, form: str) -> None:
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
    formats.write_zip(tmp_path / "tiny-imagenet-200.zip", formats.tiny_imagenet_files())
    with pytest.warns(IncompleteDataWarning) as caught:
        data.load("tinyimagenet", tmp_path, download=False)
    messages = [str(warning.message) for warning in caught]
    assert "22 of the 100,000 published training images" in messages[0]
    assert "2 of the 10,000 published validation images" in messages[1]


IMAGE = "train/n01000000/images/n01000000_3.JPEG"


def tiny_damages() -> list[tuple[str, bytes | None, list[str]]]:
    if importlib.util.find_spec("PIL") is None:
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


@pytest.mark.parametrize("name", ["../evil.bin", "/evil.bin", "a/../../evil.bin", "..\\evil.bin", "C:/evil.bin"])
def test_paths_out_of_an_archive(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    formats.write_tar(inner / "cifar-10-binary.tar.gz", formats.cifar10_files("binary")[0] | {name: b"evil"})
    refused("cifar10", inner, "leads out of its folder")
    formats.write_zip(inner / "tiny-imagenet-200.zip", formats.tiny_imagenet_files() | {name: b"evil"})
    refused("tinyimagenet", inner, "leads out of its folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "cifar-10-binary.tar.gz", "tiny-imagenet-200.zip"]
