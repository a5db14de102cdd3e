"""What reporters show: lines in a terminal, widgets in a notebook, and what stays of them."""

import io
import os
import signal
import sys
import threading
import time

import pytest

from labkit.panel.reporters import NullReporter, TextReporter, WidgetReporter, choose
from labkit.panel.state.run import RunState
from labkit.panel.view.run import RunView
from runs_told import T0, tell, until


class On:
    """A reporter that is given the snapshots of a state, as a panel does."""

    view, files = RunView(), [("workers' logs", "/logs/of <run>"), ("run record", "/record.json")]

    def __init__(self, reporter):
        self.reporter = reporter

    def __getattr__(self, name):
        return getattr(self.reporter, name)

    def open(self, state):
        self.reporter.open(self.view.snapshot(state, time.time(), self.files))

    def draw(self, state):
        self.reporter.draw(self.view.snapshot(state, time.time(), self.files))

    def close(self, state):
        self.reporter.close(self.view.snapshot(state, time.time(), self.files))


def started(**about):
    state = RunState("03-torch", **about)
    state.start("starting", T0)
    return state


def step(state, at, epoch=0, step=0, **more):
    counts = {"epoch": epoch, "step": step, "rows": step * 64, "seconds": at / 2, "waiting": 0.0}
    tell(state, {"kind": "step", "at": T0 + at, "pid": 7, "node": "head", **counts, **more})


def follow(reporter, state, *, epochs=3, steps=50, report=True):
    """A whole run, drawn after every event."""
    reporter.open(state)
    for epoch in range(epochs):
        tell(state, {"kind": "phase", "name": "loading", "pid": 7, "node": "head"})
        reporter.draw(state)
        for k in range(steps + 1):
            step(state, 10 + epoch * 10 + k / 10, epoch, k, epochs=epochs, total=steps, done=k == steps)
            reporter.draw(state)
        if report:
            tell(state, {"kind": "report", "metrics": [{"loss": 1 / (epoch + 1)}], "epoch": epoch})
            reporter.draw(state)


# -- lines ----------------------------------------------------------------------------------------------


@pytest.fixture
def stream():
    return io.StringIO()


def lines(stream):
    return [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]


def test_a_line_for_each_phase_and_epoch_and_none_for_a_step(stream):
    state = started(engine="Ray Train", world_size=2, dataset="digits", rows=1437)
    reporter = On(TextReporter(stream))
    follow(reporter, state)
    state.end("finished", T0 + 62)
    reporter.close(state)
    assert [line.partition(" · ")[0] for line in lines(stream)] == [
        "Ray Train", "starting workers", "loading data", "training", "epoch 1/3", "epoch 2/3", "epoch 3/3",
        "finished after 01:02: start 10 s",
    ]  # fmt: skip
    assert lines(stream)[0] == "Ray Train · 2 workers · digits · 1,437 rows"
    assert "loss 0.500" in lines(stream)[5] and "rows/s" in lines(stream)[5]
    assert all(line.split(" ")[1] == "03-torch:" for line in stream.getvalue().splitlines())


def test_a_run_that_never_reports_has_no_line_per_epoch(stream):
    state = started()
    follow(On(TextReporter(stream)), state, epochs=20, report=False)
    assert lines(stream) == ["one process", "starting workers", "loading data", "training"]


def test_prints_are_shown_once(stream):
    reporter, state = On(TextReporter(stream)), started(world_size=2)
    reporter.open(state)
    tell(state, {"kind": "print", "text": "one\ntwo", "rank": 1})
    for _ in range(3):
        reporter.draw(state)
    tell(state, {"kind": "print", "text": "three"})
    reporter.draw(state)
    assert lines(stream)[2:] == ["[rank 1] one", "two", "[rank 0] three"]


