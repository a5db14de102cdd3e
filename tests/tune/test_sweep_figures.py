"""Figures of a sweep's results: what is drawn for which trials."""

import math
from types import SimpleNamespace

import pandas
import pytest
from matplotlib.colors import to_rgb

from labkit.errors import RunError
from labkit.tune import plot_curves, plot_parallel


def result(number, value):
    rows = [{"training_iteration": k, "accuracy": value * k / 3} for k in (1, 2, 3)]
    return SimpleNamespace(
        config={"lr": 10.0 ** -(number % 4), "kind": "ab"[number % 2]},
        metrics={"accuracy": value},
        metrics_dataframe=pandas.DataFrame(rows),
    )


class Grid:
    """Like Tune's ResultGrid, which can be iterated over but has no ``__iter__``."""

    def __init__(self, results):
        self._results = results

    def __getitem__(self, index):
        return self._results[index]


@pytest.fixture
def results():
    return Grid([result(number, number / 10) for number in range(10)])


def lines(figure):
    """The trials' lines on parallel axes, without the axes."""
    return [line for line in figure.axes[0].get_lines() if len(line.get_ydata()) == 3]


def test_curves_name_the_best_and_draw_all_that_reported(results):
    broken = [result(1, math.nan), SimpleNamespace(config={}, metrics=None, metrics_dataframe=None)]
    axes = plot_curves([*results, *broken], "accuracy", best=3).axes[0]
    assert len(axes.get_lines()) == 10
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label[:1] for label in labels] == ["1", "2", "3"]
    best = max(axes.get_lines(), key=lambda line: line.get_ydata()[-1])
    assert best.get_label() == "1 · lr 0.100 · kind b"
    least = plot_curves(results, "accuracy", mode="min", best=1).axes[0].get_legend().get_texts()
    assert [text.get_text() for text in least] == ["1 · lr 1 · kind a"]


def test_parallel_axes_put_each_value_where_it_belongs(results):
    figure = plot_parallel(results, ["lr", "kind"], "accuracy", log=["lr"])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["lr (log)", "kind", "accuracy"]
    heights = [list(line.get_ydata()) for line in lines(figure)]
    assert len(heights) == 10
    best = max(heights, key=lambda ys: ys[-1])  # trial 9: lr 0.1 of 0.001 to 1, the second of two kinds
    assert best == pytest.approx([2 / 3, 0.75, 1.0])
    assert min(ys[-1] for ys in heights) == 0.0
    assert plot_parallel([result(1, 0.5)], ["lr"], "accuracy", mode="min").axes


def luminance(colour):
    """WCAG's relative luminance of an RGB colour."""
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_lines_can_be_told_apart_and_seen_in_light_and_dark(results):
    def colours(mode):
        found = lines(plot_parallel(results, ["lr", "kind"], "accuracy", mode=mode))
        return [to_rgb(line.get_color()) for line in sorted(found, key=lambda line: line.get_ydata()[-1])]

    assert len(set(colours("max"))) == 10 and colours("max") == colours("min")[::-1]
    for own in map(luminance, colours("max")):
        assert (1.05 / (own + 0.05)) >= 3.5 and (own + 0.05) / (luminance("#111111") + 0.05) >= 3.5


def test_a_metric_that_no_trial_has_is_refused(results):
    with pytest.raises(RunError, match="no trial has reported 'acuracy'") as refused:
        plot_curves(results, "acuracy")
    assert "accuracy" in refused.value.fix
