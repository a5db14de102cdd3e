"""A sweep as HTML, SVG and text: what a reader sees of it, and that nothing of it is code."""

import time
import xml.etree.ElementTree as xml

import pytest

from labkit.panel.drawing import snapshot
from labkit.panel.reporters import TextReporter
from labkit.tune.sweep import SweepRun


def sweep(trials=8, metric="accuracy", **config):
    """A sweep in its middle: finished, stopped, running, waiting and failed trials."""
    state = SweepRun("05-asha", metric=metric, rungs=[1, 3, 9])
    state.total = trials
    state.start(now=time.time() - 30)
    ends = ["finished", "stopped early", "running", "failed", "waiting"]
    for number in range(trials):
        id, status = f"t{number}", ends[number % 5]
        state.add(id, {"lr": 0.01 * (number + 1), "momentum": 0.5, **config})
        if status != "waiting":
            state.set_status(id, "running", now=state.started_at + 5)
            for iteration in range(1, 10 if status == "finished" else 4):
                value = 1 - 1 / (iteration + number + 1)
                state.reported(id, iteration=iteration, value=value, seconds=iteration / 10)
        if status == "failed":
            text = "step, cell 3, line 7\n    raise ValueError('lr')\nValueError: lr is too large"
            state.trial_failed(id, text)
        else:
            why = {"finished": "9 iterations", "stopped early": "stopped at rung 3"}.get(status, "")
            state.set_status(id, status, why=why)
    return state


def live(state):
    return snapshot(state, time.time()).body


def summary(state, files=()):
    if not state.over:
        state.end("finished")
    return snapshot(state, time.time(), list(files)).summary


def parts(html):
    """The markup is well formed: every tag is closed."""
    return xml.fromstring(f"<all>{html.partition('</style>')[2] or html}</all>")


def table(html):
    """The cells of the head and of all rows, as text."""
    return [["".join(cell.itertext()) for cell in row] for row in parts(html).iter("tr")]


def words(html):
    return "".join(parts(html).itertext())


def test_the_live_panel_shows_counts_bar_table_and_curves():
    state = sweep(32)
    text, counts = words(live(state)), state.counts()
    for status in ("finished", "stopped early", "running", "failed"):
        assert f"{counts[status]} {status}" in text
    assert f"{state.done} of 32 trials are over" in text and "left" in text and "and 22 more" in text
    assert "ValueError: lr is too large" in text and "(dotted: rungs)" in text
    assert "momentum" not in text  # it is the same in all trials
    (row,) = [row for row in table(live(state))[1:] if "best" in row[-1]]
    assert row[0] == str(state.best.number)


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
def test_what_stays_is_static_and_has_all_trials(status):
    state = sweep(40)
    state.end(status)
    html = summary(state, [("results", "/runs/05")])
    assert {"stopped": "stopped by you"}.get(status, status) in words(html)
    assert "8 finished" in words(html) and "/runs/05" in words(html) and "<script" not in html
    numbers = {row[0] for row in table(html)}
    assert {str(number) for number in range(40)} <= numbers
    assert html.count("raise ValueError") == 1  # the same traceback once, with the numbers of its trials


def test_what_a_reader_named_is_text_and_not_markup():
    state = sweep(3, metric="<b>acc</b>", kind="<script>alert(1)</script>", other="x")
    state.add("last", {"kind": "plain"})
    state.trial_failed("last", "ValueError: <img src=x>")
    for html in (live(state), summary(state, [("<u>", "<u>")])):
        assert "ValueError" in html
        for bad in ("<script", "<img", "<b>acc", "<u>"):
            assert bad not in html
        parts(html)


@pytest.mark.parametrize("trials", [0, 1, 2, 200])
def test_every_size_is_drawn(trials):
    state = sweep(trials)
    drawn = live(state)
    for html in (drawn, summary(state)):
        assert "nan" not in words(html).lower()
    assert len(drawn) < 40_000


def test_a_line_does_not_run_backwards():
    """A trial that takes over another one's checkpoint goes on at that one's iteration."""
    state = SweepRun("05-pbt", metric="accuracy")
    state.start()
    state.add("t0", {"lr": 0.1})
    for iteration, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.8), (3, 0.9)):
        state.reported("t0", iteration=iteration, value=value, seconds=1)
    lines = [path.get("d") for path in parts(live(state)).iter("path")]
    assert any(line.count("M") == 2 and line.count("L") == 3 for line in lines)


def test_the_best_trial_in_one_line():
    state = SweepRun("05", metric="accuracy")
    assert state.best_line() == "no trial reported accuracy"
    state.add("t0", {"lr": 0.1})
    for iteration, value in ((1, 0.9), (2, 0.8)):
        state.reported("t0", iteration=iteration, value=value, seconds=1)
    assert state.best_line() == "best accuracy 0.800, trial 0 · lr 0.100"
    state.add("t1", {"lr": 0.3})
    state.reported("t1", iteration=1, value=0.85, seconds=1)
    assert state.best_line() == "best accuracy 0.850, trial 1 · lr 0.300"


def test_trials_that_never_began():
    state = sweep(8)
    state.total = 20
    assert "13 waiting" in words(live(state))
    state.end("stopped")
    assert "13 not begun" in words(summary(state))


def test_text_tells_the_news_in_few_lines_and_a_failure_at_once(capsys):
    state = SweepRun("05", metric="accuracy")
    state.total = 200
    state.start()
    reporter = TextReporter()
    reporter.open(snapshot(state, time.time()))
    state.add("bad", {"lr": -1})
    state.trial_failed("bad", "step, cell 3, line 7\n    raise ValueError('lr')\nValueError: bad")
    reporter.draw(snapshot(state, time.time()))
    said = capsys.readouterr().out
    assert "trial 0 failed: ValueError: bad" in said and "raise" not in said
    for number in range(1, 200):
        state.add(f"t{number}", {"lr": number})
        state.set_status(f"t{number}", "running")
        state.reported(f"t{number}", iteration=1, value=number / 200, seconds=0.1)
        state.set_status(f"t{number}", "finished")
        if number % 10 == 9:
            reporter.draw(snapshot(state, time.time()))
    state.end("finished")
    reporter.close(snapshot(state, time.time()))
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 14 and "100 of 200" in said
    assert said.count("raise ValueError('lr')") == 1 and "best accuracy 0.995, trial 199 · lr 199" in said
    assert "199 finished · 1 failed" in said.splitlines()[-1]
