"""Tables of your own: CSV and Parquet files, and DataFrames.

>>> datasets.from_table("flats.csv", target="price")
<flats: rows of 14 numbers, regression>
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.columns import Column, Place, numbers_of, read_csv, refuse_wrong
from labkit.datasets.own import Batch, OwnData
from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pandas
    import pyarrow.parquet

_TASKS = ("classification", "regression")
_SUFFIXES = (".csv", ".parquet")
ROWS = 4096  # in memory at once
_FEW = 20  # different whole numbers that may be classes


def from_table(
    source: "str | Path | Sequence[str | Path] | pandas.DataFrame",
    *,
    target: str,
    task: str | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    test: float = 0.2,
    seed: int = 0,
) -> OwnData:
    """The rows of CSV or Parquet files, or of a DataFrame: numbers and categories, one column to predict.

    The files are read twice: first to check each row and to find the categories. Numbers are passed as they
    are; the mean and the spread of each column are yours to take out, from the rows for training. The rows
    keep their order, so shuffle before you split off rows for validation.

    Args:
        source: a file, a folder of files, a list of them, or a DataFrame.
        target: the column to predict.
        task: "classification" or "regression"; needed where the target's numbers could be either.
        categories: columns of numbers that only name something, such as a postcode.
        drop: columns to leave out.
        test, seed: as in `OwnData`.

    Raises:
        DatasetError: a file or column is missing, a value is empty or no number, a column has too many
            categories, or the task is unclear.
    """
    name = name_of(source)
    attempt = f"load the table {name}"
    if task not in (None, *_TASKS):
        raise DatasetError(attempt, f"the task is {task!r}", f"use one of {', '.join(_TASKS)}")
    named = {*categories, *([target] if task == "classification" else [])}

    def frames() -> Iterator[tuple[Place, Any]]:
        for number, (where, frame) in enumerate(frames_of(source, attempt)):
            if number == 0:
                only(frame, drop, where, attempt)
            yield where, frame.drop(columns=list(drop), errors="ignore")

    found = examine(frames(), target, named, attempt)
    goal = found.pop(target)
    if task is None and goal.numbers and goal.whole and len(goal.values) <= _FEW:
        fact = f"the target {target!r} has {len(goal.values)} different whole numbers: classes, or amounts?"
        raise DatasetError(attempt, fact, f"pass task={_TASKS[0]!r} or task={_TASKS[1]!r}")
    task = task or ("regression" if goal.numbers else "classification")
    if task == "regression" and not goal.numbers:
        fact = f"the target {target!r} has values that are no numbers, such as {min(goal.values)!r}"
        raise DatasetError(attempt, fact, "pass task='classification', or name another target")
    if not found:
        raise DatasetError(attempt, f"it has no column but {target!r}", "add columns to predict it from")
    kinds = {column: None if one.numbers else in_order(one.values) for column, one in found.items()}
    columns = [
        [column] if kind is None else [f"{column}={v}" for v in kind] for column, kind in kinds.items()
    ]
    classes = in_order(goal.values) if task == "classification" else []

    def read() -> Iterator[Batch]:
        for _, frame in frames():
            parts = []
            for column, kind in kinds.items():
                values = frame[column]
                one = numbers_of(values) if kind is None else codes_of(values, kind)
                parts.append(one[:, None] if kind is None else one[:, None] == np.arange(len(kind)))
            goals = codes_of(frame[target], classes) if classes else numbers_of(frame[target])
            yield np.hstack(parts).astype(np.float32), goals.astype(np.int64 if classes else np.float32)

    return OwnData(
        name=name, kind="numbers", task=task, columns=tuple(sum(columns, [])), classes=tuple(classes),
        test=test, seed=seed, read=read,
    )  # fmt: skip


@dataclass
class Frames:
    """DataFrames of another origin, one after the other, each time that `read` is called."""

    name: str
    read: "Callable[[], Iterator[pandas.DataFrame]]"


def name_of(source: Any, kinds: tuple[str, ...] = _SUFFIXES) -> str:
    """The name of a file without its suffix, or of what else `frames_of` reads."""
    if isinstance(source, Frames):
        return source.name
    return "table" if hasattr(source, "columns") else files_of(source, kinds)[0].stem


def files_of(source: Any, kinds: tuple[str, ...] = _SUFFIXES) -> list[Path]:
    """The files that `source` names, of one of these kinds, in the order of their names."""
    given = [source] if isinstance(source, (str, Path)) else source
    attempt = f"load {source!r:.80}"
    listed = isinstance(given, (list, tuple)) and len(given) > 0
    if not listed or not all(isinstance(one, (str, Path)) for one in given):
        fact = f"it is {type(source).__name__}"
        raise DatasetError(attempt, fact, "name a file, a folder, or a list of files")
    found: list[Path] = []
    for one in (Path(path).expanduser() for path in given):
        inside = (
            sorted(file for file in one.glob("*") if file.suffix.lower() in kinds) if one.is_dir() else [one]
        )
        if not inside or not all(file.is_file() and file.suffix.lower() in kinds for file in inside):
            fact = f"{one} is no file and no folder of files that end with {' or '.join(kinds)}"
            raise DatasetError(attempt, fact, "check the path")
        found += inside
    return found


def frames_of(source: Any, attempt: str) -> Iterator[tuple[Place, "pandas.DataFrame"]]:
    """((file, its first row here), some rows); values of a CSV file are text, so that a typo has its row."""
    if hasattr(source, "columns"):
        for begin in range(0, len(source), ROWS):
            yield ("the table", begin), source.iloc[begin : begin + ROWS].rename(columns=str)
        return
    if isinstance(source, Frames):
        row = 0
        for frame in source.read():
            yield (source.name, row), frame
            row += len(frame)
        return
    import pandas
    import pyarrow.parquet

    # pandas' own are ValueErrors; what it wrote into a Parquet file may be damaged in any way.
    damaged = (ValueError, OSError, LookupError, TypeError, AttributeError, pyarrow.ArrowException)
    for file in files_of(source):
        row = 0
        with contextlib.ExitStack() as stack:
            try:
                if file.suffix.lower() == ".csv":
                    frames = stack.enter_context(pandas.read_csv(file, chunksize=ROWS, dtype=str))
                else:
                    # By default Arrow reads all row groups ahead, and then whole columns of each.
                    stream = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
                    stack.enter_context(stream)
                    frames = _pieces(stream)
                for frame in frames:
                    yield (str(file), row), frame
                    row += len(frame)
            except damaged as error:
                fact = f"{file} cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
                fix = "repair the file, or leave it out"
                if isinstance(error, UnicodeDecodeError):
                    fix = f"save it as UTF-8, or pass {read_csv('encoding', 'latin-1')}"
                elif isinstance(error, pandas.errors.ParserError):
                    fix += f"; if semicolons separate its columns, pass {read_csv('sep', ';')}"
                raise DatasetError(attempt, fact, fix) from None


def _pieces(file: "pyarrow.parquet.ParquetFile") -> "Iterator[pandas.DataFrame]":
    """Its rows, a row group at a time, small ones together; each gives its memory back to the system.

    If one call reads all row groups, Arrow holds two of them at once, and keeps what it has freed.
    """
    import pyarrow

    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    ends = np.cumsum(sizes) // ROWS
    for _, together in itertools.groupby(range(len(sizes)), ends.__getitem__):
        for batch in file.iter_batches(ROWS, row_groups=list(together)):
            yield batch.to_pandas().rename(columns=str)
        pyarrow.default_memory_pool().release_unused()


def examine(
    frames: Iterator[tuple[Place, "pandas.DataFrame"]],
    target: str,
    named: set[str],
    attempt: str,
    free: str = "",
) -> dict[str, Column]:
    """Check all values, and say what each column has.

    Args:
        named: columns of categories, whatever their values look like.
        free: a column of text, which may have any value.

    Raises:
        DatasetError: a column is missing, there are no rows, or values cannot be used; it names all of them.
    """
    found: dict[str, Column] = {}
    for where, frame in frames:
        if not found:
            only(frame, [target, *named], where, attempt)
            _refuse_twins(frame, where, attempt)
            for name in map(str, frame):
                found[name] = Column(name, name not in named, target=name == target, free=name == free)
        for name, column in found.items():
            column.add(only(frame, [name], where, attempt)[name], where)
    if not found:
        raise DatasetError(attempt, "it has no row", "check the file")
    refuse_wrong(found.values(), attempt)
    return found


def _refuse_twins(frame: "pandas.DataFrame", where: Place, attempt: str) -> None:
    """Two columns of one name: pandas reads the second `price` of a CSV file as `price.1`."""
    names, of_csv = list(map(str, frame)), where[0].lower().endswith(".csv")
    for name in names:
        first, fix = name, "rename one"
        if of_csv and name.endswith(".1") and name[:-2] in names:
            first, fix = name[:-2], f"{fix}; or, for this file, drop=[{name!r}]: so pandas names the second"
        if first != name or names.count(name) > 1:
            raise DatasetError(attempt, f"{where[0]} has two columns {first!r}", fix)


def only(frame: "pandas.DataFrame", columns: Sequence[str], where: Place, attempt: str) -> "pandas.DataFrame":
    """These columns of a table, which must have them."""
    for column in columns:
        if column not in frame:
            fact = f"{where[0]} has no column {column!r}, only {', '.join(map(str, frame))[:200]}"
            semicolons = len(frame.columns) == 1 and ";" in str(frame.columns[0])
            fix = f"pass {read_csv('sep', ';')}" if semicolons else "name one of these"
            if spaced := [str(name) for name in frame if str(name).strip() == column.strip()]:
                fix = f"name it {spaced[0]!r}, with the spaces that it has there"
            raise DatasetError(attempt, fact, fix)
    return frame[list(columns)]


def in_order(values: set[str]) -> list[str]:
    """Sort names; those that are numbers by their size, so that 10 comes after 9."""
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def codes_of(values: "pandas.Series", known: Sequence[str]) -> np.ndarray:
    """int64 [n]: the place of each value in `known`."""
    import pandas

    return pandas.Categorical(values.astype(str), categories=known).codes.astype(np.int64)
