"""Figures of a sweep's results: what is drawn for which trials."""

import math
from types import SimpleNamespace

import pandas
import pytest
from matplotlib.colors import to_rgb

from labkit.errors import RunError
from labkit.tune import plot_curves, plot_parallel


def result(number, value, **config):
    rows = [{"training_iteration": k, "accuracy": value * k / 3} for k in (1, 2, 3)]
    return SimpleNamespace(
        config={"lr": 10.0 ** -(number % 4), "kind": "ab"[number % 2], **config},
        metrics={"accuracy": value},
        metrics_dataframe=pandas.DataFrame(rows),
    )


class Grid:
    """Like Tune's ResultGrid, which can be iterated over but has no ``__iter__``."""

    def __init__(self, results):
        self._results = results

    def __len__(self):
        return len(self._results)

    def __getitem__(self, index):
        return self._results[index]


@pytest.fixture
def results():
    return [result(number, number / 10) for number in range(10)]


def test_curves_name_the_best_and_draw_all(results):
    axes = plot_curves(results, "accuracy", best=3).axes[0]
    assert len(axes.get_lines()) == 10
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label[:1] for label in labels] == ["1", "2", "3"]
    best = max(axes.get_lines(), key=lambda line: line.get_ydata()[-1])
    assert best.get_label().startswith("1 · lr 0.1")


def test_what_a_tuner_returns_is_drawn(results):
    assert len(plot_curves(Grid(results), "accuracy").axes[0].get_lines()) == 10


def test_trials_without_a_finite_metric_are_left_out(results):
    broken = [result(1, math.nan), SimpleNamespace(config={}, metrics=None, metrics_dataframe=None)]
    assert len(plot_curves([*results, *broken], "accuracy").axes[0].get_lines()) == 10


def test_parallel_axes_put_each_value_where_it_belongs(results):
    figure = plot_parallel(results, ["lr", "kind"], "accuracy", log=["lr"])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr (log)", "kind", "accuracy"]
    lines = [list(line.get_ydata()) for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(lines) == 10
    best = max(lines, key=lambda ys: ys[-1])  # trial 9: lr 0.1 of 0.001 to 1, the second of two kinds
    assert best == pytest.approx([2 / 3, 0.75, 1.0])
    assert min(ys[-1] for ys in lines) == 0.0


def luminance(colour):
    """WCAG's relative luminance of an RGB colour."""
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_lines_can_be_told_apart_and_seen_in_light_and_dark(results):
    axes = plot_parallel(results, ["lr", "kind"], "accuracy").axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    colours = {to_rgb(line.get_color()) for line in lines}
    assert len(colours) == 10 and all(line.get_alpha() is None for line in lines)
    for colour in colours:
        own = luminance(colour)
        assert (1.05 / (own + 0.05)) >= 3.5 and (own + 0.05) / (luminance("#111111") + 0.05) >= 3.5


def test_the_best_has_the_same_colour_where_less_is_better(results):
    def best(mode, pick):
        lines = plot_parallel(results, ["lr", "kind"], "accuracy", mode=mode).axes[0].get_lines()
        lines = [line for line in lines if len(line.get_xdata()) == 3]
        return to_rgb(pick(lines, key=lambda line: line.get_ydata()[-1]).get_color())

    assert best("max", max) == best("min", min) != best("max", min)


def test_one_trial_and_less_is_better():
    figure = plot_parallel([result(1, 0.5)], ["lr"], "accuracy", mode="min")
    assert figure.axes
    results = [result(1, 0.5), result(2, 0.1)]
    labels = plot_curves(results, "accuracy", mode="min", best=1).axes[0].get_legend().get_texts()
    assert labels[0].get_text().startswith("1 · lr 0.01")


def test_names_that_no_trial_has_are_refused(results):
    with pytest.raises(RunError, match="no trial has reported 'acuracy'") as refused:
        plot_curves(results, "acuracy")
    assert "accuracy" in refused.value.fix
    with pytest.raises(RunError, match="no trial has 'width'"):
        plot_parallel(results, ["lr", "width"], "accuracy")
    with pytest.raises(RunError, match="parameters is one text"):
        plot_parallel(results, "lr", "accuracy")
