"""The files that a reader names, and the tables in them, every cell as text."""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError

if TYPE_CHECKING:
    import pandas

Table = dict[str, list]  # the cells of each column

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
# What systems and programs leave in folders: a Mac, Windows, Synology, QNAP, Office, Spark.
_SYSTEM = re.compile(
    r"\..*|~\$.*|@\w.*|\$[a-z].*|#(recycle|snapshot)|(eh)?thumbs.*\.db|desktop\.ini|icon\r|lost\+found"
    r"|system volume information|recycler|__macosx|network trash folder|_success|_(common_)?metadata",
    re.IGNORECASE,
)


def is_system(name: str) -> bool:
    """Whether a file or folder of this name belongs to a system, and not to the data."""
    return _SYSTEM.fullmatch(name) is not None


def visible(folder: Path, attempt: str, above: tuple[Path, ...] = ()) -> list[Path]:
    """All files below a folder, in order, without those of a system. Links are followed.

    Raises:
        LabError: a folder can't be read, or a link leads nowhere or back into a folder that it is in.
    """
    here, found = folder.resolve(), []
    if here in above:
        raise LabError(attempt, f"{folder} is a link to a folder that it is in", "remove the link")
    try:
        inside = sorted(one for one in folder.iterdir() if not is_system(one.name))
    except OSError as error:
        raise LabError(attempt, f"{folder}: {error.strerror}", "use a folder that you can read") from None
    for one in inside:
        if one.is_dir():
            found += visible(one, attempt, (*above, here))
        elif one.is_file():
            found.append(one)
        else:
            raise LabError(attempt, f"{one} is a link to nothing, or no file at all", "remove it")
    return found


def files_of(source: Any, suffixes: Sequence[str], attempt: str) -> tuple[str, list[Path]]:
    """The name of the first file or folder, and all files.

    Raises:
        LabError: a file is missing or has another suffix, or the source is of another type.
    """
    given = source if isinstance(source, (list, tuple)) else [source]
    if not given or not all(isinstance(one, (str, Path)) for one in given):
        fix = "pass a file, a folder, a list of files or, for a table, a pandas.DataFrame"
        fix = "pass source.to_pandas()" if hasattr(source, "to_pandas") else fix
        raise LabError(attempt, f"the source is of type {type(source).__name__}", fix)
    files: list[Path] = []
    for path in (Path(one).expanduser() for one in given):
        if not path.exists():
            raise LabError(attempt, f"there is no file or folder {path}", "check the path")
        below = visible(path, attempt) if path.is_dir() else [path]
        if any("=" in part for file in below for part in file.relative_to(path).parts[:-1]):
            fact = f"{path} is partitioned: the names of its folders are values"
            raise LabError(attempt, fact, f"pass pandas.read_parquet({str(path)!r})")
        files += [file for file in below if not file.name.startswith("._")]  # a Mac's notes on a file
    for file in files:
        if not file.name.lower().endswith(tuple(suffixes)):
            fact = f"the name of {file} doesn't end with {' or '.join(suffixes)}"
            fix = f"move it out of the folder; or, if it is a table, pass pandas.read_csv({str(file)!r})"
            raise LabError(attempt, fact, fix)
    if not files:
        raise LabError(attempt, f"there is no file in {given[0]}", f"add one that ends with {suffixes[0]}")
    first = Path(given[0]).expanduser().resolve()
    return first.name if first.is_dir() else Path(first.name.removesuffix(".gz")).stem, files


def text_of(file: Path, attempt: str) -> str:
    """The text of a file, packed or not: UTF-8, or UTF-16 with a byte order mark.

    Raises:
        LabError: it can't be read, or has another encoding.
    """
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix.lower() == ".gz" else content
        utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fact = f"{file} isn't UTF-8: there is a byte 0x{content[error.start]:02x} in line {line:,}"
        table = f", or pass pandas.read_csv({str(file)!r}, encoding='latin-1')"
        fix = f"save it as UTF-8{table if file.name.lower().endswith(TABLES) else ', or remove it'}"
        raise LabError(attempt, fact, fix) from None
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(attempt, f"{file} can't be read: {error}", "repair it, or leave it out") from None


