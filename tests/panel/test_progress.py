"""What happened in a run: sequences of events in, numbers out."""

import math

import numpy as np
import pytest

from labkit.panel.state.base import Failure
from labkit.panel.state.run import RunState
from odd_events import T0, fuzzed, tell


class Run:
    """Feeds a state as workers would; `at` is in seconds since the start of the run."""

    def __init__(self, **about):
        self.state = RunState("run", **about)
        self.state.start("preparing", T0)

    def __call__(self, kind, at=1.0, **data):
        tell(self.state, {"kind": kind, "at": T0 + at, "rank": 0, "pid": 100, "node": "head", **data})
        return self

    def step(self, at, *, epoch=0, step=0, total=None, rows=None, seconds=0.0, waiting=0.0, **data):
        rows = step * 10 if rows is None else rows
        counts = {"epoch": epoch, "step": step, "total": total, "rows": rows, "seconds": seconds}
        return self("step", at, **counts, waiting=waiting, **data)

    def epoch(self, epoch, *, begin, steps=10, seconds=5.0, **data):
        """One epoch of `steps` steps, told in full."""
        for k in range(steps + 1):
            done = seconds * k / steps
            self.step(begin + done, epoch=epoch, step=k, seconds=done, done=k == steps, **data)
        return self


@pytest.fixture
def run():
    return Run()


def names(state):
    return list(state.phase_seconds())


# -- the course of a run --------------------------------------------------------------------------------


def test_before_it_begins():
    state = RunState("run")
    assert (state.status, state.phase, state.leader, state.curve, state.epoch_seconds) == (
        "ready", "", None, [], [],
    )  # fmt: skip
    assert (state.elapsed(), state.fraction(), state.eta(), state.rows_per_second()) == (0, None, None, 0)
    assert (state.waiting_share(), state.metrics(), state.time_breakdown()) == (None, {}, {"start": 0.0})


def test_phases(run):
    run("phase", 2, name="loading").step(3).step(4, step=1)
    run("phase", 5, name="loading").step(7, epoch=1)
    state = run.state
    assert state.phase == "training"
    assert state.phase_seconds(T0 + 10) == {"preparing": 2.0, "loading": 3.0, "training": 5.0}
    state.end("finished", T0 + 20)
    assert state.phase_seconds(T0 + 100)["training"] == 15.0
    assert (state.elapsed(T0 + 100), state.status) == (20.0, "finished")


def test_a_clock_that_goes_back(run):
    run("phase", 10, name="loading")
    run("phase", 5, name="evaluating")
    assert min(run.state.phase_seconds(T0 - 100).values()) == 0
    assert run.state.elapsed(T0 - 100) == 0
    run.step(-50)
    assert run.state.time_breakdown(T0 + 1)["start"] == 0


def test_only_rank_0_says_which_phase_it_is(run):
    run("phase", name="loading", rank=1, pid=200)
    assert run.state.phase == "preparing"


def test_epochs_and_totals(run):
    run.epoch(0, begin=2, total=10, epochs=2)
    state = run.state
    assert (state.epochs, state.leader.total, state.leader.step, state.fraction()) == (2, 10, 10, 0.5)
    assert state.epoch_seconds == [5.0]
    run.epoch(1, begin=8, total=10, epochs=2, between=1.0)
    assert state.fraction() == 1.0
    assert state.epoch_seconds == [5.0, 5.0]
    assert state.leader.totals["rows"] + state.leader.rows == 200
    state.end("finished", T0 + 13)
    assert state.rows_per_second() == 20.0
    assert state.time_breakdown() == {
        "start": 2.0, "data": 0.0, "training": 10.0, "between epochs": 1.0, "rest": 0.0,
    }  # fmt: skip


def test_waiting_and_the_first_batch(run):
    """The wait for the first batch of all is part of the start; later waits are `data`."""
    run.step(4, seconds=2.0, waiting=2.0, first_wait=2.0)
    run.step(12, step=5, seconds=10.0, waiting=5.0, first_wait=2.0, done=True)
    run.step(20, epoch=1, seconds=1.0, waiting=1.0, first_wait=1.0, between=7.0)
    run.step(29, epoch=1, step=5, seconds=10.0, waiting=2.0, first_wait=1.0, done=True, between=7.0)
    state = run.state
    assert state.waiting_share() == pytest.approx(5 / 18)
    assert state.time_breakdown(T0 + 30) == {
        "start": 4.0, "data": 5.0, "training": 13.0, "between epochs": 7.0, "rest": 1.0,
    }  # fmt: skip


