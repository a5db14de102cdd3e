"""The panel around a run: opened, drawn, ended in every way, and used again."""

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import pytest

from labkit.errors import RunError, RunStopped
from labkit.panel import Panel
from labkit.panel.tracking.remote import RemoteTracker
from labkit.runs import record as records
from labkit.settings import Settings
from runs_told import until


class Recorder:
    """A reporter that keeps what it was told."""

    def __init__(self, *, fails_in=()):
        self.calls, self.drawn_at, self.closed_with, self.fails_in = [], [], None, fails_in

    def _note(self, what):
        self.calls.append(what)
        if what in self.fails_in:
            raise RuntimeError(f"no front end for {what}")

    def open(self, snapshot):
        self._note("open")

    def draw(self, snapshot):
        self.drawn_at.append(time.monotonic())
        self._note("draw")

    def close(self, snapshot):
        self.closed_with = (snapshot.last_line.split()[0], dict(snapshot.files))
        self._note("close")


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", panel="none")


@pytest.fixture
def panel(settings):
    panel = Panel("00-baseline", settings=settings)
    yield panel
    if panel._listener is not None:
        panel._listener.close()


def train(panel, *, epochs=2, steps=5, report=True):
    for epoch in range(epochs):
        for _ in panel.steps([[0] * 10] * steps, epoch=epoch, epochs=epochs):
            panel.log(loss=1.0 / (epoch + 1))
        if report:
            panel.report({"loss": 0.5 / (epoch + 1), "accuracy": 0.9})


def record_files(settings):
    return sorted(settings.home.glob("**/run_record.json"))


def drawers():
    return [thread for thread in threading.enumerate() if thread.name == "labkit-panel"]


# -- how a run ends -------------------------------------------------------------------------------------


def test_a_run_that_ends_well(settings):
    panel = Panel("00-baseline", dataset="digits", rows=100, epochs=2, settings=settings)
    assert panel.state.status == "ready" and repr(panel) == "Panel('00-baseline', ready)"
    with panel as same:
        assert same is panel and panel.state.status == "running"
        train(panel)
    state = panel.state
    assert (state.status, len(state.history), len(state.epoch_seconds)) == ("finished", 2, 2)
    assert state.metrics() == {"loss": 0.25, "accuracy": 0.9}
    assert drawers() == []
    record = records.read(settings.home / "runs" / "00-baseline" / panel.run_id)
    assert (record.name, record.run_id, record.engine, record.state) == (
        "00-baseline", panel.run_id, "one process", "finished",
    )  # fmt: skip
    assert (record.dataset, record.rows, record.workers, record.error) == ("digits", 100, 1, None)
    assert record.metrics == {"loss": 0.25, "accuracy": 0.9}
    assert [entry["epoch"] for entry in record.history] == [0, 1]
    assert len(record.seconds_per_epoch) == 2 and record.rows_per_second > 0
    assert set(record.seconds) == {"start", "data", "training", "between epochs", "rest"}
    assert sum(record.seconds.values()) == pytest.approx(record.seconds_total, abs=0.05)
    assert abs(record.started.timestamp() - time.time()) < 60


def test_a_run_has_a_record_from_its_start_on(panel, settings):
    """A kernel that dies leaves it: the next look calls the run lost."""
    panel.state.given = {"config": {"lr": 0.1}, "scaling": {"num_workers": 2}}
    with panel:
        (record,) = records.find(settings.home)
        assert (record.run_id, record.state) == (panel.run_id, "running")
        assert record.process["pid"] == os.getpid() and record.error is None
        panel.checkpoint("bucket/run/checkpoint_0")
    (record,) = records.find(settings.home)
    assert (record.run_id, record.state, record.process) == (panel.run_id, "finished", {})
    assert (record.config, record.scaling) == ({"lr": 0.1}, {"num_workers": 2})
    assert record.checkpoint == "bucket/run/checkpoint_0"


def test_an_error_passes_through_as_it_is(panel, settings):
    error = ValueError("boom <b>")
    with pytest.raises(ValueError) as caught, panel:
        train(panel)
        raise error
    assert caught.value is error
    state = panel.state
    assert (state.status, len(state.failures)) == ("failed", 1)
    assert state.failures[0].message == "ValueError: boom <b>"
    assert "test_an_error_passes_through_as_it_is" in state.failures[0].text
    (record,) = records.find(settings.home)
    assert (record.state, record.error) == ("failed", "ValueError: boom <b>")
    assert len(record.seconds_per_epoch) == 2  # what was reached before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), SystemExit()], ids=repr)
