"""What reporters show: lines in a terminal, widgets in a notebook, and what stays of them."""

import os
import re
import signal
import sys
import threading

import pytest

from labkit.panel.reporters import NullReporter, TextReporter, WidgetReporter, choose
from labs import until
from runs_told import T0, Run

FILES = [("workers' logs", "/logs/of <run>"), ("run record", "/record.json")]


def begin(reporter, **options):
    run = Run("03-torch", phase="starting", **options)
    reporter.open(run.drawn(60, FILES))
    return run


def show(reporter, run):
    reporter.draw(run.drawn(60, FILES))


def end(reporter, run, status="finished", at=62):
    run.state.end(status, T0 + at)
    reporter.close(run.drawn(60, FILES))


def follow(reporter, run, *, epochs=3, report=True):
    """A whole run, drawn after every event."""
    for epoch in range(epochs):
        show(reporter, run("phase", 9, name="loading"))
        for k in range(51):
            at = 10 + epoch * 10 + k / 10
            run.step(at, epoch=epoch, step=k, seconds=k / 10, epochs=epochs, total=50, done=k == 50)
            show(reporter, run)
        if report:
            show(reporter, run("report", metrics={"epoch": epoch, "loss": 1 / (epoch + 1)}))


# -- lines ----------------------------------------------------------------------------------------------


def lines(capsys):
    printed = [line.split(" ", 2) for line in capsys.readouterr().out.splitlines()]
    assert {name for _, name, _ in printed} <= {"03-torch:"}
    return [line for _, _, line in printed]


def test_a_line_for_each_phase_and_epoch_and_none_for_a_step(capsys):
    reporter = TextReporter()
    for _ in range(2):  # a second run is reported from its beginning
        run = begin(reporter, engine="Ray Train", world_size=2, dataset="digits", rows=1437)
        follow(reporter, run)
        end(reporter, run)
    printed = lines(capsys)
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    assert [line.partition(" · ")[0] for line in printed[: len(printed) // 2]] == [
        "Ray Train", "starting workers", "loading data", "training", "epoch 1/3", "epoch 2/3", "epoch 3/3",
        "finished after 01:02: start 10 s",
    ]  # fmt: skip
    assert printed[0] == "Ray Train · 2 workers · digits · 1,437 rows"
    assert "loss 0.500" in printed[5] and "rows/s" in printed[5]


def test_prints_are_shown_once_and_a_failure_is_one_line_at_once_and_whole_at_the_end(capsys):
    reporter = TextReporter()
    run = begin(reporter, world_size=2)("print", text="one\ntwo", rank=1)
    for _ in range(3):
        show(reporter, run)
    text = "loop, cell 5, line 3\n    1 / 0\nValueError: boom"
    show(reporter, run("failure", rank=1, text=text))
    end(reporter, run, "failed", at=5)
    assert lines(capsys)[2:] == [
        "[rank 1] one",
        "two",
        "rank 1 failed: ValueError: boom",
        *text.splitlines(),
        "failed after 5.0 s: start 5.0 s",
    ]


def test_choose(monkeypatch):
    kinds = {"none": NullReporter, "text": TextReporter, "widgets": WidgetReporter}
    assert all(type(choose(kind)) is expected for kind, expected in kinds.items())
    assert isinstance(choose("auto"), TextReporter)  # pytest is no notebook
    kernel = type("ZMQInteractiveShell", (), {})  # Colab's shell is a subclass of ipykernel's
    monkeypatch.setattr("IPython.get_ipython", lambda: type("Shell", (kernel,), {})())
    assert isinstance(choose("auto"), WidgetReporter)


# -- widgets --------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch):
    """An IPython without front end; gathers what is displayed: (data, display id, update)."""
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
    return WidgetReporter()


@pytest.fixture
def interrupts():
    """SIGINTs that came, instead of KeyboardInterrupt."""
    came = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(threading.current_thread()))
    yield came
    signal.signal(signal.SIGINT, before)


def test_the_panel_is_displayed_once_and_replaced_at_the_end(reporter, published):
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    run = begin(reporter)
    assert "starting workers" in reporter._body.value and "03-torch" in reporter._title.value
    follow(reporter, run)
    assert "step 50 of 50" in reporter._body.value and "0.333" in reporter._body.value
    ((data, identity, update),) = published
    assert "application/vnd.jupyter.widget-view+json" in data and not update
    end(reporter, run)
    _, (data, again, update) = published
    assert (again, update, set(data)) == (identity, True, {"text/html", "text/plain"})
    assert "loss 0.333" in data["text/html"] and "/record.json" in data["text/html"]
    assert data["text/plain"].startswith("03-torch: finished after 01:02: start 10 s")
    assert set(_instances) - before == set()  # no widget is left in the kernel


def test_a_screen_reader_is_told_of_phases_and_failures_and_not_of_steps(reporter):
    run = begin(reporter)
    read = []
    reporter._aloud.observe(
        lambda change: read.append(" ".join(re.sub("<[^>]*>", "", change.new).split())), "value"
    )
    follow(reporter, run, report=False)
    show(reporter, run("failure", text="ValueError: no <rows>", rank=1))
    show(reporter, run)
    assert read == ["loading data", "training", "rank 1 failed: ValueError: no &lt;rows&gt;"]


def test_a_front_end_that_delivers_clicks_late_has_no_buttons(reporter, monkeypatch):
    monkeypatch.setenv("VSCODE_PID", "7")
    begin(reporter)
    widgets = _instances_of(reporter._box)
    assert not [widget for widget in widgets if widget.__class__.__name__ == "Button"]
    assert any("stop it with the kernel" in getattr(widget, "value", "") for widget in widgets)


def _instances_of(box):
    """All widgets in a box."""
    inside = [widget for child in getattr(box, "children", ()) for widget in _instances_of(child)]
    return [box, *inside]


def test_a_click_that_comes_after_the_end_interrupts_nothing(reporter, interrupts):
    """Without subshells it waits in the queue until the cell is done; the next cell must not suffer."""
    run = begin(reporter)
    (button,) = [widget for widget in _instances_of(reporter._box) if widget.__class__.__name__ == "Button"]
    end(reporter, run)
    reporter._on_stop(button)
    os.kill(os.getpid(), signal.SIGINT)  # one of our own: what came before it is there by then
    until(lambda: interrupts)
    assert len(interrupts) == 1


def test_without_ipython_it_ends_in_a_line(capsys):
    """LABKIT_PANEL=widgets in a script: there is nothing to display them."""
    reporter = WidgetReporter()
    end(reporter, begin(reporter), at=3)
    assert "03-torch: finished after 3.0 s: start 3.0 s" in capsys.readouterr().out
