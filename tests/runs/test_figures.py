"""Figures and comparisons: every run is in them, in words too, and what differs, and nothing else."""

import math

import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.runs.figures import draw
from labkit.runs.record import RunRecord, folder_of

SECONDS = "where the time went"


@pytest.fixture(autouse=True)
def _agg(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")


def record(name="03-torch", minute=0, **fields):
    about = {"name": name, "run_id": str(minute), "engine": "Ray Train", "state": "finished"}
    return RunRecord(**about | {"started_at": f"2026-01-31T12:{minute:02}:00+00:00"} | fields)


def history(*losses, name="loss"):
    return [{"epoch": epoch, name: loss} for epoch, loss in enumerate(losses)]


def axes_of(*records, metrics=None):
    return {axes.get_title(loc="left"): axes for axes in draw(records, metrics).axes}


def test_curves_show_the_values_of_each_run_from_epoch_1():
    figure = draw([record("a", 0, history=history(1.0)), record("b", 1, history=history(3.0, 2.0))])
    first, second = figure.axes[0].get_lines()
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1], [1.0])
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([1, 2], [3.0, 2.0])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"]
    assert first.get_linestyle() != second.get_linestyle()  # not by colour alone


def test_metrics_may_be_one_name_and_need_not_be_loss_or_accuracy():
    run = record(history=[{"epoch": 0, "rmse": 3.0, "r2": 0.5, "mae": 2.0, "ok": True}])
    assert set(axes_of(run, metrics="r2")) == {"r2", SECONDS}
    assert set(axes_of(run)) == {"rmse", "r2", SECONDS}
    assert set(axes_of(run, metrics=[])) == set(axes_of(record())) == {SECONDS}
    for unknown in ("acc", ["rmse", "loss"], "ok"):
        with pytest.raises(LabError, match="rmse, r2, mae"):
            draw([run], unknown)


def test_bars_show_where_the_seconds_went():
    whole = record(seconds={"start": 9.0, "data": 1.0, "training": 5.0, "rest": 2.0})
    failed = record(minute=2, seconds={"start": 3.0}, state="failed")
    lost = record(minute=3, state="lost", seconds_total=4.0)  # it did not record its parts
    axes = axes_of(whole, failed, lost)[SECONDS]
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert widths == {"start": [9, 3, 0], "data": [1, 0, 0], "training": [5, 0, 0], "rest": [2, 0, 4]}
    assert [text.get_text() for text in axes.texts] == ["17 s", "3.0 s (failed)", "4.0 s (lost)"]


def test_labels_say_what_tells_the_runs_apart():
    def labels(*records):
        return [text.get_text().strip() for text in axes_of(*records)[SECONDS].get_yticklabels()]

    assert labels(record("a"), record("b", 1)) == ["a", "b"]
    assert labels(record("a"), record("b", 1, engine="torchrun")) == ["a · Ray Train", "b · torchrun"]
    first, second = labels(record("a"), record("a", 1))
    assert first != second
    assert labels(record("a$b$"), record("x" * 40, 1)) == [r"a\$b\$", "x" * 21 + "…"]


CODE = """def train_loop(config):
    return math.sqrt(config["lr"] * scale)
"""


@pytest.fixture
def home(tmp_path):
    def write(home, run_id, **fields):
        record("own", run_id=run_id, **fields).write(folder_of(home, "own", run_id))

    config = {"lr": 0.1, "model": {"width": 64}, "epochs": 2}
    same = {"versions": {"python": "3.11", "torch": "2.13"}, "workers": 2, "waiting_share": math.nan}
    write(tmp_path, "a", config=config, code=CODE, metrics={"loss": 0.5}, history=history(1.0, 0.5), **same)
    other = config | {"model": {"width": 128}, "momentum": 0.9}
    new = same | {"versions": {"python": "3.11", "torch": "2.14"}}
    code = CODE.replace("lr", "rate")
    write(tmp_path, "b", config=other, code=code, metrics={"loss": 0.4}, history=history(0.9, 0.4), **new)
    return tmp_path


def test_a_comparison_has_what_differs_and_nothing_else(home):
    found = runs.compare("a", "b", home)
    assert list(found.table.columns) == ["a", "b"]
    assert {name: tuple(row) for name, row in found.table.iterrows()} == {
        "config.model.width": (64, 128),
        "config.momentum": (None, 0.9),
        "versions.torch": ("2.13", "2.14"),
        "metrics.loss": (0.5, 0.4),
    }
    changed = [line for line in found.code.splitlines() if line[0] in "+-"]
    assert changed[:2] == ["--- a", "+++ b"]
    assert [line.strip("+- ") for line in changed[2:]] == [
        'return math.sqrt(config["lr"] * scale)',
        'return math.sqrt(config["rate"] * scale)',
    ]
    losses = [list(line.get_ydata()) for line in found.figure.axes[0].get_lines()]
    assert losses == [[1.0, 0.5], [0.9, 0.4]]
    html = found._repr_html_()
    assert "config.momentum" in html and "data:image/svg+xml" in html and "&#34;rate&#34;" in html
    assert "0.9" in repr(found) and "+++ b" in repr(found)


def test_equal_runs_have_equal_code(home):
    found = runs.compare(runs.get("a", home), "a", home)
    assert found.table.empty and found.code == "" and "The code is equal" in repr(found)
    with pytest.raises(LabError, match="run_id='c'"):
        runs.compare("a", "c", home)
