"""The user's own files: tables, folders of images and arrays, and what is wrong with bad ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from liebayes.data import DataError, TableEncoding, from_path, from_tensors, load, read_table


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rooms, age = rng.integers(1, 7, 60), rng.uniform(0, 80, 60)
    frame = pd.DataFrame({"rooms": rooms, "age": age, "city": rng.choice(["Oslo", "Bern"], 60), "price": 3.5 * rooms + age})
    frame.loc[[3, 4, 5, 6], "age"] = None
    frame.to_csv(tmp_path / "houses.csv", index=False)
    return tmp_path / "houses.csv"


def test_a_table_against_pandas(houses: Path, tmp_path: Path) -> None:
    """Row by row: numbers as they are, the mean of the training rows for a gap, one column of 0 and 1 for each city."""
    found = from_path(houses, target=["price"])
    assert found.kind == "regression"
    assert (len(found.train_labels), len(found.test_labels)) == (48, 12)
    assert found.encoding is not None
    assert found.encoding.names == ("rooms", "age", "age is missing", "city=Bern", "city=Oslo")
    frame = pd.read_csv(houses)
    by_price = {np.float32(price): row for price, row in zip(frame["price"], frame.to_dict("records"), strict=True)}
    training = [by_price[price]["age"] for price in found.train_labels.numpy()]
    mean, gaps = np.nanmean(np.array(training, dtype=float)), 0
    for images, labels in (found.split("train"), found.split("test")):
        for inputs, price in zip(images.tolist(), labels.numpy(), strict=True):
            row = by_price[price]
            assert inputs[0] == row["rooms"]
            assert inputs[3:] == [float(row["city"] == "Bern"), float(row["city"] == "Oslo")]
            gap = bool(pd.isna(row["age"]))
            gaps += gap
            assert inputs[1:3] == [pytest.approx(mean if gap else row["age"]), float(gap)]
    assert gaps == 4
    frame.to_parquet(tmp_path / "houses.parquet")
    again = from_path(tmp_path / "houses.parquet", target=["price"])
    torch.testing.assert_close(again.train_images, found.train_images)
    assert TableEncoding.from_json(found.encoding.to_json()) == found.encoding


def test_what_is_predicted_follows_from_the_target(houses: Path) -> None:
    assert from_path(houses, target=["city"]).class_names == ("Bern", "Oslo")
    rooms = from_path(houses, target=["rooms"])
    assert (rooms.kind, rooms.class_names) == ("classification", ("1", "2", "3", "4", "5", "6"))
    assert from_path(houses, target=["rooms"], task="regression").train_labels.dtype == torch.float32
    assert from_path(houses, target=["rooms", "price"]).train_labels.shape == (48, 2)
    frame = pd.read_csv(houses).assign(a=lambda t: t["rooms"] > 3, b=1)
    frame.astype({"a": int}).to_csv(houses, index=False)
    labels = from_path(houses, target=["a", "b"])
    assert (labels.kind, labels.class_names, labels.train_labels.dtype) == ("multilabel", ("a", "b"), torch.bool)


def test_a_table_of_test_rows(houses: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(houses)
    frame[:10].assign(city="Rome").to_csv(tmp_path / "test.csv", index=False)
    found = from_path(houses, target=["price"], test=tmp_path / "test.csv")
    assert (len(found.train_labels), len(found.test_labels)) == (60, 10)
    assert not bool(found.test_images[:, 3:].any()), "a city that training never saw"
    frame[:10].assign(city="Rome").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match="has a class that no training row has: 'Rome'"):
        from_path(houses, target=["city"], test=tmp_path / "test.csv")


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        (lambda t: t, [], r"which column of .*houses\.csv is to be predicted\? Give --target; its columns are rooms, age"),
        (lambda t: t, ["prize"], r"--target: .*houses\.csv has no column 'prize'; did you mean 'price'\?"),
        (lambda t: t.assign(price=None), ["price"], r"the target 'price' is missing in 60 of 60 rows"),
        (lambda t: t[:0], ["price"], "it has no rows"),
        (lambda t: pd.concat([t] * 3).assign(id=[f"n{k}" for k in range(180)]), ["price"], "leave it out with --ignore id"),
        (lambda t: t.assign(age=float("inf")), ["price"], "column 'age' holds values that are not finite"),
    ],
)
def test_bad_tables_are_one_line(change: object, target: list[str], said: str, houses: Path) -> None:
    change(pd.read_csv(houses)).to_csv(houses, index=False)  # type: ignore[operator]
    with pytest.raises(DataError, match=said) as caught:
        from_path(houses, target=target)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "text.parquet").write_text("hello")
    for name in ("bytes.csv", "text.parquet"):
        with pytest.raises(DataError, match="it cannot be read as a table"):
            read_table(tmp_path / name)
    with pytest.raises(DataError, match="does not exist"):
        from_path(tmp_path / "none.csv")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for number, name in enumerate(("cats", "dogs")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(10):
            pixels = np.full((6, 5), 20 * k + number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{k}.png")
    return tmp_path / "pets"


def test_a_folder_of_images(pets: Path) -> None:
    found = from_path(pets)
    assert found.class_names == ("cats", "dogs")
    assert found.train_images.shape == (16, 1, 6, 5)
    assert found.test_labels.tolist().count(0) == found.test_labels.tolist().count(1) == 2
    images, labels = found.everything()
    for image, label in zip(images, labels, strict=True):
        assert bool((image == image[0, 0, 0]).all())
        assert int(image[0, 0, 0]) % 20 == int(label), "the pixels say which class it is"
    assert from_path(pets, image_size=8).train_images.shape == (16, 1, 8, 8)
    (pets / "cats").rename(pets.parent / "cats")
    with pytest.raises(DataError, match="must hold a folder of images for each class, at least two, but holds 1"):
        from_path(pets)


def test_images_of_mixed_sizes(pets: Path) -> None:
    Image.new("RGB", (9, 9)).save(pets / "dogs" / "large.png")
    said = r"large\.png: it has 9×9 pixels, but .*cats/0\.png and 19 others have 6×5: .*--image-size"
    with pytest.raises(DataError, match=said):
        from_path(pets)
    assert from_path(pets, image_size=4).train_images.shape[1:] == (3, 4, 4)
    (pets / "dogs" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png: it cannot be read as an image"):
        from_path(pets)


def test_arrays(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    np.savez(tmp_path / "one.npz", x=x, y=y)
    found = from_path(tmp_path / "one.npz")
    assert (found.kind, len(found.train_labels), found.train_images.dtype) == ("classification", 32, torch.float32)
    np.savez(tmp_path / "two.npz", x_train=x, y_train=x[:, 0], x_test=x[:5], y_test=x[:5, 0])
    assert from_path(tmp_path / "two.npz").kind == "regression"
    np.savez(tmp_path / "none.npz", a=x)
    with pytest.raises(DataError, match=r"none\.npz: it holds a, but must hold x and y"):
        from_path(tmp_path / "none.npz")
    np.savez(tmp_path / "odd.npz", x=x, y=y[:-1])
    with pytest.raises(DataError, match="there are 40 inputs, but 39 targets"):
        from_path(tmp_path / "odd.npz")
    assert from_tensors(x, y, x, y).train_images.dtype == torch.float32, "arrays, and from Python too"


def test_diabetes() -> None:
    found = load("diabetes")
    assert repr(found) == "Dataset('diabetes': 353 training and 89 test rows of 10, predicting progression)"
    assert len(found.held_out(50).test_labels) == 50
