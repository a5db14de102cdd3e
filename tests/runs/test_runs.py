"""Past runs: the table and the figure say what the records say."""

import math
import os
import shutil
import subprocess
import sys

import pytest

from labkit import runs
from labkit.errors import RunError
from labkit.runs.record import RunRecord


def write(home, minute, **fields):
    about = {"name": "03-torch", "run_id": f"run-{minute}", "engine": "Ray Train", "state": "finished"}
    record = RunRecord(**about | {"started_at": f"2026-01-31T12:{minute:02}:00+00:00"} | fields)
    record.write(home / "runs" / record.name / record.run_id)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
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
    table = runs.table()
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
    # Columns that no run fills are left out, but NaN is a result.
    assert {"checkpoint", "data", "rows"}.isdisjoint(runs.table(name="03-torch"))
    assert "loss" in runs.table(last=1)


def test_table_plot_and_latest_can_be_narrowed(home, tmp_path):
    assert len(runs.table(name="03-torch")) == 2
    assert list(runs.table(engine="one process")["run"]) == ["00-baseline"]
    assert len(runs.table(name=["00-baseline", "03-torch"])) == 3
    assert list(runs.table(name="03-torch", last=1)["state"]) == ["failed"]
    assert len(runs.plot(last=2).axes) == 1
    assert runs.latest().run_id == "run-1"  # one that failed has nothing to compare
    assert runs.latest(state=None).run_id == runs.latest("03-torch", state="failed").run_id == "run-2"
    assert runs.latest("00-baseline").metrics["accuracy"] == 0.91
    with pytest.raises(RunError, match="no run yet"):
        runs.table(tmp_path / "empty")
    with pytest.raises(RunError, match=r"name='03-torhc'(.|\n)*'03-torch'"):
        runs.latest("03-torhc")


def test_a_latest_run_that_did_not_finish_is_told(tmp_path):
    write(tmp_path, 1, state="failed", error="ValueError: boom")
    with pytest.raises(RunError, match="boom") as caught:
        runs.latest("03-torch", tmp_path)
    assert "run-1, is failed" in caught.value.fact and "state=None" in caught.value.fix


def test_the_table_tells_how_the_runs_differ_and_where_their_models_are(tmp_path):
    config = {"epochs": 5, "lr": 0.1, "model": {"width": 64}, "loss": "huber"}
    write(tmp_path, 1, config=config, metrics={"loss": 1.0}, checkpoint="bucket/a/checkpoint_4")
    write(tmp_path, 2, config=config | {"model": {"width": 128}, "loss": "mse"}, metrics={"loss": 2.0})
    write(tmp_path, 3, config=config | {"epochs": 9}, metrics={"loss": 3.0})
    table = runs.table(tmp_path)
    assert list(table["model.width"]) == [64, 128, 64]
    assert list(table["config epochs"]) == [9, 5, 5]  # "epochs" are those that ended
    assert list(table["config loss"]) == ["huber", "mse", "huber"] and list(table["loss"]) == [3, 2, 1]
    assert "lr" not in table  # all have the same
    assert table.loc[3, "checkpoint"] == "bucket/a/checkpoint_4" and table["checkpoint"].isna()[1]


def test_finding_a_run_imports_neither_pandas_nor_matplotlib(home):
    heavy = "{'pandas', 'matplotlib', 'numpy', 'torch', 'ray'}"
    code = f"import sys; from labkit import runs; runs.latest(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_columns_are_fields_parts_of_fields_metrics_and_settings(tmp_path):
    history = [{"epoch": 0, "loss": 1.0}]
    config = {"lr": 0.1, "model": {"width": 64}, "loss": "mse"}
    write(tmp_path, 1, config=config, metrics={"loss": 0.123456}, versions={"torch": "2.13"}, history=history)
    write(tmp_path, 2)
    names = [
        "id",
        "lr",
        "config.model.width",
        "model.width",
        "loss",
        "config loss",
        "versions.torch",
        "history",
    ]
    row = runs.table(tmp_path, columns=names).loc[2]
    assert list(row) == ["run-1", 0.1, 64, 64, 0.123456, "mse", "2.13", history]
    with pytest.raises(RunError, match="'momentum'"):
        runs.table(tmp_path, columns=["momentum"])


