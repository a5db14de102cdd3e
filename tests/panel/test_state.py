"""What happened in a run: sequences of events in, numbers out."""

import math
import time

import numpy as np
import pytest

from labkit.panel.training import DECIDED, TrainingRun
from runs_told import T0, Run


@pytest.fixture
def run():
    return Run()


# -- the course of a run --------------------------------------------------------------------------------


def test_phases_are_those_of_rank_0(run):
    run("phase", 2, name="loading").step(3).step(4, step=1)
    run("phase", 5, name="loading").step(7, epoch=1)
    run("phase", 8, name="loading", rank=1, pid=200)
    state = run.state
    assert state.phase_seconds(T0 + 10) == {"preparing": 2.0, "loading": 3.0, "training": 5.0}
    state.end("finished", T0 + 20)
    assert state.phase_seconds(T0 + 100)["training"] == 15.0 and state.elapsed(T0 + 100) == 20.0
    bare = Run()("worker", 4, workers=2)("report", 9, metrics={"loss": 1.0})  # a loop without steps
    assert bare.state.phase_seconds(T0 + 10) == {"preparing": 4.0, "training": 6.0}


def test_waiting_and_the_first_batch(run):
    """The wait for the first batch of all is part of the start; later waits are `data`."""
    run.step(4, seconds=2.0, waiting=2.0, first_wait=2.0)
    assert run.state.waiting_share() is None
    run.step(12, step=5, seconds=10.0, waiting=5.0, first_wait=2.0, done=True)
    run.step(20, epoch=1, seconds=1.0, waiting=1.0, first_wait=1.0, between=7.0)
    run.step(29, epoch=1, step=5, seconds=10.0, waiting=2.0, first_wait=1.0, done=True, between=7.0)
    run("worker", rank=1, pid=200).step(29, rank=1, pid=200, step=9, seconds=31.0, first_wait=22.0)
    assert run.state.waiting_share() == pytest.approx(5 / 18)
    assert run.state.time_breakdown(T0 + 30) == {
        "start": 4.0, "data": 5.0, "training": 13.0, "between epochs": 7.0, "rest": 1.0,
    }  # fmt: skip
    assert run.state.rows_per_second() == pytest.approx(100 / 18 + 90 / 9)
    run("end", 30, seconds=0.5)("end", 30, rank=1, pid=200, seconds=9.0)  # what the loop does at last
    assert run.state.time_breakdown(T0 + 30)["between epochs"] == 7.5
    bare = Run().step(1, step=1, rows=0).step(2, step=9, rows=0)  # without a loader
    assert bare.state.waiting_share() is None and bare.state.rows_per_second() == 0


def test_the_share_that_is_done_and_the_time_left(run):
    run.step(10, epoch=8, total=10, epochs=10)
    assert run.state.eta(T0 + 10) is None
    # It goes on from a checkpoint: what was done before this run cost this run nothing.
    run.step(15, epoch=8, step=5, total=10, epochs=10)
    assert run.state.fraction() == 0.85 and run.state.eta(T0 + 15) == pytest.approx(15)
    by_steps = Run(steps=40).step(1, step=10, total=10, seconds=1.0)
    by_steps.step(2, epoch=1, step=10, total=10, seconds=1.0)
    assert by_steps.state.fraction() == 0.5 and by_steps.state.eta(T0 + 2) == pytest.approx(2)
    assert Run(epochs=3, steps=40).state.steps_of_run is None  # then these are something else
    more = Run(epochs=2).step(1, epoch=1, step=10, total=10).step(2, epoch=2, step=1, total=10)
    assert more.state.fraction() is None and more.state.eta(T0 + 3) is None  # more passes than epochs


def test_a_loop_whose_steps_are_not_seen_is_followed_by_its_reports():
    """Keras makes its steps inside `fit`; without the callback of the lab, the panel has the reports."""
    run = Run(epochs=4)("worker", 4, workers=2)
    assert run.shown(5).progress == (0.0, "preparing")
    for epoch in range(3):
        run("report", 6 + 2 * epoch, metrics={"epoch": epoch, "loss": 0.5})
    assert run.shown(10).progress == (0.75, "epoch 4 of 4 · about 2.0 s left")
    assert run.state.time_breakdown(T0 + 10) == {"start": 4.0, "training": 6.0}
    run("report", 12, metrics={"epoch": 3, "loss": 0.4}).state.end("finished", T0 + 12)
    assert (run.shown(12).what, run.state.fraction()) == ("4 epochs", 1.0)
    assert run.state.to_record()["seconds_to_start"] == 4.0


