"""The panel around a run: opened, drawn, ended in every way, used again; in this process and from others."""

import copy
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from labkit.errors import BadInput, RunStopped
from labkit.panel import Panel
from labkit.panel.base import LivePanel
from labkit.panel.reporters import NullReporter
from labkit.panel.shown import Shown
from labkit.runs import record as records
from labkit.settings import Settings
from labkit.worker.events import Failure, Phase, Print
from labkit.worker.hooks import current
from labkit.worker.remote import RemoteTracker, TrackedFunction
from labs import until
from runs_told import event

pytestmark = pytest.mark.slow


@pytest.fixture
def reporter():
    return Mock(NullReporter)


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", panel="none")


@pytest.fixture
def panel(settings):
    panel = Panel("00-baseline", settings=settings)
    yield panel
    panel.hang_up()


def train(panel, *, epochs=2):
    for epoch in range(epochs):
        current().begin_epoch(5)
        for _ in range(5):
            current().step(10, loss=1.0 / (epoch + 1))
        current().end_epoch()
        panel.report({"loss": 0.5 / (epoch + 1), "accuracy": 0.9})


def drawers():
    return [thread for thread in threading.enumerate() if thread.name == "labkit-panel"]


# -- how a run ends, and its record ---------------------------------------------------------------------


def test_a_run_that_ends_well(settings):
    panel = Panel("00-baseline", dataset="digits", rows=100, epochs=2, settings=settings)
    assert panel.state.status == "ready" and repr(panel) == "Panel('00-baseline', ready)"
    with panel as same:
        assert same is panel
        # A kernel that dies leaves this record: the next look calls the run lost.
        (record,) = records.find(settings.home)
        assert (record.run_id, record.state, record.error) == (panel.run_id, "running", None)
        assert record.process["pid"] == os.getpid()
        train(panel)
        assert panel._listener is None  # it listens only where a worker may call
    assert panel.state.status == "finished" and drawers() == []
    record = records.read(settings.home / "runs" / "00-baseline" / panel.run_id / records.FILE_NAME)
    assert (record.name, record.engine, record.state, record.process) == (
        "00-baseline", "one process", "finished", {},
    )  # fmt: skip
    assert (record.dataset, record.rows, record.workers, record.error) == ("digits", 100, 1, None)
    assert record.metrics == {"loss": 0.25, "accuracy": 0.9}
    assert [entry["epoch"] for entry in record.history] == [0, 1]
    assert len(record.seconds_per_epoch) == 2 and record.rows_per_second > 0
    assert set(record.seconds) == {"start", "data", "training", "between epochs", "rest"}
    assert sum(record.seconds.values()) == pytest.approx(record.seconds_total, abs=0.05)
    assert abs(record.started.timestamp() - time.time()) < 60
    with pytest.warns(UserWarning, match="the panel '00-baseline' is not open") as said:
        panel.report({"loss": 1.0})
    assert said[0].filename == __file__


def test_a_failure_that_arrives_last_is_the_only_one(panel, monkeypatch):
    """A rank's failure and the engine's error are one failure, whichever comes first."""

    class Late:
        def __init__(self, on_event):
            self.on_event = on_event

        def close(self):
            self.on_event(Failure("ValueError: boom", run=panel.run_id, rank=1))

    monkeypatch.setattr(panel, "channel", Late)
    with pytest.raises(RuntimeError), panel:
        panel.listen()
        raise RuntimeError("a rank failed")
    assert [failure.rank for failure in panel.state.failures] == [1]
    assert panel.state.status == "failed"


def test_an_error_passes_through(panel, settings):
    error, handler = ValueError("boom <b>"), signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError) as caught, panel:
        train(panel)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Ray's fit() leaves its own behind
        raise error
    assert caught.value is error and panel.state.status == "failed"
    assert signal.getsignal(signal.SIGINT) is handler
    (failure,) = panel.state.failures
    assert panel.state.outcome() == "failed in epoch 2"
    assert failure.message == "ValueError: boom <b>" and "test_an_error_passes_through" in failure.text
    (record,) = records.find(settings.home)
    assert (record.state, record.error, record.epochs) == ("failed", "ValueError: boom <b>", 2)


