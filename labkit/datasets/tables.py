"""Tables of your own: CSV, TSV and Parquet files, DataFrames and Arrow tables.

>>> datasets.from_table("flats.csv", target="price", categories=["district"], drop=["id"])
<flats: 900 rows of 4 numbers, regression>

Only numbers are used without being asked for. Each other column is named in `categories` or in `drop`.
"""

import csv
import gzip
import io
import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.own import OwnData
from labkit.errors import LabError, expect_installed

if TYPE_CHECKING:
    import pandas
    import pyarrow

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
# What systems and programs leave in folders: a Mac, Windows, Synology, QNAP, Office, Spark.
SYSTEM = re.compile(
    r"\..*|~\$.*|@\w.*|\$[a-z].*|#(recycle|snapshot)|(eh)?thumbs.*\.db|desktop\.ini|icon\r|lost\+found"
    r"|system volume information|recycler|__macosx|network trash folder|_success|_(common_)?metadata",
    re.IGNORECASE,
)
_NUMBER = re.compile(r" *[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)? *")
_WHOLE = re.compile(r" *[+-]?[0-9]+(\.0*)? *")
_NO_NAME = re.compile(r"\s*|Unnamed: \d+.*|__index_level_\d+__")
_EXACT = 2**24  # float32 has all whole numbers up to here
_ROUNDED = 1e-4  # of a column's range: the largest error that float32 may bring
_MOST = 1000  # values of a category, or classes
_FEW = 20  # whole numbers that may be classes; values of a column that an error proposes as a category
_MAKE = "make numbers of it: docs/data.md, Make numbers"


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
    target, named, drop = str(target), _names(categories), _names(drop)
    require([target, *named, *drop], table, attempt)
    goal = table[target].tolist()
    features = {column: table[column].tolist() for column in table if column not in (target, *drop)}
    if target in drop or not features:
        raise LabError(attempt, "there is nothing to predict, or to predict it from", "drop fewer columns")
    task = _task_of(target, goal, "classification" if target in named else task, attempt)
    classes, y = classes_of(target, goal, attempt) if task == "classification" else ((), _floats(goal))
    _refuse_others(features, named, drop, attempt)
    columns, blocks = [], []
    for column, cells in features.items():
        if column in named:
            kinds, codes = _names_of(column, cells, attempt)
            columns += [f"{column}={kind}" for kind in kinds]
            blocks.append(np.eye(len(kinds), dtype=np.float32)[codes])
        else:
            columns.append(column)
            blocks.append(_floats(cells)[:, None])
    about = {"name": name, "kind": "numbers", "task": task, "columns": tuple(columns), "classes": classes}
    return OwnData(**about, x=np.hstack(blocks), y=y, test=test, seed=seed)


def _names(given: Any) -> list[str]:
    """`drop=` and `categories=` as a list: one name or several, texts or numbers, or None."""
    if isinstance(given, Iterable) and not isinstance(given, str):
        return list(map(str, given))
    return [] if given is None else [str(given)]


# -- reading -----------------------------------------------------------------------------------------------


def read_table(source: Any, attempt: str) -> "tuple[str, pandas.DataFrame]":
    """The name and the cells of a DataFrame, an Arrow table or files with the same columns.

    Each cell is a text, so that a table is the same from everywhere. An empty one is "". Only a list, a dict,
    bytes and the like stay what they are.
    """
    expect_installed(attempt, "pandas", "pyarrow")
    import pandas
    import pyarrow

    if isinstance(source, pyarrow.Table):
        source = source.to_pandas(integer_object_nulls=True)
    if isinstance(source, pandas.DataFrame):
        name, table = "table", _as_texts(source, "the table", attempt)
    else:
        name, files = files_of(source, TABLES, attempt)
        parts = [_as_texts(_read(file, attempt), file, attempt) for file in files]
        for file, part in zip(files, parts, strict=True):
            if set(part) != set(parts[0]):
                fact = f"{file} has the columns {', '.join(part)}, and {files[0]} has {', '.join(parts[0])}"
                raise LabError(attempt, fact[:500], "give all files the same columns")
        table = pandas.concat(parts, ignore_index=True)
    if table.empty:
        raise LabError(attempt, "it has no rows", "check the file")
    return name, table


