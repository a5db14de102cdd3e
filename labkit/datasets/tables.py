"""Tables and texts of your own: CSV, TSV and Parquet files, DataFrames, Arrow tables and text files.

>>> datasets.from_table("flats.csv", target="price", categories=["district"], drop=["id"])
<flats: 900 rows of 4 numbers, regression>
>>> datasets.from_text("plays.txt", length=64)
<plays: 1,249 rows of 64 tokens out of 256, language>

Only plain numbers are used without being asked for. Each other column is named in `categories` or in `drop`.
"""

import contextlib
import copy
import csv
import gzip
import io
import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from labkit.datasets.own import UTF16, OwnData, files_of, text_of
from labkit.errors import LabError, expect_installed, expect_int

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_NUMBER = re.compile(r" *[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)? *")
_WHOLE = re.compile(r" *[+-]?[0-9]+(\.0*)? *")
_NO_NAME = re.compile(r"\s*|Unnamed: \d+.*|__index_level_\d+__")
_EXACT = 2**24  # float32 has all whole numbers up to here
_ROUNDED = 1e-4  # of a column's range: the largest error that float32 may bring
_MOST, _LISTED = 1000, 20  # values of a category, or classes; columns that an error lists
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "[pad]")
_TRAIN = "train it on your text, with an unknown token: docs of tokenizers, Trainers"
_FEW = 20  # whole numbers that may be classes; values of a column that an error proposes as a category

Table = dict[str, list]  # the cells of each column: texts, "" if empty; lists, dicts and bytes stay


