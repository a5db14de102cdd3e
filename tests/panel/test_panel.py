"""The panel around a run: opened, drawn, ended in every way, used again; in this process and from others."""

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from labkit.errors import LabError, RunStopped
from labkit.panel import Panel
from labkit.panel.base import LivePanel
from labkit.panel.reporters import NullReporter
from labkit.panel.run import Run
from labkit.panel.tracking.hooks import current
from labkit.panel.tracking.remote import RemoteTracker, TrackedFunction
from labkit.runs import record as records
from labkit.settings import Settings
from labs import until


class Recorder(NullReporter):
    """A reporter that keeps what it got."""

    def __init__(self, *, fails_in=()):
        self.calls, self.drawn, self.closed_with, self.fails_in = [], [], None, fails_in

    def _note(self, what):
        self.calls.append(what)
        if what in self.fails_in:
            raise RuntimeError(f"no front end for {what}")

    def open(self, snapshot):
        self._note("open")

    def draw(self, snapshot):
        self.drawn.append(snapshot)
        self._note("draw")

    def close(self, snapshot):
        self.closed_with = (snapshot.lines[-1][1].split()[0], dict(snapshot.files))
        self._note("close")


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
    record = records.read(settings.home / "runs" / "00-baseline" / panel.run_id)
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


@pytest.mark.parametrize("how", [KeyboardInterrupt, "signal"])
def test_a_stop_is_one_calm_line(panel, settings, how):
    with pytest.raises(RunStopped) as caught, panel:
        current().step()
        if how == "signal":
            signal.raise_signal(signal.SIGINT)
        raise how
    assert panel.state.status == "stopped" and panel.state.failures == []
    (line,) = caught.value._render_traceback_()
    assert "\n" not in line and line.startswith("00-baseline: stopped by you after ")
    assert caught.value.__suppress_context__
    assert records.find(settings.home)[0].state == "stopped"
    with panel:
        train(panel, epochs=1)
    assert (panel.state.status, len(panel.state.epoch_seconds)) == ("finished", 1)


def test_a_report_outside_of_the_panel_warns(panel):
    with pytest.warns(UserWarning, match="the panel '00-baseline' is not open") as said:
        panel.report({"loss": 1.0})
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize(("code", "status"), [(3, "failed"), ("no data", "failed"), (0, "stopped")])
def test_the_exit_status_of_a_script_survives(panel, code, status):
    with pytest.raises(SystemExit) as caught, panel:
        sys.exit(code)
    assert (caught.value.code, panel.state.status) == (code, status)


def test_a_failure_from_which_a_run_went_on_is_not_what_ended_it(panel, settings):
    worker = {"run": panel.run_id, "node": "head"}
    counts = {"epoch": 0, "step": 1, "made": 1, "rows": 0, "seconds": 0.0, "waiting": 0.0}
    with pytest.raises(KeyError), panel:
        panel.receive({**worker, "kind": "step", "pid": 100, **counts})
        panel.receive({**worker, "kind": "failure", "pid": 100, "text": "loop\n" * 30 + "OSError: gone"})
        panel.receive({**worker, "kind": "step", "pid": 200, **counts})  # in its place
        {}["acuracy"]
    assert [failure.message for failure in panel.state.failures] == ["OSError: gone", "KeyError: 'acuracy'"]
    assert records.find(settings.home)[0].error == "KeyError: 'acuracy'"
    long = "loop, cell 5, line 3\n    loss.backward()\n    more\n    more\nRuntimeError: shapes"
    with pytest.raises(LookupError), panel:  # what a worker said is kept if it says more
        panel.receive({"kind": "failure", "run": panel.run_id, "text": long})
        raise LookupError
    assert [failure.text for failure in panel.state.failures] == [long]


def test_a_home_that_cannot_be_written_does_not_fail_the_run(tmp_path):
    (tmp_path / "file").touch()
    reporter = Recorder()
    panel = Panel("run", settings=Settings(home=tmp_path / "file" / "home", panel="none"), reporter=reporter)
    with pytest.warns(UserWarning, match="no record of 'run' was kept"), panel:
        train(panel)
    assert reporter.closed_with == ("finished", {})


@pytest.mark.parametrize("name", ["../../evil", "x" * 5000, "nul\0byte"])
def test_a_name_is_no_way_out_of_the_folder(settings, tmp_path, name):
    with Panel(name, settings=settings) as panel:
        panel.report({"loss": float("nan"), "big": float("inf"), "text": "t", "list": [1], 7: 1})
    (path,) = tmp_path.glob("**/run_record.json")
    assert path.parent.parent.parent == settings.home / "runs"
    record = records.read(path)
    assert record.name == name and path.parent.name == panel.run_id
    # Odd metrics do not lose the record.
    assert record.metrics["loss"] != record.metrics["loss"] and record.metrics["7"] == 1
    assert (record.epochs, record.seconds_to_start, record.rows_per_second) == (1, None, None)


