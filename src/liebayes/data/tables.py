"""Tables as data sets: CSV and Parquet files, with a column or several to be predicted.

Numbers stay numbers; every other column becomes one column of 0 and 1 for each of its values. A number that is missing is
replaced by the mean of its column; where training rows have gaps, a further column of 0 and 1 says where. All of this is
fitted on the training rows, kept with the data set (`Dataset.encoding`), and applied to whatever is predicted later.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .dataset import Dataset, from_tensors, split_rows
from .errors import DataError, DataFileError, reason

Task = Literal["classification", "binary", "multilabel", "regression"]
TABLES = (".csv", ".tsv", ".parquet")
MOST_CATEGORIES = 100
MOST_CLASSES = 20
"""Whole numbers with more distinct values are taken as numbers to predict, not as classes."""


@dataclass(frozen=True)
class Column:
    """A column of inputs: numbers, or categories."""

    name: str
    categories: tuple[str, ...] | None = None
    fill: float = 0.0
    """What stands for a missing number: the mean of the training rows."""
    gaps: bool = False
    """Whether a column says where numbers are missing."""


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become the inputs of a network."""

    columns: tuple[Column, ...]
    targets: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs, such as `age`, `age is missing` or `city=Oslo`."""
        found: list[str] = []
        for column in self.columns:
            if column.categories is None:
                found += [column.name, f"{column.name} is missing"] if column.gaps else [column.name]
            else:
                found += [f"{column.name}={category}" for category in column.categories]
        return tuple(found)

    def encode(self, frame: Any, path: Path | str) -> Tensor:
        """The inputs of a table: (rows, inputs), float32. A category that training never saw is 0 in all of its columns."""
        import pandas

        parts: list[Any] = []
        for column in self.columns:
            if column.name not in frame:
                raise DataError(f"{path} has no column {column.name!r}, which the network was trained on.")
            values = frame[column.name]
            if column.categories is not None:
                text = _text(values)
                parts += [(text == category).to_numpy("float32") for category in column.categories]
                continue
            found: Any = pandas.to_numeric(values, errors="coerce")
            numbers = found.astype("float64")
            if bool((numbers.isna() & values.notna()).any()) or bool(numbers.isin([float("inf"), -float("inf")]).any()):
                raise DataFileError(path, f"column {column.name!r} holds values that are not finite numbers")
            missing = numbers.isna()
            parts.append(numbers.fillna(column.fill).to_numpy("float32"))
            parts += [missing.to_numpy("float32")] if column.gaps else []
        return torch.stack([torch.from_numpy(part.copy()) for part in parts], 1)

    def to_json(self) -> dict[str, Any]:
        """The encoding as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TableEncoding:
        """The inverse of `to_json`."""
        columns = [
            Column(
                str(c["name"]),
                None if c["categories"] is None else tuple(map(str, c["categories"])),
                float(c["fill"]),
                bool(c["gaps"]),
            )
            for c in content["columns"]
        ]
        return cls(tuple(columns), tuple(map(str, content["targets"])))


def table(
    path: Path | str,
    target: Sequence[str],
    *,
    task: Task | None = None,
    test: Path | str | None = None,
    ignore: Sequence[str] = (),
) -> Dataset:
    """A data set from a table.

    Args:
        path: a CSV or Parquet file.
        target: the columns to be predicted.
        task: by default "regression" for numbers, "classification" for text, and for whole numbers of at most 20 values,
            "multilabel" for several columns of 0 and 1.
        test: the table with the test rows; by default a fifth of the rows, drawn by a fixed seed.
        ignore: columns to leave out.
    """
    frame = read_table(path)
    targets = [_named(name, frame, path, "--target") for name in target]
    if not targets:
        raise DataError(f"which column of {path} is to be predicted? Give --target; its columns are {_listed(frame)}.")
    left_out = {*targets, *(_named(name, frame, path, "--ignore") for name in ignore)}
    chosen = [name for name in frame.columns if name not in left_out]
    if not chosen:
        raise DataError(f"{path} has no column beside those of --target and --ignore: there is nothing to predict from.")
    other = None if test is None else read_table(test)
    labels, names = _targets(frame, targets, task, path)
    if other is None:
        in_test = split_rows(labels)
        training = frame[~in_test.numpy()]
    else:
        in_test, training = torch.zeros(len(frame), dtype=torch.bool), frame
    encoding = TableEncoding(tuple(_column(training[name], path) for name in chosen), tuple(targets))
    inputs = encoding.encode(frame, path)
    if other is None or test is None:
        test_inputs, test_labels = inputs[in_test], labels[in_test]
    else:
        for name in targets:
            _named(name, other, test, "--target")
        test_inputs, test_labels = encoding.encode(other, test), _targets(other, targets, _task_of(labels), test, names)[0]
    parts = inputs[~in_test], labels[~in_test], test_inputs, test_labels
    return from_tensors(*parts, name=Path(path).stem, class_names=names, encoding=encoding)