@pytest.mark.parametrize(
    ("setting", "count"), [("3", None), (2.5, None), (0, None), (-1, None), ([3], None), (np.int64(3), 3)]
)
def test_epochs_of_a_configuration_may_be_anything(setting, count):
    """``train_loop_config["epochs"]`` may be a search space, or a number of numpy."""
    state = TrainingRun("run", epochs=setting, rows=setting)
    assert (state.epochs, state.rows) == (count, count)


def test_the_length_of_a_stream_is_known_after_one_epoch(run):
    run.step(1, step=4, epochs=2)
    assert run.state.fraction() == 0
    run.epoch(0, begin=2, epochs=2).step(8, epoch=1, step=4, epochs=2)
    assert run.state.workers[0].total == 10 and run.state.fraction() == pytest.approx(0.7)
    run.step(9, epoch=1, step=25, epochs=2)
    assert run.state.workers[0].total is None  # and not "step 25 of 10"


def test_a_clock_that_is_set_changes_no_duration(monkeypatch):
    state = TrainingRun("run")
    state.start("preparing")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert state.elapsed() < 60 and state.now() - state.started_at < 60
    state.end("finished")
    assert state.elapsed() < 60 and state.phase_seconds()["preparing"] < 60


# -- several workers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "waiting, rows, slowest",
    [((0.1, 3.0), (10, 10), 1), ((0.1, 0.1), (5, 10), 0), ((0, 0), (19, 20), None)],
)
def test_the_rank_that_holds_up_the_others(waiting, rows, slowest):
    run = Run(world_size=2)
    for rank in (0, 1):
        event = {"rank": rank, "pid": 100 + rank, "metrics": {"loss": 9.0 * rank}}
        run.step(1, **event).step(5, step=rows[rank], seconds=4.0, waiting=waiting[rank], **event)
    worker = run.state.workers.slowest
    assert (worker and worker.rank) == slowest
    assert run.state.metrics() == {"loss": 0.0}  # rank 0 speaks for all


def test_an_elastic_run_shows_the_workers_that_it_has():
    run = Run(engine="Ray Train", world_size=3)
    for rank in range(3):
        run("worker", rank=rank, pid=100 + rank, workers=3).step(1, rank=rank, pid=100 + rank)
    for rank in range(2):  # a node was lost, and the others were started again
        run("worker", 9, rank=rank, pid=200 + rank, workers=2)
    run.step(10, rank=2, pid=102, step=5)  # late words of the dead one
    assert (sorted(run.state.workers), run.state.world_size) == ([0, 1], 2)
    for rank in (2, 0, 1):  # and there is room for three again
        run("worker", 20, rank=rank, pid=300 + rank, workers=3)
    assert {rank: worker.pid for rank, worker in run.state.workers.items()} == {0: 300, 1: 301, 2: 302}
    assert run.state.sizes == [(T0 + 1, 3), (T0 + 9, 2), (T0 + 20, 3)]