def test_the_rate_of_all_does_not_count_the_start(run):
    """A pipeline that needs 40 s until its first batch is not a slow one."""
    run.step(41, seconds=40.0, waiting=40.0, first_wait=40.0)
    assert run.state.waiting_share() is None
    run.step(42, step=10, rows=100, seconds=41.0, waiting=40.5, first_wait=40.0, done=True)
    run("worker", rank=1, pid=200).step(42, rank=1, pid=200, step=10, rows=50, seconds=31.0, first_wait=30.0)
    run.state.end("finished", T0 + 42)
    assert run.state.rows_per_second() == 150
    assert run.state.waiting_share() == 0.5


def test_eta(run):
    run.step(10, total=10, epochs=4)
    assert run.state.eta(T0 + 10) is None  # nothing is done yet
    run.step(15, step=5, total=10, epochs=4, seconds=5.0)
    assert run.state.eta(T0 + 15) == pytest.approx(35)  # half an epoch took 5 s, 3.5 are left
    run.state.end("finished", T0 + 16)
    assert run.state.eta() is None


def test_eta_of_a_run_that_goes_on_from_a_checkpoint(run):
    """What was done before this run cost this run nothing."""
    run.step(10, epoch=8, total=10, epochs=10)
    run.step(15, epoch=8, step=5, total=10, epochs=10)
    assert run.state.fraction() == 0.85
    assert run.state.eta(T0 + 15) == pytest.approx(15)


@pytest.mark.parametrize("odd", ["3", 2.5, 0, -1, None, [3], object()])
def test_epochs_of_a_configuration_may_be_anything(odd):
    """``train_loop_config["epochs"]`` may be a search space, or not a number at all."""
    run = Run(epochs=odd, rows=odd)
    run.state.epochs = odd
    run.step(1, step=5, total=10)
    assert (run.state.epochs, run.state.fraction(), run.state.eta()) == (None, None, None)
    run.step(2, step=6, total=10, epochs=2)
    assert run.state.fraction() == 0.3


def test_numbers_of_numpy_are_numbers():
    state = RunState("run", epochs=np.int64(3), rows=np.uint8(7))
    assert (state.epochs, state.rows) == (3, 7)


def test_more_epochs_than_were_promised(run):
    run.step(1, total=10, epochs=1).step(5, epoch=3, step=5, total=10, epochs=1)
    assert (run.state.fraction(), run.state.eta(T0 + 9)) == (1.0, 0.0)


def test_the_length_of_a_stream_is_known_after_one_epoch(run):
    run.epoch(0, begin=0, epochs=2)
    assert run.state.fraction() == 0.5
    run.step(6, epoch=1, step=4, epochs=2)
    assert run.state.leader.total == 10
    assert run.state.fraction() == pytest.approx(0.7)


def test_an_epoch_that_is_longer_than_the_last(run):
    run.epoch(0, begin=0, epochs=2)
    run.step(6, epoch=1, step=25, epochs=2)
    assert run.state.leader.total is None  # and not "step 25 of 10"
    assert run.state.fraction() == 0.5


def test_an_epoch_without_any_batch(run):
    run.step(1, total=0, epochs=2, done=True).step(2, epoch=1, total=0, epochs=2, done=True)
    assert run.state.epoch_seconds == []
    assert run.state.fraction() == 0.5


def test_rows_per_second_while_it_runs(run):
    run.step(1).step(2, step=10, rows=100, seconds=1.0)
    assert run.state.rows_per_second() == 100
    run.step(3, step=30, rows=500, seconds=2.0)
    assert run.state.rows_per_second() == 400
    run.step(3, step=30, rows=500, seconds=2.0, done=True)  # nothing new: no division by nothing
    assert run.state.rows_per_second() == 400
    run.step(4, epoch=1, step=0, rows=0, seconds=0.0)
    assert run.state.rows_per_second() == 400


# -- epochs that do not say that they are done ----------------------------------------------------------


