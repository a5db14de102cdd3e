"""Tables of your own: CSV, TSV and Parquet files, DataFrames and Arrow tables.

>>> datasets.from_table("flats.csv", target="price", categories=["district"], drop=["id"])
<flats: 900 rows of 4 numbers, regression>

Only numbers are used without being asked for. Each other column is named in `categories` or in `drop`.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.own import OwnData, check_memory
from labkit.datasets.sources import Table, read_table
from labkit.errors import LabError

if TYPE_CHECKING:
    import pandas
    import pyarrow

_TASKS = ("classification", "regression")
_NUMBER = re.compile(r" *[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)? *")
_WHOLE = re.compile(r" *[+-]?[0-9]+(\.0*)? *")
_NO_NAME = re.compile(r"\s*|Unnamed: \d+.*|__index_level_\d+__")
_EXACT = 2**24  # float32 has all whole numbers up to here
_MOST = 1000  # values of a category, or classes
_FEW = 20  # whole numbers that may be classes; values of a column that an error proposes as a category
_ROUNDED = 1e-4  # of a column's range: the largest error that float32 may bring


def from_table(
    source: "str | Path | Sequence[str | Path] | pandas.DataFrame | pyarrow.Table",
    *,
    target: str,
    task: str | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    test: float = 0.2,
    seed: int = 0,
) -> OwnData:
    """Make rows of numbers and categories, with one column to predict.

    Args:
        source: a file (``.csv``, ``.tsv``, both also with ``.gz``, ``.parquet``), a folder or a list of them,
            a DataFrame or an Arrow table. Text files have a header and are in UTF-8.
        target: the column to predict.
        task: "classification" or "regression"; needed where the target could be either.
        categories: columns whose values are names. Each value becomes a column of zeros and ones.
        drop: columns to leave out.
        test, seed: as in `OwnData`.

    Raises:
        LabError: a file or column is missing, a row has another number of fields than the header, a column
            is neither numbers nor named, or the task is unclear.
    """
    attempt = f"load the table {str(source)[:200]}" if isinstance(source, (str, Path)) else "load the table"
    name, table = read_table(source, attempt)
    if task not in (None, *_TASKS):
        raise LabError(attempt, f"the task is {task!r}", f"use one of {', '.join(_TASKS)}")
    target, named, drop = str(target), column_names(categories), column_names(drop)
    require([target, *named, *drop], table, attempt)
    goal = table.pop(target)
    features = {column: cells for column, cells in table.items() if column not in drop}
    if target in drop or not features:
        fact = f"without {', '.join({target: 0, **dict.fromkeys(drop)})} there is nothing to predict it from"
        raise LabError(attempt, fact, "keep the target, and columns to predict it from")
    task = _task_of(target, goal, "classification" if target in named else task, attempt)
    classes = classes_of(target, goal, attempt) if task == "classification" else ()
    _refuse_others(features, named, drop, attempt)
    kinds = {column: kinds_of(column, features[column], attempt) for column in features if column in named}
    width = len(features) + sum(map(len, kinds.values()))
    check_memory(4 * width * len(goal), attempt, "name fewer categories=")
    columns, blocks = [], []
    for column, cells in features.items():
        values = kinds.get(column)
        columns += [f"{column}={value}" for value in values] if values else [column]
        one_hot = codes_of(cells, values)[:, None] == np.arange(len(values)) if values else None
        blocks.append(_floats(cells)[:, None] if one_hot is None else one_hot.astype(np.float32))
    return OwnData(
        name=name, kind="numbers", task=task, columns=tuple(columns), classes=classes,
        x=np.hstack(blocks), y=codes_of(goal, classes) if classes else _floats(goal), test=test, seed=seed,
    )  # fmt: skip


def column_names(given: Any) -> list[str]:
    """`drop=` and `categories=` as a list: one name or several, texts or numbers, or None."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return [str(name) for name in given] if several else [] if given is None else [str(given)]


