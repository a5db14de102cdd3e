"""What a validation and a controller tell the panel, from wherever they run."""

import time
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle
from ray.train import ReportedCheckpointStatus

from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
from labkit.settings import Settings
from labkit.train.callbacks import (
    STATUSES,
    CheckpointStatusCallback,
    ReportingValidator,
    first_failure,
    quiet_deaths,
)
from labs import until

CHECKPOINT = SimpleNamespace(path="/runs/checkpoint_1")


@pytest.fixture
def panel(tmp_path):
    settings = Settings.from_env({"LABKIT_HOME": str(tmp_path)})
    with Panel("run", reporter=NullReporter(), settings=settings) as panel:
        yield panel


def sent(thing):
    """As it comes out in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))


def heard(panel):
    """The checkpoint of which the panel has heard that its validation is over."""
    until(lambda: panel.state.checkpoints and panel.state.checkpoints[0].seconds is not None)
    return panel.state.checkpoints[0]


def spans_of(panel, row):
    """The bars of one row of the time axis."""
    return [span for span in (*panel.state.trained, *panel.state.timeline(time.time())) if span.row == row]


def test_a_validation_is_the_function_that_it_watches(panel):
    def validate(checkpoint, rows=10):
        """What it is for."""
        return {"path": checkpoint.path, "rows": rows}

    watched = ReportingValidator(validate, panel)
    assert (watched.__name__, watched.__doc__) == ("validate", "What it is for.")
    assert sent(watched)(CHECKPOINT, rows=3) == {"path": CHECKPOINT.path, "rows": 3}
    assert heard(panel).reason == ""
    (span,) = spans_of(panel, "validation")
    assert span.end is not None and span.status == ""
    panel._listener.close()
    assert sent(watched)(CHECKPOINT)["rows"] == 10  # a panel that is gone changes nothing


def reported(path, status, **metrics):
    checkpoint = SimpleNamespace(path=path)
    return SimpleNamespace(checkpoint=checkpoint, status=ReportedCheckpointStatus[status], metrics=metrics)


def test_each_change_is_told_once(panel):
    assert set(STATUSES) == {status.value for status in ReportedCheckpointStatus}
    callback, told = sent(CheckpointStatusCallback(panel)), []
    callback.panel.send = lambda **event: told.append((event["path"], event["status"], event["metrics"]))
    callback._known = {}
    pending, validated = reported("/b", "PENDING_VALIDATION"), reported("/b", "VALIDATED", score=1)
    for found in ([pending], [pending], [validated, reported("/d", "COMMITTED")], [validated]):
        callback._send_changes(found)
    assert told == [("/b", "pending", {}), ("/b", "validated", {"score": 1}), ("/d", "committed", {})]


def test_that_a_worker_died_is_not_printed_besides(capsys):
    from ray._private import worker

    printed = worker.print_to_stdstream
    death = "A worker died or was killed while executing a task by an unexpected system error."
    with quiet_deaths():
        for text in (death, "the disk is nearly full"):
            data = {"lines": [text], "pid": "raylet", "is_err": False}
            worker.print_to_stdstream(data, ignore_prefix=False)
    said = capsys.readouterr().out
    assert "the disk is nearly full" in said and "died" not in said
    assert worker.print_to_stdstream is printed


class HealthCheckFailed(Exception):
    def __init__(self, message):
        super().__init__("A worker health check failed.")
        self.health_check_failure = ray.exceptions.RayActorError(error_msg=message)


DEAD = HealthCheckFailed("The actor is dead because its worker process has died.")
LOST = HealthCheckFailed("The actor died unexpectedly because its node has died.")
OF_RAY = {"__module__": "ray.train.v2._internal.exceptions"}
HUNG = type("WorkerHealthCheckTimeoutError", (Exception,), OF_RAY)(
    "A worker health check has been hanging for 5 s.\nSet RAY_TRAIN_… to wait longer"
)
GLOO = RuntimeError("Traceback (most recent call last):\n  …\nRuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    "exceptions, rank, text",
    [
        ({0: GLOO, 1: DEAD}, 1, "rank 1 is gone: killed, or out of memory"),
        ({0: GLOO, 2: LOST}, 2, "rank 2 is gone: its node was lost"),
        ({1: HUNG}, 1, "rank 1 failed: A worker health check has been hanging for 5 s."),
        ({0: GLOO, 1: GLOO}, 0, f"RuntimeError: {GLOO}"),
    ],
)
def test_the_failure_that_caused_the_others_is_told(exceptions, rank, text):
    assert first_failure(exceptions) == (rank, text)
