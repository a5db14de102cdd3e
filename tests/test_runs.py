"""Past runs: the table and the figure say what the records say."""

import math
import subprocess
import sys

import pytest

from labkit import runs
from labkit.errors import RunError
from labkit.records import RunRecord


def write(home, minute, **fields):
    record = RunRecord(
        **{
            "name": "03-torch",
            "run_id": f"run-{minute}",
            "engine": "Ray Train",
            "state": "finished",
            "started_at": f"2026-01-31T12:{minute:02}:00+00:00",
            **fields,
        }
    )
    record.write(home / "runs" / record.name / record.run_id)


@pytest.fixture
def home(tmp_path):
    write(
        tmp_path,
        0,
        name="00-baseline",
        engine="one process",
        dataset="digits",
        rows=1437,
        seconds_total=3.25,
        seconds_to_start=0.5,
        seconds_per_epoch=[0.9, 0.8, 0.7],
        rows_per_second=18_312.4,
        metrics={"loss": 0.31234, "accuracy": 0.91, "rows": 5, "f1": 0.5, "note": "x"},
    )
    write(tmp_path, 1, workers=2, metrics={"loss": 0.5}, seconds_total=20)
    write(tmp_path, 2, workers=2, state="failed", metrics={"loss": math.nan}, rows_per_second=math.inf)
    return tmp_path


def test_the_table_has_a_row_per_run_the_newest_first(home):
    table = runs.table(home)
    assert list(table.index) == [1, 2, 3]
    assert list(table["run"]) == ["03-torch", "03-torch", "00-baseline"]
    assert list(table["state"]) == ["failed", "finished", "finished"]
    first = table.loc[3]
    assert (first["engine"], first["workers"], first["data"]) == ("one process", 1, "digits")
    assert (first["epochs"], first["epoch s"], first["start s"], first["total s"]) == (3, 0.8, 0.5, 3.2)
    assert (first["rows"], first["rows/s"]) == (1437, 18312)
    assert (first["loss"], first["accuracy"], first["f1"]) == (0.3123, 0.91, 0.5)
    assert math.isnan(table.loc[1, "loss"])
    assert table["rows/s"].isna().tolist() == [True, True, False]


def test_columns_that_no_run_fills_are_left_out(home):
    assert "batch" not in runs.table(home)
    assert "rows" not in runs.table(home, name="03-torch")
    assert "loss" in runs.table(home, last=1)  # NaN is a result


def test_the_table_can_be_narrowed(home):
    assert len(runs.table(home, name="03-torch")) == 2
    assert list(runs.table(home, engine="one process")["run"]) == ["00-baseline"]
    assert len(runs.table(home, name=["00-baseline", "03-torch"])) == 3
    assert len(runs.table(home, last=2)) == 2
    assert list(runs.table(home, name="03-torch", last=1)["state"]) == ["failed"]


def test_home_is_that_of_the_settings(home, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(home))
    assert len(runs.table()) == 3
    assert runs.latest().state == "failed"
    assert len(runs.plot().axes) == 1


def test_latest(home):
    assert runs.latest(home=home).run_id == "run-2"
    assert runs.latest("00-baseline", home).metrics["accuracy"] == 0.91


def test_no_run_is_an_error_that_says_what_there_is(home, tmp_path):
    with pytest.raises(RunError, match="no run yet"):
        runs.table(tmp_path / "empty")
    with pytest.raises(RunError, match="name='03-torhc'") as caught:
        runs.latest("03-torhc", home)
    assert "'03-torch'" in caught.value.fact
    with pytest.raises(RunError, match="last="):
        runs.plot(home, last=0)


def test_importing_runs_imports_neither_pandas_nor_matplotlib():
    code = (
        "import sys, labkit.runs; print({'pandas', 'matplotlib', 'numpy', 'torch', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
