"""What each column of a table has, and what is wrong with its values: all of it, in one error."""

import csv
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import DatasetError

if TYPE_CHECKING:
    import pandas

Place = tuple[str, int]  # a file, and a row of it, from 0

_MOST_CATEGORIES = 200  # of a column; more is an identifier, or free text
_COMMA = r"[+-]?[\d.]*,\d+"  # a number with a decimal comma
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?\b.*|\d{1,2}([./])\d{1,2}\1(\d\d)?\d\d\b.*", re.DOTALL)
_AMOUNT = re.compile(r"[$€£]?\s*[+-]?\d[\d.,]*\s*[%$€£]?")  # and no plain number
_NEARLY_ALL = 0.9
_SHOWN = 8  # of what is wrong


@dataclass
class _Wrong:
    """Values that cannot be used: the first of them, and how many there are."""

    fact: str
    fix: str
    place: Place | None = None
    rows: int = 0

    def __str__(self) -> str:
        if self.place is None:
            return self.fact
        more = f", and in {self.rows - 1:,} more row{'s' * (self.rows > 2)}" if self.rows > 1 else ""
        return f"{self.fact} in {_place_of(*self.place)} of {self.place[0]}{more}"


@dataclass
class Column:
    """What a column has: numbers alone or categories, and at most `_MOST_CATEGORIES` + 1 of its values.

    Attributes:
        numbers: no value is a name; set False for a column of categories, whatever its values look like.
        whole: all numbers are.
        target: the column is what to predict, so that it cannot be left out.
        free: it is text, which may have any value.
    """

    name: str
    numbers: bool = True
    target: bool = False
    free: bool = False
    whole: bool = True
    values: set[str] = field(default_factory=set)
    _wrong: dict[str, _Wrong] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._named = not self.numbers
        self._as_names = "pass task='classification'" if self.target else f"pass categories=[{self.name!r}]"

    def add(self, values: "pandas.Series", where: Place) -> None:
        """Look at some more of its values; the first of them is at `where`."""
        empty = values.isna().to_numpy()
        needed = self.target or self.free
        remove = f"table.dropna(subset=[{self.name!r}])"
        remove = f"pass a DataFrame without them: {remove}" if needed else f"drop=[{self.name!r}]"
        self._refuse(values, empty, "is empty", where, f"fill or remove such rows, or {remove}")
        if self.free or empty.all():
            return
        if self.numbers:
            self._add_numbers(values, ~empty, where)
        if len(self.values) <= _MOST_CATEGORIES:
            self.values.update(values[~empty].astype(str).unique()[: _MOST_CATEGORIES + 1])

    def _add_numbers(self, values: "pandas.Series", there: np.ndarray, where: Place) -> None:
        numbers = numbers_of(values)
        if np.isnan(numbers).all() and not self.values and not self._commas(values, there).any():
            self.numbers = False
            return
        too_large = there & np.isfinite(numbers) & (np.abs(numbers) > np.finfo(np.float32).max)
        what = "has {!r}, too large for a 32-bit number,"
        self._refuse(values, too_large, what, where, "repair that row, or give the column another unit")
        bad = there & ~np.isfinite(numbers)
        self.whole = self.whole and bool((numbers[there & ~bad] % 1 == 0).all())
        if not bad.any():
            return
        commas = self._commas(values, bad)
        what = "has {!r}, a number with a comma,"
        comma = f"pass {read_csv('decimal', ',')}, or thousands=',' if it groups digits"
        fix = f"{comma}; or repair that row; or, if these are names, {self._as_names}"
        self._refuse(values, commas, what, where, fix)
        what = "has {!r} where other rows have a number"
        fix = f"repair that row, or leave it out; or, if these are names, {self._as_names}"
        self._refuse(values, bad & ~commas, what, where, fix)

    @staticmethod
    def _commas(values: "pandas.Series", bad: np.ndarray) -> np.ndarray:
        """bool [n]: numbers with a comma, if nearly all that are no numbers are these."""
        commas = bad & values.astype(str).str.fullmatch(_COMMA).to_numpy(bool)
        return commas & (commas.sum() >= _NEARLY_ALL * bad.sum())

    def _refuse(self, values: "pandas.Series", bad: np.ndarray, what: str, where: Place, fix: str) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            fact = f"{self.name!r} {what.format(values.iloc[row])}"
            self._wrong.setdefault(what, _Wrong(fact, fix, (where[0], where[1] + row))).rows += int(bad.sum())

    def wrong(self) -> list[_Wrong]:
        """What cannot be used, once all values are known."""
        found = list(self._wrong.values())
        if self.numbers or self.free or not self.values:
            return found
        one, table = min(self.values), f"table[{self.name!r}]"
        if not self._named and all(map(_DATE.fullmatch, self.values)):
            fact = f"{self.name!r} has dates, such as {one!r}, which are neither numbers nor names"
            number = f"{table} = pandas.to_datetime({table}).dt.dayofyear, or .dt.year"
            fix = f"make numbers of them in a DataFrame: {number}"
            found.append(_Wrong(fact, fix if self.target else f"{fix}; or drop=[{self.name!r}]"))
        elif not self._named and all(map(_AMOUNT.fullmatch, self.values)):
            fact = f"{self.name!r} has numbers with a sign, such as {one!r}"
            number = f"{table} = {table}.str.strip('%$€£ ').astype(float)"
            fix = f"pass a DataFrame with numbers: {number}; or, if these are names, {self._as_names}"
            found.append(_Wrong(fact, fix))
        elif len(self.values) > _MOST_CATEGORIES:
            fact = f"{self.name!r} has more than {_MOST_CATEGORIES} values, such as {one!r:.40}"
            fix = f"leave it out: drop=[{self.name!r}]; texts are for from_text"
            if self.target:
                fix = "name a target with fewer classes; amounts need numbers alone, and task='regression'"
            found.append(_Wrong(fact, fix))
        else:
            first = {value.strip(): value for value in sorted(self.values)}
            if twins := [value for value in sorted(self.values) if first[value.strip()] != value]:
                other = first[twins[0].strip()]
                fact = f"{self.name!r} has {twins[0]!r} and {other!r}, which differ in spaces alone"
                fix = f"pass a DataFrame where they are one: {table} = {table}.str.strip()"
                found.append(_Wrong(fact, fix))
        return found