def test_steps_after_the_last_checkpoint_that_arrived_are_repeated():
    """Each process counts its epochs and steps from 0 on."""
    run = Run(engine="Ray Train", epochs=4)
    run.step(1, step=1, total=10, metrics={"loss": 1.0}).step(2, step=10, total=10, done=True, seconds=1.0)
    run("saved", 2, epoch=1, step=10).saved(0, 2)
    run.step(3, epoch=1, step=10, total=10, done=True, seconds=1.0, metrics={"loss": 0.9})
    run("saved", 3, epoch=2, step=20)  # on its way to the store
    run.step(4, epoch=2, step=3, total=10, metrics={"loss": 0.8})
    run("failure", 5, text="boom").step(5, epoch=2, step=4, total=10)
    assert "restart" not in run.state.time_breakdown()  # rank 0 has not noticed yet
    run("worker", 6, pid=200).step(6, epoch=2, step=9)  # its last words come after the new one's first
    assert (run.state.repeated, run.state.workers[0].pid) == (0, 200)  # none is made again yet
    run.step(7, step=1, total=10, pid=200, metrics={"loss": 0.95})
    assert (run.state.repeated, run.state.made, run.state.workers[0].epoch) == (14, 11, 1)
    assert run.state.fraction() == pytest.approx(11 / 40) and run.state.time_breakdown()["restart"] == 2
    xs = [x for x, _ in run.state.curve]  # it goes on from the checkpoint and does not run backwards
    assert xs == sorted(xs) and xs[-1] == pytest.approx(1.1)
    run("saved", 8, pid=200, epoch=1, step=10)
    run("worker", 9, pid=300).saved(1, 9)  # the engine tells of it later than it happened
    run.step(10, step=1, total=10, pid=300)
    assert (run.state.repeated, run.state.made, run.state.workers[0].epoch) == (14, 21, 2)
    assert (run.state.workers.restarts, len(run.state.failures)) == (2, 1)


def test_a_restart_takes_from_the_failure_to_the_first_step_that_begins_again():
    run = Run(engine="Ray Train")
    run.step(10, total=10, seconds=1.0)("failure", 20, text="boom")("worker", 25, pid=200)
    run.step(40, total=10, pid=200, seconds=12.0, first_wait=2.0)  # a compilation, in the first step
    assert run.state.time_breakdown(T0 + 40)["restart"] == 10.0
    early = Run(engine="Ray Train")("failure", 5, text="boom")("worker", 10, pid=200)
    early.step(20, total=10, pid=200, seconds=1.0)  # the first one of all: that is its start
    parts = early.state.time_breakdown(T0 + 60)
    assert "restart" not in parts and sum(parts.values()) == pytest.approx(60)


def test_a_checkpoint_that_is_heard_of_while_its_validation_is_pending_has_arrived():
    run = Run(engine="Ray Train", epochs=3)
    run.state.earlier_checkpoints = {"/runs/earlier"}
    run("checkpoint", 1, path="/runs/earlier", status="pending")
    for epoch in range(3):
        run.step(epoch + 1.0, epoch=epoch, step=10, total=10, done=True, seconds=1.0)
        run("saved", epoch + 1.1, epoch=epoch + 1, step=10 * (epoch + 1))
        run("report", epoch + 1.2, metrics={"loss": 1.0}, passes=epoch + 1)
        run("validation", epoch + 1.3, path=f"/runs/{epoch}")  # of another process: it may overtake
        run("checkpoint", epoch + 1.3, path=f"/runs/{epoch}", status="pending", metrics={"loss": 1.0})
    labels = [checkpoint.label for checkpoint in run.state.checkpoints]
    assert labels[1:] == ["epoch 1", "epoch 2", "epoch 3"]


def test_a_rank_that_makes_steps_has_batches():
    run = Run()("empty").step(1)  # a loader for validation had none
    assert run.state.empty == set()


@pytest.mark.parametrize(
    "order", ["saved report checkpoint", "saved checkpoint report", "checkpoint saved report"]
)
@pytest.mark.parametrize("status", ["committed", "pending"])
def test_a_checkpoint_has_the_epoch_of_its_report_whichever_is_heard_of_first(order, status):
    """Workers send the one, and the controller the other: on a busy machine the worker's comes later."""
    run = Run(engine="Ray Train", epochs=3)
    run.state.earlier_checkpoints = {"/runs/earlier"}
    run("checkpoint", 1, path="/runs/earlier", status=status)
    for epoch in range(3):
        run.step(epoch + 1.0, epoch=epoch, step=10, total=10, done=True, seconds=1.0)
        events = {
            "saved": {"epoch": epoch + 1, "step": 10 * (epoch + 1)},
            "report": {"metrics": {"loss": 1.0}, "passes": epoch + 1},
            "checkpoint": {"path": f"/runs/{epoch}", "status": status, "metrics": {"loss": 1.0}},
        }
        for kind in order.split():
            run(kind, epoch + 1.1, **events[kind])
    labels = [checkpoint.label for checkpoint in run.state.checkpoints]
    assert labels[1:] == ["epoch 1", "epoch 2", "epoch 3"]


