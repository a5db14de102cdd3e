"""What all data of your own have: a split, a fingerprint, a table for Ray Data."""

import os
import pickle

import numpy as np
import pandas
import pyarrow.parquet
import pytest

from labkit.datasets import from_folder, from_table, from_text
from labkit.errors import LabError

VALUES = np.random.default_rng(0).random(10_000)
TABLE = pandas.DataFrame({"size": VALUES, "price": VALUES + 0.5})


def test_rows_for_testing_are_no_others_than_those_for_training():
    """Also if the table was made with the random numbers of the same seed."""
    data = from_table(TABLE, target="price")
    (x, y), (x_test, y_test) = data.load("train"), data.load("test")
    assert len(y) + len(y_test) == 10_000 == len(data) and len(y_test) == pytest.approx(2000, abs=150)
    assert not set(x.ravel()) & set(x_test.ravel())
    assert [x.mean(), x_test.mean()] == pytest.approx([0.5, 0.5], abs=0.03)
    again = pickle.loads(pickle.dumps(from_table(TABLE, target="price")))
    assert np.array_equal(x_test, again.load("test")[0]) and again.fingerprint == data.fingerprint


def test_equal_data_have_equal_fingerprints():
    first = from_table(TABLE, target="price").fingerprint
    assert first == "0c8aa10cd97c"  # the same on every machine, and tomorrow
    others = [TABLE.assign(size=TABLE["size"].where(TABLE.index != 9999, 1)), TABLE[::-1], TABLE[:-1]]
    found = {from_table(other, target="price").fingerprint for other in others}
    found |= {from_table(TABLE, target="price", **how).fingerprint for how in ({"seed": 1}, {"test": 0.3})}
    found.add(from_table(TABLE.rename(columns={"size": "area"}), target="price").fingerprint)
    assert len(found | {first}) == 7


def test_a_split_as_a_file(tmp_path):
    data = from_table(TABLE, target="price")
    pyarrow.parquet.write_table(data.to_arrow("test"), tmp_path / "test.parquet")
    table, (x, y) = pyarrow.parquet.read_table(tmp_path / "test.parquet").combine_chunks(), data.load("test")
    assert np.array_equal(table["x"].chunk(0).to_numpy_ndarray(), x) and np.array_equal(table["y"], y)


def test_what_cannot_be_split():
    data = from_table(TABLE[:3], target="price", test=0)
    for split, fact in (("dev", "no split"), ("test", "none of its 3 rows")):
        with pytest.raises(LabError, match=fact):
            data.load(split)
    for options in ({"test": 1}, {"test": "x"}, {"test": True}, {"seed": -1}, {"seed": None}):
        with pytest.raises(LabError, match="test is|seed="):
            from_table(TABLE, target="price", **options)


FETCH = "import urllib.request; urllib.request.urlretrieve('https://a.org/b.csv', 'b.csv'), and pass 'b.csv'"
GET = "store.files.get('lab/photos/', 'photos', recursive=True), and pass 'photos'"
COPY = "copy it to this machine first, and"


@pytest.mark.parametrize(
    "address, of_file, of_folder",
    [
        ("s3://lab/photos/", GET, GET),
        ("https://a.org/b.csv", FETCH, f"{COPY} unpack it, and pass the folder"),
        ("https://a.org/b.csv?signature=abc", f"{COPY} pass its path", f"{COPY} unpack it"),
        ("hf://datasets/x/y.parquet", f"{COPY} pass its path", COPY),
        ("file:///nowhere/t.csv", "pass the path '/nowhere/t.csv'", "pass the path '/nowhere/t.csv'"),
        ("url,y\nhttps://a.org/1,2\n" * 400, "check the path", "one folder per class"),  # the table itself
    ],
)
def test_what_is_at_an_address_is_copied_first(address, of_file, of_folder):
    calls = (from_folder, {}), (from_table, {"target": "y"}), (from_text, {"length": 8})
    for load, options in calls:
        with pytest.raises(LabError) as caught:
            load(address, **options)
        assert (of_folder if load is from_folder else of_file) in caught.value.fix
        assert len(caught.value.fix) < 400 and "abc" not in caught.value.fix


def test_a_folder_that_is_none_or_an_entry_of_one(tmp_path):
    with pytest.raises(LabError, match="no such folder"):
        from_folder(None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="it has no folder"):
        from_folder(next(os.scandir(tmp_path)))