def test_a_stop_is_one_calm_line(panel, settings):
    with pytest.raises(RunStopped) as caught, panel:
        current().step()
        signal.raise_signal(signal.SIGINT)
    assert panel.state.status == "stopped" and panel.state.failures == []
    (line,) = caught.value._render_traceback_()
    assert "\n" not in line and line.startswith("00-baseline: stopped by you after ")
    assert caught.value.__suppress_context__
    assert records.find(settings.home)[0].state == "stopped"
    for code, status in ((3, "failed"), ("no data", "failed"), (0, "stopped")):
        with pytest.raises(SystemExit) as ended, panel:
            sys.exit(code)
        assert (ended.value.code, panel.state.status) == (code, status)


def test_a_home_that_cannot_be_written_does_not_fail_the_run(tmp_path, reporter):
    (tmp_path / "file").touch()
    panel = Panel("run", settings=Settings(home=tmp_path / "file" / "home", panel="none"), reporter=reporter)
    with pytest.warns(UserWarning, match="no record of 'run' was kept"), panel:
        train(panel)
    (last,) = reporter.close.call_args.args
    assert last.lines[-1][1].startswith("finished") and "run record" not in last.html


# -- once more, twice, and wrongly ----------------------------------------------------------------------


def test_a_panel_that_cannot_begin_says_why_and_leaves_no_record(settings, monkeypatch):
    def fails(_):
        raise OSError("no such reporter")

    panel = Panel("run", settings=settings)
    monkeypatch.setattr("labkit.panel.base.choose", fails)
    with pytest.raises(OSError, match="no such reporter"), panel:
        pass
    assert records.find(settings.home) == [] and LivePanel.current() is None
    assert not list(settings.home.glob("runs/*/*"))
    monkeypatch.undo()
    with panel:
        train(panel)
    assert panel.state.status == "finished"


def test_a_second_run_is_a_new_one(panel, settings):
    with panel:
        train(panel)
        with pytest.raises(BadInput, match="is open already"), panel:
            pass
        panel.receive(Print("in time", run=panel.run_id))
    first, first_state = panel.run_id, panel.state
    panel.receive(Print("too late", run=first))
    with panel:
        assert panel.run_id != first
        assert (panel.state.history, panel.state.workers, panel.state.status) == ([], {}, "running")
        for run in (first, "", "another"):
            panel.receive(Print("stale", run=run))
        for ahead in (-100_000, 100_000):  # clocks of other machines differ
            panel.receive(Phase("a", run=panel.run_id, at=time.time() + ahead))
    assert all(0 <= seconds < 60 for seconds in panel.state.phase_seconds().values())
    assert len(first_state.history) == 2 and list(first_state.prints) == ["in time"]
    assert panel.state.printed == 0 and len(records.find(settings.home)) == 2


def test_a_second_interrupt_does_not_leave_it_open(panel):
    class Impatient:
        def close(self):
            closed.append(True)
            raise KeyboardInterrupt

    closed = []
    with pytest.raises(RunStopped, match="stopped by you when the run was over"), panel:
        panel.listen().close()
        panel._listener = Impatient()
    assert panel.state.status == "finished" and closed == [True]
    with panel:
        train(panel)
    assert drawers() == []


def test_an_interrupt_while_it_opens_waits_until_it_is_open(settings, reporter):
    """Opening imports what it draws with, and an interrupt can get lost in an import."""
    reporter.open.side_effect = lambda snapshot: os.kill(os.getpid(), signal.SIGINT)
    with (
        pytest.raises(RunStopped, match="stopped by you"),
        Panel("run", settings=settings, reporter=reporter),
    ):
        pytest.fail("it came no further")
    (last,) = reporter.close.call_args.args
    assert "stopped by you" in last.html and drawers() == []


# -- drawing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["open", "draw", "close"])
def test_a_reporter_that_fails_does_not_fail_the_run_and_is_told_once(settings, reporter, where):
    getattr(reporter, where).side_effect = RuntimeError(f"no front end for {where}")
    said = pytest.warns(UserWarning, match=f"'run' could not be drawn.*no front end for {where}")
    with said, Panel("run", settings=settings, reporter=reporter) as panel:
        train(panel)
        until(lambda: where != "draw" or reporter.draw.call_count > 1)
    assert len(said) == 1 and panel.state.status == "finished"


