"""Bars on a time axis, and what is counted of them."""

from labkit.display import Timeline


def span(begin, end, *, node="head", pid=1):
    return {"node": node, "pid": pid, "begin": begin, "end": end}


def test_counts_what_ran_at_one_moment_in_any_order():
    for spans, at_once in (
        ([span(0, 1), span(1, 2)], 1),
        ([span(0, 1), span(0.5, 2, pid=2), span(1.5, 3)], 2),
    ):
        assert Timeline(spans).at_once == Timeline(spans[::-1]).at_once == at_once


def test_it_says_what_it_shows_and_draws_a_row_for_each_worker_and_a_bar_for_each_task():
    line = Timeline([span(10, 11), span(10.5, 12, pid=2), span(11, 12.5, node="z<b>", pid=1)])
    assert repr(line) == "3 tasks on 3 workers (head 2, z<b> 1), at most 2 at once, 2.5 s"
    html = line._repr_html_()
    assert html.count("<rect") == 3 and "head · 1" in html
    assert "&lt;b&gt; · 1" in html and "<b> ·" not in html


def test_no_tasks_and_no_time_are_shown_too():
    assert "0 tasks" in Timeline([])._repr_html_()
    assert Timeline([span(3, 3)])._repr_html_().count("<rect") == 1