def require(names: Iterable[str], table: Table, attempt: str) -> None:
    """Raise a `LabError` unless the table has all these columns."""
    for name in names:
        if name not in table:
            spaced = [one for one in table if one.strip() == name.strip()]
            fix = f"write {spaced[0]!r}, with its spaces" if spaced else f"use one of {list(table)!r:.500}"
            raise LabError(attempt, f"it has no column {name!r}", fix)


# -- numbers -----------------------------------------------------------------------------------------------


def _floats(cells: list) -> np.ndarray:
    return np.array(cells, np.float64).astype(np.float32)


def not_numbers(cells: list) -> tuple[list, str]:
    """The cells that can't be used as 32-bit numbers, and why; all of them for the same reason."""
    if odd := [cell for cell in cells if not (isinstance(cell, str) and _NUMBER.fullmatch(cell))]:
        return odd, ""
    values = np.array(cells, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32).astype(np.float64)
        spread = values.max() - values.min()
        lost = ~np.isfinite(single) | (np.abs(values - single) > (_ROUNDED * spread or np.inf))
    for row in np.flatnonzero(np.isfinite(single) & (np.abs(values) > _EXACT)):
        if _WHOLE.fullmatch(cells[row]) and Decimal(cells[row].strip()) != Decimal(single[row]):
            lost[row] = True
    return [cells[row] for row in np.flatnonzero(lost)], ", which a 32-bit float would round"


def _refuse_others(features: Table, named: list[str], drop: list[str], attempt: str) -> None:
    """Raise one error about all columns that are neither numbers nor named."""
    facts, names, others = [], [], []
    for column, cells in features.items():
        odd, why = not_numbers(cells)
        if nameless := _NO_NAME.fullmatch(column):
            odd, why = cells, ": a column without a name, such as the row numbers that pandas writes"
        if column in named or not odd:
            continue
        facts.append(f"\n    {_fact(column, odd, len(cells))}{why}")
        short = not nameless and not _problem(column, cells) and 1 < len(set(cells)) <= _FEW
        (names if short and not _has_digits(cells) else others).append(column)
    if not facts:
        return
    if len(others) == len(features):  # nothing would be left
        names = [column for column in others if not _problem(column, features[column])]
        others = [column for column in others if column not in names]
    options = {"categories": [*named, *names], "drop": [*drop, *others]}
    fix = ", ".join(f"{option}={columns!r}" for option, columns in options.items() if columns)
    if len(others) == len(features):
        fix = "make numbers of one of these, since no other column is left to predict from"
    fix += "\n    (categories= has columns whose values are names, and drop= those to leave out;"
    fix += "\n    how to make numbers of dates, money and the like: docs/data.md, Make numbers)"
    counted = "1 column is" if len(facts) == 1 else f"{len(facts)} columns are"
    raise LabError(attempt, f"{counted} neither numbers nor named:{''.join(facts)}", fix)


def _fact(column: str, odd: list, rows: int) -> str:
    first = list({repr(cell)[:40]: None for cell in odd})[:3]
    some = f" in {len(odd):,} of {rows:,} rows" if len(odd) < rows else ""
    return f"{column!r} has {', '.join(first)}{some}"


# -- names -------------------------------------------------------------------------------------------------


def _has_digits(cells: list) -> bool:
    return any(re.search("[0-9]", cell) for cell in cells)


def kinds_of(column: str, cells: list, attempt: str) -> tuple[str, ...]:
    """The different values of a column of names: by size if all are numbers, else by the alphabet.

    Raises:
        LabError: there are too many, cells are lists, or two values differ only in their spelling.
    """
    if problem := _problem(column, cells):
        raise LabError(attempt, *problem)
    kinds = set(map(_name, cells))
    return tuple(sorted(kinds, key=Decimal if all(map(_NUMBER.fullmatch, kinds)) else None))


