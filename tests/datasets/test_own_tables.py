"""Tables of your own: what is read, what is refused, and that each fix works when it is pasted."""

import decimal
import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest

from labkit.datasets import from_table
from labkit.errors import LabError

N = 60
NUMBERS = np.random.default_rng(0)
FLATS = pandas.DataFrame({"size": NUMBERS.normal(size=N).round(3), "colour": ["red", "blue", "grün"] * 20})
FLATS["price"] = np.arange(N) + 0.5


def refused(source, **options) -> LabError:
    with pytest.raises(LabError) as caught:
        from_table(source, **{"target": "price", **options})
    return caught.value


def pasted(error: LabError, **options) -> dict:
    """The options that a fix names, as code."""
    first = error.fix.partition("\n")[0].removeprefix("leave it out: ")
    return {**options, **eval(f"dict({first})")}


def run_of(code: str, **names):
    return eval(code, {"pandas": pandas, **names})


def csv_of(folder: Path, text: str | bytes, name: str = "flats.csv") -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


# -- the same from everywhere ------------------------------------------------------------------------------

WRITERS = {
    "CSV": lambda path: FLATS.to_csv(path, index=False, sep=";"),
    "csv.gz": lambda path: FLATS.to_csv(path, index=False),
    "tsv": lambda path: FLATS.to_csv(path, index=False, sep="\t"),
    "parquet": FLATS.to_parquet,
    "utf8.csv": lambda path: path.write_bytes(b"\xef\xbb\xbf" + FLATS.to_csv(index=False).encode()),
    "utf16.csv": lambda path: path.write_bytes(FLATS.to_csv(index=False, sep="\t").encode("utf-16")),
    "excel.csv": lambda path: path.write_text("sep=;\n" + FLATS.to_csv(index=False, sep=";")),
    "mac.csv": lambda path: path.write_bytes(FLATS.to_csv(index=False, lineterminator="\r").encode()),
    "blank.csv": lambda path: path.write_text("\n\n" + FLATS.to_csv(index=False, sep=";")),
}


@pytest.mark.parametrize("kind", [*WRITERS, "arrow", "text", "two files", "a folder"])
def test_a_table_is_the_same_from_everywhere(tmp_path, kind):
    given = {"arrow": pyarrow.Table.from_pandas(FLATS), "text": FLATS.astype(str)}
    source = given.get(kind, tmp_path / f"flats.{kind}")
    if kind in WRITERS:
        WRITERS[kind](source)
    elif kind not in given:
        FLATS[:20].to_csv(tmp_path / "1.csv", index=False)
        FLATS[20:][["price", "colour", "size"]].to_parquet(tmp_path / "2.parquet")
        (tmp_path / "._1.csv").write_bytes(b"\0\5\x16\7\0\xb0")  # of a Mac
        (tmp_path / "_SUCCESS").write_text("")  # of Spark
        source = tmp_path if kind == "a folder" else sorted(tmp_path.glob("*.*"))
    own = from_table(source, target="price", categories=["colour"])
    assert own.columns == ("size", "colour=blue", "colour=grün", "colour=red")
    assert own.x.dtype == own.y.dtype == np.float32 and own.task == "regression"
    np.testing.assert_array_equal(own.x[:, 0], FLATS["size"].to_numpy(np.float32))
    np.testing.assert_array_equal(own.x[:, 3] == 1, FLATS["colour"] == "red")
    assert own.fingerprint == from_table(FLATS, target="price", categories=["colour"]).fingerprint


def test_types_and_names_of_columns():
    frame = pandas.DataFrame(
        {
            "decimal": [decimal.Decimal(i) / 4 for i in range(N)],
            "nullable": pandas.array(range(N), dtype="Int64"),
            "arrow": pandas.array(range(N), dtype="int64[pyarrow]"),
            "sparse": pandas.arrays.SparseArray(np.r_[np.zeros(N - 1), 1.0]),
            "text": [" 1.", ".5", "+1e5"] * 20,
            "category": pandas.Categorical(["a", "b", "c"] * 20),
            "flag": [True, False] * 30,
            0: np.arange(N, dtype=np.uint8),
            1: "dropped",
            2: np.arange(N) + 0.5,
        }
    )
    own = from_table(frame, target=2, categories=["category", "flag"], drop=1)
    assert own.columns == (
        *("decimal", "nullable", "arrow", "sparse", "text", "category=a", "category=b", "category=c"),
        *("flag=False", "flag=True", "0"),
    )
    assert own.x[5].tolist() == [1.25, 5, 5, 0, 1e5, 0, 0, 1, 1, 0, 5]
    assert own._repr_html_().count("<tr") == 9  # a head and eight rows