# -- reports, and what is too late ---------------------------------------------------------------------


def test_prints_failures_and_what_comes_after_the_end():
    run = Run(world_size=2)("failure", rank=1, text="ValueError: no")
    for k in range(1000):
        run("print", text=f"line {k}", rank=1, pid=9)
    state = run.state
    assert state.printed == 1000 and list(state.prints) == [f"[rank 1] line {k}" for k in range(800, 1000)]
    assert [(failure.rank, failure.message) for failure in state.failures] == [(1, "ValueError: no")]
    state.end("failed", T0 + 6)
    version = state.version
    run("print", text="late")("report", metrics={"loss": 1}).step(9, epoch=1, step=5)
    assert (state.version, state.printed, state.history) == (version, 1000, [])


# -- checkpoints and validations ------------------------------------------------------------------------


def test_a_checkpoint_and_its_states(run):
    run("checkpoint", path="/c/0", bytes=100)
    run("report", metrics={"epoch": 4, "loss": 1.0})
    run("checkpoint", path="/c/1", bytes=200, status="pending", metrics={"loss": 1.0})
    run("checkpoint", path="/c/1", status="deleted")
    first, second = run.state.checkpoints
    assert (first.label, first.bytes, first.status, first.deleted) == (
        "before epoch 1",
        100,
        "committed",
        False,
    )
    assert (second.label, second.bytes, second.status, second.deleted) == ("epoch 5", 200, "pending", True)
    assert run.state.kept == 1 and run.state.to_record()["checkpoint"] == "/c/0"


def test_metrics_of_a_validation_arrive_late_and_the_record_keeps_them(run):
    run.epoch(0, 10).saved(0, 15.2).saved(0, 15.4, "pending").validation(0, 16, 19)
    checkpoint = run.state.checkpoints[0]
    assert (checkpoint.label, checkpoint.status, checkpoint.late) == ("epoch 1", "pending", {})
    run.decided(0, 19.5, accuracy=0.9, loss=0.7)
    assert (checkpoint.status, checkpoint.late) == ("validated", {"accuracy": 0.9, "loss": 0.7})
    assert checkpoint.seconds == pytest.approx(3)
    assert run.row("validation") == [("1", 16, 19, "validated")]
    (kept,) = run.state.to_record()["extra"]["checkpoints"]
    assert (kept["checkpoint"], kept["status"], kept["seconds_to_metric"]) == ("epoch 1", "validated", 4.5)
    assert kept["metrics"] == {"epoch": 0, "loss": 0.7, "accuracy": 0.9}
    other = Run().epoch(0, 10).saved(0, 16)
    assert other.state.timeline(T0 + 20) == [] and other.state.to_record()["extra"] == {}


@pytest.mark.parametrize("status", DECIDED)
def test_what_was_decided_stays(run, status):
    """The controller and the validation's process have a connection each: one may be overtaken."""
    run.decided(0, 20, status).saved(0, 21).saved(0, 21, "pending").validation(0, 18, 19)
    assert (run.state.checkpoints[0].status, run.state.checkpoints[0].decided_at) == (status, T0 + 20)


def test_validations_on_the_time_axis(run):
    run.saved(0, 15).validation(0, 16).decided(0, 26, "timed out")  # one that is killed says nothing
    run.saved(1, 20).validation(1, 21, 22, text="ValueError: no\nrows")  # known before Ray says so
    run.validation(3, 30).saved(3, 31, "pending")  # of an earlier run: heard of before its metrics are
    assert [checkpoint.validating for checkpoint in run.state.checkpoints] == [False, False, True]
    assert run.row("validation", now=40) == [
        ("1", 16, 26, "timed out"), ("2", 21, 22, "failed"), ("4", 30, 40, ""),
    ]  # fmt: skip
    assert run.state.checkpoints[1].reason == "ValueError: no rows"


# -- where a loop is when it reports --------------------------------------------------------------------