def test_a_loop_left_by_break_is_an_epoch_once_it_is_reported(run):
    run.step(1, step=5, seconds=2.0)
    assert run.state.epoch_seconds == []
    run("report", metrics=[{"loss": 1.0}])
    assert run.state.epoch_seconds == [2.0]


def test_a_loop_left_by_break_is_an_epoch_once_the_next_begins(run):
    run.step(1, step=5, seconds=2.0).step(2, epoch=1)
    assert run.state.epoch_seconds == [2.0]


def test_a_loop_left_by_break_is_an_epoch_when_the_run_is_finished(run):
    run.step(1, step=5, seconds=2.0)
    run.state.end("finished", T0 + 5)
    assert run.state.epoch_seconds == [2.0]


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_an_epoch_that_was_cut_off_is_none(run, status):
    run.epoch(0, begin=0).step(7, epoch=1, step=5, seconds=2.0)
    run.state.end(status, T0 + 8)
    assert run.state.epoch_seconds == [5.0]


def test_a_report_that_overtakes_the_last_step(run):
    """They come over different connections."""
    run.step(1, step=5, seconds=2.0)
    run("report", metrics=[{"loss": 1.0}], epoch=0)
    run.step(2, step=9, seconds=2.5, done=True)
    assert run.state.epoch_seconds == [2.5]


def test_a_report_that_comes_late(run):
    run.epoch(0, begin=0).step(6, epoch=1, step=3, seconds=1.0)
    run("report", metrics=[{"loss": 1.0}], epoch=0)
    assert run.state.epoch_seconds == [5.0]


def test_several_loops_in_an_epoch_add_up(run):
    run.epoch(0, begin=0, seconds=5.0).epoch(0, begin=6, seconds=2.0).epoch(1, begin=9, seconds=4.0)
    assert run.state.epoch_seconds == [7.0, 4.0]


# -- several workers ------------------------------------------------------------------------------------


def test_two_ranks():
    run = Run(world_size=2)
    run("worker", rank=1, pid=200, node="node-2")("worker", rank=0, pid=100)
    state = run.state
    assert state.leader.rank == 0
    assert [(w.rank, w.pid, w.node) for _, w in sorted(state.workers.items())] == [
        (0, 100, "head"),
        (1, 200, "node-2"),
    ]
    run.step(1).step(1, rank=1, pid=200, node="node-2")
    run.step(2, step=5, rows=50, seconds=1.0, metrics={"loss": 0.5})
    run.step(2, step=3, rows=30, seconds=1.0, rank=1, pid=200, node="node-2", metrics={"loss": 9.0})
    assert state.rows_per_second() == 80
    assert state.metrics() == {"loss": 0.5}  # rank 0 speaks for all
    assert (state.leader.step, state.workers[1].step) == (5, 3)
    assert state.restarts == 0
    state.end("finished", T0 + 3)
    assert state.rows_per_second() == 80


def test_a_rank_that_was_started_again(run):
    run.epoch(0, begin=0, metrics={"loss": 1.0}).step(6, epoch=1, step=5, seconds=1.0, metrics={"loss": 0.9})
    run("worker", rank=1, pid=200).step(6, rank=1, pid=200).step(7, rank=1, pid=200, step=5, seconds=1.0)
    state = run.state
    assert state.rows_per_second() > 0
    run("failure", text="boom")
    run("worker", 10, pid=300)("phase", 10, pid=300, name="loading")
    assert state.restarts == 1
    assert state.rows_per_second() == 0  # the others start again as well
    # The dead process's last words come after the new one's first.
    run.step(11, epoch=1, step=9, seconds=2.0)
    assert (state.leader.pid, state.leader.step, state.restarts) == (300, 0, 1)
    run.step(12, epoch=1, step=1, pid=300, seconds=0.5, metrics={"loss": 0.95}, total=10)
    assert (state.leader.pid, state.restarts) == (300, 1)
    # The curve goes on from the checkpoint and does not run backwards.
    xs = [x for x, _ in state.curve]
    assert xs == sorted(xs) and state.curve[-1] == (1.1, {"loss": 0.95})
    run.step(15, epoch=1, step=10, pid=300, seconds=3.0, done=True)
    assert state.epoch_seconds == [5.0, 3.0]
    assert len(state.failures) == 1


def test_the_same_pid_on_another_node_is_another_process(run):
    """In containers every worker may be process 7."""
    run.step(1, step=3).step(2, step=0, node="node-2")
    assert (run.state.restarts, run.state.leader.node) == (1, "node-2")