def test_a_stop_is_one_calm_line(panel, settings, error):
    with pytest.raises(RunStopped) as caught, panel:
        raise error
    assert panel.state.status == "stopped" and panel.state.failures == []
    lines = caught.value._render_traceback_()
    assert len(lines) == 1 and "\n" not in lines[0]
    assert lines[0].startswith("00-baseline: stopped by you after ")
    assert caught.value.__suppress_context__
    assert records.find(settings.home)[0].state == "stopped"


def test_an_interrupt_of_the_main_thread_stops_it(panel):
    with pytest.raises(RunStopped), panel:
        for _ in panel.steps(range(10)):
            signal.raise_signal(signal.SIGINT)
    assert panel.state.status == "stopped"


def test_an_error_that_cannot_be_told(panel, settings):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    with pytest.raises(Mute), panel:
        raise Mute
    assert panel.state.status == "failed"
    assert records.find(settings.home)[0].error


def test_what_a_worker_said_is_kept_if_it_says_more(panel):
    long = "loop, cell 5, line 3\n    loss.backward()\nRuntimeError: shapes"
    with pytest.raises(LookupError), panel:
        panel.receive({"kind": "failure", "run": panel.run_id, "text": long})
        raise LookupError
    assert [failure.text for failure in panel.state.failures] == [long]


def test_the_handler_of_interrupts_is_restored(panel):
    before = signal.getsignal(signal.SIGINT)
    with panel:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Ray's fit() leaves its own behind
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ValueError), panel:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_than_the_main_one(panel):
    outcome = []

    def run():
        with panel:
            train(panel)
        outcome.append(panel.state.status)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert outcome == ["finished"]


# -- once more ------------------------------------------------------------------------------------------


def test_a_second_run_is_a_new_one(panel, settings):
    with panel:
        train(panel)
    first, first_state = panel.run_id, panel.state
    with panel:
        assert panel.run_id != first and panel.state is not first_state
        assert (panel.state.history, panel.state.workers, panel.state.status) == ([], {}, "running")
        train(panel, epochs=1)
    assert len(first_state.history) == 2 and len(panel.state.history) == 1
    assert len(record_files(settings)) == 2


def test_opening_it_twice_is_refused(panel):
    with panel:
        with pytest.raises(RunError) as caught, panel:
            pass
        assert "is open already" in caught.value.fact
        assert panel.state.status == "running"  # the first run goes on
    assert panel.state.status == "finished"


@pytest.mark.parametrize("how", [ValueError, KeyboardInterrupt])
def test_after_a_run_that_went_wrong(panel, how):
    with pytest.raises((ValueError, RunStopped)), panel:
        for _ in panel.steps(range(10)):
            raise how
    gc.collect()  # the loop that was left is closed now, while another run is there
    with panel:
        train(panel, epochs=1)
    assert (panel.state.status, len(panel.state.epoch_seconds)) == ("finished", 1)


def test_late_words_of_an_earlier_run_are_passed_over(panel):
    with panel:
        old = panel.run_id
        panel.receive({"kind": "print", "run": old, "text": "in time"})
    panel.receive({"kind": "print", "run": old, "text": "too late"})
    assert list(panel.state.prints) == ["in time"]
    with panel:
        for run in (old, None, "another", ""):
            panel.receive({"kind": "print", "run": run, "text": "stale"})
        panel.receive({})
        assert panel.state.printed == 0


def test_two_panels_at_once(settings):
    first, second = (Panel(name, settings=settings) for name in ("a", "b"))
    with first, second:
        first.report({"loss": 1.0})
        second.report({"loss": 2.0})
    assert (first.state.metrics(), second.state.metrics()) == ({"loss": 1.0}, {"loss": 2.0})


@pytest.mark.parametrize("call", [train, lambda p: p.report({}), lambda p: p.phase("saving")])
def test_a_loop_outside_of_the_panel_is_said_once(panel, call):
    with pytest.warns(UserWarning, match="the panel '00-baseline' is not open") as said:
        call(panel)
        call(panel)
    assert len(said) == 1 and said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with panel:
            train(panel)
    with pytest.warns(UserWarning, match="is not open"):
        call(panel)
    assert panel.state.status == "finished" and len(panel.state.history) == 2