# -- once more, twice, and wrongly ----------------------------------------------------------------------


def test_a_second_run_is_a_new_one(panel, settings):
    with panel:
        train(panel)
        with pytest.raises(LabError, match="is open already"), panel:
            pass
        panel.receive({"kind": "print", "run": panel.run_id, "text": "in time"})
    first, first_state = panel.run_id, panel.state
    panel.receive({"kind": "print", "run": first, "text": "too late"})
    with panel:
        assert panel.run_id != first
        assert (panel.state.history, panel.state.workers, panel.state.status) == ([], {}, "running")
        for run in (first, None, "another"):
            panel.receive({"kind": "print", "run": run, "text": "stale"})
        for ahead in (-100_000, 100_000):  # clocks of other machines differ
            panel.receive({"kind": "phase", "run": panel.run_id, "name": "a", "at": time.time() + ahead})
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


def test_an_interrupt_while_it_opens_waits_until_it_is_open(settings):
    """Opening imports what it draws with, and an interrupt can get lost in an import."""

    class Interrupted(Recorder):
        def open(self, snapshot):
            os.kill(os.getpid(), signal.SIGINT)
            super().open(snapshot)

    reporter = Interrupted()
    with (
        pytest.raises(RunStopped, match="stopped by you"),
        Panel("run", settings=settings, reporter=reporter),
    ):
        pytest.fail("it came no further")
    assert reporter.closed_with[0] == "stopped" and len(reporter.calls) > 1 and drawers() == []


# -- drawing --------------------------------------------------------------------------------------------


def test_it_is_drawn_five_times_a_second_at_most(settings):
    reporter = Recorder()
    with Panel("run", settings=settings, reporter=reporter) as panel:
        started = time.monotonic()
        # There is news for many more.
        while not reporter.drawn or panel.state.version < 100 or time.monotonic() - started < 1.0:
            panel.emit("phase", name="a")
            time.sleep(0.001)
        drawn = len(reporter.drawn)
        assert drawn <= (time.monotonic() - started) * 5 + 2
        time.sleep(1.5)  # where nothing happens only the clock moves
        until(lambda: len(reporter.drawn) > drawn)
        calm = time.monotonic()
        reporter.drawn.clear()
        time.sleep(1.5)
        assert len(reporter.drawn) <= (time.monotonic() - calm) + 2


@pytest.mark.parametrize("where", ["open", "draw", "close"])
def test_a_reporter_that_fails_does_not_fail_the_run(settings, where):
    reporter = Recorder(fails_in=(where,))
    panel = Panel("run", settings=settings, reporter=reporter)
    for _ in range(2):
        reporter.calls.clear()
        said = pytest.warns(UserWarning, match=f"'run' could not be drawn.*no front end for {where}")
        with said, panel:
            train(panel)
            until(lambda: where != "draw" or reporter.calls.count("draw") > 1)
        assert len(said) == 1 and panel.state.status == "finished"
    assert len(records.find(settings.home)) == 2


# -- what an engine's panel adds to it ------------------------------------------------------------------


class CountRun(Run):
    counted = 0

    def fill(self, now):
        self.notes = [f"counted <{self.counted}>"]

    def to_record(self):
        return {"metrics": {"counted": self.counted}, "workers": 3}


class CountPanel(LivePanel):
    """A panel of an engine that counts."""

    exclusive = True

    def new_state(self):
        return CountRun(self._name)

    @contextlib.contextmanager
    def surroundings(self):
        self.around = ["in", self.state.status]
        yield
        self.around += ["out", self.state.status]


def test_the_panel_of_an_engine(settings):
    reporter = Recorder()
    with CountPanel("count", settings=settings, reporter=reporter) as panel:
        assert CountPanel.current() is panel and Panel.current() is None
        with panel.update() as state:
            state.counted += 1
        until(lambda: any("counted &lt;1&gt;" in snapshot.body for snapshot in reporter.drawn))
        with pytest.raises(LabError, match="'count' is open"), CountPanel("second", settings=settings):
            pass
        assert copy.deepcopy([panel])[0] is panel
        assert pickle.loads(pickle.dumps(panel)) == "CountPanel('count', running)"
    assert panel.around == ["in", "running", "out", "running"] and CountPanel.current() is None
    (record,) = records.find(settings.home)
    assert (record.state, record.metrics, record.workers) == ("finished", {"counted": 1}, 3)
    assert reporter.closed_with[1]["run record"].endswith(f"{panel.run_id}/run_record.json")


