"""Data of your own: rows of ``x`` and ``y`` in memory with their split, and the files that they come from."""

import functools
import gzip
import html
import numbers
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.images import column, fingerprint
from labkit.display.figures import gallery
from labkit.errors import LabError, expect_int

if TYPE_CHECKING:
    import pyarrow

_READERS = {
    "excel": (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods"), "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".pq", ".parq"), "feather": (".feather", ".arrow"), "orc": (".orc",), "stata": (".dta",),
}  # fmt: skip
_SHOWN = 8  # rows in the display
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # its byte order marks
# What systems and programs leave in folders: a Mac, Windows, Synology, QNAP, Office, Spark.
_SYSTEM = re.compile(
    r"\..*|~\$.*|@\w.*|\$[a-z].*|#(recycle|snapshot)|(eh)?thumbs.*\.db|desktop\.ini|icon\r|lost\+found"
    r"|system volume information|recycler|__macosx|network trash folder|_success|_(common_)?metadata",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OwnData:
    """Rows of one kind, and their split into training and test rows.

    Attributes:
        name: of the folder or file.
        kind: what a row of ``x`` is: "images" uint8 [height, width] or [height, width, 3], "numbers" float32
            [columns], "tokens" int64 [length].
        task: "classification" (``y`` is int64, an index into `classes`), "regression" (``y`` is float32) or
            "language" (``y`` is int64 [length]: for each token of ``x``, the one that follows).
        columns: the names of "numbers"; a category has one per value, "colour=red".
        vocabulary: every one of "tokens" is smaller than this number.
        test: the probability with which a row is for testing, below 1. `seed` decides which rows these are,
            so every run has the same split.
        text: of "tokens", returns the text of a row of ``x``.
    """

    name: str
    kind: str
    task: str
    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    vocabulary: int = 0
    test: float
    seed: int
    text: Callable[[np.ndarray], str] = str

    def __post_init__(self) -> None:
        check_split(self.test, self.seed)

    def __len__(self) -> int:
        return len(self.y)

    @functools.cached_property
    def fingerprint(self) -> str:
        """12 digits of a hash of all rows, columns, classes and the split: equal for equal data."""
        given = (self.kind, self.task, self.columns, self.classes, self.vocabulary, self.x.shape)
        return fingerprint(repr((*given, float(self.test), int(self.seed))), self.x, self.y)

    def load(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of "train" or "test" as arrays ``x`` and ``y``; a `LabError` if there are none."""
        attempt = f"load the split {split!r} of {self.name}"
        if split not in ("train", "test"):
            raise LabError(attempt, "there is no split of this name", "use 'train' or 'test'")
        # Not seed alone: if you made the data with default_rng(seed), values would decide where a row goes.
        chosen = np.random.default_rng([self.seed, *b"split"]).random(len(self)) < self.test
        rows = np.flatnonzero(chosen == (split == "test"))
        if not len(rows):
            fact = f"none of its {len(self):,} rows is in it"
            raise LabError(attempt, fact, "use more rows, or another test= or seed=")
        return self.x[rows], self.y[rows]

    def to_arrow(self, split: str) -> "pyarrow.Table":
        """The rows of a split as a table with the columns x and y, for files or ``ray.data.from_arrow``."""
        import pyarrow

        x, y = map(column, self.load(split))
        return pyarrow.table({"x": x, "y": y})

    def __repr__(self) -> str:
        what = {
            "images": "images of " + "×".join(map(str, self.x.shape[1:])),
            "numbers": f"rows of {len(self.columns)} numbers",
            "tokens": f"rows of {self.x.shape[1]} tokens out of {self.vocabulary:,}",
        }[self.kind]
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"<{self.name}: {len(self):,} {what}, {self.task}{classes}>"

    def _repr_html_(self) -> str:
        import pandas

        x, y = self.x[:_SHOWN], self.y[:_SHOWN].tolist()
        titles = [self.classes[label] for label in y] if self.classes else y
        if self.kind == "images":
            sample = gallery(x, titles)
        else:
            rows = pandas.DataFrame(x, columns=self.columns or None)
            if self.kind == "tokens":
                rows = pandas.DataFrame({"text": map(self.text, x), "tokens": x.tolist()})
            rows.insert(rows.shape[1], "y", titles, allow_duplicates=True)  # a column may be "y"
            sample = rows.to_html(index=False)
        return f"<div>{html.escape(repr(self)[1:-1])}</div>{sample}"


def check_split(test: object, seed: object) -> None:
    """Raise a `LabError` unless `test` is a share below 1 and `seed` a whole number from 0 on."""
    attempt = "split rows into training and test rows"
    if isinstance(test, bool) or not isinstance(test, numbers.Real) or not 0 <= test < 1:
        raise LabError(attempt, f"test is {test!r}", "pass the share of the rows for testing: test=0.2")
    expect_int(attempt, "seed", seed, least=0)


# -- files -------------------------------------------------------------------------------------------------


def visible(folder: Path, attempt: str) -> list[Path]:
    """What is directly in a folder, in order, without what systems and programs leave there."""
    try:
        return sorted(one for one in folder.iterdir() if not _SYSTEM.fullmatch(one.name))
    except OSError as error:
        fact = f"{folder} can't be read: {error}"
        raise LabError(attempt, fact, "make it readable, or remove it") from None


def files_below(folder: Path, attempt: str, above: tuple[Path, ...] = ()) -> list[Path]:
    """All visible files below a folder, in order. Links are followed."""
    found, above = [], (*above, folder.resolve())
    for one in visible(folder, attempt):
        if not (one.is_dir() or one.is_file()) or one.resolve() in above:
            fact = f"{one} is no file, or a link to nothing or to a folder that it is in"
            raise LabError(attempt, fact, "remove it")
        found += files_below(one, attempt, above) if one.is_dir() else [one]
    return found


def files_of(source: Any, suffixes: tuple[str, ...], attempt: str) -> tuple[str, list[Path]]:
    """The name of the first file or folder, and all files, whose names end with one of `suffixes`."""
    given, files = source if isinstance(source, (list, tuple)) else [source], []
    if not given or not all(isinstance(one, (str, Path)) for one in given):
        fix = "pass a file, a folder, a list of files or a pandas.DataFrame, such as source.to_pandas()"
        raise LabError(attempt, f"the source is of type {type(source).__name__}", fix)
    for one in given:
        path = Path(os.path.expanduser(one))
        if not os.path.exists(path):  # False for a text that is too long for a path
            fact = f"there is no file or folder {str(one)[:200]}"
            raise LabError(attempt, fact, copied_first(one) or "check the path")
        below = files_below(path, attempt) if path.is_dir() else [path]
        if inner := [file for file in below if "=" in str(file.relative_to(path).parent)]:
            fact = f"{path} is partitioned: the names of its folders are values"
            code = f"pyarrow.dataset.dataset({str(path)!r}, format='csv', partitioning='hive').to_table()"
            end = inner[0].suffix.lower()
            fixes = {".parquet": f"pass pandas.read_parquet({str(path)!r})", ".csv": f"pass {code}"}
            raise LabError(attempt, fact, fixes.get(end, f"rename {inner[0].parent}, without ="))
        given_alone = len(given) == 1 and below == [path]
        files += [file for file in below if given_alone or not _SYSTEM.fullmatch(file.name)]
    if not files:
        raise LabError(attempt, f"there is no file in {given[0]}", f"add one that ends with {suffixes[0]}")
    if wrong := [file for file in files if not file.name.lower().endswith(suffixes)]:
        fact = f"the name of {wrong[0]} doesn't end with {' or '.join(suffixes)}"
        fix = f"move it elsewhere; or, if it is a table, pass {_pandas_code(wrong[0])}"
        raise LabError(attempt, fact, fix)
    first = Path(os.path.expanduser(given[0])).resolve()
    return first.name if first.is_dir() else Path(first.name.removesuffix(".gz")).stem, files


def copied_first(source: object, then: str = "") -> str:
    """How to bring what is at an address to this machine, and `then`; "" if `source` is no address."""
    found = re.fullmatch(r"(\w+)://([^\s?#]{1,500})(\S{0,500})", str(source)[:2000])
    if not found:
        return ""
    scheme, rest, more = found.groups()
    name = rest.rstrip("/").rpartition("/")[2]
    if scheme == "file":
        return f"pass the path {rest!r}"
    if scheme in ("s3", "s3a"):
        fix = f"copy it first: store.files.get({rest!r}, {name!r}, recursive=True), and pass {name!r}; "
        return f"{fix}store is what storage.start() or storage.connect(…) returns"
    if scheme in ("http", "https") and not (then or more):
        code = f"import urllib.request; urllib.request.urlretrieve({str(source)!r}, {name!r})"
        return f"copy it first: {code}, and pass {name!r}"
    return f"copy it to this machine first, and {then or 'pass its path'}"


def _pandas_code(file: Path, encoding: str = "utf-8") -> str:
    """The call that reads a table which the lab doesn't read, for the fix of an error."""
    end = file.suffix.lower()
    if kind := next((call for call, ends in _READERS.items() if end in ends), None):
        return f"pandas.read_{kind}({str(file)!r}{', lines=True' * (end in ('.jsonl', '.ndjson'))})"
    return f"pandas.read_csv({str(file)!r}, encoding={encoding!r}, sep=None, engine='python')"


def text_of(file: Path, attempt: str) -> str:
    """The text of a file, packed or not: UTF-8, or UTF-16 with a byte order mark."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix.lower() == ".gz" else content
        text = content.decode("utf-16" if content[:2] in UTF16 else "utf-8-sig")
        if "\0" in text[:4]:
            raise UnicodeDecodeError("utf-8", content[:4], 0, 4, "NUL bytes, as in UTF-16 without a mark")
        return text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        fix = "repair it, or leave it out"
        if isinstance(error, UnicodeDecodeError):
            fix = "save it as UTF-8, or leave it out; if it is a table in another encoding, pass "
            encodings = {0: "utf-16-be", 1: "utf-16-le"}  # without a mark
            fix += _pandas_code(file, encodings.get(content[:2].find(0), "latin-1"))
        raise LabError(attempt, f"{file} can't be read: {error}", fix) from None