def test_more_prints_than_are_kept(stream):
    reporter, state = On(TextReporter(stream)), started()
    reporter.open(state)
    for k in range(1000):
        tell(state, {"kind": "print", "text": f"line {k}"})
    reporter.draw(state)
    assert lines(stream)[2:] == [f"line {k}" for k in range(800, 1000)]


def test_a_failure_is_one_line_at_once_and_whole_at_the_end(stream):
    reporter, state = On(TextReporter(stream)), started()
    reporter.open(state)
    tell(state, {"kind": "failure", "rank": 1, "text": "loop, cell 5, line 3\n    1 / 0\nValueError: boom"})
    for _ in range(3):
        reporter.draw(state)
    state.end("failed", T0 + 5)
    reporter.close(state)
    assert lines(stream)[2:] == [
        "rank 1 failed: ValueError: boom",
        "loop, cell 5, line 3",
        "    1 / 0",
        "ValueError: boom",
        "failed after 5.0 s: start 5.0 s",
    ]


def test_a_second_run_is_told_from_its_beginning(stream):
    reporter = On(TextReporter(stream))
    for _ in range(2):
        state = started()
        follow(reporter, state, epochs=2)
        tell(state, {"kind": "print", "text": "hello"})
        state.end("finished", T0 + 30)
        reporter.close(state)
    told = lines(stream)
    assert told[: len(told) // 2] == told[len(told) // 2 :]


def test_a_stream_that_failed_once_is_not_stuck():
    """What could not be written is not tried again at each drawing."""

    class Narrow(io.StringIO):
        def write(self, text):
            text.encode("ascii")
            return super().write(text)

    stream = Narrow()
    reporter, state = On(TextReporter(stream)), started()
    reporter.open(state)
    tell(state, {"kind": "print", "text": "ünïcödé"})
    with pytest.raises(UnicodeEncodeError):
        reporter.draw(state)
    tell(state, {"kind": "print", "text": "plain"})
    reporter.draw(state)
    assert lines(stream)[-1] == "plain"


def test_it_writes_to_the_stdout_of_the_moment(capsys):
    On(TextReporter()).open(started())
    assert "03-torch: one process" in capsys.readouterr().out


def test_the_null_reporter_is_silent(capsys):
    reporter, state = On(NullReporter()), started()
    follow(reporter, state)
    reporter.close(state)
    assert capsys.readouterr() == ("", "")


def test_choose():
    assert isinstance(choose("none"), NullReporter)
    assert isinstance(choose("text"), TextReporter)
    assert isinstance(choose("widgets"), WidgetReporter)
    assert isinstance(choose("auto"), TextReporter)  # pytest is no notebook


# -- widgets --------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch):
    """An IPython without front end; gathers what is displayed: (data, update)."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    config = Config()
    config.HistoryManager.enabled = False
    before = sys.excepthook, sys.displayhook
    shell = InteractiveShell.instance(config=config)
    gathered = []

    class Publisher:
        def publish(self, data, metadata=None, *, transient=None, update=False, **_):
            gathered.append((data, (transient or {}).get("display_id"), update))

    shell.display_pub = Publisher()
    yield gathered
    InteractiveShell.clear_instance()
    sys.excepthook, sys.displayhook = before


@pytest.fixture
def reporter(published):
    return On(WidgetReporter())


def test_the_panel_is_displayed_once_and_replaced_at_the_end(reporter, published):
    state = started()
    follow(reporter, state)
    assert len(published) == 1
    data, identity, update = published[0]
    assert "application/vnd.jupyter.widget-view+json" in data and not update
    state.end("finished", T0 + 62)
    reporter.close(state)
    assert len(published) == 2
    data, again, update = published[1]
    assert (again, update) == (identity, True)
    assert set(data) == {"text/html", "text/plain"}
    assert "loss 0.333" in data["text/html"] and "/record.json" in data["text/html"]
    assert data["text/plain"].startswith("03-torch: finished after 01:02: start 10 s")


def test_the_widgets_move(reporter):
    state = started()
    reporter.open(state)
    assert "starting workers" in reporter._body.value and "03-torch" in reporter._title.value
    step(state, 5, 0, 5, total=10, epochs=1, metrics={"loss": 0.25})
    reporter.draw(state)
    assert "step 5 of 10" in reporter._body.value and "0.250" in reporter._body.value


def test_what_has_not_changed_is_not_sent_again(reporter):
    state = started()
    reporter.open(state)
    sent = []
    reporter._title.observe(sent.append, names="value")
    reporter._details.observe(sent.append, names="value")
    for _ in range(5):
        reporter.draw(state)
    assert sent == []


def test_the_toggles(reporter):
    state = started()
    reporter.open(state)
    assert reporter._details.value == "" and reporter._output.description == "output"
    tell(state, {"kind": "print", "text": "hello <world>"})
    reporter.draw(state)
    assert reporter._output.description == "output (1)"  # so the reader sees that there is something
    reporter._output.value = True  # a click; it is drawn at once and not at the next event
    assert "hello &lt;world&gt;" in reporter._details.value
    reporter._files.value = True
    assert "/logs/of &lt;run&gt;" in reporter._details.value
    reporter._output.value = False
    assert "hello" not in reporter._details.value and "/logs" in reporter._details.value
    reporter._files.value = False
    assert reporter._details.value == ""


@pytest.fixture
def interrupts():
    """SIGINTs that came, instead of KeyboardInterrupt."""
    came = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(threading.current_thread()))
    yield came
    signal.signal(signal.SIGINT, before)


def test_the_stop_button_interrupts_the_main_thread(reporter, interrupts):
    state = started()
    reporter.open(state)
    thread = threading.Thread(target=reporter._stop.click)  # a kernel's subshell
    thread.start()
    thread.join()
    until(lambda: interrupts)
    assert interrupts == [threading.main_thread()]
    assert reporter._stop.disabled and reporter._stop.description == "stopping"
    reporter.draw(state)
    assert "stopping" in reporter._clock.value


def test_a_click_that_comes_after_the_end_interrupts_nothing(reporter, interrupts):
    """Without subshells it waits in the queue until the cell is done; the next cell must not suffer."""
    state = started()
    reporter.open(state)
    button = reporter._stop
    state.end("finished", T0 + 1)
    reporter.close(state)
    reporter._on_stop(button)
    os.kill(os.getpid(), signal.SIGINT)  # one of our own: what came before it is there by then
    until(lambda: interrupts)
    assert len(interrupts) == 1


def test_no_widget_is_left_in_the_kernel(reporter):
    import ipywidgets
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    state = started()
    reporter.open(state)
    assert len(set(_instances) - before) > 10
    state.end("finished", T0 + 1)
    reporter.close(state)
    assert set(_instances) - before == set()
    assert ipywidgets.HTML("still works").value


def test_a_second_run_has_a_panel_of_its_own(reporter, published, interrupts):
    for k in range(2):
        state = started()
        reporter.open(state)
        # The same words as in the first run; the widgets are new, and empty unless they are set again.
        assert "03-torch" in reporter._title.value and "starting" in reporter._body.value
        assert not reporter._stop.disabled
        reporter.draw(state)
        assert "stopping" not in reporter._clock.value
        reporter._stop.click()
        until(lambda k=k: len(interrupts) == k + 1)
        state.end("stopped", T0 + 1)
        reporter.close(state)
    assert len({identity for _, identity, _ in published}) == 2


def test_without_ipython_it_ends_in_a_line(capsys):
    """LABKIT_PANEL=widgets in a script: there is nothing to display them."""
    reporter, state = On(WidgetReporter()), started()
    reporter.open(state)
    state.end("finished", T0 + 3)
    reporter.close(state)
    assert "03-torch: finished after 3.0 s: start 3.0 s" in capsys.readouterr().out
