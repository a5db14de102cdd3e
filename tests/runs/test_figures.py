"""Figures: every run is in them, in words too, and they can be read on light and on dark."""

import io
import math
import warnings

import pytest

from labkit.errors import RunError
from labkit.runs.figures import compare
from labkit.runs.record import RunRecord


@pytest.fixture(autouse=True)
def _agg(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")


def record(name="03-torch", minute=0, **fields):
    started = f"2026-01-31T12:{minute:02}:00+00:00"
    return RunRecord(
        **{
            "name": name,
            "run_id": str(minute),
            "engine": "Ray Train",
            "state": "finished",
            "started_at": started,
        }
        | fields
    )


def history(*losses, name="loss"):
    return [{"epoch": epoch, name: loss} for epoch, loss in enumerate(losses)]


def axes_of(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def widths(axes):
    """Part → its seconds, per run."""
    return {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}


def test_curves_show_the_values_of_each_run_from_epoch_1():
    figure = compare([record("b", 1, history=history(3.0, 2.0)), record("a", 0, history=history(1.0))])
    axes = axes_of(figure)
    assert set(axes) == {"loss", "where the time went"}
    first, second = axes["loss"].get_lines()  # the older run first
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1], [1.0])
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([1, 2], [3.0, 2.0])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"]
    assert first.get_linestyle() != second.get_linestyle()  # not by colour alone


def test_a_run_without_a_metric_shows_the_one_named_like_it():
    figure = compare(
        [record(history=history(0.5, name="val_loss")), record(minute=1, history=history(0.25, math.nan))]
    )
    values = [list(line.get_ydata()) for line in axes_of(figure)["val_loss, loss"].get_lines()]
    assert values[0] == [0.5]
    assert values[1][0] == 0.25
    assert math.isnan(values[1][1])


def test_a_metric_is_not_taken_for_another(metric="mse"):
    rmse = record(history=history(0.5, name="val_rmse"))
    with pytest.raises(RunError, match="val_rmse") as caught:
        compare([rmse], metrics=metric)
    assert "'mse'" in caught.value.attempt
    both = compare([rmse, record(minute=1, history=history(0.25, name="val_mse"))], metrics=[metric])
    assert [list(line.get_ydata()) for line in axes_of(both)["val_mse"].get_lines()] == [[], [0.25]]


def test_metrics_may_be_one_name_and_need_not_be_loss_or_accuracy():
    run = record(history=[{"epoch": 0, "rmse": 3.0, "r2": 0.5, "mae": 2.0, "ok": True}])
    titles = "where the time went"
    assert set(axes_of(compare([run], metrics="r2"))) == {"r2", titles}
    assert set(axes_of(compare([run]))) == {"rmse", "r2", titles}
    assert set(axes_of(compare([run], metrics=[]))) == set(axes_of(compare([record()]))) == {titles}
    for unknown in ("acc", ["rmse", "loss"], [3], 3, "ok"):
        with pytest.raises(RunError, match="rmse, r2, mae"):
            compare([run], metrics=unknown)


def test_bars_show_where_the_seconds_went():
    whole = record(seconds={"start": 9.0, "data": 1.0, "training": 5.0, "rest": 2.0})
    failed = record(minute=2, seconds={"start": 3.0}, state="failed")
    lost = record(minute=3, state="lost", seconds_total=4.0)  # it did not record its parts
    axes = axes_of(compare([whole, failed, lost]))["where the time went"]
    assert widths(axes) == {"start": [9, 3, 0], "data": [1, 0, 0], "training": [5, 0, 0], "rest": [2, 0, 4]}
    assert [text.get_text() for text in axes.texts] == ["17 s", "3.0 s (failed)", "4.0 s (lost)"]


def test_a_part_looks_the_same_in_every_figure():
    def looks(*records):
        bars = axes_of(compare(records))["where the time went"].containers
        return {b.get_label(): (b[0].get_facecolor(), b[0].get_hatch()) for b in bars}

    few, many = looks(record(seconds={"training": 1})), looks(record(seconds={"start": 1, "training": 1}))
    assert few["training"] == many["training"] != many["start"]


def test_labels_say_what_tells_the_runs_apart():
    def labels(*records):
        return [
            t.get_text().strip() for t in axes_of(compare(records))["where the time went"].get_yticklabels()
        ]

    assert labels(record("a"), record("b", 1)) == ["a", "b"]
    assert labels(record("a"), record("b", 1, engine="torchrun")) == ["a · Ray Train", "b · torchrun"]
    first, second = labels(record("a"), record("a", 1))
    assert first != second
    assert labels(record("a$b$"), record("x" * 40, 1)) == [r"a\$b\$", "x" * 21 + "…"]


def test_runs_of_one_name_and_second_keep_a_bar_each():
    axes = axes_of(compare([record(seconds={"rest": 1}), record(seconds={"rest": 2})]))["where the time went"]
    assert sorted(widths(axes)["rest"]) == [1, 2]
    assert len(axes.get_yticklabels()) == 2


@pytest.mark.parametrize("count", [1, 12])
def test_odd_records_are_drawn_too(count):
    odd = [
        record(
            "_$x$" * 20,
            minute,
            history=[{"epoch": "last", "loss": 1.0}, {"loss": "low"}, {"loss": math.inf}],
            seconds={"start": 1.0},
        )
        for minute in range(count)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(odd).savefig(io.BytesIO())


def test_a_notebook_shows_the_figure_once():
    import matplotlib.pyplot as plt

    before, style = plt.get_fignums(), plt.rcParams["text.color"]
    compare([record(history=history(1.0))])
    assert plt.get_fignums() == before
    assert plt.rcParams["text.color"] == style  # the reader's own figures stay as they are