def test_a_tracker_of_a_panel_that_is_not_open_is_said_once(panel):
    """A training function that holds another panel than the one around its run."""
    tracker = pickle.loads(pickle.dumps(panel))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with tracker.working():
            tracker.report({"loss": 1.0})
            tracker.report({"loss": 1.0})
        until(lambda: said)
        panel._listener.drain()
    assert [str(one.message)[:32] for one in said] == ["the panel '00-baseline' is not o"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": None}, {"name": 3}, {"name": " "}, {"settings": "small"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_argument_is_refused_at_once(arguments):
    with pytest.raises(RunError) as caught:
        Panel(**{"name": "00-baseline", **arguments})
    (name,) = arguments
    assert name in caught.value.fact


def test_a_second_interrupt_does_not_leave_it_open(panel, monkeypatch):
    class Impatient:
        def drain(self):
            raise KeyboardInterrupt

        def close(self):
            closed.append(True)

    closed = []
    with pytest.raises(KeyboardInterrupt), panel:
        panel._listener = Impatient()
    assert panel.state.status == "finished" and closed == [True]
    with panel:
        train(panel)
    assert drawers() == []


def test_an_interrupt_while_it_opens(settings):
    class Interrupted(Recorder):
        def open(self, snapshot):
            super().open(snapshot)
            if len(self.calls) == 1:
                raise KeyboardInterrupt

    reporter = Interrupted()
    panel = Panel("run", settings=settings, reporter=reporter)
    with pytest.raises(RunStopped, match="stopped by you"):
        panel.__enter__()
    assert reporter.closed_with[0] == "stopped" and drawers() == []
    with panel:
        train(panel)
    assert panel.state.status == "finished"


# -- reporters ------------------------------------------------------------------------------------------


def test_it_is_drawn_five_times_a_second_at_most(settings):
    reporter = Recorder()
    panel = Panel("run", settings=settings, reporter=reporter)
    with panel:
        started = time.monotonic()
        while time.monotonic() - started < 2.0:
            panel.phase("a")
            panel.phase("b")
            time.sleep(0.001)
        took = time.monotonic() - started
    assert 2 <= len(reporter.drawn_at) <= took * 5 + 2
    assert panel.state.version > 100  # there was news for many more


def test_where_nothing_happens_only_the_clock_moves(settings):
    reporter = Recorder()
    with Panel("run", settings=settings, reporter=reporter):
        time.sleep(2.5)
    assert 1 <= len(reporter.drawn_at) <= 4


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
        assert len(said) == 1
        assert panel.state.status == "finished"
    assert len(record_files(settings)) == 2


def test_a_reporter_that_fails_does_not_hide_the_error(settings):
    panel = Panel("run", settings=settings, reporter=Recorder(fails_in=("open", "draw", "close")))
    with pytest.warns(UserWarning), pytest.raises(ZeroDivisionError), panel:
        1 / 0  # noqa: B018


# -- the record -----------------------------------------------------------------------------------------


def test_a_home_that_cannot_be_written_does_not_fail_the_run(tmp_path):
    (tmp_path / "file").touch()
    reporter = Recorder()
    panel = Panel("run", settings=Settings(home=tmp_path / "file" / "home", panel="none"), reporter=reporter)
    with pytest.warns(UserWarning, match="no record of 'run' was kept"), panel:
        train(panel)
    assert panel.state.status == "finished"
    assert reporter.closed_with == ("finished", {})


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "a/b", "..", "x" * 5000, "nul\0byte", "<b> ü", ".hidden"]
)
def test_a_name_is_no_way_out_of_the_folder(settings, tmp_path, name):
    with Panel(name, settings=settings) as panel:
        train(panel)
    (path,) = tmp_path.glob("**/run_record.json")
    assert path.parent.parent.parent == settings.home / "runs"
    assert records.read(path).name == name and path.parent.name == panel.run_id


def test_odd_metrics_do_not_lose_the_record(panel, settings):
    with panel:
        panel.report({"loss": float("nan"), "big": float("inf"), "text": "t", "list": [1], 7: 1})
    (record,) = records.find(settings.home)
    assert record.metrics["loss"] != record.metrics["loss"] and record.metrics["7"] == 1


def test_a_run_in_which_nothing_happened(panel, settings):
    with panel:
        pass
    (record,) = records.find(settings.home)
    assert (record.state, record.epochs, record.seconds_to_start, record.rows_per_second) == (
        "finished", 0, None, None,
    )  # fmt: skip


# -- other processes ------------------------------------------------------------------------------------


def remote_train(tracker, rank):
    """The training function of these tests, in a worker."""
    os.environ["RANK"] = str(rank)
    for epoch in range(2):
        for _ in tracker.steps([[0] * 10] * 5, epoch=epoch, epochs=2):
            tracker.log(loss=1.0 + rank)
    print("done with", rank)
    tracker.report({"loss": 7.0})