def test_a_worker_is_seen_before_it_has_done_anything(run):
    run("worker", rank=1, pid=7, node="n")
    assert [(worker.rank, worker.node, worker.step) for worker in run.state.workers.values()] == [(1, "n", 0)]


def test_reports_with_and_without_epoch(run):
    run("report", metrics=[{"loss": 1.0}])
    run("report", metrics=[{"loss": 0.5}], epoch=None)
    run("report", metrics=[{"loss": 0.4, "epoch": 7}])
    run("report", metrics=[{"loss": 0.3, "epoch": 7.0}], epoch=9)
    run("report", metrics=[{"loss": 0.2, "epoch": "last"}])
    run("report", metrics=[{"loss": 0.1, "epoch": math.nan}])
    run("report", metrics=[])
    run("report")
    history = run.state.history
    assert [report["epoch"] for report in history] == [0, 1, 7, 9, 4, 5, 6, 7]
    assert all(type(report["epoch"]) is int for report in history)
    assert history[-1] == {"epoch": 7}


def test_metrics_are_the_newest(run):
    state = run.state
    run.step(1, metrics={"loss": 3.0})
    assert state.metrics() == {"loss": 3.0}
    run.step(2, step=5, metrics={"loss": 2.0})
    run("report", metrics=[{"loss": 1.5, "accuracy": 0.9}])
    # Between two epochs it is the report that is new, not the last batch.
    assert state.metrics() == {"loss": 1.5, "accuracy": 0.9}
    run.step(3, epoch=1, step=0, metrics={"loss": 2.0})
    assert state.metrics() == {"loss": 1.5, "accuracy": 0.9}
    run.step(4, epoch=1, step=1, metrics={"loss": 1.4})
    assert state.metrics() == {"loss": 1.4, "accuracy": 0.9}
    state.end("finished", T0 + 9)
    assert state.metrics() == {"loss": 1.5, "accuracy": 0.9}


def test_a_run_that_never_reports_keeps_what_it_logged(run):
    run.step(1, step=5, metrics={"loss": 2.0})
    run.state.end("finished", T0 + 9)
    assert run.state.metrics() == {"loss": 2.0}


def test_the_curve_is_thinned_and_keeps_its_ends(run):
    for k in range(10_001):
        run.step(k, step=k, total=10_000, metrics={"loss": float(k)})
        if k in (0, 1, 239, 240, 241, 5000, 9999, 10_000):
            points = run.state.curve
            assert min(k, 100) < len(points) <= 240
            assert points[0][1] == {"loss": 0.0} and points[-1] == (k / 10_000, {"loss": float(k)})
            xs = [x for x, _ in points]
            assert xs == sorted(set(xs))
            gaps = [b - a for a, b in zip(xs, xs[1:], strict=False)]
            assert (
                max(gaps, default=0) <= max(k / 100, 1) / 10_000 + 1e-9
            )  # as dense in its beginning as at its end


def test_the_curve_of_a_stream_is_no_vertical_line(run):
    for k in range(0, 101, 10):
        run.step(k, step=k, metrics={"loss": 1.0})
    xs = [x for x, _ in run.state.curve]
    assert xs == pytest.approx([k / 10 for k in range(11)])
    run.step(101, step=200, done=True, metrics={"loss": 1.0})
    assert [x for x, _ in run.state.curve][5] == pytest.approx(0.25)
    run.step(102, epoch=1, step=50, metrics={"loss": 1.0})
    assert run.state.curve[-1][0] == pytest.approx(1.25)


def test_steps_without_metrics_are_no_points(run):
    run.epoch(0, begin=0)
    assert run.state.curve == []


# -- checkpoints, prints, failures ----------------------------------------------------------------------


def test_a_checkpoint_and_its_states(run):
    run("checkpoint", path="/c/0", bytes=100)
    run("report", metrics=[{"loss": 1.0}], epoch=4)
    run("checkpoint", path="/c/1", bytes=200, status="pending", metrics={"loss": 1.0})
    run("checkpoint", path="/c/1", status="validated", metrics={"accuracy": 0.9})
    run("checkpoint", path="/c/2", label="mine", status="failed")
    first, second, third = run.state.checkpoints
    assert (first.label, first.bytes, first.status) == ("before epoch 1", 100, "committed")
    assert (second.label, second.bytes, second.status) == ("epoch 5", 200, "validated")
    assert second.metrics == {"loss": 1.0, "accuracy": 0.9}
    assert (third.label, third.bytes, third.status) == ("mine", None, "failed")


