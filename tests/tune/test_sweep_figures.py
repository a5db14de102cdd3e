"""The figure of a sweep's results: what is drawn for which trials."""

import math
from types import SimpleNamespace

import pandas
import pytest
from matplotlib.colors import to_rgb

from labkit.errors import RunError
from labkit.tune import plot_parallel


@pytest.fixture
def results():
    rows = [
        {"accuracy": k / 10, "config/lr": 10.0 ** -(k % 4), "config/kind": "ab"[k % 2], "pid": 1}
        for k in range(10)
    ]
    rows += [{"accuracy": math.nan, "config/lr": 0.1}, {"accuracy": math.inf, "config/lr": 0.1}]
    return SimpleNamespace(get_dataframe=lambda: pandas.DataFrame(rows))


def lines(results, **options):
    """The trials' lines, without the axes."""
    figure = plot_parallel(results, ["lr", "kind"], "accuracy", **options)
    return [line for line in figure.axes[0].get_lines() if len(line.get_ydata()) == 3]


def test_parallel_axes_put_each_value_where_it_belongs(results):
    heights = [list(line.get_ydata()) for line in lines(results, log=["lr"])]
    assert len(heights) == 10
    # Trial 9 is the best, and on top: lr 0.1 of 0.001 to 1, the second of two kinds.
    assert heights[-1] == pytest.approx([2 / 3, 0.75, 1.0]) and heights[0][-1] == 0.0
    axes = plot_parallel(results, ["lr", "kind"], "accuracy", log=["lr"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr (log)", "kind", "accuracy"]
    assert {text.get_text() for text in axes.texts} == {"0.001", "1", "a", "b", "0", "0.900"}


def luminance(colour):
    """WCAG's relative luminance of an RGB colour."""
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_lines_can_be_told_apart_and_seen_in_light_and_dark(results):
    most, least = (
        [to_rgb(line.get_color()) for line in lines(results, mode=mode)] for mode in ("max", "min")
    )
    assert len(set(most)) == 10 and most == least  # from the worst to the best
    for own in map(luminance, most):
        assert (1.05 / (own + 0.05)) >= 3.5 and (own + 0.05) / (luminance("#111111") + 0.05) >= 3.5


@pytest.mark.parametrize("parameters, metric", [(["lr"], "acuracy"), (["lr", "width"], "accuracy")])
def test_names_that_no_trial_has_are_refused(results, parameters, metric):
    with pytest.raises(RunError, match="no trial has (acuracy|width)") as refused:
        plot_parallel(results, parameters, metric)
    assert "accuracy, lr, kind" in refused.value.fix