def test_events_of_other_processes(settings):
    panel = Panel("run", engine="spawn", world_size=2, settings=settings)
    spawn = multiprocessing.get_context("spawn")
    with panel:
        workers = [spawn.Process(target=remote_train, args=(panel, rank)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
    state = panel.state
    assert sorted(state.workers) == [0, 1]
    assert len({worker.pid for worker in state.workers.values()}) == 2
    assert all((worker.epoch, worker.step) == (1, 5) for worker in state.workers.values())
    assert sorted(state.prints) == ["[rank 0] done with 0", "[rank 1] done with 1"]
    assert len(state.history) == 2  # both reported; an engine's panel hears one report for all
    assert (len(state.epoch_seconds), state.workers.restarts) == (2, 0)
    assert panel._listener is None


def test_a_pickled_panel_is_a_tracker_and_tells_no_key(panel, monkeypatch):
    class Elsewhere:
        def write(self, text):
            return len(text)

    monkeypatch.setattr(sys, "stdout", Elsewhere())
    with panel:
        tracker = pickle.loads(pickle.dumps(panel))
        assert type(tracker) is RemoteTracker
        key = panel.listen().address[2]
        assert key not in repr(panel) + repr(tracker) + repr(panel.listen()) + repr(panel.__reduce__())
        with tracker.working():
            for _ in tracker.steps([1, 2, 3]):
                pass
        until(lambda: panel.state.workers.leader is not None and panel.state.workers.leader.step == 3)


def test_a_worker_that_outlives_its_run(panel):
    """It neither disturbs the next run nor is disturbed itself."""
    with panel:
        payload = pickle.dumps(panel)
    code = """
import pickle, sys
tracker = pickle.loads(sys.stdin.buffer.read())
for _ in tracker.steps(range(1000)):
    tracker.log(loss=1.0)
tracker.report({"loss": 1.0})
print("went on")
"""
    with panel:
        done = subprocess.run([sys.executable, "-c", code], input=payload, capture_output=True, timeout=60)
        assert (done.stdout, done.stderr, done.returncode) == (b"went on\n", b"", 0)
    assert (panel.state.workers, panel.state.history) == ({}, [])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda panel: copy.deepcopy([panel])[0]])
def test_a_copy_within_the_process_is_the_panel_itself(panel, copied):
    """A trainer may copy its configuration; that must not make a worker of the kernel."""
    out = sys.stdout
    assert copied(panel) is panel and sys.stdout is out and panel._listener is None


def test_unpickling_has_no_side_effects(panel):
    out = sys.stdout
    with panel:
        tracker = pickle.loads(pickle.dumps(panel))
        copy.copy(tracker), copy.deepcopy(tracker)
        panel._listener.drain()
        assert panel.state.workers == {} and sys.stdout is out


@pytest.mark.parametrize("use", [pickle.dumps, lambda panel: pickle.dumps([panel])])
def test_pickling_a_finished_panel_leaves_it_as_it_is(panel, use):
    """A later cell that sends a function which mentions `panel` anywhere pickles it."""
    with panel:
        train(panel)
    run, state, metrics = panel.run_id, panel.state, panel.state.metrics()
    payload = use(panel)
    assert (panel.run_id, panel.state, panel._listener) == (run, state, None)
    assert (panel.state.status, panel.state.metrics()) == ("finished", metrics)
    loaded = pickle.loads(payload)
    tracker = loaded[0] if isinstance(loaded, list) else loaded
    with tracker.working():
        train(tracker)  # it reports nowhere, and says nothing


def test_clocks_of_other_machines_differ(panel):
    with panel:
        for ahead in (-100_000, 100_000):
            panel.receive(
                {"kind": "phase", "run": panel.run_id, "name": f"p{ahead}", "at": time.time() + ahead}
            )
        assert all(0 <= seconds < 60 for seconds in panel.state.phase_seconds().values())


def test_it_listens_only_where_somebody_may_call(panel):
    with panel:
        train(panel)
        assert panel._listener is None
    with panel:
        listener = panel.listen()
        assert panel.listen() is listener and listener.address[0] == "127.0.0.1"


def test_a_panel_that_was_pickled_and_never_opened_leaves_no_socket(tmp_path):
    panel = Panel("never", reporter=Recorder(), settings=Settings(home=tmp_path))
    pickle.dumps(panel)
    address = panel.listen().address[:2]
    socket.create_connection(address, timeout=5).close()
    del panel
    gc.collect()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