def read_table(source: Any, attempt: str) -> tuple[str, Table]:
    """The name and the columns of a DataFrame, an Arrow table or files with the same columns.

    Each cell is a text, so that a table is the same from everywhere. An empty one is "". Only a list, a dict,
    bytes and the like stay what they are.

    Raises:
        LabError: a file can't be read, a row has another number of fields than the header, a name occurs
            twice, or there is no row.
    """
    import pandas
    import pyarrow

    if isinstance(source, (pandas.DataFrame, pyarrow.Table)):
        name, table = "table", _columns(source, "the table", attempt)
    else:
        (name, files), table = files_of(source, TABLES, attempt), {}
        for file in files:
            parquet = file.suffix.lower() == ".parquet"
            part = (_read_parquet if parquet else _read_csv)(file, attempt)
            if table and part.keys() != table.keys():
                fact = f"{file} has the columns {', '.join(part)}, and {files[0]} has {', '.join(table)}"
                raise LabError(attempt, fact[:500], "give all files the same columns")
            for column, cells in part.items():
                table.setdefault(column, []).extend(cells)
    if not table or not next(iter(table.values())):
        raise LabError(attempt, "it has no rows", "check the file")
    return name, table


def _read_csv(file: Path, attempt: str) -> Table:
    text = text_of(file, attempt)
    marked = re.match("sep=(.)\r?\n", text)  # Excel's first line
    first = text.partition("\n")[0]
    separators = "\t" if ".tsv" in file.name.lower() else ",;\t|"
    separator = marked[1] if marked else next((one for one in separators if one in first), ",")
    stream = io.StringIO(text[marked.end() if marked else 0 :], newline="")
    lines, rows, limit = csv.reader(stream, delimiter=separator), [], csv.field_size_limit(2**31 - 1)
    try:
        header = next((line for line in lines if line), [])
        for row in lines:
            if row and len(row) != len(header):
                number = f"line {lines.line_num:,} of {file}"
                fact = f"{number} has {len(row)} fields, and the header has {len(header)}: {row!r:.200}"
                raise LabError(attempt, fact, _fix_of_fields(file, len(row) - len(header), not rows))
            rows += [row] if row else []
    except csv.Error as error:
        fact = f"{file} can't be read: {error} in line {lines.line_num:,}"
        raise LabError(attempt, fact, "repair that line") from None
    finally:
        csv.field_size_limit(limit)
    names = [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(header)]
    _refuse_twins(names, file, f"pass pandas.read_csv({str(file)!r}), which renames the second one", attempt)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {}


def _fix_of_fields(file: Path, more: int, at_once: bool) -> str:
    read = f"pandas.read_csv({str(file)!r}"
    if more < 0:
        return "repair that line, or remove it"
    if not at_once:
        return f"repair that line, or leave it out: {read}, on_bad_lines='skip')"
    fix = "name all fields in the header; or, if you don't need those at the end of each line, pass "
    return f"{fix}{read}, index_col=False); or, if each line begins with the name of a row, {read})"


def _read_parquet(file: Path, attempt: str) -> Table:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file).read()
        return _columns(table, file, attempt)
    except LabError:
        raise
    except Exception as error:  # a damaged description for pandas can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LabError(attempt, f"{file} can't be read: {reason}", "repair it, or leave it out") from None


def _columns(table: Any, where: object, attempt: str) -> Table:
    import pandas

    frame = table if isinstance(table, pandas.DataFrame) else table.to_pandas(integer_object_nulls=True)
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, where, "keep the first: table.loc[:, ~table.columns.duplicated()]", attempt)
    return {name: _cells(frame.iloc[:, place]) for place, name in enumerate(names)}


def _cells(column: "pandas.Series") -> list:
    import pandas

    def cell(value: Any) -> Any:
        return str(value) if pandas.api.types.is_scalar(value) and not isinstance(value, bytes) else value

    values = column.to_numpy(object)
    return ["" if empty else cell(one) for one, empty in zip(values, pandas.isna(values), strict=True)]


def _refuse_twins(names: list[str], where: object, fix: str, attempt: str) -> None:
    if twins := [name for name in names if names.count(name) > 1]:
        raise LabError(attempt, f"{where} has two columns {twins[0]!r}", f"rename one, or {fix}")
