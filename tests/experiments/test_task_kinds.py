"""Tables, arrays and networks of one's own in the program: train, evaluate, predict, for numbers, labels and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from liebayes import metrics
from liebayes.cli import main
from liebayes.experiments import RunDirectory, TrainSettings, open_run, resume, train
from liebayes.experiments.report.evidence import comparable, gather
from liebayes.experiments.run_directory import RunError

pandas = pytest.importorskip("pandas")

Captured = pytest.CaptureFixture[str]
QUICK = ["--epochs", "2", "--batch-size", "16", "--predictive-samples", "4"]
MODEL = """
from pathlib import Path
import torch

def build(shape, outputs):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))

def wrong(shape, outputs):
    return torch.nn.Linear(shape[0], outputs + 1)

def broken(shape):
    return None

def frozen(shape, outputs):
    base = torch.nn.Linear(64, 64)  # beside it the 650 weights that are trained are few
    base.weight.data.normal_(generator=torch.Generator().manual_seed(int(Path("seed").read_text())))
    return torch.nn.Sequential(torch.nn.Flatten(), base.requires_grad_(False), torch.nn.Tanh(), torch.nn.Linear(64, outputs))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and a module."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x, city = generator.normal(size=60), generator.choice(["Oslo", "Rome"], 60)
    price = 3 * x + 5 * (city == "Oslo") + generator.normal(size=60)
    columns = {"x": x, "city": city, "price": price, "dear": (price > 2) * 1, "cheap": (price < 0) * 1}
    pandas.DataFrame(columns).to_csv("houses.csv", index=False)
    Path("own_networks.py").write_text(MODEL)
    Path("new.csv").write_text("city,x\nOslo,0.5\nParis,1.5\n")
    return tmp_path


CASES = {
    "regression": "--target price --ignore dear,cheap",
    "two targets": "--target price,x --ignore dear,cheap --noise 0.5",
    "predicted noise": "--target price --ignore dear,cheap --noise predicted --model own_networks:build",
    "multilabel": "--target dear,cheap --ignore price --rule additive",
    "binary": "--target dear --ignore price,cheap --task binary --rule sgd",
    "signs": "--target price --ignore dear,cheap --rule multiplicative",
}


