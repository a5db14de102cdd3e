"""Past runs: the table and the figure say what the records say."""

import argparse
import math
import subprocess
import sys

import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.runs.record import RunRecord


def write(home, minute, **fields):
    about = {"name": "03-torch", "run_id": f"run-{minute}", "engine": "Ray Train", "state": "finished"}
    record = RunRecord(**about | {"started_at": f"2026-01-31T12:{minute:02}:00+00:00"} | fields)
    record.write(home / "runs" / record.name / record.run_id)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    about = {"name": "00-baseline", "engine": "one process", "dataset": "digits", "rows": 1437}
    about |= {"seconds_total": 3.25, "seconds_to_start": 0.5, "seconds_per_epoch": [0.9, 0.8, 0.7]}
    about["metrics"] = {"loss": 0.31234, "accuracy": 0.91, "rows": 5, "f1": 0.5, "note": "x"}
    write(tmp_path, 0, rows_per_second=18_312.4, **about)
    write(tmp_path, 1, workers=2, metrics={"loss": 0.5}, seconds_total=20)
    write(tmp_path, 2, workers=2, state="failed", metrics={"loss": math.nan}, rows_per_second=math.inf)
    return tmp_path


def test_the_table_shows_what_is_compared_the_newest_first(home):
    table = runs.table()
    assert list(table.index) == [1, 2, 3] and list(table["run"]) == ["03-torch", "03-torch", "00-baseline"]
    shown = ["run", "id", "state", "engine", "workers", "data", "rows/s", "total s", "loss", "accuracy"]
    assert list(table) == shown
    assert list(table.loc[3])[3:] == ["one process", 1, "digits", 18312, 3.2, 0.3123, 0.91]
    assert math.isnan(table.loc[1, "loss"]) and table["rows/s"].isna().tolist() == [True, True, False]
    # Equal in all of them, or filled by none: not shown.
    assert list(runs.table(name="03-torch")) == ["run", "id", "state", "total s", "loss"]
    first = runs.table(columns="all").loc[3]
    assert (first["epochs"], first["epoch s"], first["start s"], first["rows"], first["f1"]) == (
        3,
        0.8,
        0.5,
        1437,
        0.5,
    )


def test_the_table_tells_how_the_runs_differ_and_where_their_models_are(tmp_path):
    config = {"epochs": 5, "lr": 0.1, "model": {"width": 64}, "loss": "huber"}
    write(tmp_path, 1, config=config, metrics={"loss": 1.0}, checkpoint="bucket/a/checkpoint_4")
    write(tmp_path, 2, config=config | {"model": {"width": 128}, "loss": "mse"}, metrics={"loss": 2.0})
    write(tmp_path, 3, config=config | {"epochs": 9}, state="failed")
    table = runs.table(tmp_path)
    assert list(table["model.width"]) == [64, 128, 64]
    assert list(table["config epochs"]) == [9, 5, 5]  # "epochs" are those that ended
    assert list(table["config loss"]) == ["huber", "mse", "huber"] and list(table["loss"].fillna(-1)) == [
        -1,
        2,
        1,
    ]
    assert "lr" not in table  # all have the same
    # A run that failed before its first report has no loss; its setting of that name is something else.
    assert list(runs.table(tmp_path, columns=["loss"])["loss"].fillna(-1)) == [-1, 2, 1]
    assert runs.table(tmp_path, columns="all").loc[3, "checkpoint"] == "bucket/a/checkpoint_4"


def test_table_plot_and_latest_can_be_narrowed(home, tmp_path):
    assert len(runs.table(name="03-torch")) == 2
    assert list(runs.table(engine="one process")["run"]) == ["00-baseline"]
    assert len(runs.table(name=["00-baseline", "03-torch"])) == 3
    assert list(runs.table(name="03-torch", last=1)["state"]) == ["failed"]
    assert len(runs.plot(last=2).axes) == 1
    assert runs.latest().run_id == "run-1"  # one that failed has nothing to compare
    assert runs.latest(state=None).run_id == runs.latest("03-torch", state="failed").run_id == "run-2"
    assert runs.latest("00-baseline").metrics["accuracy"] == 0.91
    with pytest.raises(LabError, match="no run yet"):
        runs.table(tmp_path / "empty")
    with pytest.raises(LabError, match=r"name='03-torhc'(.|\n)*name is '00-baseline', '03-torch'"):
        runs.latest("03-torhc")


