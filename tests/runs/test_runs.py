"""Past runs: the table says what the records say, and a run is found by its name, its state and its id."""

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
    return tmp_path


@pytest.fixture
def three(home):
    fields = {"name": "00-baseline", "engine": "one process", "dataset": "digits", "rows": 1437}
    fields |= {"seconds_total": 3.25, "seconds_to_start": 0.5, "seconds_per_epoch": [0.9, 0.8, 0.7]}
    fields["metrics"] = {"loss": 0.31234, "accuracy": 0.91, "rows": 5}
    # The oldest, in another zone: what counts is the moment, not its text.
    write(home, 0, rows_per_second=18_312.4, started_at="2026-01-31T13:00:00+01:00", **fields)
    write(home, 1, workers=2, metrics={"loss": 0.5}, seconds_total=20, waiting_share=0.25)
    write(home, 2, workers=2, state="failed", metrics={"loss": math.nan}, rows_per_second=math.inf)


def test_the_table_shows_the_runs_the_newest_first(three):
    table = runs.table()
    assert list(table.index) == [1, 2, 3]
    assert list(table["run"]) == ["03-torch", "03-torch", "00-baseline"]
    row = table.loc[3].drop(["started", "waiting"])
    assert dict(row) == {
        "run": "00-baseline", "id": "run-0", "state": "finished", "engine": "one process", "workers": 1,
        "data": "digits", "rows": 1437, "epochs": 3, "start s": 0.5, "epoch s": 0.8, "rows/s": 18312,
        "total s": 3.2, "verdict": None, "note": "", "loss": 0.31234, "accuracy": 0.91, "metrics.rows": 5,
    }  # fmt: skip
    assert math.isnan(table.loc[1, "loss"]) and math.isinf(table.loc[1, "rows/s"])
    assert (table.loc[2, "waiting"], math.isnan(table.loc[2, "accuracy"])) == (0.25, True)
    assert list(runs.table("03-torch")["id"]) == ["run-2", "run-1"]
    assert list(runs.table(last=2)["id"]) == ["run-2", "run-1"]
    assert list(runs.table("00-baseline", last=9)["id"]) == ["run-0"]


def test_the_table_has_metrics_and_settings_and_never_takes_one_for_the_other(home):
    config = {"epochs": 5, "lr": 0.1, "model": {"width": 64}, "loss": "huber", "layers": [64, 32], "none": {}}
    write(home, 1, config=config, metrics={"loss": 1.0})
    write(home, 2, config=config | {"model": {"width": 128}, "loss": "mse"}, metrics={"loss": 2.0})
    write(home, 3, config=config | {"epochs": 9}, state="failed")
    table = runs.table()
    assert list(table["model.width"]) == [64, 128, 64] and list(table["lr"]) == [0.1, 0.1, 0.1]
    assert list(table["config.epochs"]) == [9, 5, 5]  # "epochs" are those that ended
    assert list(table["config.loss"]) == ["huber", "mse", "huber"]
    assert list(table["layers"]) == [[64, 32]] * 3 and list(table["none"]) == [{}] * 3
    # A run that failed before its first report has no loss; its setting of that name is something else.
    assert list(table["loss"].fillna(-1)) == [-1, 2, 1]
    assert table[table["lr"] == 0.1].nsmallest(1, "loss")["id"].item() == "run-1"  # as docs/runs.md does


def test_a_run_is_found_by_its_name_its_state_and_its_id(home, three):
    assert runs.latest("03-torch").run_id == "run-1"  # one that failed has nothing to compare
    assert runs.latest("03-torch", state=None).run_id == "run-2"
    assert runs.latest(state="failed").run_id == "run-2"
    assert runs.get("run-0").run_id == "run-0"
    with pytest.raises(LabError, match="the runs there are failed, finished"):
        runs.latest(state="lost")
    with pytest.raises(LabError, match=r"'03-torhc'(.|\n)*called '00-baseline', '03-torch'"):
        runs.latest("03-torhc")
    with pytest.raises(LabError) as long:
        runs.table("y" * 10_000)
    assert len(str(long.value)) < 1000
    with pytest.raises(LabError, match="no run has this id"):
        runs.get("run-9")
    with pytest.raises(LabError, match="last=0"):
        runs.table(last=0)
    with pytest.raises(LabError, match="no run yet"):
        runs.table(home=home / "empty")


def test_finding_a_run_imports_neither_pandas_nor_matplotlib(three):
    heavy = "{'pandas', 'matplotlib', 'numpy', 'torch', 'ray'}"
    code = f"import sys; from labkit import runs; runs.latest(); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


HUGE = 10**400  # a float can't have it
ODD = [
    [0, 2**127],  # numpy's advice: log the entropy of a SeedSequence, which has 128 bits
    [0.5, HUGE],
    [2**60 + 1, None],
    ["a", 1.5],
    [[1, 2], {"a": math.inf}],
    [math.nan, -math.inf],
]


@pytest.mark.parametrize("values", ODD, ids=lambda values: str(values)[:20])
def test_no_value_breaks_the_table(values, home):
    for minute, value in enumerate(values):
        write(home, minute, config={"seed": value, "odd": [value]}, metrics={"loss": value, "f1": 0.5})
    table = runs.table()
    assert list(table["f1"]) == [0.5, 0.5] and str(table) and table._repr_html_()
    assert repr(list(table["loss"])) == repr(values[::-1])
    assert repr(list(table["odd"])) == repr([[value] for value in values[::-1]])


def test_nothing_of_a_record_is_code(home):
    evil = "<script>alert(1)</script>"
    fields = {"name": evil, "metrics": {evil: 1.0, "word": evil}, "config": {evil * 2: evil}, "note": evil}
    write(home, **fields)
    assert "<script" not in runs.table()._repr_html_()


def test_a_configuration_need_not_be_a_dict(home):
    write(home, 0, config={"lr": 0.1})
    write(home, 1, config=argparse.Namespace(lr=0.2))
    assert list(runs.table()["lr"].fillna(0)) == [0, 0.1]
    assert runs.get("run-1").config == "Namespace(lr=0.2)"