def refuse_wrong(columns: Iterable[Column], attempt: str) -> None:
    """Raise one error with all that is wrong in these columns, if anything is.

    Raises:
        DatasetError: it names the first row of each kind, how many more there are, and the fix.
    """
    wrong = [one for column in columns for one in column.wrong()]
    if len(wrong) == 1:
        raise DatasetError(attempt, str(wrong[0]), wrong[0].fix)
    if wrong:
        lines = [f"\n    {n}. {one}\n       fix: {one.fix}" for n, one in enumerate(wrong[:_SHOWN], 1)]
        if len(wrong) > _SHOWN:
            lines.append(f"\n    and {len(wrong) - _SHOWN} more like these")
        fact = f"{len(wrong)} things are wrong in it:{''.join(lines)}"
        raise DatasetError(attempt, fact, "correct these, each in the way that it names, and load it again")


def numbers_of(values: "pandas.Series") -> np.ndarray:
    """float64 [n]; NaN where a value is no number."""
    import pandas

    if values.dtype.kind in "bMmc":  # yes and no, dates, durations and complex numbers are no amounts
        return np.full(len(values), np.nan)
    return pandas.to_numeric(values, errors="coerce").to_numpy(np.float64)


def read_csv(option: str, value: str) -> str:
    """What to pass for a CSV file that is written in another way."""
    return f"pandas.read_csv(path, {option}={value!r}) in place of the path"


def _place_of(file: str, row: int) -> str:
    """The line of a CSV file, as an editor counts, where a row ends; for other tables the row, from 0."""
    if not file.lower().endswith(".csv"):
        return f"row {row:,}"
    with open(file, newline="", encoding="utf-8", errors="replace") as stream:
        lines = csv.reader(stream)
        filled = (values for values in lines if len(values) > 1 or "".join(values).strip())
        try:
            next(itertools.islice(filled, row + 1, None), None)  # the first is the header
        except csv.Error:  # a value of more than 128 KiB
            return f"row {row:,}"
        return f"line {lines.line_num:,}"