def test_a_step_of_the_next_epoch_may_overtake_a_report():
    """A report says how many passes were over when it was made, so the order of arrival doesn't count."""
    for first in (0, 1):
        run = Run(epochs=3, engine="Ray Train")
        for epoch in (0, 1, 2):
            run.epoch(epoch, epoch * 10, total=10)
        for epoch in (0, 1, 2):
            run("report", 40, metrics={"epoch": epoch + first, "loss": 1.0}, passes=epoch + 1, step=0)
            run.saved(epoch + first, 41)
        assert [report["epoch"] for report in run.state.history] == [0, 1, 2] and run.state.fraction() == 1.0
        assert [checkpoint.label for checkpoint in run.state.checkpoints] == ["epoch 1", "epoch 2", "epoch 3"]


# A loop: (its epoch, passes that were over, steps since) of each report; the epochs shown, from 0.
# Loops that report once an epoch, twice, or in fractions also run in tests/train/test_epochs.py.
COUNTED = {
    "from 1, twice an epoch": ([(1, 0, 5), (1, 1, 0), (2, 1, 5), (2, 2, 0)], [0, 0, 1, 1]),
    "from 0, in the last step": ([(0, 0, 10), (1, 1, 10)], [0, 1]),
    "halves, from the first step on": ([(0.0, 0, 1), (0.5, 0, 5), (1.0, 1, 0)], [0, 0, 0]),
    "whole ones of fractions": ([(1.0, 1, 0), (1.5, 1, 5), (2.0, 2, 0)], [0, 0.5, 1]),
    "two passes an epoch, from 0": ([(0, 2, 0), (1, 4, 0), (2, 6, 0)], [0, 1, 2]),
    "two passes an epoch, from 1": ([(1, 2, 0), (2, 4, 0), (3, 6, 0)], [0, 1, 2]),
    "every second epoch, from 0": ([(1, 2, 0), (3, 4, 0)], [1, 3]),
    "every second epoch, from 1": ([(2, 2, 0), (4, 4, 0)], [1, 3]),
    "the untrained model, from 0": ([(0, 0, 0), (0, 1, 0), (1, 2, 0)], [0, 0, 1]),
    "the untrained model is 0": ([(0, 0, 0), (1, 1, 0), (2, 2, 0)], [0, 0, 1]),
    "no epoch, twice an epoch": ([(None, 0, 5), (None, 1, 0), (None, 1, 5)], [0, 0, 1]),
    "no number": ([("one", 1, 0), (math.nan, 2, 0), (True, 3, 0)], [0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("loop", COUNTED)
def test_however_a_loop_counts(loop):
    reports, epochs = COUNTED[loop]
    run = Run(engine="Ray Train").epoch(0, 1, total=10).epoch(1, 11, total=10)
    for epoch, passes, step in reports:
        metrics = {"loss": 1.0} if epoch is None else {"loss": 1.0, "epoch": epoch}
        run("report", 30, metrics=metrics, passes=passes, step=step)
    assert [report["epoch"] for report in run.state.history] == epochs
    for curve in run.shown(31).plot.curves:
        assert [x for x, _ in curve.points] == sorted(x for x, _ in curve.points)


@pytest.mark.parametrize(
    ("numbered", "earlier"),  # (number of the checkpoint, epoch in its metrics)
    [
        ([(2, 2)], 3),  # the others were deleted
        ([(2, 3)], 3),
        ([(1, 1), (3, 3)], 4),  # every second epoch, from 0
        ([(1, 0), (3, 1)], 2),  # two reports an epoch, from 0 and from 1
        ([(1, 1), (3, 2)], 2),
        ([(0, 0.5), (1, 1.0), (2, 1.5)], 1),
        ([(0, "x"), (1, math.nan), (2, [1])], 3),
        ([], 0),
    ],
)
def test_how_many_epochs_an_earlier_run_has_made(numbered, earlier):
    run = Run(epochs=9, engine="Ray Train")
    run.state.goes_on_after((number, {"epoch": epoch}) for number, epoch in numbered)
    assert run.state.earlier == earlier


def test_a_report_of_a_process_that_is_gone_comes_too_late(run):
    run("worker", pid=100)("worker", pid=200)("report", pid=100, metrics={"loss": 1.0}, passes=2, step=0)
    assert run.state.history == []