def codes_of(cells: list, kinds: Sequence[str]) -> np.ndarray:
    """int64 [n]: the place of each cell in `kinds`."""
    places = {kind: place for place, kind in enumerate(kinds)}
    return np.array([places[_name(cell)] for cell in cells], np.int64)


def _name(cell: str) -> str:
    """1.0 is 1: pandas makes floats of whole numbers where one is missing."""
    return cell.removesuffix(".0") if _WHOLE.fullmatch(cell) else cell


def _problem(column: str, cells: list) -> tuple[str, str] | None:
    """Why a column can't be names, and the fix; None if it can."""
    fix = f"leave it out: drop=[{column!r}]"
    if others := [cell for cell in cells if not isinstance(cell, str)]:
        return f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}", fix
    kinds = sorted(set(map(_name, cells)), key=lambda kind: (len(kind), kind))
    if len(kinds) > _MOST:
        return f"{column!r} has {len(kinds):,} different values, and at most {_MOST:,} can be names", fix
    first: dict[Any, str] = {}
    for kind in kinds:
        first.setdefault(_spelling(kind), kind)
    if twins := {kind: first[_spelling(kind)] for kind in kinds if first[_spelling(kind)] != kind}:
        other, one = next(iter(twins.items()))
        fact = f"{column!r} has {one!r} and {other!r}, which differ only in their spelling"
        return fact, f"in a DataFrame: table[{column!r}] = table[{column!r}].replace({twins!r})"
    return None


def _spelling(kind: str) -> Any:
    """Equal for 1.1 and 1.10, for "red" and "Red ", and for the two ways to write ä in Unicode."""
    text = " ".join(unicodedata.normalize("NFC", kind).casefold().split())
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


# -- the target --------------------------------------------------------------------------------------------


def refuse_empty(column: str, cells: list, attempt: str) -> None:
    """Raise a `LabError` if a cell is empty in a column that can't be left out."""
    if empty := sum(isinstance(cell, str) and not cell.strip() for cell in cells):
        fact = f"{column!r} is empty in {empty:,} of {len(cells):,} rows"
        rows = f"table[table[{column!r}].notna() & (table[{column!r}].astype(str).str.strip() != '')]"
        raise LabError(attempt, fact, f"in a DataFrame, leave these rows out: table = {rows}")


def classes_of(target: str, cells: list, attempt: str) -> tuple[str, ...]:
    """The classes of a target, at least two; `kinds_of` raises the other errors."""
    refuse_empty(target, cells, attempt)
    classes = kinds_of(target, cells, attempt)
    if len(classes) == 1:
        fact = f"all rows have the same {target!r}: {classes[0]!r}"
        raise LabError(attempt, fact, "use rows of several classes, or another target=")
    return classes


def _task_of(target: str, cells: list, task: str | None, attempt: str) -> str:
    """What the cells of the target are for, if that is certain; otherwise a `LabError` asks."""
    refuse_empty(target, cells, attempt)
    odd, why = not_numbers(cells)
    if task == "classification":
        return task
    if not odd:
        kinds = {float(cell) for cell in cells}
        if task is None and len(kinds) <= _FEW and all(kind.is_integer() for kind in kinds):
            fact = f"the target {target!r} has {len(kinds)} different whole numbers: classes, or amounts?"
            raise LabError(attempt, fact, f"pass task={_TASKS[0]!r} or task={_TASKS[1]!r}")
        return "regression"
    can_be_names = not _problem(target, cells)
    if task is None and can_be_names and not _has_digits(cells):
        return "classification"
    column = f"table[{target!r}]"
    scaled = f"{column} = ({column} - {column}.min()) / ({column}.max() - {column}.min())"
    fix = f"scale it in a DataFrame: {scaled}" if why else "make numbers of it: docs/data.md, Make numbers"
    if can_be_names:
        fix = f"if these are classes, pass task='classification'; if they are amounts, {fix}"
    raise LabError(attempt, f"the target {_fact(target, odd, len(cells))}{why or ', not numbers'}", fix)
