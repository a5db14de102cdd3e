"""Figures and comparisons: every run is in them, in words too, and what differs, and nothing else."""

import math

import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.runs.figures import draw
from records import record, write

SECONDS = "where the time went"


@pytest.fixture(autouse=True)
def _agg(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")


def history(*losses):
    return [{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses)]


def axes_of(*records, metrics=None):
    return {axes.get_title(loc="left"): axes for axes in draw(records, metrics).axes}


def test_curves_show_the_values_of_each_run_from_epoch_1_and_groups_look_the_same(tmp_path):
    found = [record(0, name="a", history=history(1.0)), record(1, name="b$_{$", history=history(3.0, 2.0))]
    figure = draw(found)
    figure.savefig(tmp_path / "figure.svg")
    first, second = figure.axes[0].get_lines()
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1], [1.0])
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([1, 2], [3.0, 2.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b$_{$"]
    assert first.get_linestyle() != second.get_linestyle()  # not by colour alone
    grouped = draw([record(minute, name="x", history=history(1.0)) for minute in (0, 1)], by="run")
    assert len({line.get_color() for line in grouped.axes[0].get_lines()}) == 1
    assert [text.get_text() for text in grouped.legends[0].get_texts()] == ["x"]
    labels = [t.get_text() for t in axes_of(record(), record(1))[SECONDS].get_yticklabels()]
    assert len(set(labels)) == 2  # by their times


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
    failed = record(2, seconds={"start": 3.0}, state="failed")
    lost = record(3, state="lost", seconds_total=4.0)  # it did not record its parts
    axes = axes_of(whole, failed, lost)[SECONDS]
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert widths == {"start": [9, 3, 0], "data": [1, 0, 0], "training": [5, 0, 0], "rest": [2, 0, 4]}
    assert [text.get_text() for text in axes.texts] == ["17 s", "3.0 s (failed)", "4.0 s (lost)"]


CODE = """def train_loop(config):
    return math.sqrt(config["lr"] * scale)
"""


def test_a_comparison_has_what_differs_and_nothing_else(tmp_path):
    config = {"lr": 0.1, "model": {"width": 64}, "epochs": 2}
    same = {"versions": {"python": "3.11"}, "workers": 2, "waiting_share": math.nan}
    other = config | {"model": {"width": 128}, "momentum": 0.9}
    a = {"config": config, "code": CODE, "metrics": {"loss": 0.5}}
    b = {"config": other, "code": CODE.replace("lr", "rate"), "metrics": {"loss": 0.4}}
    for minute, fields in enumerate((a, b)):
        write(tmp_path, minute, **fields, **same)
    found = runs.compare("run-0", runs.get("run-1", tmp_path), tmp_path)
    assert list(found.table.columns) == ["run-0", "run-1"]
    assert {name: tuple(row) for name, row in found.table.iterrows()} == {
        "config.model.width": (64, 128),
        "config.momentum": (None, 0.9),
        "metrics.loss": (0.5, 0.4),
    }
    changed = [line for line in found.code.splitlines() if line[0] in "+-"]
    assert changed[:2] == ["--- run-0", "+++ run-1"]
    assert len(changed) == 4 and '"lr"' in changed[2] and '"rate"' in changed[3]
    assert "config.momentum" in found._repr_html_() and "&#34;rate&#34;" in found._repr_html_()
    assert "0.9" in repr(found) and "+++ run-1" in repr(found)
    equal = runs.compare("run-0", "run-0", tmp_path)
    assert equal.table.empty and equal.code == "" and "The code is equal" in repr(equal)
    with pytest.raises(LabError, match="run_id='c'"):
        runs.compare("run-0", "c", tmp_path)