def test_finding_a_run_imports_neither_pandas_nor_matplotlib(home):
    heavy = "{'pandas', 'matplotlib', 'numpy', 'torch', 'ray'}"
    code = f"import sys; from labkit import runs; runs.latest(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_columns_are_fields_parts_of_fields_metrics_and_settings(tmp_path):
    history = [{"epoch": 0, "loss": 1.0}]
    config = {"lr": 0.1, "model": {"width": 64}, "loss": "mse"}
    metrics, versions = {"loss": 0.123456, "my config x": 5}, {"torch": "2.13"}
    write(tmp_path, 1, config=config, metrics=metrics, versions=versions, history=history)
    write(tmp_path, 2)
    names = ["id", "lr", "config.model.width", "model.width", "loss", "config loss", "my config x", "history"]
    row = runs.table(tmp_path, columns=[*names, "versions.torch"]).loc[2]
    assert list(row) == ["run-1", 0.1, 64, 64, 0.123456, "mse", 5, history, "2.13"]
    with pytest.raises(LabError, match="'momentum'"):
        runs.table(tmp_path, columns=["momentum"])


def test_filters_take_any_column(tmp_path):
    for minute, lr in enumerate([0.1, 0.2, 0.2]):
        write(tmp_path, minute, config={"lr": lr}, seed=minute, metrics={"loss": 1.0})
    assert list(runs.table(tmp_path, lr=0.2)["id"]) == ["run-2", "run-1"]
    assert list(runs.table(tmp_path, lr=0.2, seed=[0, 1])["id"]) == ["run-1"]
    assert runs.latest("03-torch", tmp_path, seed=0).run_id == "run-0"
    with pytest.raises(LabError) as caught:
        runs.table(tmp_path, lr=0.3, seed=1)
    assert "lr is 0.1, 0.2; seed is 0, 1, 2" in caught.value.fact
    with pytest.raises(LabError, match="tag is"):
        runs.table(tmp_path, tag="paper")


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
    with pytest.raises(LabError, match="report loss"):
        runs.best("accuracy", tmp_path, mode="max")
    with pytest.raises(LabError, match="'lowest'"):
        runs.best("loss", tmp_path, mode="lowest")
    assert runs.get("run-0", tmp_path) == runs.get(runs.get("run-0", tmp_path))


HUGE = 10**400  # a float can't have it
ODD = [
    [0, 2**127],  # numpy's advice: log the entropy of a SeedSequence, which has 128 bits
    [0.5, HUGE],
    [2**60 + 1, None],
    ["a", 1.5],
    [[1, 2], {"a": math.inf}],
    [math.nan, -math.inf],
]


@pytest.mark.parametrize("values", ODD, ids=lambda values: f"{values[0]} and {values[1]}"[:20])
def test_no_value_breaks_a_view(values, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    for minute, value in enumerate(values):
        history = [{"epoch": 0, "loss": value}, {"epoch": value, "loss": 1.0}]
        about = {"metrics": {"loss": value, "f1": 0.5}, "history": history, "seconds": {"training": value}}
        write(tmp_path, minute, config={"seed": value, "odd": value}, **about)
    shown = [value for value in reversed(values) if not isinstance(value, (dict, float))]
    assert [one for one in runs.table(tmp_path, columns="all")["odd"] if one in shown] == shown
    assert repr(list(runs.table(tmp_path, columns=["odd", "loss"])["odd"])) == repr(values[::-1])
    assert runs.best("f1", tmp_path, mode="max").run_id == "run-1"
    assert runs.best("loss", tmp_path, mode="max", seed=values[0]) if values[0] == 0 else True
    assert runs.plot(tmp_path).axes and runs.plot(tmp_path, by="odd").axes
    assert "odd" in runs.compare("run-0", "run-1", tmp_path)._repr_html_()
    assert runs.report(tmp_path / "page.html", tmp_path, title="t", by="odd").exists()


def test_a_configuration_need_not_be_a_dict(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    write(tmp_path, 0, config={"lr": 0.1})
    write(tmp_path, 1, config=argparse.Namespace(lr=0.2))
    assert list(runs.table(tmp_path, columns="all")["lr"].fillna(0)) == [0, 0.1] and "lr" not in runs.table(
        tmp_path
    )
    assert runs.get("run-1", tmp_path).config == "Namespace(lr=0.2)"
    assert runs.compare("run-0", "run-1", tmp_path).table.loc["config", "run-1"] == "Namespace(lr=0.2)"
    assert runs.report(tmp_path / "page.html", tmp_path, title="t", by="lr").exists()