@pytest.mark.parametrize("case", CASES)
def test_a_table_from_training_to_predictions(case: str, here: Path, capsys: Captured) -> None:
    assert main(["train", "--dataset", "houses.csv", *CASES[case].split(), *QUICK, "--output", "run"]) == 0
    trained = RunDirectory(here / "run").finished_metrics()[-1]
    capsys.readouterr()
    assert main(["evaluate", "run", "--samples", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in found if key != "run"} == {key: trained[key] for key in found if key != "run"}
    posterior, dataset, _ = open_run(here / "run")
    if dataset.kind == "regression":
        by_hand = posterior.predict(dataset.normalize(dataset.test_images), 4, task="regression", batch_size=500)
        expected = metrics.regression_metrics(by_hand.mean, by_hand.variance, dataset.test_labels)
        assert {name: found[f"test_{name}"] for name in expected} == expected
    if case == "two targets":
        return
    assert main(["predict", "run", "new.csv", "--samples", "4"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["input"] for row in rows] == ["new.csv[0]", "new.csv[1]"]
    for row in rows:
        if dataset.kind == "regression":
            assert row["price"]["low"] < row["price"]["mean"] < row["price"]["high"]
            assert row["price"]["std"] == pytest.approx(np.hypot(row["price"]["noise"], row["price"]["weights"]), rel=1e-3)
        elif dataset.kind == "multilabel":
            assert row["labels"] == [name for name, p in row["probabilities"].items() if p > 0.5]
        else:
            assert row["class"] in ("0", "1")
            assert row["confidence"] == row["probabilities"][row["class"]] == max(row["probabilities"].values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--dataset houses.csv", "is to be predicted? Give --target; its columns are x, city, price"),
        ("--dataset houses.csv --target prize", "has no column 'prize'; did you mean 'price'?"),
        ("--dataset none.csv --target x", "none.csv does not exist"),
        ("--dataset own_networks.py", "there is no data set"),
        ("--dataset broken.csv --target x", "cannot be read as a table"),
        ("--dataset digits --target x", "--target x is for files of your own"),
        ("--noise predicted", "is for regression, but digits is for classification"),
        ("--dataset houses.csv --target price --noise loud", "--noise must be learned, predicted or a standard deviation"),
        ("--model own_networks:nothing", "has no function 'nothing'; it has build, wrong, broken"),
        ("--model nowhere:build", "nowhere cannot be imported"),
        ("--model own_networks:wrong --dataset houses.csv --target price", "(2, 2), not (2, 1)"),
        ("--model own_networks:broken", "broken() takes 1 positional argument"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words: str, said: str, here: Path, capsys: Captured) -> None:
    (here / "broken.csv").write_bytes(b'a,b\n"1,2\n\x00\xff\xfe3')
    assert main(["train", *words.split(), *QUICK, "--output", "run"]) != 0
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (here / "run").exists()


def test_a_network_with_another_frozen_base(here: Path, capsys: Captured) -> None:
    """The posterior is whole: nobody is told to remove it, and no command writes anything."""
    (here / "seed").write_text("0")
    assert main(["train", "--model", "own_networks:frozen", *QUICK, "--output", "run"]) == 0
    np.save("new.npy", np.zeros((1, 1, 8, 8), dtype=np.float32))
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert main(["evaluate", "run"]) == 0
    capsys.readouterr()
    (here / "seed").write_text("1")
    for words in (["evaluate", "run"], ["predict", "run", "new.npy"], ["report", "run"]):
        assert main(words) == 1
        [error] = capsys.readouterr().err.splitlines()
        assert "--model own_networks:frozen does not make the network that was trained: " in error
        assert "1 of 2 frozen weights, such as 1.weight, are not those that the posterior was trained beside" in error
        assert "damaged" not in error
        assert "emove" not in error
    (here / "seed").write_text("0")
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
    assert main(["evaluate", "run"]) == 0


@pytest.mark.parametrize("rule", ["affine", "kronecker"])
def test_a_folder_of_images_from_training_to_a_report(rule: str, here: Path, capsys: Captured) -> None:
    """Also when the folder has been moved since."""
    image = pytest.importorskip("PIL.Image")
    for name, level in (("dark", 40), ("light", 200)):
        (here / "old" / "pets" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.random.default_rng(number).integers(level - 40, level + 40, (8, 8, 3)).astype(np.uint8)
            image.fromarray(pixels).save(here / "old" / "pets" / name / f"{number}.png")
    quick = ["--model", "mlp", "--rule", rule, *QUICK]
    assert main(["train", "--dataset", str(here / "old" / "pets"), *quick, "--output", "run"]) == 0
    capsys.readouterr()
    (here / "old").rename(here / "new")
    assert main(["evaluate", "run"]) != 0
    error = capsys.readouterr().err.strip()
    assert "which is no longer there. Put it back, or name the folder that it is in now with --data-dir" in error
    assert len(error.splitlines()) == 1
    moved = ["--data-dir", str(here / "new")]
    assert main(["evaluate", "run", *moved]) == 0
    assert "changed since" not in capsys.readouterr().err
    assert main(["predict", "run", str(here / "new" / "pets" / "dark"), *moved]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 10
    assert {tuple(row["probabilities"]) for row in rows} == {("dark", "light")}
    assert main(["report", "run", *moved, "--output", "page.html"]) == 0
    assert "Standard deviations" in (here / "page.html").read_text(encoding="utf-8")


def test_arrays_from_python_are_stored_with_the_run(here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    parts = [
        generator.normal(size=(30, 3)),
        generator.normal(size=30),
        generator.normal(size=(12, 3)),
        generator.normal(size=12),
    ]
    settings = TrainSettings(rule="additive", epochs=1, predictive_samples=4, output=here / "run")
    lines = train(settings, tuple(parts))  # pyright: ignore[reportArgumentType]
    posterior, dataset, _ = open_run(here / "run")
    torch.testing.assert_close(dataset.test_images, torch.tensor(parts[2], dtype=torch.float32))
    np.save("new.npy", parts[2][:2])
    capsys.readouterr()
    assert main(["predict", "run", "new.npy"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    by_hand = posterior.predict(dataset.normalize(dataset.test_images[:2]), task="regression", batch_size=500)
    assert first["target"]["mean"] == pytest.approx(float(by_hand.mean[0]), rel=1e-5)
    assert resume(here / "run") == lines

    monkeypatch.setattr("liebayes.experiments.own_data.LARGEST", 100)
    large = here / "large"
    train(TrainSettings(rule="sgd", epochs=1, output=large), tuple(parts))  # pyright: ignore[reportArgumentType]
    with pytest.raises(RunError, match=r"too large to store.*open_run\(run, dataset=\.\.\.\)"):
        open_run(large)
    assert open_run(large, dataset=tuple(parts))[1].kind == "regression"  # pyright: ignore[reportArgumentType]


def test_each_run_on_arrays_is_reported_on_its_own(here: Path) -> None:
    """All of them have the same name of a data set."""
    parts = torch.randn(4, 20, 3, generator=torch.Generator().manual_seed(0))
    for name, start in (("one", 0), ("again", 0), ("other", 2)):
        x, test = parts[start], parts[start + 1]
        content = (x, x.sum(1), test, test.sum(1))
        train(TrainSettings(rule="sgd", epochs=1, output=here / name), content)
    one, again, other = gather([here / "one", here / "again", here / "other"])
    assert torch.equal(one.dataset.test_images, parts[1])
    assert torch.equal(other.dataset.test_images, parts[3])
    assert comparable([one, again])
    assert not comparable([one, other])


def test_names_are_whole_in_a_pipe(here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a-run-with-a-name-that-is-far-too-long-for-the-first-column-of-a-terminal-of-eighty-columns"
    assert main(["train", "--rule", "sgd", *QUICK, "--output", name]) == 0
    capsys.readouterr()
    assert main(["compare", name]) == 0
    assert any(line.startswith(f"{name}  sgd") for line in capsys.readouterr().out.splitlines())


def test_options_are_those_of_the_files(here: Path) -> None:
    options: dict[str, Any] = {"dataset": "houses.csv", "target": "price", "ignore": "dear,cheap", "rule": "sgd"}
    train(TrainSettings(**options, epochs=1, output=here / "run"))
    stored = RunDirectory(here / "run").settings()
    assert stored.dataset == str(here / "houses.csv")  # found from any folder
