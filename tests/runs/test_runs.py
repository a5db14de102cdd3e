"""Past runs: the table and the figure say what the records say."""

import argparse
import math
import subprocess
import sys

import pytest

from labkit import runs
from labkit.errors import LabError
from records import write


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.fixture
def three(home):
    about = {"name": "00-baseline", "engine": "one process", "dataset": "digits", "rows": 1437}
    about |= {"seconds_total": 3.25, "seconds_to_start": 0.5, "seconds_per_epoch": [0.9, 0.8, 0.7]}
    about["metrics"] = {"loss": 0.31234, "accuracy": 0.91, "rows": 5, "f1": 0.5, "note": "x"}
    # The oldest, in another zone: what counts is the moment, not its text.
    write(home, 0, rows_per_second=18_312.4, started_at="2026-01-31T13:00:00+01:00", **about)
    write(home, 1, workers=2, metrics={"loss": 0.5}, seconds_total=20)
    write(home, 2, workers=2, state="failed", metrics={"loss": math.nan}, rows_per_second=math.inf)


def test_the_table_shows_the_runs_the_newest_first(three):
    table = runs.table()
    assert list(table.index) == [1, 2, 3]
    assert list(table["run"]) == ["03-torch", "03-torch", "00-baseline"]
    row = table.loc[3].drop(["started", "id", "state"])
    assert dict(row) == {
        "run": "00-baseline", "engine": "one process", "workers": 1, "data": "digits", "rows": 1437,
        "epochs": 3, "start s": 0.5, "epoch s": 0.8, "rows/s": 18312, "total s": 3.2,
        "loss": 0.3123, "accuracy": 0.91, "f1": 0.5,
    }  # fmt: skip
    assert math.isnan(table.loc[1, "loss"]) and math.isinf(table.loc[1, "rows/s"])
    # What is equal in all runs, or empty, is left out.
    assert list(runs.table(name="03-torch")) == ["run", "started", "id", "state", "rows/s", "total s", "loss"]
    assert runs.table(last=1).loc[1, "workers"] == 2


def test_the_table_tells_how_the_runs_differ(home):
    config = {"epochs": 5, "lr": 0.1, "model": {"width": 64}, "loss": "huber"}
    write(home, 1, config=config, metrics={"loss": 1.0}, checkpoint="bucket/a/checkpoint_4")
    write(home, 2, config=config | {"model": {"width": 128}, "loss": "mse"}, metrics={"loss": 2.0})
    write(home, 3, config=config | {"epochs": 9}, state="failed")
    table = runs.table()
    assert list(table["model.width"]) == [64, 128, 64]
    assert list(table["config.epochs"]) == [9, 5, 5]  # "epochs" are those that ended
    assert list(table["config.loss"]) == ["huber", "mse", "huber"]
    assert "lr" not in table  # all have the same
    # A run that failed before its first report has no loss; its setting of that name is something else.
    for found in (table, runs.table(columns=["loss"])):
        assert list(found["loss"].fillna(-1)) == [-1, 2, 1]
    assert runs.table(columns=["checkpoint"]).loc[3, "checkpoint"] == "bucket/a/checkpoint_4"


def test_columns_are_fields_parts_of_fields_metrics_and_settings(home):
    history = [{"epoch": 0, "loss": 1.0}]
    config = {"lr": 0.1, "model": {"width": 64}, "loss": "mse"}
    metrics, versions = {"loss": 0.123456, "my config x": 5}, {"torch": "2.13"}
    write(home, 1, config=config, metrics=metrics, versions=versions, history=history)
    write(home, 2)
    names = ["id", "lr", "config.model.width", "model.width", "loss", "config.loss", "my config x", "history"]
    row = runs.table(columns=[*names, "versions.torch"]).loc[2]
    assert list(row) == ["run-1", 0.1, 64, 64, 0.123456, "mse", 5, history, "2.13"]
    with pytest.raises(LabError, match="'momentum'"):
        runs.table(columns=["momentum"])