def require(names: Iterable[str], table: "pandas.DataFrame", attempt: str) -> None:
    """Raise a `LabError` unless the table has all these columns."""
    for name in names:
        if name not in table:
            raise LabError(attempt, f"it has no column {name!r}", f"use one of {list(table)!r:.500}")


def visible(folder: Path, attempt: str, above: tuple[Path, ...] = ()) -> list[Path]:
    """All files below a folder, in order, without those of a system. Links are followed."""
    found, above = [], (*above, folder.resolve())
    for one in sorted(one for one in folder.iterdir() if not SYSTEM.fullmatch(one.name)):
        if not (one.is_dir() or one.is_file()) or one.resolve() in above:
            fact = f"{one} is no file, or a link to nothing or to a folder that it is in"
            raise LabError(attempt, fact, "remove it")
        found += visible(one, attempt, above) if one.is_dir() else [one]
    return found


def files_of(source: Any, suffixes: tuple[str, ...], attempt: str) -> tuple[str, list[Path]]:
    """The name of the first file or folder, and all files, whose names end with one of `suffixes`."""
    given = source if isinstance(source, (list, tuple)) else [source]
    if not given or not all(isinstance(one, (str, Path)) for one in given):
        fix = "pass a file, a folder, a list of files or a pandas.DataFrame, such as source.to_pandas()"
        raise LabError(attempt, f"the source is of type {type(source).__name__}", fix)
    files: list[Path] = []
    for path in (Path(one).expanduser() for one in given):
        if not path.exists():
            raise LabError(attempt, f"there is no file or folder {path}", "check the path")
        below = visible(path, attempt) if path.is_dir() else [path]
        if any("=" in str(file.relative_to(path).parent) for file in below):
            fact = f"{path} is partitioned: the names of its folders are values"
            raise LabError(attempt, fact, f"pass pandas.read_parquet({str(path)!r})")
        files += [file for file in below if not SYSTEM.fullmatch(file.name)]
    if wrong := [file for file in files if not file.name.lower().endswith(suffixes)]:
        fact = f"the name of {wrong[0]} doesn't end with {' or '.join(suffixes)}"
        fix = f"move it elsewhere; or, if it is a table, pass pandas.read_csv({str(wrong[0])!r})"
        raise LabError(attempt, fact, fix)
    if not files:
        raise LabError(attempt, f"there is no file in {given[0]}", f"add one that ends with {suffixes[0]}")
    first = Path(given[0]).expanduser().resolve()
    return first.name if first.is_dir() else Path(first.name.removesuffix(".gz")).stem, files


def text_of(file: Path, attempt: str) -> str:
    """The text of a file, packed or not: UTF-8, or UTF-16 with a byte order mark."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix.lower() == ".gz" else content
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        fix = "save it as UTF-8, or leave it out; if it is a table in another encoding, pass "
        fix += f"pandas.read_csv({str(file)!r}, encoding='latin-1')"
        raise LabError(attempt, f"{file} can't be read: {error}", fix) from None


def _read(file: Path, attempt: str) -> "pandas.DataFrame":
    import pandas
    import pyarrow.parquet

    if file.suffix.lower() != ".parquet":
        header, rows = _rows(file, attempt)
        names = [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(header)]
        return pandas.DataFrame(rows, columns=names, dtype=object)
    try:
        return pyarrow.parquet.ParquetFile(file).read().to_pandas(integer_object_nulls=True)
    except Exception as error:  # a damaged description for pandas can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LabError(attempt, f"{file} can't be read: {reason}", "repair it, or leave it out") from None


def _rows(file: Path, attempt: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a text file, without empty lines. pandas would cut or fill up a row."""
    text, read = text_of(file, attempt), f"pandas.read_csv({str(file)!r}"
    marked = re.match("sep=(.)\r?\n", text)  # Excel's first line
    separators = "\t" if ".tsv" in file.name.lower() else ",;\t|"
    separator = next((one for one in separators if one in text.partition("\n")[0]), ",")
    stream = io.StringIO(text[marked.end() if marked else 0 :], newline="")
    csv.field_size_limit(2**31 - 1)
    lines = csv.reader(stream, delimiter=marked[1] if marked else separator)
    header, rows = next(filter(None, lines), []), []
    for row in filter(None, lines):
        if len(row) != len(header):
            fact = f"line {lines.line_num:,} of {file} has {len(row)} fields, and the header has"
            fix = f"repair that line, or leave such lines out: {read}, on_bad_lines='skip')"
            if not rows:
                fix = f"name all fields in the header; or pass {read}, index_col=False), without those at a "
                fix += f"line's end; or {read}), where the first is the name of the row"
            raise LabError(attempt, f"{fact} {len(header)}: {row!r:.200}", fix)
        rows.append(row)
    return header, rows