def from_table(
    source: Any,
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
        LabError: a column is neither numbers nor named, or a file can't be read without guessing.
    """
    attempt = f"load the table {str(source)[:200]}" if isinstance(source, (str, Path)) else "load the table"
    name, table = read_table(source, attempt)
    target, named, drop = str(target), _names(categories), _names(drop)
    cells = {column: cells_of(column, table, attempt) for column in (*table, target, *named, *drop)}
    goal, features = cells.pop(target), {one: cells[one] for one in cells if one not in (target, *drop)}
    if target in drop or not features:
        raise LabError(attempt, "there is nothing to predict, or to predict it from", "drop fewer columns")
    classes, y = _goal(target, goal, "classification" if target in named else task, attempt)
    _refuse_others(features, named, drop, attempt)
    columns, values = [], []
    for column, texts in features.items():
        if column in named:
            kinds, codes = _encoded(column, texts, attempt, f"leave it out: drop=[{column!r}]")
            columns += [f"{column}={kind}" for kind in kinds]
            values += [codes == place for place in range(len(kinds))]
        else:
            columns.append(column)
            values.append(_floats(texts))
    about = {"kind": "numbers", "task": "classification" if classes else "regression", "classes": classes}
    x = np.stack(values, axis=1, dtype=np.float32)
    return OwnData(name=name, **about, columns=tuple(columns), x=x, y=y, test=test, seed=seed)


def from_text(
    source: Any,
    *,
    length: int,
    target: str | None = None,
    column: str = "text",
    tokenizer: Any = None,
    test: float = 0.2,
    seed: int = 0,
) -> OwnData:
    """Make rows of tokens: of whole texts for a language model, or one row for each text of a table.

    Args:
        source: text files in UTF-8, as a file, a folder or a list; or a table, as `from_table` reads it.
        length: tokens per row. Of a table with a `target`, a longer text is cut, and a shorter one is filled
            up with the tokenizer's padding token, or token 0.
        target: the column with the classes; without it, the rows are for a language model.
        column: the column with the texts.
        tokenizer: a ``tokenizers.Tokenizer``; default: each byte of the text is a token, 256 in all. It runs
            without truncation, padding and special tokens.
        test, seed: as in `OwnData`.
    """
    attempt = f"load the text {str(source)[:200] if isinstance(source, (str, Path)) else 'of a table'}"
    expect_int(attempt, "length", length)
    length = int(length)
    tokens = _Bytes() if tokenizer is None else _Tokens(tokenizer, attempt)
    about = {"kind": "tokens", "vocabulary": tokens.vocabulary, "text": tokens.text}
    about |= {"test": test, "seed": seed}
    if target is None:
        name, texts = _whole_texts(source, str(column), attempt)
        found = np.concatenate([tokens.of(text.replace("\r\n", "\n").replace("\r", "\n")) for text in texts])
        ends = (len(found) - 1) // length * length
        if ends < 1:
            fact = f"{len(found):,} tokens are fewer than a row of {length:,} and the one after it"
            raise LabError(attempt, fact, "pass a smaller length=, or more text")
        x, y = found[:ends].reshape(-1, length), found[1 : ends + 1].reshape(-1, length)
        return OwnData(name=name, task="language", x=x, y=y, **about)
    name, table = read_table(source, attempt)
    texts = _column(table, str(column), attempt)
    goal = cells_of(str(target), table, attempt)
    classes, y = classes_of(str(target), goal, attempt)
    x = np.full((len(y), length), tokens.pad, np.int64)
    for row, text in zip(x, texts, strict=True):
        found = tokens.of(text)[:length]
        row[: len(found)] = found
    return OwnData(name=name, task="classification", classes=classes, x=x, y=y, **about)


def _names(given: Any) -> list[str]:
    """`drop=` and `categories=` as a list: one name or several, texts or numbers, or None."""
    if isinstance(given, Iterable) and not isinstance(given, str):
        return list(map(str, given))
    return [] if given is None else [str(given)]


def cells_of(column: str, table: Table, attempt: str) -> list:
    """The cells of a column, with 1.0 as 1: pandas makes floats of whole numbers where one is missing."""
    if column not in table:
        raise LabError(attempt, f"it has no column {column!r}", f"use one of {list(table)!r:.500}")
    whole = (isinstance(cell, str) and _WHOLE.fullmatch(cell) for cell in table[column])
    return [cell.removesuffix(".0") if one else cell for cell, one in zip(table[column], whole, strict=True)]


# -- reading -----------------------------------------------------------------------------------------------


def read_table(source: Any, attempt: str) -> tuple[str, Table]:
    """The name and the cells of a DataFrame, an Arrow table or files with the same columns.

    Each cell is a text, so a table is the same from everywhere; see `Table` for the few others.
    """
    expect_installed(attempt, "pandas", "pyarrow")
    import pandas
    import pyarrow

    if isinstance(source, pyarrow.Table):
        try:
            source = source.to_pandas(integer_object_nulls=True)
        except Exception as error:  # a type that pandas doesn't have
            reason = (str(error) or type(error).__name__).splitlines()[0]
            fix = "leave out the column of that type, or cast it: source.drop_columns(['name'])"
            raise LabError(attempt, f"pandas can't read the Arrow table: {reason}", fix) from None
    if isinstance(source, pandas.DataFrame):
        name, parts = "table", [("the table", _cells(source))]
    else:
        name, files = files_of(source, TABLES, attempt)
        parts = [(file, _read(file, attempt)) for file in files]
    table: Table = {column: [] for _, part in parts for column, _ in part}
    for place, part in parts:
        names = Counter(column for column, _ in part)
        if twins := [column for column in names if names[column] > 1]:
            fix = "rename one, or keep the first of a DataFrame: table.loc[:, ~table.columns.duplicated()]"
            raise LabError(attempt, f"{place} has two columns {twins[0]!r}", fix)
        if missing := [column for column in table if column not in names]:
            fact = f"{place} has no column {missing[0]!r}, and another file has one"
            raise LabError(attempt, fact, "give all files the same columns")
        for column, cells in part:
            table[column] += cells
    if not any(table.values()):
        raise LabError(attempt, "it has no rows", "check the file")
    return name, table


def _cells(frame: Any) -> list[tuple[str, list]]:
    """The name and the cells of each column of a DataFrame."""
    from pandas.api.types import is_scalar

    named = [name for name in frame.index.names if name is not None]  # a column of its own in a CSV file, too
    frame = frame.reset_index(named, allow_duplicates=True) if named else frame

    def text(cell: Any, given: bool) -> Any:
        return "" if not given else str(cell) if is_scalar(cell) and not isinstance(cell, bytes) else cell

    return [(str(name), list(map(text, one.astype(object), one.notna()))) for name, one in frame.items()]


def _read(file: Path, attempt: str) -> list[tuple[str, list]]:
    """As `_cells`, of a file."""
    import pyarrow.parquet

    if file.suffix.lower() != ".parquet":
        header, *rows = _lines(file, attempt) or [[]]
        names = [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(header)]
        return [(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    try:
        return _cells(pyarrow.parquet.ParquetFile(file).read().to_pandas(integer_object_nulls=True))
    except Exception as error:  # a damaged description for pandas can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LabError(attempt, f"{file} can't be read: {reason}", "repair it, or leave it out") from None


def _lines(file: Path, attempt: str) -> list[list[str]]:
    """The header and the rows of a text file, without empty lines. pandas would cut or fill up a row."""
    text = text_of(file, attempt)
    excel = re.match(r"sep=([^\r\n])[\r\n]+", text)  # its first line
    text = text[excel.end() :] if excel else text
    separators = "\t" if file.name.lower().endswith((".tsv", ".tsv.gz")) else excel[1] if excel else ",;\t|"
    csv.field_size_limit(2**31 - 1)

    def fits(one: str) -> tuple[bool, int]:  # the header and the first row have equally many fields
        rows = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=one))
        counts = [len(row) for row in itertools.islice(rows, 2)] or [0]
        return counts[0] == counts[-1] > 1, counts[0]

    separator = max(separators, key=fits)
    lines, found = csv.reader(io.StringIO(text, newline=""), delimiter=separator), []
    for line in filter(None, lines):
        found.append(line)
        if (more := len(line) - len(found[0])) == 0:
            continue
        read = f"pandas.read_csv({str(file)!r}, sep={separator!r}" + ", skiprows=1" * bool(excel)
        with (gzip.open if file.suffix.lower() == ".gz" else open)(file, "rb") as content:
            read += ", encoding='utf-16'" * (content.read(2) in UTF16)
        last = found[0][-1] or f"Unnamed: {len(found[0]) - 1}"
        end = ", on_bad_lines='skip')" if more > 0 else f").dropna(subset=[{last!r}])"
        fix = f"repair that line, or leave such lines out: {read}{end}"
        if more > 0 and len(found) == 2:
            fix = f"name all fields in the header; or pass {read}, index_col=False), without those at a "
            fix += f"line's end; or {read}), where the first is the name of the row"
            fix += "" if excel else f"; or {read}, skiprows=1), if a title is above the header"
        fact = f"line {lines.line_num + bool(excel):,} of {file} has {len(line)} fields, and the header has "
        raise LabError(attempt, f"{fact}{len(found[0])}: {line!r:.200}", fix)
    return found


# -- numbers -----------------------------------------------------------------------------------------------


def _floats(cells: list[str]) -> np.ndarray:
    return np.array(cells, np.float64).astype(np.float32)


def _not_numbers(column: str, cells: list) -> str:
    """Why a column can't be used as 32-bit numbers, with the first three values; "" if it can."""
    odd, why = [cell for cell in cells if not (isinstance(cell, str) and _NUMBER.fullmatch(cell))], ""
    if _NO_NAME.fullmatch(column):
        odd, why = cells, ": a column without a name, such as the row numbers that pandas writes"
    elif not odd:
        odd, why = _rounded(cells), ", which a 32-bit float would round"
    first = list({repr(cell)[:40]: None for cell in odd})[:3]
    some = f" in {len(odd):,} of {len(cells):,} rows" if len(odd) < len(cells) else ""
    return f"{column!r:.80} has {', '.join(first)}{some}{why}" if odd else ""


def _rounded(cells: list[str]) -> list[str]:
    """The numbers that float32 would change: large whole ones, and others by too much."""
    values, whole = np.array(cells, np.float64), [bool(_WHOLE.fullmatch(cell)) for cell in cells]
    with np.errstate(over="ignore", invalid="ignore"):
        most = _ROUNDED * np.ptp(values) or np.finfo(np.float32).max
        kept = np.abs(values - values.astype(np.float32)) <= most  # False for NaN, too
    kept &= ~(whole & (np.abs(values) > _EXACT))
    return [cell for cell, right in zip(cells, kept, strict=True) if not right]


def _refuse_others(features: dict[str, list], named: list[str], drop: list[str], attempt: str) -> None:
    """Raise one error about all columns that are neither numbers nor named, with a line to paste."""
    wrong = {one: fact for one in features if one not in named and (fact := _not_numbers(one, features[one]))}
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
    if holes := [column for column in others if _has_holes(column, features[column])]:
        fix += "\n    (or leave out the few rows with an empty cell, where table is a DataFrame: pass"
        fix += f"\n    table.replace('', None).dropna(subset={holes!r}))"
    if wrong:
        counted = "1 column is" if len(wrong) == 1 else f"{len(wrong)} columns are"
        facts, more = list(wrong.values())[:_LISTED], len(wrong) - _LISTED
        listed = "".join(f"\n    {fact}" for fact in facts) + f"\n    … and {more} more" * (more > 0)
        raise LabError(attempt, f"{counted} neither numbers nor named:{listed}", fix)


def _has_holes(column: str, cells: list) -> bool:
    """Whether these are numbers but for a few empty cells, at most one in ten."""
    filled = [cell for cell in cells if not isinstance(cell, str) or cell]
    return 0 < len(cells) - len(filled) <= len(cells) / 10 and not _not_numbers(column, filled)


# -- names -------------------------------------------------------------------------------------------------


def _not_names(column: str, cells: list) -> tuple[str, str] | None:
    """Why a column can't be used as names, and how it could, "" if not at all; None if it can."""
    if others := [cell for cell in cells if not isinstance(cell, str)]:
        return f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}", ""
    if len(kinds := sorted(set(cells))) > _MOST:
        return f"{column!r} has {len(kinds):,} different values, and at most {_MOST:,} can be names", ""
    first: dict[Any, str] = {}
    twins = {kind: one for kind in kinds if (one := first.setdefault(_spelling(kind), kind)) != kind}
    for other, one in twins.items():
        fact = f"{column!r} has {one!r} and {other!r}, which differ only in their spelling"
        change = f"lambda cell: {twins!r}.get(str(cell).removesuffix('.0'), cell)"
        code = f"{_texts_as_names(column)}table[{column!r}] = table[{column!r}].map({change})"
        return fact, f"in a DataFrame: {code}"
    return None