def test_filters_take_any_column(home, three):
    for minute, lr in enumerate([0.1, 0.2, 0.2], start=3):
        write(home, minute, name="own", config={"lr": lr}, seed=minute, tags=["paper", f"tag {minute}"])
    assert list(runs.table(lr=0.2)["id"]) == ["run-5", "run-4"]
    assert list(runs.table(lr=0.2, seed=[3, 4])["id"]) == ["run-4"]
    assert list(runs.table(tag="paper", last=2)["id"]) == ["run-5", "run-4"]
    assert runs.latest(tag=["none", "tag 3"]).run_id == "run-3"
    assert len(runs.table(name=["00-baseline", "03-torch"])) == 3
    assert runs.latest("03-torch").run_id == "run-1"  # one that failed has nothing to compare
    assert runs.latest("03-torch", state=None).run_id == "run-2"
    assert len(runs.plot(last=2).axes) == 1
    with pytest.raises(LabError, match=r"name='own' and lr=0\.3") as caught:
        runs.table(name="own", lr=0.3)
    assert "lr is 0.1, 0.2 " in caught.value.fact
    with pytest.raises(LabError, match=r"name='03-torhc'(.|\n)*name is '00-baseline', '03-torch'"):
        runs.latest("03-torhc")
    with pytest.raises(LabError, match="last=0"):
        runs.table(last=0)
    with pytest.raises(LabError, match="no run yet"):
        runs.table(home / "empty")


def test_finding_a_run_imports_neither_pandas_nor_matplotlib(three):
    heavy = "{'pandas', 'matplotlib', 'numpy', 'torch', 'ray'}"
    code = f"import sys; from labkit import runs; runs.latest(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_best_run_is_found(home):
    for minute, loss in enumerate([0.5, 0.2, 0.2, math.nan, None]):
        write(home, minute, metrics={"loss": loss})
    write(home, 8, metrics={"loss": 0.1}, state="failed")
    write(home, 9, metrics={"loss": 0.9}, name="other")
    assert runs.best("loss", mode="min").run_id == "run-2"
    assert runs.best("loss", mode="max").name == "other"
    assert runs.best("loss", mode="max", name="03-torch").run_id == "run-0"
    assert runs.best("loss", mode="min", state=None).state == "failed"
    with pytest.raises(LabError, match="report loss"):
        runs.best("accuracy", mode="max")
    with pytest.raises(LabError, match="'lowest'"):
        runs.best("loss", mode="lowest")
    assert runs.get("run-0") == runs.get(runs.get("run-0"))


def test_small_metrics_settings_that_are_lists_and_marks(home):
    write(home, 0, metrics={"loss": 2e-5}, config={"layers": [64, 32]})
    write(home, 1, metrics={"loss": 4e-5}, config={"layers": [10, 64]})
    assert list(runs.table()["loss"]) == [4e-5, 2e-5] == list(runs.table(columns="loss")["loss"])
    assert list(runs.table(layers=[64, 32])["id"]) == ["run-0"]
    assert len(runs.table(layers=64)) == len(runs.table(layers=[10, 32])) == 2  # those that have one of them
    assert runs.tag("run-0", ["a", "b"]) == ["a", "b"]
    runs.note("run-0", None)
    assert runs.get("run-0").note == ""
    write(home, 2, code="x" * 10_000)
    with pytest.raises(LabError) as long:
        runs.table(code="y" * 10_000)
    assert len(str(long.value)) < 1000


HUGE = 10**400  # a float can't have it
ODD = [
    [0, 2**127],  # numpy's advice: log the entropy of a SeedSequence, which has 128 bits
    [0.5, HUGE],
    [2**60 + 1, None],
    ["a", 1.5],
    [[1, 2], {"a": math.inf}],
    [math.nan, -math.inf],
    [1.7e308, -1.7e308],  # matplotlib multiplies the ends of an axis
]


@pytest.mark.parametrize("values", ODD, ids=lambda values: str(values)[:20])
def test_no_value_breaks_a_view(values, home):
    for minute, value in enumerate(values):
        history = [{"epoch": 0, "loss": value}, {"epoch": value, "loss": 1.0}]
        about = {"metrics": {"loss": value, "f1": 0.5}, "history": history, "seconds": {"training": value}}
        write(home, minute, config={"seed": value, "odd": value}, **about)
    assert len(runs.table()) == 2 and list(runs.table()["f1"]) == [0.5, 0.5]
    assert repr(list(runs.table(columns=["odd", "loss"])["odd"])) == repr(values[::-1])
    assert runs.best("f1", mode="max").run_id == "run-1"
    assert runs.plot().axes and runs.plot(by="odd").axes
    assert "odd" in runs.compare("run-0", "run-1")._repr_html_()
    assert runs.report(home / "page.html", title="t", by="odd").exists()


def test_a_configuration_need_not_be_a_dict(home):
    write(home, 0, config={"lr": 0.1})
    write(home, 1, config=argparse.Namespace(lr=0.2))
    assert "lr" not in runs.table() and list(runs.table(columns=["lr"])["lr"].fillna(0)) == [0, 0.1]
    assert runs.get("run-1").config == "Namespace(lr=0.2)"
    assert runs.compare("run-0", "run-1").table.loc["config", "run-1"] == "Namespace(lr=0.2)"
    assert runs.report(home / "page.html", title="t", by="lr").exists()