def _as_texts(frame: "pandas.DataFrame", where: object, attempt: str) -> "pandas.DataFrame":
    """Each cell that is one value, as a text."""
    import pandas

    def text(value: Any) -> Any:
        scalar = pandas.api.types.is_scalar(value) and not isinstance(value, (str, bytes))
        return str(value) if scalar else value

    names = list(map(str, frame.columns))
    if twins := [name for name in names if names.count(name) > 1]:
        fix = "rename one, or keep the first of a DataFrame: table.loc[:, ~table.columns.duplicated()]"
        raise LabError(attempt, f"{where} has two columns {twins[0]!r}", fix)
    frame = frame.set_axis(names, axis=1).astype(object)
    return frame.where(frame.notna(), "").map(text)


# -- numbers -----------------------------------------------------------------------------------------------


def _floats(cells: list) -> np.ndarray:
    return np.array(cells, np.float64).astype(np.float32)


def _not_numbers(column: str, cells: list) -> str:
    """Why a column can't be used as 32-bit numbers, with the first three values; "" if it can."""
    if _NO_NAME.fullmatch(column):
        odd, why = cells, ": a column without a name, such as the row numbers that pandas writes"
    elif odd := [cell for cell in cells if not (isinstance(cell, str) and _NUMBER.fullmatch(cell))]:
        why = ""
    else:
        odd, why = _rounded(cells), ", which a 32-bit float would round"
    first = list({repr(cell)[:40]: None for cell in odd})[:3]
    some = f" in {len(odd):,} of {len(cells):,} rows" if len(odd) < len(cells) else ""
    return f"{column!r} has {', '.join(first)}{some}{why}" if odd else ""


def _rounded(cells: list[str]) -> list[str]:
    """The numbers that float32 would change: large whole ones, and others by too much."""
    values = np.array(cells, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32).astype(np.float64)
        most = _ROUNDED * (values.max() - values.min()) or np.inf
        lost = ~np.isfinite(single) | (np.abs(values - single) > most)
    lost |= [
        large and bool(_WHOLE.fullmatch(cell))
        for large, cell in zip(abs(values) > _EXACT, cells, strict=True)
    ]
    return [cell for cell, bad in zip(cells, lost, strict=True) if bad]


def _refuse_others(features: dict[str, list], named: list[str], drop: list[str], attempt: str) -> None:
    """Raise one error about all columns that are neither numbers nor named, with a line to paste."""
    wrong = {one: _not_numbers(one, cells) for one, cells in features.items() if one not in named}
    wrong = {column: fact for column, fact in wrong.items() if fact}
    if not wrong:
        return
    names = [column for column in wrong if _are_words(column, features[column])]
    if not names and len(wrong) == len(features):  # drop= would leave nothing
        names = [column for column in wrong if not _not_names(column, features[column])]
    others = [column for column in wrong if column not in names]
    options = {"categories": [*named, *names], "drop": [*drop, *others]}
    fix = ", ".join(f"{option}={columns!r}" for option, columns in options.items() if columns)
    if len(others) == len(features):
        fix = "make numbers of one of these, since no other column is left to predict from"
    fix += "\n    (names are for categories=; what you leave out, for drop=; dates, money and the like can"
    fix += "\n    become numbers: docs/data.md, Make numbers)"
    counted = "1 column is" if len(wrong) == 1 else f"{len(wrong)} columns are"
    listed = "".join(f"\n    {fact}" for fact in wrong.values())
    raise LabError(attempt, f"{counted} neither numbers nor named:{listed}", fix)


# -- names -------------------------------------------------------------------------------------------------