@pytest.mark.parametrize("text", ["NA", "None", "nan", "", " "])
def test_a_text_that_pandas_takes_for_missing_is_a_value(tmp_path, text):
    path = csv_of(tmp_path, "country,size,risk\n" + f"DE,1.5,2.5\n{text},2.5,1.5\n" * 20)
    error = refused(path, target="risk")
    assert f"'country' has 'DE', {text!r}" in error.fact
    own = from_table(path, **pasted(error, target="risk"))
    assert set(own.columns) == {"country=DE", f"country={text}", "size"}


def test_a_label_that_is_whole_in_one_file_and_a_float_in_the_other(tmp_path):
    one = pandas.DataFrame({"size": [0.5, 1.5] * 5, "shop": [1, 2] * 5, "label": [10, 9] * 5})
    for part, frame in {"a": one, "b": one.astype({"shop": float, "label": float})}.items():
        frame.to_csv(tmp_path / f"{part}.csv", index=False)
        frame.to_parquet(tmp_path / f"{part}.parquet")
    own = from_table(tmp_path, target="label", task="classification", categories="shop")
    assert own.classes == ("9", "10") and own.columns == ("size", "shop=1", "shop=2")
    assert own.y.tolist() == [1, 0] * 20


def test_the_order_of_classes_does_not_depend_on_the_hash_seed():
    code = "import pandas; from labkit.datasets import from_table; f = pandas.DataFrame({'x': range(8), "
    code += "'y': list('hgfedcba')}); own = from_table(f, target='y'); print(own.classes, own.fingerprint)"
    said = set()
    for seed in ("0", "1"):
        variables = {"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", code]
        said.add(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 1 and "('a', 'b', 'c'" in said.pop()


# -- what is refused, by its columns -----------------------------------------------------------------------

ODD = {  # cells of a column that is no numbers; they are repeated
    "money": ["$11,593.50", "€5", "£1.2m"],
    "thousands": ["1,234,567", "950"],
    "French": ["1\u202f234,5", "3"],
    "Swiss": ["1'234.50", "2"],
    "Python's": ["1_000", "2"],
    "percent": ["12%", "5%"],
    "dates": ["2024-03-30", "2024-03-31"],
    "moments": ["2024-03-30T10:00:00Z", "2024-03-31T10:00:00+02:00"],
    "dates without signs": [20240101 + i for i in range(N)],
    "leading zeros": ["01067", "10115"],
    "one NA": ["1.5"] * (N - 1) + ["NA"],
    "one empty": [1.5] * (N - 1) + [None],
    "infinite": [1.5] * (N - 1) + [float("inf")],
    "flags": [True, False],
    "names": ["Ann", "Bob"],
    "flats": [f"flat {i}" for i in range(N)],
    "lists": [np.arange(3.0), np.arange(2.0)],
    "dicts": [{"a": 1}, {}],
    "ids": [10**17 + i for i in range(N)],
    "milliseconds": [1630175280000 + 60_000 * i for i in range(N)],
    "seconds": [1.7e9 + i / 7 for i in range(N)],
    "too large": [1e39, 2e39],
    "too small": [i * 1e-50 for i in range(N)],
    "Unnamed: 0": list(range(N)),
    "": list(range(N)),
    "__index_level_0__": list(range(N)),
}
ODD = {name: (cells * N)[:N] for name, cells in ODD.items()}
WORDS = ("flags", "names")


@pytest.mark.parametrize("name", ODD)
def test_a_column_that_is_neither_numbers_nor_named_is_refused_and_the_fix_works(name, tmp_path):
    frame = FLATS[["size", "price"]].assign(**{name: ODD[name]})
    error = refused(frame)
    assert f"1 column is neither numbers nor named:\n    {name!r} has " in error.fact
    options = pasted(error, target="price")
    assert options == {"target": "price", "categories" if name in WORDS else "drop": [name]}
    assert name in WORDS or from_table(frame, **options).columns == ("size",)
    if name not in ("lists", "dicts"):
        frame.to_csv(tmp_path / "flats.csv", index=False)
        error = refused(tmp_path / "flats.csv")
        assert f"{name or 'Unnamed: 2'!r} has " in error.fact
        from_table(tmp_path / "flats.csv", **pasted(error, target="price"))
    if name[:1] in "_U" or name == "one empty":
        return
    if name in WORDS:  # as the target
        assert from_table(frame, target=name).task == "classification"
        return
    error = refused(frame, target=name)
    assert "docs/data.md, Make numbers" in error.fix
    if "pass task='classification'" in error.fix:
        from_table(frame, target=name, task="classification")


@pytest.mark.parametrize("empty", [None, ""])
def test_a_column_with_a_few_empty_cells_can_be_kept(empty):
    frame = FLATS[["size", "price"]].assign(rooms=[empty, *range(N - 1)])
    call = re.search(r"(table\.replace\(.*\)\.dropna\(.*?\))\)", refused(frame).fix)[1]
    data = from_table(eval(call, {"table": frame}), target="price")
    assert data.columns == ("size", "rooms") and len(data.x) == N - 1
    half = frame.assign(rooms=[None, 1] * (N // 2))
    assert "dropna" not in refused(half).fix


def test_an_index_with_a_name_is_a_column_as_in_a_csv_file(tmp_path):
    frame = FLATS.set_index("colour")
    frame.to_parquet(tmp_path / "flats.parquet")
    for source in (frame, pyarrow.Table.from_pandas(frame), tmp_path / "flats.parquet"):
        assert len(from_table(source, target="price", categories="colour").columns) == 4


@pytest.mark.parametrize("header", ['"Area, m2";"Rent, EUR"', '"Area\nm2";"Rent, EUR"'])
def test_separators_in_the_names_of_a_header(tmp_path, header):
    path = csv_of(tmp_path, f"{header}\n" + "".join(f"{n};{n}.5\n" for n in range(9)))
    assert from_table(path, target="Rent, EUR").columns[0].startswith("Area")


def test_names_that_look_like_numbers():
    ids = FLATS.assign(id=[f"1e99999999999999999999{n}" for n in range(N)])
    assert len(from_table(ids, target="price", categories=["colour", "id"]).columns) == 1 + 3 + N
    for pair in (["0", "0.00"], ["0", "00"], ["01", "1"]):
        assert (
            "differ only in their spelling"
            in refused(FLATS.assign(c=pair * 30), categories=["c", "colour"]).fact
        )
    codes = FLATS[["size", "price"]].assign(code=[1067, "01067"] * 30)  # as Excel has them
    table = codes.copy()
    exec(refused(codes, categories=["code"]).fix.removeprefix("in a DataFrame: "), {"table": table})
    assert from_table(table, target="price", categories=["code"]).columns == ("size", "code=01067")


def test_a_target_in_two_spellings_names_the_way_to_one():
    table = FLATS[["size"]].assign(paid=["yes", "Yes", "no"] * 20)
    fix = refused(table, target="paid").fix
    exec(re.search(r"in a DataFrame: (.*); else", fix)[1], {"table": table})
    assert from_table(table, target="paid").classes == ("Yes", "no")


def test_columns_whose_names_are_numbers():
    table = pandas.DataFrame({0: [1.5, 2.5] * 30, 1: [None, *range(1, N)]})
    code = refused(table, target="1").fix.removeprefix("in a DataFrame, leave these rows out: ")
    exec(code, {"table": table}, names := {"table": table})
    assert len(from_table(names["table"], target="1", task="regression")) == N - 1


def test_an_error_about_many_columns_is_short_and_its_line_is_whole():
    days = {f"day{n}": "2024-01-01" for n in range(300)}
    error = refused(FLATS.assign(**days))
    assert len(str(error).splitlines()) < 40 and len(pasted(error)["drop"]) == 300


def test_what_pandas_does_not_read_of_an_arrow_table():
    time = pyarrow.array([1] * N, pyarrow.time64("ns"))
    table = pyarrow.Table.from_pandas(FLATS).append_column("at", time)
    assert "source.drop_columns" in refused(table).fix


def test_a_file_that_is_named_is_read_whatever_its_name(tmp_path):
    for name in (".data.csv", "$prices.csv", "@home.csv"):
        path = csv_of(tmp_path, FLATS.to_csv(index=False), name)
        assert len(from_table(path, target="price", categories="colour")) == N


def test_other_files_and_folders_are_read_by_the_line_of_the_fix(tmp_path):
    import pyarrow.dataset

    for name, write in (
        ("a.json", FLATS.to_json),
        ("a.jsonl", lambda path: FLATS.to_json(path, orient="records", lines=True)),
        ("a.feather", FLATS.to_feather),
        ("a.pq", FLATS.to_parquet),
    ):
        write(tmp_path / name)
        code = refused(tmp_path / name).fix.rpartition("pass ")[2]
        assert len(from_table(run_of(code), target="price", categories="colour")) == N
    (part := tmp_path / "parts" / "year=2023").mkdir(parents=True)
    csv_of(part, FLATS.to_csv(index=False))
    code = refused(tmp_path / "parts").fix.removeprefix("pass ")
    own = from_table(run_of(code, pyarrow=pyarrow), target="price", categories="colour")
    assert "year" in own.columns


def test_a_file_in_utf_16_without_a_mark(tmp_path):
    path = csv_of(tmp_path, FLATS[["size", "price"]].to_csv(index=False).encode("utf-16-le"))
    code = refused(path).fix.rpartition("pass ")[2]
    assert from_table(run_of(code), target="price").columns == ("size",)


def test_all_columns_are_in_one_error_and_one_line_is_enough():
    frame = FLATS.assign(day="2024-01-01", id=range(10**9, 10**9 + N))
    error = refused(frame, drop="size")
    assert error.fact.startswith("3 columns are neither numbers nor named:")
    assert pasted(error) == {"categories": ["colour"], "drop": ["size", "day", "id"]}
    from_table(frame, **pasted(error, target="price"))
    # drop= would leave nothing to predict from
    days = pandas.DataFrame({"day": pandas.date_range("2024", periods=300).strftime("%Y/%m/%d")})
    days["price"] = np.arange(300) + 0.5
    assert len(from_table(days, **pasted(refused(days), target="price")).columns) == 300


def test_numbers_that_float32_keeps_are_used():
    good = {
        "years": np.arange(N) + 1964,
        "small": NUMBERS.normal(size=N) * 1e-9,
        "places": 52.52 + NUMBERS.normal(size=N) / 100,
        "constant": 0.1,
        "avogadro": 6.022e23,
    }
    assert from_table(FLATS[["price"]].assign(**good), target="price").columns == tuple(good)
    assert "a 32-bit float would round" in refused(FLATS[["price"]].assign(**good, large=1e39)).fact


def test_a_category_has_names():
    for cells, said in ((ODD["lists"], "cells of type ndarray"), (range(1001), "1,001 different values")):
        frame = pandas.DataFrame({"size": np.arange(len(cells)) / 2, "odd": cells})
        frame["price"] = frame["size"] + 1
        error = refused(frame, categories=["odd"])
        assert said in error.fact
        assert from_table(frame, **pasted(error, target="price")).columns == ("size",)


@pytest.mark.parametrize(
    "values", [("red", "red "), ("red", "Red"), ("K\u00e4se", "Ka\u0308se"), ("1.1", "1.10"), ("01", "1")]
)
def test_two_spellings_are_not_two_names(values):
    table = FLATS[["size", "price"]].assign(kind=[*values, "blue"] * 20)
    for options in ({"categories": ["kind"]}, {"target": "kind", "task": "classification"}):
        error = refused(table, **options)
        assert "differ only in their spelling" in error.fact
        fixed = {"table": table.copy()}
        exec(error.fix.removeprefix("in a DataFrame: "), fixed)
        own = from_table(fixed["table"], **{"target": "price", **options})
        assert len(own.classes) == 2 or sum(column.startswith("kind") for column in own.columns) == 2


# -- the target and the other columns ----------------------------------------------------------------------


def test_what_the_target_is():
    rooms = FLATS[["size"]].assign(rooms=np.arange(N) % 12, price=FLATS["price"], name="x")
    assert "classes, or amounts?" in refused(rooms, target="rooms", drop="name").fact
    classes = from_table(rooms, target="rooms", drop="name", task="classification")
    assert classes.classes == tuple(map(str, range(12))) and classes.y.tolist() == rooms["rooms"].tolist()
    assert from_table(rooms, target="rooms", drop="name", task="regression").y.dtype == np.float32
    assert "use rows of several classes" in refused(rooms, target="name").fix
    assert "the task is 'cluster'" in refused(rooms, task="cluster").fact


@pytest.mark.parametrize("missing", [None, ""])
def test_rows_without_a_target_are_left_out(missing):
    table = FLATS.astype(object)
    table.loc[[3, 7], "price"] = missing
    error = refused(table, categories="colour")
    assert "'price' is empty in 2 of 60 rows" in error.fact
    fixed = {"table": table}
    exec(error.fix.partition(": ")[2], fixed)
    assert len(from_table(fixed["table"], target="price", categories="colour")) == N - 2


def test_columns_that_are_not_there():
    for options in ({"target": "rent"}, {"drop": ["colours"]}, {"categories": "room"}, {"target": None}):
        error = refused(FLATS, **options)
        assert "it has no column" in error.fact and "['size', 'colour', 'price']" in error.fix
    for drop in (["price"], ["size", "colour"]):
        assert "nothing to predict" in refused(FLATS, drop=drop).fact
    assert "nothing to predict" in refused(FLATS[["price"]]).fact
    twins = pandas.DataFrame(np.arange(9).reshape(3, 3) / 2, columns=["a", "a", "price"])
    fixed = run_of(refused(twins).fix.partition(": ")[2], table=twins)
    assert from_table(fixed, target="price", task="regression").columns == ("a",)


# -- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda row: [*row, ""], "SEP, index_col=False)"),  # at each line's end
        (lambda row: [*row, "0.75", "0.5"], "SEP, index_col=False)"),
        (lambda row: ["a" + row[0], *row], "SEP)"),  # R: the first is the name of the row
        (lambda row: row + ["7"] * row[0].startswith("60"), "SEP, on_bad_lines='skip')"),
        (lambda row: row[: 3 - row[0].startswith("60")], "SEP).dropna(subset=['price'])"),
    ],
)
@pytest.mark.filterwarnings("ignore::pandas.errors.ParserWarning")
def test_a_row_with_another_number_of_fields(tmp_path, change, code, separator):
    rows = [[f"{50 + i}.5", f"{i % 4 + 1}", f"{900 + i}.5"] for i in range(30)]
    lines = [["area", "rooms", "price"], *map(change, rows)]
    path = csv_of(tmp_path, "\n".join(map(separator.join, lines)))
    error = refused(path)
    assert "fields, and the header has 3" in error.fact
    code = f"pandas.read_csv({str(path)!r}, sep={separator!r}" + code.removeprefix("SEP")
    assert code in error.fix
    own = from_table(run_of(code), target="price", test=0)
    assert own.columns == ("area", "rooms") and own.x[0].tolist() == [50.5, 1]
    error = refused(csv_of(tmp_path, "area,rooms,price\n1,2,3.5\n\n4,5.5\n"))
    assert "line 4 of " in error.fact and "has 2 fields, and the header has 3: ['4', '5.5']" in error.fact


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.csv", "größe;price\n1.5;2.5\n2.5;1.5\n".encode("latin-1"), "can't decode byte 0xf6"),
        ("no-mark.csv", "größe,price\n1.5,2.5\n2.5,1.5\n".encode("utf-16-le"), "can't decode byte 0xf6"),
        ("flats.txt", b"size\tprice\n1.5\t2.5\n2.5\t1.5\n", "doesn't end with .csv"),
    ],
)
def test_what_pandas_reads_is_said_as_code(tmp_path, name, content, said):
    error = refused(csv_of(tmp_path, content, name))
    assert said in error.fact
    assert len(from_table(run_of(re.search(r"pandas\.read_csv\(.*?\)", error.fix)[0]), target="price")) == 2