def read_table(path: Path | str) -> Any:
    """A CSV or Parquet file as a pandas DataFrame with text for column names."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist.")
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'liebayes[data]'", name="pandas") from error
    try:
        if path.suffix.lower() == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            frame = pandas.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'liebayes[data]'", name="pyarrow") from error
    except Exception as error:  # parsers raise anything on a foreign file
        raise DataFileError(path, f"it cannot be read as a table: {' '.join(reason(error).split())[:200]}") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    if not len(frame):
        raise DataFileError(path, "it has no rows")
    if len(set(frame.columns)) < len(frame.columns):
        twice = next(name for name in frame.columns if list(frame.columns).count(name) > 1)
        raise DataFileError(path, f"it has two columns {twice!r}")
    return frame


def _column(values: Any, path: Path | str) -> Column:
    import pandas

    name = str(values.name)
    if pandas.api.types.is_numeric_dtype(values.dtype) and not pandas.api.types.is_complex_dtype(values.dtype):
        mean = values.astype("float64").mean()
        if mean != mean:
            raise DataFileError(path, f"column {name!r} is empty: leave it out with --ignore")
        return Column(name, None, float(mean), bool(values.isna().any()))
    categories = sorted(set(_text(values)))
    if len(categories) > MOST_CATEGORIES:
        raise DataFileError(
            path,
            f"column {name!r} has {len(categories)} different texts, such as {categories[0]!r}: leave it out with --ignore "
            f"{name}, or make numbers or at most {MOST_CATEGORIES} categories of it",
        )
    return Column(name, tuple(categories))


def _targets(
    frame: Any, targets: Sequence[str], task: Task | None, path: Path | str, names: Sequence[str] | None = None
) -> tuple[Tensor, list[str]]:
    """The labels of the rows, and the names of the classes, of the labels or of the numbers predicted."""
    import pandas

    for name in targets:
        missing = int(frame[name].isna().sum())
        if missing:
            raise DataFileError(path, f"the target {name!r} is missing in {missing} of {len(frame)} rows: leave these out")
    columns = [frame[name] for name in targets]
    numeric = all(pandas.api.types.is_numeric_dtype(column.dtype) for column in columns)
    truths = numeric and all(bool(column.isin([0, 1]).all()) for column in columns)
    if task is None:
        whole = numeric and all(bool((column == column.round()).all()) for column in columns)
        few = whole and columns[0].nunique() <= MOST_CLASSES
        if len(columns) > 1:
            task = "multilabel" if truths else "regression"
        elif numeric and not few:
            task = "regression"
    if task == "multilabel":
        if not truths:
            raise DataFileError(path, f"targets of --task multilabel must be 0 or 1 in every row: {', '.join(targets)}")
        return _stacked(columns).bool(), list(targets)
    if task == "regression":
        if not numeric:
            raise DataFileError(path, f"targets of regression, and several at once, must be numbers: {', '.join(targets)}")
        values = _stacked(columns)
        if not bool(values.isfinite().all()):
            raise DataFileError(path, f"targets must be finite numbers: {', '.join(targets)}")
        return values.squeeze(1) if len(targets) == 1 else values, list(targets)
    if len(targets) > 1:
        raise DataError(f"--task {task} predicts one column, but --target names {len(targets)}: {', '.join(targets)}.")
    text = _text(columns[0])
    found = list(names) if names else _sorted(set(text))
    unknown = set(text) - set(found)
    if unknown:
        raise DataFileError(path, f"the target {targets[0]!r} has a class that no training row has: {min(unknown)!r}")
    return torch.tensor([found.index(value) for value in text]), found


def _task_of(labels: Tensor) -> Task:
    return "regression" if labels.is_floating_point() else "multilabel" if labels.dtype == torch.bool else "classification"


def _stacked(columns: Sequence[Any]) -> Tensor:
    return torch.stack([torch.from_numpy(column.to_numpy("float64").copy()) for column in columns], 1).float()


def _text(values: Any) -> Any:
    """The values as text: whole numbers without a decimal point, missing values as an empty text."""
    import pandas

    if pandas.api.types.is_float_dtype(values.dtype) and bool((values.dropna() == values.dropna().round()).all()):
        values = values.astype("Int64")
    return values.astype("string").fillna("").str.strip()


def _sorted(values: set[str]) -> list[str]:
    """Sorted, numbers by their size."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _named(name: str, frame: Any, path: Path | str, option: str) -> str:
    if name not in frame.columns:
        close = difflib.get_close_matches(name, list(frame.columns), 1)
        hint = f"did you mean {close[0]!r}?" if close else f"its columns are {_listed(frame)}."
        raise DataError(f"{option}: {path} has no column {name!r}; {hint}")
    return name


def _listed(frame: Any) -> str:
    names = list(frame.columns)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