def _texts_as_names(column: str) -> str:
    """The first part of a fix for a DataFrame whose column may be called 0 or ("a", "b")."""
    is_text = not re.fullmatch(r"-?[0-9.]+|\(.*\)", column)
    return "" if is_text else "table.columns = [*map(str, table.columns)]; "


def _spelling(kind: str) -> Any:
    """Equal for 1.1 and 1.10, for "red" and "Red ", and for the two ways to write ä in Unicode."""
    text = " ".join(unicodedata.normalize("NFC", kind).casefold().split())
    digits = re.sub(r"^([+-]?)0+(?=[0-9])", r"\1", text)
    with contextlib.suppress(InvalidOperation):  # an id such as 1e99999999999999999999
        return Decimal(text) if _NUMBER.fullmatch(digits) else text
    return text


def _are_words(column: str, cells: list) -> bool:
    """Whether they are names for sure: a few words without digits."""
    words = {str(cell) for cell in cells}
    digits = _NO_NAME.fullmatch(column) or re.search(r"\d", "".join(words))
    return not digits and len(words) <= _FEW and not _not_names(column, cells)


def _encoded(column: str, cells: list, attempt: str, otherwise: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The different names in a column, by size if all are numbers; and int64 [n], each cell's place there.

    `otherwise` is the fix for a column that can't be names.
    """
    if problem := _not_names(column, cells):
        raise LabError(attempt, problem[0], problem[1] or otherwise)
    kinds = sorted(set(cells))
    with contextlib.suppress(InvalidOperation):
        kinds = sorted(kinds, key=Decimal) if all(map(_NUMBER.fullmatch, kinds)) else kinds
    places = {kind: place for place, kind in enumerate(kinds)}
    return tuple(kinds), np.array([places[cell] for cell in cells], np.int64)


# -- the target --------------------------------------------------------------------------------------------


def refuse_empty(column: str, cells: list, attempt: str) -> None:
    """Raise a `LabError` if a cell is empty in a column that can't be left out."""
    if empty := sum(isinstance(cell, str) and not cell.strip() for cell in cells):
        fact = f"{column!r} is empty in {empty:,} of {len(cells):,} rows"
        rows = f"table[table[{column!r}].notna() & (table[{column!r}].astype(str).str.strip() != '')]"
        code = f"{_texts_as_names(column)}table = {rows}"
        raise LabError(attempt, fact, f"in a DataFrame, leave these rows out: {code}")


def classes_of(target: str, cells: list, attempt: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of a target, at least two; and int64 [n], the class of each row."""
    refuse_empty(target, cells, attempt)
    classes, codes = _encoded(target, cells, attempt, "use another target=")
    if len(classes) == 1:
        fact = f"all rows have the same {target!r}: {classes[0]!r}"
        raise LabError(attempt, fact, "use rows of several classes, or another target=")
    return classes, codes


def _goal(target: str, cells: list, task: str | None, attempt: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes (none for a regression) and ``y``, if the task is certain; otherwise a `LabError` asks."""
    choices = "task='classification' or task='regression'"
    if task not in (None, "classification", "regression"):
        raise LabError(attempt, f"the task is {task!r}", f"pass {choices}")
    refuse_empty(target, cells, attempt)
    if task == "classification" or (task is None and _are_words(target, cells)):
        return classes_of(target, cells, attempt)
    if wrong := _not_numbers(target, cells):
        _, how = _not_names(target, cells) or ("", "pass task='classification'")
        fix = f"if these are classes, {how}; else " if how else ""
        fix += "make numbers of it: docs/data.md, Make numbers"
        raise LabError(attempt, f"the target isn't plain numbers: {wrong}", fix)
    kinds = {float(cell) for cell in cells}
    if task is None and len(kinds) <= _FEW and all(kind.is_integer() for kind in kinds):
        fact = f"the target {target!r} has {len(kinds)} different whole numbers: classes, or amounts?"
        raise LabError(attempt, fact, f"pass {choices}")
    return (), _floats(cells)


# -- texts -------------------------------------------------------------------------------------------------


def _whole_texts(source: Any, column: str, attempt: str) -> tuple[str, list[str]]:
    """The name and the texts of files, or the texts of a table as lines."""
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    if not isinstance(first, (str, Path)) or str(first).lower().endswith(TABLES):
        name, table = read_table(source, attempt)
        return name, [f"{text}\n" for text in _column(table, column, attempt)]
    suffixes = (".txt",) if os.path.isdir(os.path.expanduser(first)) else ("",)
    name, files = files_of(source, suffixes, attempt)
    return name, [text_of(file, attempt) for file in files]


def _column(table: Table, column: str, attempt: str) -> list[str]:
    """The column with the texts; none may be empty or something else."""
    cells_of(column, table, attempt)  # refuses a column that isn't there
    texts = table[column]
    if others := [cell for cell in texts if not isinstance(cell, str)]:
        fact = f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}"
        raise LabError(attempt, fact, "pass column= with the name of a column of texts")
    refuse_empty(column, texts, attempt)
    return texts


class _Bytes:
    """Each byte is a token."""

    vocabulary, pad = 256, 0

    def of(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64)

    def text(self, row: np.ndarray) -> str:
        return row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")


class _Tokens:
    """The tokens of a ``tokenizers.Tokenizer``, or of the one inside a tokenizer of transformers."""

    def __init__(self, tokenizer: Any, attempt: str) -> None:
        tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if isinstance(tokenizer, type) or not hasattr(tokenizer, "no_truncation"):
            fix = "pass tokenizers.Tokenizer.from_file('tokenizer.json'), or leave it out for bytes"
            raise LabError(attempt, f"the tokenizer is {tokenizer!r:.60}", fix)
        pads = filter(None, map(tokenizer.token_to_id, _PADS))
        self.pad = tokenizer.padding["pad_id"] if tokenizer.padding else next(pads, 0)
        self.vocabulary = max([self.pad, *tokenizer.get_vocab().values()]) + 1  # some have gaps
        if not tokenizer.get_vocab():
            raise LabError(attempt, "the tokenizer has no tokens yet", _TRAIN)
        try:
            self._attempt, self._tokenizer = attempt, copy.deepcopy(tokenizer)
        except Exception as error:  # it has a part that is written in Python
            raise LabError(attempt, f"the tokenizer can't be copied: {error}", "use one without it") from None
        self._tokenizer.no_truncation()  # models that ship switch both on
        self._tokenizer.no_padding()

    def of(self, text: str) -> np.ndarray:
        text = text.encode(errors="replace").decode()  # half of a pair of surrogates
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # tokenizers raises nothing more special
            raise LabError(self._attempt, f"the tokenizer refuses {text!r:.60}: {error}", _TRAIN) from None
        return np.array(found, np.int64)

    def text(self, row: np.ndarray) -> str:
        return self._tokenizer.decode(row.tolist())