def test_a_panel_that_may_be_open_once_travels_as_text_and_its_clock_moves_where_nothing_happens(
    settings, reporter
):
    class Exclusive(LivePanel):
        exclusive = True
        view = staticmethod(lambda run, now: Shown())

    with Exclusive("one", settings=settings, reporter=reporter) as panel:
        assert Exclusive.current() is panel and Panel.current() is None
        with pytest.raises(BadInput, match="'one' is open"), Exclusive("two", settings=settings):
            pass
        assert pickle.loads(pickle.dumps(panel)) == "Exclusive('one', running)"
        until(lambda: reporter.draw.call_count > 1)
    assert Exclusive.current() is None
    (last,) = reporter.close.call_args.args
    assert f"{panel.run_id}/run_record.json" in last.html


def test_a_failure_from_which_a_run_went_on_is_not_what_ended_it(panel, settings):
    worker = {"run": panel.run_id, "node": "head"}
    with pytest.raises(KeyError), panel:
        panel.receive(event("step", pid=100, **worker))
        panel.receive(Failure("loop\n" * 30 + "OSError: gone", pid=100, **worker))
        panel.receive(event("step", pid=200, **worker))  # in its place
        {}["acuracy"]
    assert [failure.message for failure in panel.state.failures] == ["OSError: gone", "KeyError: 'acuracy'"]
    assert records.find(settings.home)[0].error == "KeyError: 'acuracy'"


# -- other processes ------------------------------------------------------------------------------------


def test_the_tracker_goes_to_other_processes_and_tells_no_key(panel, settings):
    with panel:
        tracker = pickle.loads(pickle.dumps(panel.tracker))
        assert type(tracker) is RemoteTracker and panel.state.workers == {}  # to unpickle it does nothing
        key = panel.listen().address.key
        assert key not in repr([panel, tracker, panel.listen(), panel.tracker.__reduce__()])
        TrackedFunction(lambda: current().step(4), tracker)()
        until(lambda: panel.state.workers and panel.state.workers[0].step == 1)
    # A configuration may be copied, and a function that mentions `panel` anywhere may be sent.
    assert copy.deepcopy({"panel": panel})["panel"] is panel
    assert pickle.loads(pickle.dumps(panel)) == repr(panel)
    tracker = pickle.loads(pickle.dumps(panel.tracker))
    assert (panel._listener, panel.state.status) == (None, "finished")
    TrackedFunction(lambda: current().step(4), tracker)()  # it reports nowhere, and says nothing
    assert panel.state.workers[0].made == 1

    class Elsewhere(Panel):
        def host(self):
            return "192.0.2.1"  # an address for examples: no machine has it

    with Elsewhere("run", settings=settings) as panel:
        with pytest.warns(UserWarning, match=r"cannot listen on 192\.0\.2\.1"):
            sent = pickle.dumps(panel.tracker)
        assert TrackedFunction(lambda: 3, pickle.loads(sent))() == 3


# -- while it is running ---------------------------------------------------------------------------


def test_functions_get_the_record_while_it_grows_and_so_does_its_file(settings, monkeypatch):
    monkeypatch.setattr("labkit.panel.base._KEEP_EVERY", 0.1)
    got = []

    def broken(record):
        raise OSError("the server is gone")

    held = threading.Event()

    with (
        pytest.warns(UserWarning, match="gets no more of '00-baseline': the server is gone"),
        Panel("00-baseline", settings=settings, live=[broken, got.append]) as panel,
    ):
        for epoch in range(2):
            panel.report({"epoch": epoch, "loss": 1.0 - epoch / 2})
            until(lambda wanted=epoch + 1: got and len(got[-1].history) == wanted)
            assert got[-1].state == "running"
        # What a kernel leaves that is killed now.
        until(lambda: len(records.find(settings.home)[0].history) == 2)
    assert (got[-1].state, got[-1].metrics) == ("finished", {"loss": 0.5})
    assert got[-1] == records.read(Path(got[-1].folder) / records.FILE_NAME)
    with Panel("held", settings=settings, live=[lambda _: held.wait(60)]) as panel:
        for epoch in range(2):  # one that hangs holds up no record
            panel.report({"epoch": epoch, "loss": 0.5})
            until(lambda wanted=epoch + 1: len(records.find(settings.home)[0].history) == wanted)
        held.set()