def test_filters_take_any_column(tmp_path):
    for minute, lr in enumerate([0.1, 0.2, 0.2]):
        write(tmp_path, minute, config={"lr": lr}, seed=minute, metrics={"loss": 1.0})
    assert list(runs.table(tmp_path, lr=0.2)["id"]) == ["run-2", "run-1"]
    assert list(runs.table(tmp_path, lr=0.2, seed=[0, 1])["id"]) == ["run-1"]
    assert runs.latest("03-torch", tmp_path, seed=0).run_id == "run-0"
    with pytest.raises(RunError) as caught:
        runs.table(tmp_path, lr=0.3, seed=1)
    assert "lr is 0.1, 0.2; seed is 0, 1, 2" in caught.value.fact


def test_the_best_run_is_found(tmp_path):
    for minute, loss in enumerate([0.5, 0.2, 0.2, math.nan, None]):
        write(tmp_path, minute, metrics={"loss": loss}, history=[{"epoch": 0, "loss": loss}])
    write(tmp_path, 8, metrics={"loss": 0.1}, state="failed")
    write(tmp_path, 9, metrics={"loss": 0.9}, name="other")
    best = runs.best("loss", tmp_path, mode="min")
    assert best.run_id == "run-2" and best.history == [{"epoch": 0, "loss": 0.2}]
    assert runs.best("loss", tmp_path, mode="max").name == "other"
    assert runs.best("loss", tmp_path, mode="max", name="03-torch").run_id == "run-0"
    assert runs.best("loss", tmp_path, mode="min", state=None).state == "failed"
    with pytest.raises(RunError, match="report loss"):
        runs.best("accuracy", tmp_path, mode="max")
    with pytest.raises(RunError, match="'lowest'"):
        runs.best("loss", tmp_path, mode="lowest")
    assert runs.get("run-0", tmp_path) == runs.get(runs.get("run-0", tmp_path))


def test_the_index_follows_the_files(tmp_path):
    """Also a file that is replaced by one of the same size, a damaged index, and one of another version."""
    losses = lambda: list(runs.table(tmp_path).get("loss", []))  # noqa: E731
    write(tmp_path, 1, metrics={"loss": 0.5})
    write(tmp_path, 2, metrics={"loss": 0.25}, name="other")
    index = tmp_path / "runs" / ".index.json"
    assert losses() == [0.25, 0.5] and index.exists()
    write(tmp_path, 1, metrics={"loss": 0.7})
    assert losses() == [0.25, 0.7]
    assert list(runs.table(tmp_path, name="other")["loss"]) == [0.25]
    for text in ("", "[1]", index.read_text().replace('"fields": ["name"', '"fields": ["title"')):
        index.write_text(text)
        assert losses() == [0.25, 0.7]
    shutil.rmtree(tmp_path / "runs" / "other")
    assert losses() == [0.7] and losses() == [0.7]
    index.unlink()
    index.mkdir()  # it cannot be written
    assert losses() == [0.7]


def test_the_index_of_many_runs_is_used(tmp_path):
    """A record that cannot be read any more is listed, because its file has not changed."""
    for minute in range(30):
        write(tmp_path, minute, metrics={"loss": minute / 10})
    assert len(runs.table(tmp_path)) == 30
    path = tmp_path / "runs" / "03-torch" / "run-3" / "run_record.json"
    stat, text = path.stat(), path.read_text()
    path.write_text("x" * len(text))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert len(runs.table(tmp_path)) == 30
    path.touch()
    with pytest.warns(UserWarning, match="run-3"):
        assert len(runs.table(tmp_path)) == 29