def test_a_partitioned_folder(tmp_path):
    FLATS.to_parquet(tmp_path / "parts", partition_cols=["colour"])
    error = refused(tmp_path / "parts")
    assert "partitioned" in error.fact
    own = from_table(run_of(error.fix.removeprefix("pass ")), target="price", categories="colour")
    assert "colour=grün" in own.columns


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "has no rows"),
        ("header.csv", b"\xef\xbb\xbfsize,price\n", "has no rows"),
        ("open.csv", b'size,price\n1.5,"2.5\n2.5,1.5', "'2.5\\n2.5,1.5'"),
        ("html.csv", b"<!DOCTYPE html>\n<html><body>Please log in</body></html>\n", "no column 'price'"),
        ("bad.csv.gz", gzip.compress(b"size,price\n1.5,2.5\n" * 99)[:40], "can't be read"),
        ("bad.parquet", b"PAR1 and then nothing", "can't be read"),
        ("README.md", b"read me", "README.md doesn't end with"),
        ("none/b.csv", None, "no file or folder"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, said):
    path = tmp_path / name if content is None else csv_of(tmp_path, content, name)
    assert said in str(refused(path))


def test_sources_that_are_none(tmp_path):
    assert "is of type Series" in refused(FLATS["price"]).fact
    FLATS.to_csv(tmp_path / "a.csv", index=False)
    FLATS.drop(columns="size").to_csv(tmp_path / "b.csv", index=False)
    assert "b.csv has no column 'size', and another file has one" in refused(tmp_path).fact