def test_prints(run):
    for k in range(1000):
        run("print", text=f"line {k}")
    assert run.state.printed == 1000
    assert list(run.state.prints) == [f"line {k}" for k in range(800, 1000)]
    many = Run(world_size=2)("print", text="hello", rank=1, pid=9)
    assert list(many.state.prints) == ["[rank 1] hello"]


def test_failures(run):
    run.step(1, epoch=2, step=1)
    run("failure", text="Traceback\nValueError: no")("failure", rank=3, text="")
    first, second = run.state.failures
    assert (first.rank, first.epoch, first.message) == (0, 2, "ValueError: no")
    assert (second.rank, second.epoch, second.message) == (3, None, "no message")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop, cell 5, line 3\n    x = 1 / 0\nZeroDivisionError: by zero", "ZeroDivisionError: by zero"),
        (
            "DatasetError: could not load\n  because it is gone\n  fix: fetch it",
            "DatasetError: could not load",
        ),
        ("RuntimeError: Error(s) in loading\n\tMissing key(s): a", "RuntimeError: Error(s) in loading"),
        ("  all indented\n\n", "no message"),
        ("\n\n", "no message"),
    ],
)
def test_the_message_of_a_failure(text, message):
    assert Failure(rank=0, text=text).message == message


def test_a_restart_has_seconds_of_its_own_and_what_was_done_before_still_counts(run):
    run.epoch(0, begin=2)  # seconds 2 to 7
    run("failure", 8, rank=1, text="rank 1 is gone")
    run.step(9, epoch=1, step=1)  # rank 0 has not noticed yet: no restart
    assert "restart" not in run.state.time_breakdown()
    run("worker", 12, pid=300).step(14, epoch=1, pid=300).step(17, epoch=1, step=3, seconds=3.0, pid=300)
    run.state.end("finished", T0 + 17)
    assert run.state.time_breakdown() == {
        "start": 2.0, "data": 0.0, "training": 8.0, "between epochs": 0.0, "restart": 6.0, "rest": 1.0,
    }  # fmt: skip


# -- what is none of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
def test_what_comes_after_the_end_is_too_late(run, status):
    run.epoch(0, begin=0)
    run.state.end(status, T0 + 6)
    before = (names(run.state), run.state.version, run.state.printed, run.state.epoch_seconds)
    run("phase", name="loading")("print", text="late")("report", metrics=[{"loss": 1}])
    run.step(9, epoch=1, step=5)
    assert (names(run.state), run.state.version, run.state.printed, run.state.epoch_seconds) == before
    assert sum(run.state.phase_seconds(T0 + 100).values()) == 6


def test_only_news_count(run):
    version = run.state.version
    run("nonsense")("step_of_leader")("step")("print")
    assert run.state.version == version
    run("print", text="x")
    assert run.state.version > version


@pytest.mark.parametrize("seed", range(40))
def test_no_event_raises_and_the_numbers_stay_sound(seed):
    state = fuzzed(seed)
    for status in ("running", "finished"):
        if status == "finished":
            state.end(status, T0 + 2000)
        now = T0 + 1500
        assert state.fraction() is None or 0 <= state.fraction() <= 1
        assert state.eta(now) is None or (state.eta(now) >= 0 and math.isfinite(state.eta(now)))
        assert state.waiting_share() is None or 0 <= state.waiting_share() <= 1
        assert math.isfinite(state.rows_per_second()) and state.rows_per_second() >= 0
        for seconds in (
            *state.time_breakdown(now).values(),
            *state.phase_seconds(now).values(),
            *state.epoch_seconds,
        ):
            assert seconds >= 0 and math.isfinite(seconds)
        assert all(math.isfinite(x) and x >= 0 for x, _ in state.curve)
        assert all(type(report["epoch"]) is int and report["epoch"] >= 0 for report in state.history)
        assert all(type(rank) is int for rank in state.workers)
        assert all(isinstance(text, str) for text in state.prints)
        assert isinstance(state.metrics(), dict)