@pytest.mark.parametrize("when", ["before", "after"])
def test_surroundings_that_fail_leave_nothing_open(settings, when):
    @contextlib.contextmanager
    def surroundings():
        if when == "after":
            yield
        raise OSError("no such hook")

    panel = CountPanel("count", settings=settings)
    panel.surroundings = surroundings
    with pytest.raises(OSError, match="no such hook"), panel:
        assert when == "after"
    assert panel.state.status == "failed" and CountPanel.current() is None and drawers() == []


# -- other processes ------------------------------------------------------------------------------------


def test_a_pickled_panel_is_a_tracker_and_tells_no_key(panel, settings):
    with panel:
        tracker = pickle.loads(pickle.dumps(panel))
        assert type(tracker) is RemoteTracker and panel.state.workers == {}  # to unpickle it does nothing
        key = panel.listen().address.key
        assert key not in repr(panel) + repr(tracker) + repr(panel.listen()) + repr(panel.__reduce__())
        TrackedFunction(lambda: current().step(4), tracker)()
        until(lambda: panel.state.workers and panel.state.workers[0].step == 1)
    assert copy.deepcopy([panel])[0] is panel
    # A later cell that sends a function which mentions `panel` anywhere pickles it.
    tracker = pickle.loads(pickle.dumps(panel))
    assert (panel._listener, panel.state.status) == (None, "finished")
    TrackedFunction(lambda: current().step(4), tracker)()  # it reports nowhere, and says nothing
    assert panel.state.workers[0].made == 1

    class Elsewhere(Panel):
        def host(self):
            return "192.0.2.1"  # an address for examples: no machine has it

    with Elsewhere("run", settings=settings) as panel:
        with pytest.warns(UserWarning, match=r"cannot listen on 192\.0\.2\.1"):
            sent = pickle.dumps(panel)
        assert TrackedFunction(lambda: 3, pickle.loads(sent))() == 3


def test_a_worker_that_outlives_its_run(panel):
    """It neither disturbs the next run nor is disturbed itself."""
    with panel:
        payload = pickle.dumps(panel)
    code = """
import pickle, sys
from labkit.panel.tracking.hooks import current
from labkit.panel.tracking.remote import TrackedFunction
tracker = pickle.loads(sys.stdin.buffer.read())
TrackedFunction(lambda: [current().step() for _ in range(1000)], tracker)()
print("went on")
"""
    with panel:
        done = subprocess.run([sys.executable, "-c", code], input=payload, capture_output=True, timeout=200)
        assert (done.stdout, done.stderr, done.returncode) == (b"went on\n", b"", 0)
    assert (panel.state.workers, panel.state.history) == ({}, [])


# -- while it is running ---------------------------------------------------------------------------


def test_functions_get_the_record_while_it_grows_and_at_the_end(settings, monkeypatch):
    monkeypatch.setattr("labkit.panel.base._KEEP_EVERY", 0.1)
    got = []

    def broken(record):
        raise OSError("the server is gone")

    with (
        pytest.warns(UserWarning, match="gets no more of '00-baseline': the server is gone"),
        Panel("00-baseline", settings=settings, live=[broken, got.append]) as panel,
    ):
        for epoch in range(2):
            panel.report({"epoch": epoch, "loss": 1.0 - epoch / 2})
            until(lambda wanted=epoch + 1: got and len(got[-1].history) == wanted)
            assert got[-1].state == "running"
    assert (got[-1].state, got[-1].metrics) == ("finished", {"loss": 0.5})
    assert got[-1] == records.read(got[-1].folder)


def test_the_record_of_a_killed_process_shows_how_far_it_came(settings):
    code = (
        "import os, time; from labkit import panel; from labkit.panel import base; base._KEEP_EVERY = 0.1\n"
        "from labkit.runs import record as records; from labkit.settings import Settings\n"
        "with panel.Panel('killed') as run:\n"
        "    run.report({'epoch': 0, 'loss': 0.5})\n"
        "    while not records.find(Settings.from_env().home)[0].metrics: time.sleep(0.05)\n"
        "    os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"LABKIT_HOME": str(settings.home), "LABKIT_PANEL": "none"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=200).returncode == -9
    (record,) = records.find(settings.home)
    assert (record.state, record.metrics) == ("lost", {"loss": 0.5})