def _not_names(column: str, cells: list) -> tuple[str, str] | None:
    """Why a column can't be used as names, and the fix; None if it can."""
    drop = f"leave it out: drop=[{column!r}]"
    if others := [cell for cell in cells if not isinstance(cell, str)]:
        return f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}", drop
    kinds = set(map(_name, cells))
    if len(kinds) > _MOST:
        return f"{column!r} has {len(kinds):,} different values, and at most {_MOST:,} can be names", drop
    first: dict[Any, str] = {}
    twins = {
        one: first[_spelling(one)] for one in sorted(kinds) if first.setdefault(_spelling(one), one) != one
    }
    if twins:
        other, one = next(iter(twins.items()))
        fact = f"{column!r} has {one!r} and {other!r}, which differ only in their spelling"
        return fact, f"in a DataFrame: table[{column!r}] = table[{column!r}].replace({twins!r})"
    return None


def _are_words(column: str, cells: list) -> bool:
    """Whether they are names for sure: a few words without digits."""
    few = len(set(map(str, cells))) <= _FEW and not _NO_NAME.fullmatch(column)
    return few and not _not_names(column, cells) and not any(re.search(r"\d", cell) for cell in cells)


def _name(cell: str) -> str:
    """1.0 is 1: pandas makes floats of whole numbers where one is missing."""
    return cell.removesuffix(".0") if _WHOLE.fullmatch(cell) else cell


def _spelling(kind: str) -> Any:
    """Equal for 1.1 and 1.10, for "red" and "Red ", and for the two ways to write ä in Unicode."""
    text = " ".join(unicodedata.normalize("NFC", kind).casefold().split())
    return Decimal(text) if _NUMBER.fullmatch(text.lstrip("0")) else text


def _names_of(column: str, cells: list, attempt: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The different names in a column, by size if all are numbers; and int64 [n], each cell's place there."""
    if problem := _not_names(column, cells):
        raise LabError(attempt, *problem)
    kinds = set(map(_name, cells))
    kinds = sorted(kinds, key=Decimal if all(map(_NUMBER.fullmatch, kinds)) else None)
    places = {kind: place for place, kind in enumerate(kinds)}
    return tuple(kinds), np.array([places[_name(cell)] for cell in cells], np.int64)


def refuse_empty(column: str, cells: list, attempt: str) -> None:
    """Raise a `LabError` if a cell is empty in a column that can't be left out."""
    if empty := sum(isinstance(cell, str) and not cell.strip() for cell in cells):
        fact = f"{column!r} is empty in {empty:,} of {len(cells):,} rows"
        rows = f"table[table[{column!r}].notna() & (table[{column!r}].astype(str).str.strip() != '')]"
        raise LabError(attempt, fact, f"in a DataFrame, leave these rows out: table = {rows}")


def classes_of(target: str, cells: list, attempt: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of a target, at least two; and int64 [n], the class of each row."""
    refuse_empty(target, cells, attempt)
    classes, codes = _names_of(target, cells, attempt)
    if len(classes) == 1:
        fact = f"all rows have the same {target!r}: {classes[0]!r}"
        raise LabError(attempt, fact, "use rows of several classes, or another target=")
    return classes, codes


def _task_of(target: str, cells: list, task: str | None, attempt: str) -> str:
    """What the cells of the target are for, if that is certain; otherwise a `LabError` asks."""
    choices = "task='classification' or task='regression'"
    if task not in (None, "classification", "regression"):
        raise LabError(attempt, f"the task is {task!r}", f"pass {choices}")
    refuse_empty(target, cells, attempt)
    if task == "classification" or (task is None and _are_words(target, cells)):
        return "classification"
    if wrong := _not_numbers(target, cells):
        fix = "" if _not_names(target, cells) else "if these are classes, pass task='classification'; else "
        raise LabError(attempt, f"the target isn't plain numbers: {wrong}", fix + _MAKE)
    kinds = {float(cell) for cell in cells}
    if task is None and len(kinds) <= _FEW and all(kind.is_integer() for kind in kinds):
        fact = f"the target {target!r} has {len(kinds)} different whole numbers: classes, or amounts?"
        raise LabError(attempt, fact, f"pass {choices}")
    return "regression"
